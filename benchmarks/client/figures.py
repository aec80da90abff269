"""What was really sent, what a client says of it, and the difference. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Literal

from deployer.bench.load import stats

_HEAD = 4  # arrival, read, ended, number of pieces: see server.c


@dataclass(frozen=True)
class Served:
    """A request as the server saw it. Moments in seconds of CLOCK_MONOTONIC.

    ``arrival``: its last byte had reached the machine. ``ended``: the client sent the next one or closed, None where
    it did neither. ``moments``: each piece was about to be sent.
    """

    arrival: float
    ended: float | None
    moments: tuple[float, ...]


@dataclass(frozen=True)
class Summary:
    """Means and 99th percentiles, in seconds. ``itl_of``: percentiles over gaps, or over the mean gap of a request."""

    ttft_mean: float
    ttft_p99: float
    itl_mean: float
    itl_p99: float
    itl_of: Literal["gap", "request"] = "gap"


def served(raw: bytes) -> list[Served]:
    """The server's log, in the order of arrival. ValueError where it is cut off."""
    if len(raw) % 8:
        raise ValueError("the server's log is cut off")
    numbers = struct.unpack(f"={len(raw) // 8}d", raw)
    found, at = [], 0
    while at < len(numbers):
        if at + _HEAD > len(numbers):
            raise ValueError("the server's log is cut off")
        arrival, _, ended, count = numbers[at : at + _HEAD]
        moments = numbers[at + _HEAD : at + _HEAD + int(count)]
        if len(moments) != count:
            raise ValueError("the server's log is cut off")
        found.append(Served(arrival, ended or None, moments))
        at += _HEAD + len(moments)
    return sorted(found, key=lambda request: request.arrival)


def percentile(values: Iterable[float], share: float) -> float:
    """Of values in any order, as `deployer.bench.load.stats.percentile`. ValueError where there is no value."""
    return stats.percentile(sorted(values), share)


def gaps(moments: Sequence[float]) -> list[float]:
    """Times between neighbours."""
    return [after - before for before, after in pairwise(moments)]


def summarized(
    ttft: Sequence[float], itl: Sequence[Sequence[float]], itl_of: Literal["gap", "request"] = "gap"
) -> Summary:
    """Times to the first token, and each request's gaps. ValueError where there are none."""
    pooled = [gap for request in itl for gap in request]
    spread = pooled if itl_of == "gap" else [fmean(request) for request in itl if request]
    if not ttft or not pooled:
        raise ValueError("nothing was measured")
    return Summary(fmean(ttft), percentile(ttft, 99), fmean(pooled), percentile(spread, 99), itl_of)


def truth(requests: Sequence[Served], itl_of: Literal["gap", "request"] = "gap") -> Summary:
    """What a perfect client would say of these requests."""
    done = [request for request in requests if request.moments]
    return summarized(
        [request.moments[0] - request.arrival for request in done],
        [gaps(request.moments) for request in done],
        itl_of,
    )


def errors(seen: Summary, true: Summary) -> dict[str, float]:
    """Seen minus true, in ms, by ``ttft_mean``, ``ttft_p99``, ``itl_mean``, ``itl_p99``."""
    names = ("ttft_mean", "ttft_p99", "itl_mean", "itl_p99")
    return {name: 1000 * (getattr(seen, name) - getattr(true, name)) for name in names}


def span(requests: Sequence[Served]) -> tuple[float, float]:
    """First arrival and last piece: the time in which there was load."""
    return min(r.arrival for r in requests), max(r.moments[-1] for r in requests if r.moments)


def rate(requests: Sequence[Served]) -> float:
    """Tokens a second that were taken: to the moment at which the client was through with the last answer."""
    ends = [max(r.ended or 0.0, r.moments[-1]) for r in requests if r.moments]
    return sum(len(r.moments) for r in requests) / (max(ends) - min(r.arrival for r in requests))


def between(samples: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    """How much a growing quantity, sampled as (moment, value), grew from ``begin`` to ``end``: linear in between."""

    def at(moment: float) -> float:
        before = [pair for pair in samples if pair[0] <= moment]
        after = [pair for pair in samples if pair[0] >= moment]
        if not before or not after:
            return (before or after)[-1 if before else 0][1]
        (t0, v0), (t1, v1) = before[-1], after[0]
        return v0 if t1 == t0 else v0 + (v1 - v0) * (moment - t0) / (t1 - t0)

    if not samples:
        raise ValueError("no samples")
    return at(end) - at(begin)
