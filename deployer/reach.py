"""How a service is reached: its unit's name, which socket answers an address, how a server proves that it works.

The operator's side and the agent on the host use the same rules. The module travels to the host with the agent, so it
imports nothing of deployer and keeps to Python 3.8 and its standard library.
"""

from __future__ import annotations

import json
import re
from typing import Any

#: Seconds for an answer of /health: SGLang takes at least 1 s for it, and gives a silent scheduler 20 s.
HEALTH_TIMEOUT = 22.0
#: Addresses that stand for every address of a host.
WILDCARDS = frozenset({"*", "0.0.0.0", "::", "[::]"})
_SECRET_LINE = re.compile(r'^([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"$', re.M | re.S)
#: The shortest requests that make a server generate, by path: the next where it does not know the one before.
GENERATIONS: dict[str, dict[str, Any]] = {
    "/generate": {"text": "Hello", "sampling_params": {"max_new_tokens": 2, "temperature": 0}},
    "/v1/completions": {"model": "default", "prompt": "Hello", "max_tokens": 2, "temperature": 0},
}


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


def config_key(text: str) -> str | None:
    """Return the API key in a release's config.yaml as deployer writes it: flat, values as JSON strings."""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "api-key":
            return str(json.loads(value))
    return None


def secret_variables(text: str) -> dict[str, str]:
    """Return the variables in a release's file ``env``, as deployer quotes them."""
    return {name: re.sub(r"\\(.)", r"\1", value, flags=re.S) for name, value in _SECRET_LINE.findall(text)}


def key_header(key: str | None) -> dict[str, str]:
    """Return the header that shows a server its API key; none if it has none."""
    return {"Authorization": f"Bearer {key}"} if key else {}
