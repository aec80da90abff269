"""SGLang's command line: the flags of each version, and a profile rendered with them. Start at `arguments.render`."""
