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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

from deployer.bench.noise import WEIGHT_START
from deployer.bench.rates import FEWEST_LEVELS, Logs, align, mean
from deployer.records.bench import ONE, BenchRun
from deployer.records.verdict import LevelEffect, Noise, Relative, Result, SetAside

#: Probability that the true effect is beyond one given end of the interval (so 98 % lie inside).
TAIL = 0.01
#: What two benchmarks must have requested alike for their rates to be compared.
_ALIKE = ("prompt_tokens", "output_tokens", "shared_prefix")


@dataclass(frozen=True)
class Tolerance:
    """Losses that are tolerated, as shares: of the pooled throughput, and of one level's."""

    max_loss: float = 0.05
    max_level_loss: float = 0.12


def measured_alike(bench: BenchRun, other: BenchRun) -> str:
    """Return why the rates of two benchmarks cannot be compared; empty if they can."""
    for name in _ALIKE:
        one, two = _requested(bench, name), _requested(other, name)
        if one is not None and two is not None and one != two:
            return f"{name} was {two} and is {one}"
    if bench.place and other.place and bench.place != other.place:
        return f"the load came from the {other.place} and comes from the {bench.place}"
    return ""


def _requested(bench: BenchRun, name: str) -> int | None:
    for part in (bench.spec, bench.workload):
        value: int | None = getattr(part, name, None)
        if value is not None:
            return value
    return None


def judge(
    candidate: Sequence[BenchRun],
    baseline: Sequence[BenchRun],
    noise: Noise | None = None,
    tolerance: Tolerance | None = None,
    name: str = "the baseline",
) -> Relative | None:
    """Compare a candidate's starts with the baseline's. None without a baseline.

    Benchmarks of the baseline that were measured in another way, or in which nothing is sound, are left out.
    """
    if not candidate:
        return None
    alike = [bench for bench in baseline if not measured_alike(candidate[0], bench)]
    rates = align(candidate, alike, _levels(candidate[0]))
    if rates is None:
        return None
    if not rates.sound or rates.sound < FEWEST_LEVELS * rates.expected:
        why = "; ".join(map(str, rates.set_aside)) or "it was not measured"
        counted = f"{rates.sound} of {rates.expected} levels are sound ({why})"
        return Relative(
            noise=noise or Noise(),
            baseline_starts=len(rates.theirs),
            set_aside=rates.set_aside,
            reasons=(f"throughput could not be compared with {name}: {counted}",),
        )
    return compared(rates.ours, rates.theirs, noise or Noise(), tolerance, name, rates.set_aside)


def _levels(bench: BenchRun) -> set[int]:
    """The levels that a benchmark was to measure, and those that it did; the single stream is one."""
    requested = (bench.spec and bench.spec.levels) or ()
    return {ONE, *requested, *(level.concurrency for level in bench.levels)}


def variance(noise: Noise, logs: Logs) -> float:
    """Return the variance of one start's mean over levels (of ``log`` rates)."""
    count = len(logs)
    repeats = math.fsum(1 / len(passes) for passes in logs.values()) / count
    return noise.start**2 + (noise.level**2 + noise.run**2 * repeats) / count


def variance_at(noise: Noise, passes: int) -> float:
    """Return the variance of one start's figure at one level, measured ``passes`` times."""
    return noise.start**2 + noise.level**2 + noise.run**2 / passes


def quantile(noise: Noise, tail: float) -> float:
    """Return by how many standard deviations an estimate is off with probability ``tail``, to one side.

    Student's, with the freedom that the estimate of the noise has (its own and that of the typical figures).
    """
    return student(tail, WEIGHT_START + noise.freedom)


def student(tail: float, freedom: float) -> float:
    """Return the upper quantile of Student's distribution (Cornish and Fisher; good to 0.01 from 8 degrees on)."""
    z = NormalDist().inv_cdf(1 - tail)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + math.fsum(term / freedom ** (power + 1) for power, term in enumerate(terms))


def difference(ours: Sequence[Logs], theirs: Sequence[Logs]) -> dict[int, float]:
    """Return, level by level, the mean logarithm of our starts less that of theirs."""
    return {
        level: mean([mean(logs[level]) for logs in ours]) - mean([mean(logs[level]) for logs in theirs])
        for level in ours[0]
    }


def pooled_deviation(ours: Sequence[Logs], theirs: Sequence[Logs], noise: Noise) -> float:
    """Return the standard deviation of the pooled statistic."""
    sides = (math.fsum(variance(noise, logs) for logs in side) / len(side) ** 2 for side in (ours, theirs))
    return math.sqrt(sum(sides))


def level_deviation(ours: Sequence[Logs], theirs: Sequence[Logs], noise: Noise, level: int) -> float:
    """Return the standard deviation of one level's difference."""
    return math.sqrt(
        sum(
            math.fsum(variance_at(noise, len(logs[level])) for logs in side) / len(side) ** 2 for side in (ours, theirs)
        )
    )


def region(estimate: float, half: float, max_loss: float, *, must_exclude: float | None) -> Result:
    """Apply the rule of the module's docstring, in logarithms. ``half`` is half of the interval.

    ``must_exclude`` is the loss (as a share) that a pass has to exclude; None if a pass need not exclude any.
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
    half = quantile(noise, TAIL) * pooled_deviation(ours, theirs, noise)
    result = region(estimate, half, allowed.max_loss, must_exclude=2 * allowed.max_loss)
    effect, interval = with_interval(estimate, half)
    pooled = Relative(
        effect,
        interval,
        confidence=1 - 2 * TAIL,
        noise=noise,
        candidate_starts=len(ours),
        baseline_starts=len(theirs),
    )
    more = "" if len(ours) == 1 else f" ({len(ours)} starts of the candidate together)"
    reasons = [f"throughput {pooled.against(name)}{more}{_because(result, effect, allowed.max_loss)}"]
    levels = []
    wide = quantile(noise, TAIL / len(by_level))
    for level, value in by_level.items():
        spread = wide * level_deviation(ours, theirs, noise, level)
        levels.append(LevelEffect(*with_interval(value, spread), concurrency=level))
        guard = region(value, spread, allowed.max_level_loss, must_exclude=None)
        if guard != "pass":
            where = "the single stream" if level == ONE else f"level {level}"
            tail = "and more than noise explains" if guard == "fail" else "but it may be noise"
            tolerated = f"more than the {_share(allowed.max_level_loss)} tolerated at one level"
            text = f"{where} {levels[-1]}: {tolerated}, {tail}"
            reasons.insert(0 if guard == "fail" and result != "fail" else len(reasons), text)
            result = "fail" if "fail" in (guard, result) else "inconclusive"
    return replace(pooled, result=result, reasons=tuple(reasons), levels=tuple(levels), set_aside=aside)


def with_interval(estimate: float, half: float) -> tuple[float, tuple[float, float]]:
    """Return a change as a share and the ends of its interval, from logarithms; ``half`` is half of the interval."""
    return math.expm1(estimate), (math.expm1(estimate - half), math.expm1(min(estimate + half, 700.0)))


def _because(result: Result, effect: float, max_loss: float) -> str:
    if result == "fail":
        return f": more than the {_share(max_loss)} tolerated, and more than noise explains"
    if result == "inconclusive" and effect < -max_loss:
        return f": more than the {_share(max_loss)} tolerated, but it may be noise"
    if result == "inconclusive":
        return f": a loss of {_share(2 * max_loss)} cannot be ruled out"
    return ""


def _share(share: float) -> str:
    """A share that somebody chose, in percent with the digits it has: 0.025 is 2.5 %."""
    return f"{100 * share:.3g} %"
