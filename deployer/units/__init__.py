"""The systemd unit of a release. `bundle` renders all that goes to a host; `quoting` and `text` know the syntax."""
