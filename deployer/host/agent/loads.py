"""What ``/v1/loads`` of an SGLang server says (0.5.9 and later): the one reader, also the load client's and doctor's.

It travels to the host with the load client, so it imports nothing of the agent.
"""

from __future__ import annotations

from typing import Any, Dict, Optional

#: Of these numbers the highest of all data-parallel ranks is meant; of all others the sum.
_HIGHEST = ("token_usage", "cache_hit_rate", "utilization", "timestamp", "dp_rank")
_ABSURD = 1e18


def summed(document: Any) -> Optional[Dict[str, Any]]:
    """The numbers of an answer over all its ranks: ``{"loads": [...]}``, or (0.5.9) the list or one rank itself.

    None where no rank tells its running or waiting requests.
    """
    ranks = document.get("loads", [document]) if isinstance(document, dict) else document
    found: Dict[str, Any] = {}
    for rank in ranks if isinstance(ranks, list) else []:
        for name, value in rank.items() if isinstance(rank, dict) else ():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _ABSURD:
                continue  # not a number, or none that counts anything
            if name in _HIGHEST:
                found[name] = max(found.get(name, value), value)
            else:
                found[name] = found.get(name, 0) + value
    return found if "num_running_reqs" in found or "num_waiting_reqs" in found else None


def in_flight(numbers: Dict[str, Any]) -> int:
    """Requests running and waiting.

    Under pipeline parallelism SGLang counts the micro-batch in turn only; tokens in use tell of the others, as one
    request at least.
    """
    counted = int(numbers.get("num_running_reqs", 0) + numbers.get("num_waiting_reqs", 0))
    return counted or int(numbers.get("num_used_tokens", 0) > 0)
