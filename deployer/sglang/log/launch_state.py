"""How far a launch is, as data: its phases, its ranks, its times. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deployer.sglang.log.launch_lines import PROBE

#: The phases of a launch, in order.
PHASES = ("launch", "dist-init", "load", "kv-pool", "capture", "http-up", "warm-up", "ready")
ORDER = {name: index for index, name in enumerate(PHASES)}


@dataclass(frozen=True)
class Count:
    """So many of so many."""

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
    """How far one rank is. ``rank`` is the log's name for it (``PP1 TP0``), empty where there is only one.

    ``batch_size`` is the size being captured, ``loaded`` whether its weights are there. Shard counts are drawn by the
    first rank only, captures by the first tensor-parallel rank of each stage only; the others have None.
    """

    rank: str
    phase: str
    shards: Count | None = None
    captures: Count | None = None
    batch_size: int | None = None
    loaded: bool = False


@dataclass(frozen=True)
class LaunchState:
    """What the log has told so far. ``values`` are figures read off it (tokens, GB, versions)."""

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
        """The phases so far as ``{name, seconds}``."""
        return [span.as_dict() for span in self.spans]

    @property
    def shards(self) -> Count | None:
        """Weight shards read, as the rank that draws the bar counts them."""
        return next((rank.shards for rank in self.ranks if rank.shards is not None), None)

    @property
    def captures(self) -> Count | None:
        """Captures done by the slowest rank that draws a bar."""
        counts = [rank.captures for rank in self.ranks if rank.captures is not None]
        return min(counts, key=lambda count: count.done / max(count.total, 1), default=None)


def noteworthy(text: str) -> bool:
    """Whether a line tells of progress: not empty, and not the server's record of our own health probes."""
    return bool(text.strip()) and not PROBE.search(text)


def finish_timeline(state: LaunchState, end: float) -> list[dict[str, Any]]:
    """The timeline with its last phase ended at ``end`` (seconds since the start): it sums up to ``end``."""
    spans = list(state.spans)
    last = spans[-1]
    spans[-1] = Span(last.name, last.start, max(0.0, end - last.start))
    return [span.as_dict() for span in spans]
