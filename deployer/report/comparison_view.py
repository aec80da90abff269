"""A comparison as JSON and as tables of a terminal. Whatever is compared fits 100 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from deployer.bench.comparison import RATES, Comparison, Finding, Subject, value_of
from deployer.bench.rates import ONE, rates_of, table, tables
from deployer.inspect.compare import Compared
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
    """What speaks against taking the figures at face value."""
    said = [f"not measured alike: {text}" for text in found.differences]
    for subject in found.subjects:
        said += subject.about.get("never_live") or ()
        for index, bench in enumerate(subject.benches):
            name = subject.name if len(subject.benches) == 1 else f"{subject.name}, benchmark {index + 1}"
            said += doubts({name: bench})
            said += [f"{name}: {text}" for text in table(bench.get("budget")).get("cut") or ()]
    return said


def comparison_document(found: Compared) -> Json:
    """The comparison as JSON. Values in tok/s and s, effects and intervals as shares of the reference."""
    return {
        "reference": found.subjects[0].name,
        "releases": [name for item in found.subjects for name in item.about.get("releases") or ()],
        "subjects": [_subject(item) for item in found.subjects],
        "comparisons": [item.as_dict() for item in found.comparisons],
        "noise": {**found.noise.as_dict(), "text": found.noise.sentence()},
        "arguments": list(found.arguments),
        "differences": list(found.differences),
        "doubts": all_doubts(found),
    }


def _subject(subject: Subject) -> Json:
    figures = {
        str(level): value_of(subject, RATES[0], level)
        for level in sorted({n for bench in subject.benches for n in rates_of(bench).passes})
    }
    keys = ("releases", "profile", "sglang", "model", "host", "gpus", "timeline")
    return {
        "name": subject.name,
        "starts": subject.count(),
        "benchmarks": len(subject.benches),
        **{key: subject.about.get(key) for key in keys},
        "place": subject.benches[0].get("place"),
        "aggregate_tok_s": figures,
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
            for text in server_words(subject.benches[0])
        ]
    parts += [Text(f"! {doubt}", style="yellow") for doubt in all_doubts(found)]
    parts.append(Text(found.noise.sentence(), style="dim"))
    return Group(*parts)


def server_words(bench: Mapping[str, Any]) -> list[str]:
    """What the server did during each level, whatever else a file holds."""
    said = [table(level.get("server")).get("sentence") for level in tables(bench.get("levels"))]
    return [text for text in said if isinstance(text, str)]


def measured_view(name: str, bench: Mapping[str, Any], found: Compared | None) -> RenderableType:
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
    for item in comparison.findings:
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


def _change(item: Finding) -> str:
    return "" if item.effect is None else str(item.effect)


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
