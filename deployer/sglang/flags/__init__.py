"""SGLang's arguments by version: the tables, and the way from a profile's concepts to a command line (`arguments`)."""
