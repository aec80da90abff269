"""One benchmark as a table, and what speaks against its figures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from deployer.bench.server import sentences
from deployer.records.bench import BenchRun, Counted, Quantiles


def doubts(name: str, bench: BenchRun) -> list[str]:
    """Return what speaks against taking the figures, or their differences, at face value."""
    return [f"{name}: {text}" for text in _doubts(bench)]


def _doubts(bench: BenchRun) -> Iterator[str]:
    for where, stage in (
        ("of the warm-up", bench.warmups),
        ("on its own", bench.singles),
        ("of the fixed prompt", bench.fixed),
    ):
        if stage:
            yield from _unanswered(stage, where)
    for level in bench.levels:
        yield from _unanswered(level, f"at level {level.concurrency}")
        # One in which nothing was completed has its own words.
        if level.client and level.client.client_limited and (level.completed or not level.requests):
            yield f"the load client was saturated at level {level.concurrency}"
    if bench.foreign:
        yield "somebody else used the server meanwhile"
    if bench.client and (ended := bench.client.sampler_ended_s) and ended > 0:
        yield f"the process that looks at the server ended after {ended:.0f} s; what it did then was not seen"
    if bench.stopped:
        yield f"ended early, {bench.stopped}"


def _unanswered(stage: Counted, where: str) -> Iterator[str]:
    """The requests of a stage that failed, and those of which nothing is known as the time was up."""
    if stage.requests <= stage.completed:
        return
    if failed := stage.requests - stage.completed - stage.unfinished:
        how = f" ({', '.join(f'{n} {kind}' for kind, n in stage.failures.items())})" if stage.failures else ""
        yield f"{failed} of {stage.requests} requests {where} failed{how}"
    if stage.unfinished:
        yield f"{stage.unfinished} of {stage.requests} requests {where} had not ended when the time was used up"


def bench_view(name: str, bench: BenchRun) -> RenderableType:
    """Return one benchmark as a table: a line a level."""
    shown = Table(show_edge=False, pad_edge=False, header_style="bold", title=Text(name), title_justify="left")
    for title in ("level", "done", "tok/s", "steady tok/s", "TTFT p50 ms", "p95", "ITL p50 ms", "p95"):
        shown.add_column(title, justify="right")
    if singles := bench.singles:
        first, gap = singles.ttft_s or Quantiles(), singles.tpot_s or Quantiles()
        speed = number(bench.single_stream_tok_s, "tok/s")
        shown.add_row("one", _done(singles), speed, "", number(first.p50, "ms"), "", number(gap.p50, "ms"), "")
    for level in bench.levels:
        times = (level.ttft_s or Quantiles(), level.itl_s or Quantiles())
        shown.add_row(
            str(level.concurrency),
            _done(level),
            number(level.aggregate_tok_s, "tok/s"),
            number(level.steady_tok_s, "tok/s"),
            *(number(value, "ms") for time in times for value in (time.p50, time.p95)),
        )
    lines = [Text(text, style="dim") for text in sentences(bench)]
    return Group(shown, *lines, *(Text(f"! {doubt}", style="yellow") for doubt in doubts(name, bench)))


def _done(stage: Counted) -> str:
    return f"{stage.completed}/{stage.requests}"


def number(value: float | None, unit: Literal["tok/s", "ms"]) -> str:
    """Return a figure to show: three significant digits and more, so that 7.31 ms and 2345 tok/s both read well."""
    if value is None or not math.isfinite(value):
        return "-"
    scaled = value * 1000 if unit == "ms" else value
    return f"{scaled:.0f}" if scaled >= 100 else f"{scaled:.1f}" if scaled >= 10 else f"{scaled:.2f}"
