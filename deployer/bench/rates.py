"""Throughput of a benchmark as the gate uses it: logarithms of rates, level by level and pass by pass. Pure.

Only passes whose measurement was sound are used. What disturbed a pass (a saturated client, somebody else's traffic,
a cut) is our trouble and not the server's, so it is counted apart: such a pass proves nothing, neither good nor bad.
Documents of schema 1 have no passes; there a level is one pass of itself.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

#: The level that stands for the single stream.
ONE = 1
#: Kinds of requests that our own end cut off: what would have become of them is not known.
UNFINISHED = ("cut", "stalled")
_FIGURES = ("steady_tok_s", "aggregate_tok_s")
_LARGEST = sys.float_info.max


@dataclass(frozen=True)
class SetAside:
    """A pass that was measured and is not used. ``repeat`` is None where a whole level is meant."""

    concurrency: int
    repeat: int | None
    why: str

    def as_dict(self) -> Json:
        """As it appears in a verdict."""
        return {"concurrency": self.concurrency, "repeat": self.repeat, "why": self.why}

    def __str__(self) -> str:
        which = "" if self.repeat is None else f", pass {self.repeat + 1}"
        return f"level {self.concurrency}{which}: {self.why}"


@dataclass(frozen=True)
class Rates:
    """The rates of one benchmark. ``passes``: level -> one table of figures (tok/s) for each sound pass."""

    passes: Mapping[int, tuple[Mapping[str, float], ...]]
    set_aside: tuple[SetAside, ...] = ()

    def levels(self) -> set[int]:
        """The levels with a sound pass."""
        return {level for level, found in self.passes.items() if found}


#: Logarithms of the rates of a level's passes, level by level.
Logs = Mapping[int, tuple[float, ...]]


def positive(value: Any) -> float | None:
    """``value`` where it is a number above 0, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value <= _LARGEST else None


def tables(value: Any) -> list[Mapping[str, Any]]:
    """The objects of a JSON list, whatever else is in its place."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def table(value: Any) -> Mapping[str, Any]:
    """A JSON object, whatever else is in its place."""
    return value if isinstance(value, Mapping) else {}


def trouble(part: Mapping[str, Any], bench: Mapping[str, Any]) -> str:
    """Why the measurement of a pass or level proves nothing; empty where it is sound."""
    if part.get("cut_short"):
        return f"cut short ({part['cut_short']})"
    if any(table(part.get("failed")).get(kind) for kind in UNFINISHED):
        return "the run was cut short meanwhile"
    foreign = part.get("foreign_traffic")
    if foreign is True or (foreign is None and table(bench.get("foreign_traffic")).get("value") is True):
        return "somebody else used the server meanwhile"
    if table(part.get("client")).get("client_limited"):
        return "the load client itself was saturated"
    return ""


def rates_of(bench: Mapping[str, Any]) -> Rates:
    """The rates in a bench document. The single stream is level 1, unless that is among the levels."""
    passes: dict[int, tuple[Mapping[str, float], ...]] = {}
    aside: list[SetAside] = []
    for level in tables(bench.get("levels")):
        at = level.get("concurrency")
        if isinstance(at, bool) or not isinstance(at, int) or at < 1:
            continue
        repeats = tables(level.get("passes"))
        sound = []
        for index, part in enumerate(repeats or [level]):
            why = trouble(part, bench)
            figures = {name: rate for name in _FIGURES if (rate := positive(part.get(name)))}
            if why:
                aside.append(SetAside(at, index if repeats else None, why))
            elif figures:
                sound.append(figures)
        passes[at] = tuple(sound)
    singles = table(bench.get("singles"))
    alone = singles.get("tok_s")
    if ONE not in passes and isinstance(alone, list):
        why = trouble(singles, bench)
        if why:
            aside.append(SetAside(ONE, None, why))
        else:
            found = [{"aggregate_tok_s": rate} for value in alone if (rate := positive(value))]
            passes[ONE] = tuple(found)
    return Rates(passes, tuple(aside))


def aligned(benches: Sequence[Rates]) -> list[Logs]:
    """The logarithms of several benchmarks' rates, of the same figure for all of them in each level.

    That is ``steady_tok_s`` where every pass of every benchmark has it, else ``aggregate_tok_s``; a level that some
    benchmark did not measure is in none.
    """
    common = set.intersection(*(rates.levels() for rates in benches)) if benches else set()
    result: list[dict[int, tuple[float, ...]]] = [{} for _ in benches]
    for level in sorted(common):
        figure = next(
            (
                name
                for name in _FIGURES
                if all(name in part for rates in benches for part in rates.passes[level])
            ),
            None,
        )
        if figure is None:
            continue
        for logs, rates in zip(result, benches, strict=True):
            logs[level] = tuple(math.log(part[figure]) for part in rates.passes[level])
    return list(result)


def mean(values: Sequence[float]) -> float:
    """The mean of at least one value."""
    return math.fsum(values) / len(values)
