"""Throughput of a benchmark as the gate uses it: logarithms of rates, level by level and pass by pass. Pure.

Only passes whose measurement was sound are used. What disturbed a pass (a saturated client, somebody else's traffic,
a cut) is our trouble and not the server's, so it is counted apart: such a pass proves nothing, neither good nor bad.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from deployer.records.bench import ONE, BenchRun, Level, Pass, Singles
from deployer.records.verdict import SetAside

_FIGURES = ("steady_tok_s", "aggregate_tok_s")
#: At least this share of the baseline's levels must be there to compare.
FEWEST_LEVELS = 0.5
#: Logarithms of the rates of a level's passes, level by level.
Logs = Mapping[int, tuple[float, ...]]


@dataclass(frozen=True)
class Rates:
    """The rates of one benchmark.

    ``passes``: level -> one table of figures (tok/s) for each sound pass. ``doubts``: level -> what disturbed the first
    of its passes that was disturbed; None is the single runs.
    """

    passes: Mapping[int, tuple[Mapping[str, float], ...]]
    set_aside: tuple[SetAside, ...] = ()
    doubts: Mapping[int | None, str] = field(default_factory=dict)

    def levels(self) -> set[int]:
        """The levels with a sound pass."""
        return {level for level, passes in self.passes.items() if passes}


def trouble(bench: BenchRun, part: Singles | Pass | Level) -> str:
    """Return why the measurement of a stage or pass proves nothing; empty if it is sound."""
    if part.cut_short:
        return f"cut short ({part.cut_short})"
    if part.unfinished:
        return "the run was cut short meanwhile"
    if part.foreign_traffic or (part.foreign_traffic is None and bench.foreign):
        return "somebody else used the server meanwhile"
    if part.client and part.client.client_limited:
        return "the load client itself was saturated"
    return ""


def rates_of(bench: BenchRun) -> Rates:
    """Return the rates of a benchmark. The single stream is level 1, unless that is among the levels."""
    passes: dict[int, tuple[Mapping[str, float], ...]] = {}
    aside: list[SetAside] = []
    for level in bench.levels:
        if level.concurrency < 1:
            continue
        sound = []
        for index, part in enumerate(level.parts):
            if why := trouble(bench, part):
                aside.append(SetAside(level.concurrency, index if level.passes else None, why))
            elif figures := _figures(part):
                sound.append(figures)
        passes[level.concurrency] = tuple(sound)
    doubts: dict[int | None, str] = {item.concurrency: item.why for item in reversed(aside)}
    if bench.singles:
        doubts[None] = trouble(bench, bench.singles)
    if ONE not in passes and bench.singles and bench.singles.tok_s is not None:
        if doubts[None]:
            aside.append(SetAside(ONE, None, doubts[None]))
        else:
            passes[ONE] = tuple({"aggregate_tok_s": rate} for rate in bench.singles.tok_s if rate > 0)
    return Rates(passes, tuple(aside), doubts)


def _figures(part: Pass | Level) -> dict[str, float]:
    rates = zip(_FIGURES, (part.steady_tok_s, part.aggregate_tok_s), strict=True)
    return {name: rate for name, rate in rates if rate is not None and rate > 0}


def aligned(benches: Sequence[Rates]) -> list[Logs]:
    """Return the logarithms of several benchmarks' rates, of the same figure for all of them in each level.

    That is ``steady_tok_s`` if every pass of every benchmark has it, else ``aggregate_tok_s``; a level that some
    benchmark did not measure is in none.
    """
    common = set.intersection(*(rates.levels() for rates in benches)) if benches else set()
    result: list[dict[int, tuple[float, ...]]] = [{} for _ in benches]
    for level in sorted(common):
        parts = [part for rates in benches for part in rates.passes[level]]
        figure = next((name for name in _FIGURES if all(name in part for part in parts)), None)
        if figure is None:
            continue
        for logs, rates in zip(result, benches, strict=True):
            logs[level] = tuple(math.log(part[figure]) for part in rates.passes[level])
    return list(result)


@dataclass(frozen=True)
class Aligned:
    """Starts of a candidate and of a baseline as logarithms of rates, all with the same levels.

    ``expected`` is how many levels the baseline has of those requested.
    """

    ours: list[Logs]
    theirs: list[Logs]
    expected: int
    set_aside: tuple[SetAside, ...]

    @property
    def sound(self) -> int:
        """How many levels can be compared."""
        return len(self.ours[0])


def align(candidate: Sequence[BenchRun], baseline: Sequence[BenchRun], requested: Set[int]) -> Aligned | None:
    """Return the rates of both sides at the ``requested`` levels. None if nothing in the baseline is sound."""
    ours = [rates_of(bench) for bench in candidate]
    theirs = [rates for bench in baseline if (rates := rates_of(bench)).levels() & requested]
    if not theirs:
        return None
    # One start that measured little must not take the levels from all others.
    most = max(len(rates.levels() & requested) for rates in theirs)
    theirs = [rates for rates in theirs if len(rates.levels() & requested) >= FEWEST_LEVELS * most]
    expected = set.intersection(*(rates.levels() for rates in theirs)) & requested
    logs = aligned([*ours, *theirs])
    aside = tuple(item for rates in ours for item in rates.set_aside)
    return Aligned(logs[: len(ours)], logs[len(ours) :], len(expected), aside)


def mean(values: Sequence[float]) -> float:
    """Return the mean of at least one value."""
    return math.fsum(values) / len(values)
