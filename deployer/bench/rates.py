"""Throughput of a benchmark as the gate uses it: logarithms of rates, level by level and pass by pass. Pure.

Only passes whose measurement was sound are used. What disturbed a pass (a saturated client, somebody else's traffic,
a cut) is our trouble and not the server's, so it is counted apart: such a pass proves nothing, neither good nor bad.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deployer.records.bench import ONE, BenchRun, Level, Pass
from deployer.records.verdict import SetAside

_FIGURES = ("steady_tok_s", "aggregate_tok_s")
#: Logarithms of the rates of a level's passes, level by level.
Logs = Mapping[int, tuple[float, ...]]


@dataclass(frozen=True)
class Rates:
    """The rates of one benchmark. ``passes``: level -> one table of figures (tok/s) for each sound pass."""

    passes: Mapping[int, tuple[Mapping[str, float], ...]]
    set_aside: tuple[SetAside, ...] = ()

    def levels(self) -> set[int]:
        """The levels with a sound pass."""
        return {level for level, passes in self.passes.items() if passes}


def rates_of(bench: BenchRun) -> Rates:
    """Return the rates of a benchmark. The single stream is level 1, unless that is among the levels."""
    passes: dict[int, tuple[Mapping[str, float], ...]] = {}
    aside: list[SetAside] = []
    for level in bench.levels:
        if level.concurrency < 1:
            continue
        sound = []
        for index, part in enumerate(level.parts):
            if why := bench.trouble(part):
                aside.append(SetAside(level.concurrency, index if level.passes else None, why))
            elif figures := _figures(part):
                sound.append(figures)
        passes[level.concurrency] = tuple(sound)
    if ONE not in passes and bench.singles and bench.singles.tok_s is not None:
        if why := bench.trouble(bench.singles):
            aside.append(SetAside(ONE, None, why))
        else:
            passes[ONE] = tuple({"aggregate_tok_s": rate} for rate in bench.singles.tok_s if rate > 0)
    return Rates(passes, tuple(aside))


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


def level_label(concurrency: int | None) -> str:
    """Return a level's name in a list."""
    return "one" if concurrency == ONE else f"@{concurrency}"


def mean(values: Sequence[float]) -> float:
    """Return the mean of at least one value."""
    return math.fsum(values) / len(values)
