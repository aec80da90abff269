"""The gate's verdict on a benchmark, as a release's manifest keeps it under ``verdict``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from deployer.records.codec import Json, Record, Tolerant, sparse, unwritten

Result = Literal["pass", "fail", "inconclusive"]


def rounded(value: Any) -> Any:
    """Return JSON with its numbers to six digits: more is noise in a file."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class Figures(Tolerant):
    """A record whose JSON has its figures to six digits."""

    def as_json(self) -> Json:
        """Return its JSON, figures to six digits."""
        figures: Json = rounded(Record.as_json(self))
        return figures


@dataclass(frozen=True, slots=True)
class Effect(Figures):
    """A change as a share (-0.1: a tenth slower), with the ends of its interval. None: nothing could be compared."""

    effect: float | None = None
    interval: tuple[float, float] | None = None

    @property
    def low(self) -> float:
        """The lower end; 0 without an interval."""
        return self.interval[0] if self.interval else 0.0

    @property
    def high(self) -> float:
        """The upper end; 0 without an interval."""
        return self.interval[1] if self.interval else 0.0

    def __str__(self) -> str:
        if self.effect is None:
            return "nothing could be compared"
        change, low, high = (f"{share * 100:+.1f}" for share in (self.effect, self.low, self.high))
        return f"{change} % ({low}..{high})"


@dataclass(frozen=True, slots=True)
class LevelEffect(Effect):
    """The effect at one level; 1 is the single stream."""

    concurrency: int = 1

    @property
    def label(self) -> str:
        """The level's name in a list."""
        return "one" if self.concurrency == 1 else f"@{self.concurrency}"


@dataclass(frozen=True, slots=True)
class SetAside(Tolerant):
    """A pass that was measured and is not used. ``repeat`` is None if a whole level is meant."""

    concurrency: int = 1
    repeat: int | None = None
    why: str = ""

    def __str__(self) -> str:
        which = "" if self.repeat is None else f", pass {self.repeat + 1}"
        return f"level {self.concurrency}{which}: {self.why}"


@dataclass(frozen=True, slots=True)
class Noise(Figures):
    """Relative standard deviations, and what they rest on: starts, and degrees of freedom between starts."""

    run: float = 0.01
    level: float = 0.01
    start: float = 0.02
    starts: int = 0
    freedom: int = 0

    def __str__(self) -> str:
        figures = f"{self.start:.1%} between starts, {self.run:.1%} between passes"
        if not self.starts:
            return f"typical noise is assumed ({figures}): no start of this service shows its own yet"
        starts = starts_text(self.starts)
        if not self.freedom:
            return f"noise {figures}: passes from {starts}, starts typical (no two of one configuration yet)"
        return f"noise {figures}: from {starts} of this service and typical figures"


@dataclass(frozen=True, slots=True)
class Relative(Effect):
    """The comparison with earlier proven starts. ``effect`` is None if nothing could be compared."""

    result: Result = "inconclusive"
    confidence: float = 0.98
    noise: Noise = field(default_factory=Noise)
    candidate_starts: int = 1
    baseline_starts: int = 0
    levels: tuple[LevelEffect, ...] = ()
    set_aside: tuple[SetAside, ...] = ()
    reasons: tuple[str, ...] = unwritten(default=())

    def against(self, name: str) -> str:
        """Return the effect and what it is against, in words."""
        return f"{self} against {starts_text(self.baseline_starts)} of {name}"


def starts_text(count: int) -> str:
    """Return a number of starts in words."""
    return "1 start" if count == 1 else f"{count} starts"


@dataclass(frozen=True, slots=True)
class Check(Tolerant):
    """One threshold held against what was measured; ``measured`` is None if it was not."""

    key: str = ""
    bound: Literal["min", "max"] = "min"
    threshold: float = 0.0
    measured: float | None = None
    result: Result = "inconclusive"


@dataclass(frozen=True, slots=True)
class BaselineUsed(Tolerant):
    """What the relative gate compared with: the setting, the profile, the releases, and the candidate's own earlier."""

    of: str | None = None
    profile: str | None = None
    releases: tuple[str, ...] = ()
    earlier: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict(Tolerant):
    """What the gate decided. ``reasons`` are sentences with numbers, the decisive ones first.

    ``relative`` is None without a baseline, ``promoted`` says why an inconclusive release went live. ``broken``: a
    request failed or the output is not sane, which no further measurement excuses.
    """

    result: Result = "inconclusive"
    reasons: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    relative: Relative | None = None
    set_aside: tuple[SetAside, ...] = ()
    summary: str | None = sparse(default=None)
    baseline: BaselineUsed | None = sparse(default=None)
    promoted: str | None = sparse(default=None)
    broken: bool = unwritten(default=False)

    def in_short(self, name: str = "the baseline") -> str:
        """Return the verdict in one line, such as ``pass: +1.2 % (-2.9..+5.3) against 3 starts of tp8``."""
        if self.relative is not None:
            return f"{self.result}: {self.relative.against(name)}"
        if self.checks:
            return f"{self.result} (absolute thresholds only; no baseline yet)"
        return f"{self.result} (no thresholds and no baseline yet)"
