"""A comparison as JSON, and as tables for a terminal of 100 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from deployer.bench.comparison import RATES, Comparison, Subject, value_of
from deployer.bench.server import sentences
from deployer.inspect.compare import Compared, DifferentArgument
from deployer.records.bench import ONE, BenchRun
from deployer.report.bench_table import bench_view, doubts, number

TITLES = {
    "aggregate_tok_s": "aggregate, tok/s",
    "steady_tok_s": "steady, tok/s",
    "ttft_s": "TTFT p50, ms",
    "tpot_s": "TPOT p50, ms",
}
_STYLES = {True: "green", False: "red", None: "dim"}


class Row(NamedTuple):
    """One figure of a comparison in words; ``level`` is empty if it is that of the row before."""

    level: str
    figure: str
    reference: str
    value: str
    change: str
    verdict: str
    better: bool | None


def rows(comparison: Comparison) -> Iterator[Row]:
    """Yield the figures of a comparison as they are view."""
    last: int | None = None
    for item in comparison.changes:
        level = "one" if item.concurrency == ONE else str(item.concurrency)
        unit: Literal["tok/s", "ms"] = "tok/s" if item.figure in RATES else "ms"
        yield Row(
            "" if item.concurrency == last else level,
            TITLES[item.figure],
            number(item.reference, unit),
            number(item.value, unit),
            "" if item.effect is None else str(item),
            item.word(),
            item.better,
        )
        last = item.concurrency


def all_doubts(compared: Compared) -> list[str]:
    """Return what speaks against taking the figures at face value."""
    texts = [f"not measured alike: {text}" for text in compared.differences]
    for subject in compared.subjects:
        texts += subject.about.never_live
        for index, bench in enumerate(subject.benches):
            name = subject.label(index)
            texts += doubts(name, bench)
            texts += [f"{name}: {text}" for text in bench.cut]
    return texts


def comparison_document(compared: Compared) -> dict[str, Any]:
    """Return the comparison as JSON: values in tok/s and s, effects and intervals as shares of the reference."""
    return {
        "reference": compared.subjects[0].name,
        "releases": [name for item in compared.subjects for name in item.about.releases],
        "subjects": [_subject(item) for item in compared.subjects],
        "comparisons": [item.as_json() for item in compared.comparisons],
        "noise": {**compared.noise.as_json(), "text": str(compared.noise)},
        "arguments": [item.as_json() for item in compared.arguments],
        "differences": list(compared.differences),
        "doubts": all_doubts(compared),
    }


def _subject(subject: Subject) -> dict[str, Any]:
    keys = ("releases", "profile", "sglang", "model", "host", "gpus", "timeline")
    about = subject.about.as_json()
    return {
        "name": subject.name,
        "starts": subject.count(),
        "benchmarks": len(subject.benches),
        **{key: about[key] for key in keys},
        "place": subject.benches[0].place,
        "aggregate_tok_s": {str(level): value_of(subject, RATES[0], level) for level in sorted(subject.levels())},
    }


def comparison_view(compared: Compared) -> RenderableType:
    """The throughput of all (if there are more than two), then each one against the reference."""
    parts: list[RenderableType] = []
    if len(compared.subjects) > 2:
        parts += [_overview(compared), Text("")]
    for comparison in compared.comparisons:
        parts += [_pair(comparison), *_settings(comparison, compared.arguments)]
        parts.append(Text(comparison.sentences()[-1], style="bold"))
        parts += [Text(f"! set aside: {item}", style="yellow") for item in comparison.set_aside]
        parts.append(Text(""))
    if len(compared.subjects) == 2:
        parts += [
            Text(f"{subject.name} {text}", style="dim")
            for subject in compared.subjects
            for text in sentences(subject.benches[0])
        ]
    parts += [Text(f"! {doubt}", style="yellow") for doubt in all_doubts(compared)]
    parts.append(Text(str(compared.noise), style="dim"))
    return Group(*parts)


def measured_view(name: str, bench: BenchRun, compared: Compared | None) -> RenderableType:
    """One benchmark, and how it compares with another one, if requested."""
    view = bench_view(name, bench)
    return view if compared is None else Group(view, Text(""), comparison_view(compared))


def _overview(compared: Compared) -> Table:
    view = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", title_justify="left", title_style="bold")
    view.title = "tok/s (aggregate)"
    view.add_column("", overflow="fold")
    for level in compared.levels():
        view.add_column("one" if level == ONE else f"at {level}", justify="right")
    for subject in compared.subjects:
        values = (value_of(subject, RATES[0], level) for level in compared.levels())
        view.add_row(Text(subject.name), *(number(value, "tok/s") for value in values))
    return view


def _pair(comparison: Comparison) -> Table:
    view = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    view.add_column("level", justify="right")
    view.add_column("figure", no_wrap=True)
    for name in (comparison.reference, comparison.name):
        view.add_column(Text(name), justify="right", overflow="fold")
    view.add_column("change (98 % interval)", no_wrap=True)
    view.add_column("verdict", no_wrap=True)
    for row in rows(comparison):
        style = _STYLES[row.better]
        view.add_row(*row[:4], Text(row.change, style=style), Text(row.verdict, style=style))
    return view


def _settings(comparison: Comparison, arguments: Sequence[DifferentArgument]) -> list[Text]:
    """The arguments in which the two differ, a line each; those that only one has share a line."""
    lines: list[str] = []
    names = (comparison.reference, comparison.name)
    only: dict[str, list[str]] = {name: [] for name in names}
    for argument in arguments:
        if not all(name in argument.values for name in names):
            continue
        values = [argument.values[name] for name in names]
        present = [(name, value) for name, value in zip(names, values, strict=True) if value is not None]
        if len(present) == 1:
            [(name, value)] = present
            only[name].append(f"{argument.name} {value}".strip())
        elif values[0] != values[1]:
            lines.append(f"  {argument.name}: {values[0]} -> {values[1]}")
    lines += [f"  only {name}: {', '.join(words)}" for name, words in only.items() if words]
    return [Text(line, style="dim") for line in lines]
