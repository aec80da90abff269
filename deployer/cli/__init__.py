"""The `deployer` command: parse, call, show. Start with `main`; nothing is decided here."""
