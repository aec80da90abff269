"""What an SGLang server reports of its load: ``/v1/loads`` (0.5.9 and later) and ``/metrics`` (with --enable-metrics).

Every reader of either uses this module. It travels to the host with the agent and with the load client, so it imports
nothing of deployer and keeps to Python 3.8 and its standard library. Nothing a server can send raises here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

#: Over data-parallel ranks these numbers of ``/v1/loads`` combine to their maximum; all others to their sum.
_HIGHEST = ("token_usage", "cache_hit_rate", "utilization", "timestamp", "dp_rank")
#: No counter of a server comes near this: a number that does is not a count.
_ABSURD = 1e18
_SAMPLE = re.compile(
    r"^sglang[:_](\w{1,80})(?:\{([^\n]{0,2000})\})?[ \t]+([-+0-9.eE]{1,30})[ \t]*$", re.MULTILINE | re.ASCII
)
_RANK = re.compile(r'dp_rank="(\d+)"')


class Sample(NamedTuple):
    """One line of ``/metrics``: the name without its prefix, the data-parallel rank ("" without one), the value."""

    name: str
    rank: str
    value: float


def parse_loads(text: str) -> dict[str, Any] | None:
    """Return the numbers of an answer of ``/v1/loads``, combined over its ranks; None if it reports no requests."""
    try:
        return combined_loads(json.loads(text))
    except (ValueError, RecursionError):
        return None


def combined_loads(document: Any) -> dict[str, Any] | None:
    """Return the numbers of ``{"loads": [rank, ...]}``, or (0.5.9) of the list or the one rank itself.

    None if no rank reports its running or waiting requests.
    """
    ranks = document.get("loads", [document]) if isinstance(document, dict) else document
    numbers: dict[str, Any] = {}
    for rank in ranks if isinstance(ranks, list) else []:
        for name, value in rank.items() if isinstance(rank, dict) else ():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _ABSURD:
                continue
            if name in _HIGHEST:
                numbers[name] = max(numbers.get(name, value), value)
            else:
                numbers[name] = numbers.get(name, 0) + value
    return numbers if "num_running_reqs" in numbers or "num_waiting_reqs" in numbers else None


def in_flight(loads: dict[str, Any]) -> int:
    """Return the number of requests running and waiting.

    Under pipeline parallelism SGLang counts only the micro-batch whose turn it is; tokens in use show that there are
    others, as one request at least.
    """
    counted = int(loads.get("num_running_reqs", 0) + loads.get("num_waiting_reqs", 0))
    return counted or int(loads.get("num_used_tokens", 0) > 0)


def requests_in_flight(get: Callable[[str], str]) -> int | None:
    """Return the requests that a server counts, running and waiting; None if it reports none.

    ``get`` returns the body of a path, empty unless the answer is 200.
    """
    loads = parse_loads(get("/v1/loads"))
    if loads is not None:
        return in_flight(loads)
    counts = totals(get("/metrics"))
    gauges = [counts[name] for name in ("num_running_reqs", "num_queue_reqs") if name in counts]
    return int(sum(gauges)) if gauges else None


def samples(text: str) -> list[Sample]:
    """Return SGLang's samples in an answer of ``/metrics``, without values that are not a count or a share."""
    kept = []
    for name, labels, digits in _SAMPLE.findall(text):
        try:
            value = float(digits)
        except ValueError:
            continue
        if 0 <= value < _ABSURD:
            rank = _RANK.search(labels)
            kept.append(Sample(name, rank.group(1) if rank else "", value))
    return kept


def totals(text: str) -> dict[str, float]:
    """Return metrics by name, summed over all label sets: right for counters."""
    sums: dict[str, float] = {}
    for sample in samples(text):
        sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


def by_rank(text: str) -> dict[str, dict[str, float]]:
    """Return gauges as name -> data-parallel rank -> value; ranks of one group repeat each other, so the highest."""
    gauges: dict[str, dict[str, float]] = {}
    for sample in samples(text):
        ranks = gauges.setdefault(sample.name, {})
        ranks[sample.rank] = max(ranks.get(sample.rank, 0.0), sample.value)
    return gauges
