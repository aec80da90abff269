"""Which levels are worth another pass: those where more measuring can still change the verdict. Pure.

Repeats lessen the noise between passes and nothing else, so often none is worth its time. A request that failed is
never given a second chance.
"""

from __future__ import annotations

import math

from deployer.bench.gate import Policy, evaluate
from deployer.bench.rates import trouble
from deployer.bench.relative import TAIL, Tolerance, quantile, region
from deployer.config.bench import RATE_GATES, split_key
from deployer.records.bench import BenchRun
from deployer.records.verdict import Effect, Noise, Verdict

#: Passes of one level in all; beyond it the noise between passes no longer matters beside that of the start.
MOST_PASSES = 5
#: A threshold this many standard deviations away will not be reached by measuring again.
REACH = 3.0


def worth_repeating(bench: BenchRun, policy: Policy, seconds_left: float) -> list[int]:
    """Return the levels to measure once more: [] if nothing more can be decided or nothing fits the time."""
    if bench.interrupted or bench.stopped:
        return []
    verdict = evaluate(bench, policy)
    if verdict.broken:
        return []
    wanted = _near_thresholds(bench, verdict, policy.noise) | _disturbed(bench, verdict)
    wanted |= _undecided(bench, verdict, policy.tolerance)
    return _fitting(bench, wanted, seconds_left)


def _near_thresholds(bench: BenchRun, verdict: Verdict, noise: Noise) -> set[int]:
    """Levels with a threshold that was missed by so little that the noise between passes may be why."""
    near = set()
    for check in verdict.checks:
        name, at = split_key(check.key)
        if check.result != "fail" or at is None or not check.measured:
            continue
        level = bench.level(at)
        # Times are noisier than rates: published variation of percentiles is about four times that of throughput.
        spread = noise.run * (1.0 if name in RATE_GATES else 4.0) / math.sqrt(len(level.parts) if level else 1)
        if abs(math.log(check.measured / check.threshold)) <= REACH * spread:
            near.add(at)
    return near


def _disturbed(bench: BenchRun, verdict: Verdict) -> set[int]:
    """Levels that decide something and were disturbed by what may be over by now: everything but our own client."""
    open_keys = [split_key(check.key) for check in verdict.checks if check.result == "inconclusive"]
    # Not for percentiles: they are over all passes, the disturbed ones too.
    gated = {level for name, level in open_keys if name in RATE_GATES}
    starved = verdict.relative is not None and verdict.relative.effect is None
    return {
        level.concurrency
        for level in bench.levels
        if (starved or level.concurrency in gated)
        and any(trouble(bench, part) and not (part.client and part.client.client_limited) for part in level.parts)
    }


def _undecided(bench: BenchRun, verdict: Verdict, tolerance: Tolerance) -> set[int]:
    """Levels of the comparison, if one more pass of each could turn it."""
    relative = verdict.relative
    if relative is None or relative.effect is None or relative.result == "pass":
        return set()
    measured = {level.concurrency: len(level.parts) for level in bench.levels}
    effects = {level.concurrency: level for level in relative.levels}
    noise, count = relative.noise, len(effects)
    gains = {
        at: (noise.run / relative.candidate_starts) ** 2 * (1 / n - 1 / (n + 1))
        for at, n in measured.items()
        if at in effects
    }
    pooled = math.fsum(gains.values()) / count**2
    if _can_turn(relative, pooled, quantile(noise, TAIL), tolerance.max_loss, 2 * tolerance.max_loss):
        return set(gains)
    wide = quantile(noise, TAIL / count)
    return {
        at
        for at, gain in gains.items()
        if (effects[at].effect or 0.0) < 0 and _can_turn(effects[at], gain, wide, tolerance.max_level_loss, None)
    }


def _can_turn(change: Effect, gain: float, quantile: float, max_loss: float, exclude: float | None) -> bool:
    """Whether another pass could lead to another result: by a narrower interval, or by moving the estimate.

    ``gain`` is the variance that the pass takes away, which is also how far it may move the estimate.
    """
    low, estimate = math.log1p(change.low), math.log1p(change.effect or 0.0)
    half = estimate - low
    narrower = math.sqrt(max(0.0, half**2 - quantile**2 * gain))
    now = region(estimate, half, max_loss, must_exclude=exclude)
    move = 2 * math.sqrt(gain)
    return any(
        region(moved, narrower, max_loss, must_exclude=exclude) != now
        for moved in (estimate - move, estimate, estimate + move)
    )


def _fitting(bench: BenchRun, wanted: set[int], seconds_left: float) -> list[int]:
    """Those of the wanted levels that were not measured often enough yet, as far as the time goes."""
    levels, left = [], seconds_left
    for level in bench.levels:
        if level.concurrency not in wanted or len(level.parts) >= MOST_PASSES:
            continue
        # A pass whose time is unknown cannot be fitted in.
        seconds = max(part.wall_s or math.inf for part in level.parts)
        if seconds <= left:
            levels.append(level.concurrency)
            left -= seconds
    return levels
