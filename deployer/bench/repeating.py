"""Which levels are worth another pass: those where more measuring can still change the verdict. Pure.

Repeats lessen the noise between passes and nothing else, so often none is worth its time. A request that failed is
never given a second chance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deployer.bench.gate import RATES, Verdict, evaluate, split_key
from deployer.bench.noise import Noise
from deployer.bench.rates import positive, table, tables, trouble
from deployer.bench.relative import TAIL, Effect, Tolerance, region

#: Passes of one level in all; beyond it the noise between passes no longer matters beside that of the start.
MOST_PASSES = 5
#: A threshold this many standard deviations away will not be reached by measuring again.
REACH = 3.0


@dataclass(frozen=True)
class Policy:
    """What a benchmark is held against; see `deployer.bench.gate.evaluate`."""

    gate: Mapping[str, float] = field(default_factory=dict)
    tolerance: Tolerance = field(default_factory=Tolerance)
    name: str = "the baseline"
    earlier: Sequence[Mapping[str, Any]] = ()

    def verdict(
        self, bench: Mapping[str, Any], baseline: Sequence[Mapping[str, Any]], noise: Noise | None
    ) -> Verdict:
        """The gate's word on ``bench``."""
        return evaluate(
            bench,
            self.gate,
            baseline=baseline,
            earlier=self.earlier,
            noise=noise,
            tolerance=self.tolerance,
            name=self.name,
        )


def worth_repeating(
    bench: Mapping[str, Any],
    baseline: Sequence[Mapping[str, Any]],
    noise: Noise | None,
    policy: Policy,
    seconds_left: float,
) -> list[int]:
    """The levels to measure once more, or none: [] where nothing more can be decided or nothing fits the time."""
    if bench.get("interrupted") or bench.get("stopped"):
        return []
    verdict = policy.verdict(bench, baseline, noise)
    if verdict.broken:
        return []
    wanted = _near_thresholds(bench, verdict, noise or Noise()) | _disturbed(bench, verdict)
    wanted |= _undecided(bench, verdict, policy.tolerance)
    return _fitting(bench, wanted, seconds_left)


def _near_thresholds(bench: Mapping[str, Any], verdict: Verdict, noise: Noise) -> set[int]:
    """Levels with a threshold that was missed by so little that the noise between passes may be why."""
    found = set()
    for check in verdict.checks:
        name, level = split_key(check.key)
        if check.result != "fail" or level is None or not check.measured:
            continue
        passes = _passes(bench, level)
        # Times are noisier than rates: published variation of percentiles is about four times that of throughput.
        spread = noise.run * (1.0 if name in RATES else 4.0) / math.sqrt(max(passes, 1))
        if abs(math.log(check.measured / check.threshold)) <= REACH * spread:
            found.add(level)
    return found


def _disturbed(bench: Mapping[str, Any], verdict: Verdict) -> set[int]:
    """Levels that decide something and were disturbed by what may be over by now: everything but our own client."""
    open_keys = [split_key(check.key) for check in verdict.checks if check.result == "inconclusive"]
    gated = {
        level for name, level in open_keys if name in RATES
    }  # percentiles are over all passes, the disturbed too
    relative = verdict.relative
    starved = relative is not None and relative.effect is None
    found = set()
    for level in tables(bench.get("levels")):
        at = level.get("concurrency")
        parts = tables(level.get("passes")) or [level]
        passing = any(trouble(part, bench) and not _saturated(part) for part in parts)
        if isinstance(at, int) and passing and (at in gated or starved):
            found.add(at)
    return found


def _saturated(part: Mapping[str, Any]) -> bool:
    return bool(table(part.get("client")).get("client_limited"))


def _undecided(bench: Mapping[str, Any], verdict: Verdict, tolerance: Tolerance) -> set[int]:
    """Levels of the comparison, where one more pass of each could turn it."""
    relative = verdict.relative
    if relative is None or relative.effect is None or relative.result == "pass":
        return set()
    measured = {level.get("concurrency") for level in tables(bench.get("levels"))}
    counts = {at: _passes(bench, at) for at in relative.levels if at in measured}
    noise, starts = relative.noise, len(relative.levels)
    gains = {at: (noise.run / relative.starts) ** 2 * (1 / n - 1 / (n + 1)) for at, n in counts.items() if n}
    pooled = math.fsum(gains.values()) / starts**2
    if _can_turn(relative.effect, pooled, noise.quantile(TAIL), tolerance.max_loss, 2 * tolerance.max_loss):
        return set(gains)
    wide = noise.quantile(TAIL / starts)
    return {
        at
        for at, gain in gains.items()
        if relative.levels[at].effect < 0
        and _can_turn(relative.levels[at], gain, wide, tolerance.max_level_loss, None)
    }


def _can_turn(found: Effect, gain: float, quantile: float, max_loss: float, exclude: float | None) -> bool:
    """Whether another pass could lead to another result: by a narrower interval, or by moving the estimate.

    ``gain`` is the variance that the pass takes away, which is also how far it may move the estimate.
    """
    low, estimate = math.log1p(found.low), math.log1p(found.effect)
    half = estimate - low
    narrower = math.sqrt(max(0.0, half**2 - quantile**2 * gain))
    now = region(estimate, half, max_loss, must_exclude=exclude)
    move = 2 * math.sqrt(gain)
    return any(
        region(moved, narrower, max_loss, must_exclude=exclude) != now
        for moved in (estimate - move, estimate, estimate + move)
    )


def _passes(bench: Mapping[str, Any], level: int) -> int:
    """How often a level was measured so far."""
    for item in tables(bench.get("levels")):
        if item.get("concurrency") == level:
            return len(tables(item.get("passes"))) or 1
    return 0


def _fitting(bench: Mapping[str, Any], wanted: set[int], seconds_left: float) -> list[int]:
    """Those of the wanted levels that were not measured often enough yet, as far as the time goes."""
    found, left = [], seconds_left
    for item in tables(bench.get("levels")):
        at = item.get("concurrency")
        parts = tables(item.get("passes")) or [item]
        if at not in wanted or len(parts) >= MOST_PASSES:
            continue
        # A pass whose time is not known cannot be fitted in.
        seconds = max((positive(part.get("wall_s")) or math.inf for part in parts), default=math.inf)
        if seconds <= left:
            found.append(int(at))
            left -= seconds
    return found
