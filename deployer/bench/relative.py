"""The relative gate: a candidate's throughput against proven starts, as pass, fail or inconclusive. Pure.

The statistic is the mean over levels of the logarithm of (candidate's rate / baseline's rate): one number for a start,
with an interval that follows from the noise (see `deployer.bench.noise`) and the number of starts on both sides::

    estimate = mean over levels of  log(candidate) - log(baseline)
    variance = sum of the candidate's starts' variances / m^2  +  the same of the baseline's n starts / n^2

With ``max_loss`` as the loss that is tolerated:

* **fail**: the estimate is a larger loss than that, and the interval excludes "no loss";
* **pass**: the estimate is no larger loss, and the interval excludes a loss of twice as much;
* **inconclusive** otherwise: either would be a guess.

One level alone may lose ``max_level_loss``, by the same rule with an interval for all levels at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from deployer.bench.noise import Noise
from deployer.bench.rates import Logs, SetAside, aligned, mean, rates_of, table, tables

Json = dict[str, Any]
Result = Literal["pass", "fail", "inconclusive"]

#: Probability that the true effect is beyond one given end of the interval (so 98 % lie inside).
TAIL = 0.01
#: Of the baseline's levels at least this share has to be there to compare.
FEWEST_LEVELS = 0.5
#: What two benchmarks must have been asked alike for their rates to be compared.
_ALIKE = ("prompt_tokens", "output_tokens", "shared_prefix")


@dataclass(frozen=True)
class Tolerance:
    """Losses that are tolerated, as shares: of the pooled throughput, and of one level's."""

    max_loss: float = 0.05
    max_level_loss: float = 0.12


@dataclass(frozen=True)
class Effect:
    """A change as a share (-0.1: a tenth slower), with the ends of its interval."""

    effect: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{_percent(self.effect)} % ({_percent(self.low)}..{_percent(self.high)})"


@dataclass(frozen=True)
class Relative:
    """What the comparison came to. ``effect`` is None where nothing could be compared."""

    result: Result
    reasons: list[str]
    effect: Effect | None = None
    levels: Mapping[int, Effect] = field(default_factory=dict)
    noise: Noise = field(default_factory=Noise)
    starts: int = 1
    baseline_starts: int = 0
    set_aside: tuple[SetAside, ...] = ()

    def against(self, name: str) -> str:
        """The effect and what it is against, in words."""
        effect = "nothing could be compared" if self.effect is None else str(self.effect)
        return f"{effect} against {_starts(self.baseline_starts)} of {name}"

    def as_dict(self) -> Json:
        """As it appears in a verdict."""
        return {
            "result": self.result,
            "effect": None if self.effect is None else round(self.effect.effect, 6),
            "interval": _interval(self.effect),
            "confidence": 1 - 2 * TAIL,
            "noise": self.noise.as_dict(),
            "candidate_starts": self.starts,
            "baseline_starts": self.baseline_starts,
            "levels": [
                {"concurrency": level, "effect": round(found.effect, 6), "interval": _interval(found)}
                for level, found in self.levels.items()
            ],
            "set_aside": [item.as_dict() for item in self.set_aside],
        }


def _interval(found: Effect | None) -> list[float] | None:
    return None if found is None else [round(found.low, 6), round(found.high, 6)]


def _percent(share: float) -> str:
    return f"{share * 100:+.1f}"


def measured_alike(bench: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Why the rates of two benchmarks cannot be compared; empty where they can."""
    one, two = ({**table(b.get("workload")), **table(b.get("spec"))} for b in (bench, other))
    for key in _ALIKE:
        if key in one and key in two and one[key] != two[key]:
            return f"{key} was {two[key]} and is {one[key]}"
    if bench.get("place") and other.get("place") and bench["place"] != other["place"]:
        return f"the load came from the {other['place']} and comes from the {bench['place']}"
    return ""


def judge(
    candidate: Sequence[Mapping[str, Any]],
    baseline: Sequence[Mapping[str, Any]],
    noise: Noise | None = None,
    tolerance: Tolerance | None = None,
    name: str = "the baseline",
) -> Relative | None:
    """Compare a candidate's starts (at least one bench document) with the baseline's. None without a baseline.

    Baseline documents that were measured in another way, or in which nothing is sound, are left out.
    """
    if not candidate:
        return None
    mine = [rates_of(bench) for bench in candidate]
    asked = _asked(candidate[0])
    theirs = [rates_of(bench) for bench in baseline if not measured_alike(candidate[0], bench)]
    theirs = [rates for rates in theirs if rates.levels() & asked]
    if not theirs:
        return None
    aside = tuple(item for rates in mine for item in rates.set_aside)
    # One start that measured little must not take the levels from all others.
    most = max(len(rates.levels() & asked) for rates in theirs)
    theirs = [rates for rates in theirs if len(rates.levels() & asked) >= FEWEST_LEVELS * most]
    wanted = set.intersection(*(rates.levels() for rates in theirs)) & asked
    logs = aligned([*mine, *theirs])
    got = len(logs[0])
    if not got or got < FEWEST_LEVELS * len(wanted):
        why = "; ".join(map(str, aside)) or "it was not measured"
        text = (
            f"throughput could not be compared with {name}: {got} of {len(wanted)} levels are sound ({why})"
        )
        return Relative(
            "inconclusive", [text], noise=noise or Noise(), baseline_starts=len(theirs), set_aside=aside
        )
    return compared(logs[: len(mine)], logs[len(mine) :], noise or Noise(), tolerance, name, aside)


def _asked(bench: Mapping[str, Any]) -> set[int]:
    """The levels that a benchmark was to measure, and those that it did; the single stream is 1."""
    levels = table(bench.get("spec")).get("levels")
    asked = (
        {level for level in levels if isinstance(level, int)} if isinstance(levels, list | tuple) else set()
    )
    measured = {item.get("concurrency") for item in tables(bench.get("levels"))}
    return {1} | asked | {level for level in measured if isinstance(level, int)}


def difference(ours: Sequence[Logs], theirs: Sequence[Logs]) -> dict[int, float]:
    """Level by level: the mean logarithm of our starts less that of theirs."""
    return {
        level: mean([mean(logs[level]) for logs in ours]) - mean([mean(logs[level]) for logs in theirs])
        for level in ours[0]
    }


def pooled_deviation(ours: Sequence[Logs], theirs: Sequence[Logs], noise: Noise) -> float:
    """Standard deviation of the pooled statistic."""
    variance = sum(
        math.fsum(noise.variance(logs) for logs in side) / len(side) ** 2 for side in (ours, theirs)
    )
    return math.sqrt(variance)


def level_deviation(ours: Sequence[Logs], theirs: Sequence[Logs], noise: Noise, level: int) -> float:
    """Standard deviation of one level's difference."""
    variance = sum(
        math.fsum(noise.variance_at(len(logs[level])) for logs in side) / len(side) ** 2
        for side in (ours, theirs)
    )
    return math.sqrt(variance)


def region(estimate: float, half: float, max_loss: float, *, must_exclude: float | None) -> Result:
    """The rule of the module's head, in logarithms. ``half`` is half of the interval.

    ``must_exclude`` is the loss (as a share) that a pass has to exclude; None where a pass need not exclude any.
    """
    if estimate < math.log1p(-max_loss):
        return "fail" if estimate + half < 0 else "inconclusive"
    if must_exclude is not None and estimate - half <= math.log1p(-min(must_exclude, 0.999)):
        return "inconclusive"
    return "pass"


def compared(
    ours: Sequence[Logs],
    theirs: Sequence[Logs],
    noise: Noise,
    tolerance: Tolerance | None = None,
    name: str = "the baseline",
    aside: tuple[SetAside, ...] = (),
) -> Relative:
    """`judge` on logarithms of rates: starts of the candidate and of the baseline, all of them with the same levels."""
    allowed = tolerance or Tolerance()
    by_level = difference(ours, theirs)
    estimate = mean(list(by_level.values()))
    half = noise.quantile(TAIL) * pooled_deviation(ours, theirs, noise)
    pooled = _effect(estimate, half)
    result = region(estimate, half, allowed.max_loss, must_exclude=2 * allowed.max_loss)
    against = f"against {_starts(len(theirs))} of {name}"
    more = "" if len(ours) == 1 else f" ({len(ours)} starts of the candidate together)"
    decisive = [f"throughput {pooled} {against}{more}{_because(result, pooled, allowed.max_loss)}"]
    levels = {}
    wide = noise.quantile(TAIL / len(by_level))
    for level, value in by_level.items():
        spread = wide * level_deviation(ours, theirs, noise, level)
        levels[level] = _effect(value, spread)
        guard = region(value, spread, allowed.max_level_loss, must_exclude=None)
        if guard != "pass":
            where = "the single stream" if level == 1 else f"level {level}"
            tail = "and more than noise explains" if guard == "fail" else "but it may be noise"
            tolerated = f"more than the {_share(allowed.max_level_loss)} tolerated at one level"
            text = f"{where} {levels[level]}: {tolerated}, {tail}"
            decisive.insert(0 if guard == "fail" and result != "fail" else len(decisive), text)
            result = "fail" if "fail" in (guard, result) else "inconclusive"
    return Relative(result, decisive, pooled, levels, noise, len(ours), len(theirs), aside)


def _effect(estimate: float, half: float) -> Effect:
    return Effect(math.expm1(estimate), math.expm1(estimate - half), math.expm1(min(estimate + half, 700.0)))


def _because(result: Result, found: Effect, max_loss: float) -> str:
    if result == "fail":
        return f": more than the {_share(max_loss)} tolerated, and more than noise explains"
    if result == "inconclusive" and found.effect < -max_loss:
        return f": more than the {_share(max_loss)} tolerated, but it may be noise"
    if result == "inconclusive":
        return f": a loss of {_share(2 * max_loss)} cannot be ruled out"
    return ""


def _share(share: float) -> str:
    """A share that somebody chose, in percent with the digits it has: 0.025 is 2.5 %."""
    return f"{100 * share:.3g} %"


def _starts(count: int) -> str:
    return "1 start" if count == 1 else f"{count} starts"
