"""What a service's unit is called, which socket answers an address, and how long a server's /health may take.

The operator's side and the agent on the host use the same rules. The module travels to the host with the agent, so it
imports nothing of deployer and keeps to Python 3.8 and its standard library.
"""

from __future__ import annotations

#: Seconds for an answer of /health: SGLang takes at least 1 s for it, and gives a silent scheduler 20 s.
HEALTH_TIMEOUT = 22.0
#: Addresses that stand for every address of a host.
WILDCARDS = frozenset({"*", "0.0.0.0", "::", "[::]"})


def unit_name(service: str) -> str:
    """Return the name of a service's systemd unit."""
    return f"sglang-{service}.service"


def serves(bound: str, address: str) -> bool:
    """Return whether a socket that listens on ``bound`` answers connections to ``address``."""
    return bound == address or bound in WILDCARDS or bound == f"::ffff:{address}" or f"::ffff:{bound}" == address


def collides(bound: str, address: str) -> bool:
    """Return whether a socket that listens on ``bound`` keeps another from listening on ``address``."""
    return serves(bound, address) or serves(address, bound)


def reachable(bound: str) -> str:
    """Return the address to call for a socket that listens on ``bound``."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bound, bound)
