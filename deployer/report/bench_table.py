"""One benchmark as a table, and what speaks against its figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from deployer.bench.load.server import sentences
from deployer.bench.rates import UNFINISHED, positive, table, tables

Json = dict[str, Any]


def doubts(benches: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What speaks against taking the figures, or their differences, at face value."""
    found = []
    for name, bench in benches.items():
        for where, key in (
            ("of the warm-up", "warmups"),
            ("on its own", "singles"),
            ("of the fixed prompt", "fixed"),
        ):
            found += [f"{name}: {text}" for text in _unanswered(table(bench.get(key)), where)]
        for level in tables(bench.get("levels")):
            at = level.get("concurrency")
            found += [f"{name}: {text}" for text in _unanswered(level, f"at level {at}")]
            if table(level.get("client")).get("client_limited") and level.get("completed") != 0:
                found.append(f"{name}: the load client was saturated at level {at}")
        if table(bench.get("foreign_traffic")).get("value") is True:
            found.append(f"{name}: somebody else used the server meanwhile")
        if gone := positive(table(bench.get("client")).get("sampler_ended_s")):
            found.append(
                f"{name}: the process that looks at the server ended after {gone:.0f} s; what it did then was not seen"
            )
        if bench.get("stopped"):
            found.append(f"{name}: ended early, {bench['stopped']}")
    return found


def _unanswered(stage: Mapping[str, Any], where: str) -> list[str]:
    """The requests of a stage that failed, and those of which nothing is known as the time was up."""
    sent, done = stage.get("requests"), stage.get("completed")
    if not (isinstance(sent, int) and isinstance(done, int) and sent > done):
        return []
    kinds = {kind: int(n) for kind, value in table(stage.get("failed")).items() if (n := positive(value))}
    open_ones = sum(kinds.pop(kind, 0) for kind in UNFINISHED)
    found = []
    if failed := sent - done - open_ones:
        how = f" ({', '.join(f'{n} {kind}' for kind, n in kinds.items())})" if kinds else ""
        found.append(f"{failed} of {sent} requests {where} failed{how}")
    if open_ones:
        found.append(f"{open_ones} of {sent} requests {where} had not ended when the time was used up")
    return found


def bench_view(name: str, bench: Mapping[str, Any]) -> RenderableType:
    """One benchmark as a table: a line a level."""
    shown = Table(
        show_edge=False, pad_edge=False, header_style="bold", title=Text(name), title_justify="left"
    )
    for title in ("level", "done", "tok/s", "steady tok/s", "TTFT p50 ms", "p95", "ITL p50 ms", "p95"):
        shown.add_column(title, justify="right")
    single = bench.get("single_stream_tok_s")
    singles = bench.get("singles")
    if singles:
        done = f"{singles['completed']}/{singles['requests']}"
        first, gap = _at(singles, ("ttft_s", "p50")), _at(singles, ("tpot_s", "p50"))
        shown.add_row(
            "one", done, number(single, "tok/s"), "", number(first, "ms"), "", number(gap, "ms"), ""
        )
    for level in bench.get("levels") or []:
        shown.add_row(
            str(level["concurrency"]),
            f"{level['completed']}/{level['requests']}",
            number(level.get("aggregate_tok_s"), "tok/s"),
            number(level.get("steady_tok_s"), "tok/s"),
            *(
                number(_at(level, (metric, quantile)), "ms")
                for metric in ("ttft_s", "itl_s")
                for quantile in ("p50", "p95")
            ),
        )
    said = [Text(text, style="dim") for text in sentences(bench)]
    return Group(shown, *said, *(Text(f"! {doubt}", style="yellow") for doubt in doubts({name: bench})))


def _at(document: Mapping[str, Any] | None, path: Sequence[str]) -> float | None:
    found: Any = document
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, int | float) else None


def number(value: Any, unit: Literal["tok/s", "ms"]) -> str:
    """A figure to show: three significant digits and more, so that 7.31 ms and 2345 tok/s both read well."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return "-"
    scaled = value * 1000 if unit == "ms" else value
    return f"{scaled:.0f}" if scaled >= 100 else f"{scaled:.1f}" if scaled >= 10 else f"{scaled:.2f}"
