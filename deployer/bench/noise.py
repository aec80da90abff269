"""How much equal starts of one service differ: learnt from its own releases, and typical figures until then. Pure.

Three kinds of noise, as relative standard deviations of throughput:

* ``run``: two passes of one level within one start;
* ``level``: what one start does better or worse at one level than at the others;
* ``start``: a whole start against another start of the same configuration.

Repeats within a start lessen only the first. What the service's own releases show is mixed with typical figures, each
with the weight of its degrees of freedom, so that a few starts move the estimate a little and many starts own it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from deployer.bench.rates import Logs, aligned, mean, rates_of
from deployer.records.bench import BenchRun
from deployer.records.verdict import Noise

_TYPICAL = Noise()
#: Typical noise, the defaults of `Noise`. Published figures: throughput of equal runs differs by 0.1-2.5 % within a
#: session and by 3-4 % between sessions (the difference of two, so 1.4 times the deviation of one).
TYPICAL_RUN, TYPICAL_LEVEL, TYPICAL_START = _TYPICAL.run, _TYPICAL.level, _TYPICAL.start
#: How many degrees of freedom of a service's own measurements weigh as much as the typical figures.
WEIGHT_RUN, WEIGHT_LEVEL, WEIGHT_START = 10.0, 10.0, 20.0
#: Starts whose variance is more than this many times the expected contradict it; the expectation then weighs less.
CONTRADICTION = 3.0
#: A service whose passes are noisier than usual is expected to start noisier too, by up to this factor (in variance).
#: Never the other way round: quiet passes say nothing about starts (25 % between two starts was seen on real GPUs
#: whose passes agreed).
WORST_START = 4.0


def learn(configurations: Sequence[Sequence[BenchRun]]) -> Noise:
    """Return the noise of a service from the benchmarks of its proven starts, grouped by configuration."""
    groups = [aligned([rates_of(bench) for bench in group]) for group in configurations]
    groups = [[logs for logs in group if logs] for group in groups]
    return learn_from([group for group in groups if group])


def learn_from(groups: Sequence[Sequence[Logs]]) -> Noise:
    """Return the same from logarithms of rates; the starts of a group have the same levels."""
    within, passes_freedom = 0.0, 0
    for group in groups:
        for logs in group:
            for passes in logs.values():
                centre = mean(passes)
                within += math.fsum((value - centre) ** 2 for value in passes)
                passes_freedom += len(passes) - 1
    run = _mixed(TYPICAL_RUN**2, WEIGHT_RUN, within, passes_freedom)

    tables = [_Table(group) for group in groups if len(group) > 1]
    residual = math.fsum(max(0.0, t.residual - t.residual_freedom * run * t.repeats) for t in tables)
    level = _mixed(TYPICAL_LEVEL**2, WEIGHT_LEVEL, residual, sum(t.residual_freedom for t in tables))

    between = math.fsum(max(0.0, t.between - t.freedom * (level + run * t.repeats) / t.levels) for t in tables)
    freedom = sum(t.freedom for t in tables)
    expected = TYPICAL_START**2 * min(max(run / TYPICAL_RUN**2, 1.0), WORST_START)
    ratio = between / freedom / expected if freedom else 0.0
    start = _mixed(expected, WEIGHT_START / max(1.0, ratio / CONTRADICTION) ** 2, between, freedom)
    return Noise(math.sqrt(run), math.sqrt(level), math.sqrt(start), sum(map(len, groups)), freedom)


def _mixed(typical: float, weight: float, squares: float, freedom: int) -> float:
    return (weight * typical + squares) / (weight + freedom)


class _Table:
    """Sums of squares of the starts of one configuration: between starts, and what starts and levels leave over."""

    def __init__(self, group: Sequence[Logs]) -> None:
        levels = sorted(group[0])
        values = [[mean(logs[level]) for level in levels] for logs in group]
        starts = [mean(row) for row in values]
        columns = [mean([row[index] for row in values]) for index in range(len(levels))]
        grand = mean(starts)
        self.levels = len(levels)
        self.freedom = len(group) - 1
        self.residual_freedom = self.freedom * (len(levels) - 1)
        self.between = math.fsum((start - grand) ** 2 for start in starts)
        self.residual = math.fsum(
            (value - start - column + grand) ** 2
            for row, start in zip(values, starts, strict=True)
            for value, column in zip(row, columns, strict=True)
        )
        #: Mean of 1 / passes: what is left of the noise between passes in a mean over them.
        self.repeats = mean([1 / len(logs[level]) for logs in group for level in levels])
