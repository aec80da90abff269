"""The way to a host. Start with `protocol`, the seam; `client` is the only door through it for the rest of deployer.

`ssh` and `local` carry the protocol to the `agent`, which runs on the host; `ship` carries programs there.
"""
