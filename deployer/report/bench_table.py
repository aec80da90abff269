"""Benchmarks side by side: rows as data, and the table that people see. The first benchmark is the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from deployer.bench.server import sentences

Json = dict[str, Any]

#: Differences up to this size are within what equal runs show, so they get no colour.
NOISE = 0.03

#: Figures of a level: title, path in bench.json, unit (more tok/s is better, fewer ms).
_LEVEL_FIGURES: tuple[tuple[str, tuple[str, ...], Literal["tok/s", "ms"]], ...] = (
    ("aggregate", ("aggregate_tok_s",), "tok/s"),
    ("TTFT p50", ("ttft_s", "p50"), "ms"),
    ("ITL p50", ("itl_s", "p50"), "ms"),
)


@dataclass(frozen=True)
class Cell:
    """One figure of one benchmark. ``delta`` is the relative change against the reference (0.1: 10 % more)."""

    value: float | None
    delta: float | None = None


@dataclass(frozen=True)
class Row:
    """One figure over all benchmarks. ``level`` is None for the single stream; times are in seconds."""

    title: str
    level: int | None
    unit: Literal["tok/s", "ms"]
    cells: tuple[Cell, ...]


def rows(benches: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """The figures of every benchmark, level by level; a level that only some measured is None in the others."""
    found = [_row("single stream", None, "tok/s", [b.get("single_stream_tok_s") for b in benches.values()])]
    by_level = [{level["concurrency"]: level for level in b.get("levels") or []} for b in benches.values()]
    for level in sorted({n for levels in by_level for n in levels}):
        for title, path, unit in _LEVEL_FIGURES:
            found.append(_row(title, level, unit, [_at(levels.get(level), path) for levels in by_level]))
    return found


def doubts(benches: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What speaks against taking the figures, or their differences, at face value."""
    found = []
    for name, bench in benches.items():
        for level in bench.get("levels") or []:
            lost = level["requests"] - level["completed"]
            if lost:
                found.append(
                    f"{name}: {lost} of {level['requests']} requests failed at level {level['concurrency']}"
                )
            if (level.get("client") or {}).get("client_limited"):
                found.append(f"{name}: the load client was saturated at level {level['concurrency']}")
        if (bench.get("foreign_traffic") or {}).get("value") is True:
            found.append(f"{name}: somebody else used the server meanwhile")
        if bench.get("stopped"):
            found.append(f"{name}: ended early, {bench['stopped']}")
    for what, values in (
        ("prompt tokens", [(b.get("spec") or {}).get("prompt_tokens") for b in benches.values()]),
        ("output tokens", [(b.get("spec") or {}).get("output_tokens") for b in benches.values()]),
        ("place of the client", [b.get("place") for b in benches.values()]),
    ):
        if len(set(values)) > 1:
            found.append(f"not measured alike: {what} {', '.join(map(str, values))}")
    return found


def comparison_document(benches: Mapping[str, Mapping[str, Any]]) -> Json:
    """The comparison as JSON. ``delta`` is relative to the first benchmark; times in seconds."""
    names = list(benches)
    return {
        "reference": names[0] if names else None,
        "releases": names,
        "figures": [
            {
                "figure": row.title,
                "concurrency": row.level,
                "unit": "s" if row.unit == "ms" else row.unit,
                "values": {name: cell.value for name, cell in zip(names, row.cells, strict=True)},
                "delta": {name: cell.delta for name, cell in zip(names, row.cells, strict=True)},
            }
            for row in rows(benches)
        ],
        "doubts": doubts(benches),
    }


def comparison_view(benches: Mapping[str, Mapping[str, Any]]) -> RenderableType:
    """The comparison as a table, one column a benchmark, with what speaks against it below."""
    table = Table(show_edge=False, pad_edge=False, header_style="bold")
    table.add_column("level", justify="right")
    table.add_column("figure")
    for name in benches:
        table.add_column(Text(name), justify="right")
    shown: int | None = None
    for row in rows(benches):
        if row.level != shown:
            table.add_section()
        label = "" if row.level is None or row.level == shown else str(row.level)
        shown = row.level
        table.add_row(label, f"{row.title}, {row.unit}", *(_cell(row, cell) for cell in row.cells))
    said = [
        Text(f"{name} {text}", style="dim") for name, bench in benches.items() for text in sentences(bench)
    ]
    return Group(table, *said, *(Text(f"! {doubt}", style="yellow") for doubt in doubts(benches)))


def bench_view(name: str, bench: Mapping[str, Any]) -> RenderableType:
    """One benchmark as a table: a line a level."""
    table = Table(
        show_edge=False, pad_edge=False, header_style="bold", title=Text(name), title_justify="left"
    )
    for title in ("level", "done", "tok/s", "steady tok/s", "TTFT p50 ms", "p95", "ITL p50 ms", "p95"):
        table.add_column(title, justify="right")
    single = bench.get("single_stream_tok_s")
    singles = bench.get("singles")
    if singles:
        done = f"{singles['completed']}/{singles['requests']}"
        first, gap = _at(singles, ("ttft_s", "p50")), _at(singles, ("tpot_s", "p50"))
        table.add_row(
            "one", done, _number(single, "tok/s"), "", _number(first, "ms"), "", _number(gap, "ms"), ""
        )
    for level in bench.get("levels") or []:
        table.add_row(
            str(level["concurrency"]),
            f"{level['completed']}/{level['requests']}",
            _number(level.get("aggregate_tok_s"), "tok/s"),
            _number(level.get("steady_tok_s"), "tok/s"),
            *(
                _number(_at(level, (metric, quantile)), "ms")
                for metric in ("ttft_s", "itl_s")
                for quantile in ("p50", "p95")
            ),
        )
    said = [Text(text, style="dim") for text in sentences(bench)]
    return Group(table, *said, *(Text(f"! {doubt}", style="yellow") for doubt in doubts({name: bench})))


def _row(title: str, level: int | None, unit: Literal["tok/s", "ms"], values: Sequence[float | None]) -> Row:
    cells = [Cell(value) for value in values[:1]]
    for value in values[1:]:
        reference = values[0]
        cells.append(Cell(value, value / reference - 1 if value is not None and reference else None))
    return Row(title, level, unit, tuple(cells))


def _at(document: Mapping[str, Any] | None, path: Sequence[str]) -> float | None:
    found: Any = document
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, int | float) else None


def _number(value: float | None, unit: Literal["tok/s", "ms"]) -> str:
    """Three significant digits and more, so that 7.31 ms and 2345 tok/s both read well."""
    if value is None:
        return "-"
    scaled = value * 1000 if unit == "ms" else value
    return f"{scaled:.0f}" if scaled >= 100 else f"{scaled:.1f}" if scaled >= 10 else f"{scaled:.2f}"


def _cell(row: Row, cell: Cell) -> Text:
    text = Text(_number(cell.value, row.unit))
    if cell.delta is not None:
        better = cell.delta < 0 if row.unit == "ms" else cell.delta > 0
        style = "dim" if abs(cell.delta) <= NOISE else "green" if better else "red"
        text.append(f" {cell.delta:+.1%}", style=style)
    return text
