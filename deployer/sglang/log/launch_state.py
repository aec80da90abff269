"""How far a launch is, as data: its phases, its ranks, its times. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

#: The phases of a launch, in order.
PHASES = ("launch", "dist-init", "load", "kv-pool", "capture", "http-up", "warm-up", "ready")
ORDER = {name: index for index, name in enumerate(PHASES)}
_PROBE = re.compile(r'"GET /(?:health|health_generate|ready|ping)\b[^"]{0,200}" \d{3}')


@dataclass(frozen=True)
class Count:
    """Progress as done/total."""

    done: int
    total: int

    def __str__(self) -> str:
        return f"{self.done}/{self.total}"


@dataclass(frozen=True)
class Span:
    """One phase: when it began, in seconds since the start, and how long it took (the last one: so far)."""

    name: str
    start: float
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "seconds": round(self.seconds, 3)}


@dataclass(frozen=True)
class RankProgress:
    """How far one rank is. ``rank`` is its name in the log (``PP1 TP0``), empty if there is only one.

    ``batch_size`` is the size being captured, ``loaded`` whether the weights are loaded. Only the first rank counts
    shards, and only the first tensor parallel rank of each stage counts captures; the others have None.
    """

    rank: str
    phase: str
    shards: Count | None = None
    captures: Count | None = None
    batch_size: int | None = None
    loaded: bool = False


@dataclass(frozen=True)
class LaunchState:
    """What the log has shown so far. ``values`` are figures read from it (tokens, GB, versions)."""

    phase: str
    ranks: tuple[RankProgress, ...]
    spans: tuple[Span, ...]
    values: dict[str, int | float | str]
    dialect: str | None
    waiting_for: str
    last_line: str
    t: float

    @property
    def timeline(self) -> list[dict[str, Any]]:
        """The phases so far, each with its seconds."""
        return [span.as_dict() for span in self.spans]

    @property
    def shards(self) -> Count | None:
        """Weight shards read, by the count of the rank that draws the bar."""
        return next((rank.shards for rank in self.ranks if rank.shards is not None), None)

    @property
    def captures(self) -> Count | None:
        """Captures finished by the slowest rank that draws a bar."""
        counts = [rank.captures for rank in self.ranks if rank.captures is not None]
        return min(counts, key=lambda count: count.done / max(count.total, 1), default=None)


def noteworthy(text: str) -> bool:
    """Return whether a line shows progress: not empty, and not the server's record of our own health probes."""
    return bool(text.strip()) and not _PROBE.search(text)


def finish_timeline(state: LaunchState, end: float) -> list[dict[str, Any]]:
    """Return the timeline with its last phase ended at ``end`` seconds since the start: it sums up to ``end``."""
    spans = list(state.spans)
    last = spans[-1]
    spans[-1] = Span(last.name, last.start, max(0.0, end - last.start))
    return [span.as_dict() for span in spans]
