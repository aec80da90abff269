"""A comparison as JSON and as tables of a terminal. Whatever is compared fits 100 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from deployer.bench.comparison import RATES, Change, Comparison, Subject, value_of
from deployer.bench.noise import sentence
from deployer.bench.server import sentences
from deployer.inspect.compare import Compared
from deployer.records.bench import ONE, BenchRun
from deployer.report.bench_table import bench_view, doubts, number

Json = dict[str, Any]

TITLES = {
    "aggregate_tok_s": "aggregate, tok/s",
    "steady_tok_s": "steady, tok/s",
    "ttft_s": "TTFT p50, ms",
    "tpot_s": "TPOT p50, ms",
}
_STYLES = {True: "green", False: "red", None: "dim"}


def all_doubts(found: Compared) -> list[str]:
    """Return what speaks against taking the figures at face value."""
    texts = [f"not measured alike: {text}" for text in found.differences]
    for subject in found.subjects:
        texts += subject.about.never_live
        for index, bench in enumerate(subject.benches):
            name = subject.label(index)
            texts += doubts(name, bench)
            texts += [f"{name}: {text}" for text in bench.cut]
    return texts


def comparison_document(found: Compared) -> Json:
    """The comparison as JSON. Values in tok/s and s, effects and intervals as shares of the reference."""
    return {
        "reference": found.subjects[0].name,
        "releases": [name for item in found.subjects for name in item.about.releases],
        "subjects": [_subject(item) for item in found.subjects],
        "comparisons": [item.as_json() for item in found.comparisons],
        "noise": {**found.noise.as_json(), "text": sentence(found.noise)},
        "arguments": list(found.arguments),
        "differences": list(found.differences),
        "doubts": all_doubts(found),
    }


def _subject(subject: Subject) -> Json:
    keys = ("releases", "profile", "sglang", "model", "host", "gpus", "timeline")
    about = subject.about.as_json()
    return {
        "name": subject.name,
        "starts": subject.count(),
        "benchmarks": len(subject.benches),
        **{key: about[key] for key in keys},
        "place": subject.benches[0].place,
        "aggregate_tok_s": {
            str(level): value_of(subject, RATES[0], level) for level in sorted(subject.levels())
        },
    }


def comparison_view(found: Compared) -> RenderableType:
    """Everyone's throughput (where there are more than two), then a table for each one against the reference."""
    parts: list[RenderableType] = []
    if len(found.subjects) > 2:
        parts += [_overview(found), Text("")]
    for comparison in found.comparisons:
        parts += [_pair(comparison), *_settings(comparison, found.arguments)]
        parts.append(Text(comparison.sentences()[-1], style="bold"))
        parts += [Text(f"! set aside: {item}", style="yellow") for item in comparison.set_aside]
        parts.append(Text(""))
    if len(found.subjects) == 2:
        parts += [
            Text(f"{subject.name} {text}", style="dim")
            for subject in found.subjects
            for text in sentences(subject.benches[0])
        ]
    parts += [Text(f"! {doubt}", style="yellow") for doubt in all_doubts(found)]
    parts.append(Text(sentence(found.noise), style="dim"))
    return Group(*parts)


def measured_view(name: str, bench: BenchRun, found: Compared | None) -> RenderableType:
    """One benchmark, and what it is against another one where that was asked for."""
    return (
        bench_view(name, bench)
        if found is None
        else Group(bench_view(name, bench), Text(""), comparison_view(found))
    )


def _overview(found: Compared) -> Table:
    shown = Table(
        box=None, padding=(0, 2, 0, 0), header_style="dim", title_justify="left", title_style="bold"
    )
    shown.title = "tok/s (aggregate)"
    shown.add_column("", overflow="fold")
    for level in found.levels():
        shown.add_column("one" if level == ONE else f"at {level}", justify="right")
    for subject in found.subjects:
        values = (value_of(subject, RATES[0], level) for level in found.levels())
        shown.add_row(Text(subject.name), *(number(value, "tok/s") for value in values))
    return shown


def _pair(comparison: Comparison) -> Table:
    shown = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    shown.add_column("level", justify="right")
    shown.add_column("figure", no_wrap=True)
    for name in (comparison.reference, comparison.name):
        shown.add_column(Text(name), justify="right", overflow="fold")
    shown.add_column("change (98 % interval)", no_wrap=True)
    shown.add_column("verdict", no_wrap=True)
    last: int | None = None
    for item in comparison.changes:
        label = (
            "" if item.concurrency == last else "one" if item.concurrency == ONE else str(item.concurrency)
        )
        last = item.concurrency
        unit: Literal["tok/s", "ms"] = "tok/s" if item.figure in RATES else "ms"
        style = _STYLES[item.better]
        shown.add_row(
            label,
            TITLES[item.figure],
            number(item.reference, unit),
            number(item.value, unit),
            Text(_change(item), style=style),
            Text(item.word(), style=style),
        )
    return shown


def _change(item: Change) -> str:
    return "" if item.effect is None else str(item)


def _settings(comparison: Comparison, arguments: Sequence[Mapping[str, Any]]) -> list[Text]:
    """The arguments in which the two differ, a line each; those that only one has are told in one line."""
    lines: list[Text] = []
    only: dict[str, list[str]] = {comparison.reference: [], comparison.name: []}
    for row in arguments:
        values = row["values"]
        if comparison.reference not in values or comparison.name not in values:
            continue
        one, two = values[comparison.reference], values[comparison.name]
        if one is None and two is not None:
            only[comparison.name].append(f"{row['name']} {two}".strip())
        elif two is None and one is not None:
            only[comparison.reference].append(f"{row['name']} {one}".strip())
        elif one != two:
            lines.append(Text(f"  {row['name']}: {one} -> {two}", style="dim"))
    for name, words in only.items():
        if words:
            lines.append(Text(f"  only {name}: {', '.join(words)}", style="dim"))
    return lines
