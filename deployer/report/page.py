"""A comparison as one page: plots, verdicts, waterfalls of the starts, what differs, raw numbers. Pure.

The page asks nothing of the network: style sheet, script (tooltips, hiding a line, copying the numbers) and plots are
in it, and a content security policy forbids the rest.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from deployer.bench.comparison import Comparison, Subject, stages, value_of
from deployer.bench.rates import ONE, positive, rates_of, table, tables, trouble
from deployer.inspect.compare import Compared
from deployer.report.bench_table import number
from deployer.report.charts import Axis, Point, Series, line_chart, swatch
from deployer.report.comparison_view import TITLES, all_doubts, comparison_document, server_words
from deployer.report.interactive import figure
from deployer.resources import shipped

Json = dict[str, Any]
AGGREGATE = "aggregate_tok_s"
#: Parts of a bench document that are too long for a page; `bench.json` in the release has them.
_LEFT_OUT = ("samples", "itl_histogram", "over_time")
_LAST_SECOND = 253_402_300_799  # of the year 9999


def comparison_page(found: Compared, now: float | None = None, library: str = "") -> str:
    """The whole page as HTML; with the text of plotly.js as ``library`` its plots can be zoomed into."""
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now))
    names = [subject.name for subject in found.subjects]
    starts = waterfalls(found.subjects)
    drawn = plots(found)
    return _template().render(
        title=" / ".join(names),
        made=made,
        legend=[(swatch(index), name) for index, name in enumerate(names)],
        comparisons=[_verdicts(item) for item in found.comparisons],
        noise=found.noise.sentence(),
        plots=drawn,
        library=Markup(library),
        figures=_script_data([figure(*plot["drawn"]) for plot in drawn]) if library else "",
        singles=_bars(found),
        starts=starts,
        phases=list(dict.fromkeys((bar["kind"], bar["phase"]) for row in starts for bar in row["bars"])),
        said=_said(found),
        arguments=[(row["name"], [row["values"].get(name) for name in names]) for row in found.arguments],
        names=names,
        fingerprints=_fingerprints(found.subjects),
        doubts=all_doubts(found) + [f"{c.name}: {item}" for c in found.comparisons for item in c.set_aside],
        raw=_raw(found.subjects),
        data=_embedded(found),
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(shipped("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("comparison.html.j2")


# --- plots ------------------------------------------------------------------------------------------------------


def plots(found: Compared) -> list[Json]:
    """``{"title", "note", "svg", "drawn"}`` of each plot with figures; the last is what it was drawn from."""
    made = []
    levels = found.levels()
    lines = [_throughput(index, subject, levels) for index, subject in enumerate(found.subjects)]
    if any(line.points for line in lines):
        note = "Aggregate tok/s of all streams; small dots are single passes or starts."
        axes = (Axis("requests in flight", levels, log=True), Axis("tok/s"))
        made.append(_plot("Throughput against concurrency", note, lines, axes))
    for key, title, note in (
        (
            "tpot_s",
            "Time per token against throughput",
            "Median of the requests; the number is the concurrency.",
        ),
        (
            "ttft_s",
            "Time to first token against throughput",
            "Median, from the intent to send; queueing is in it.",
        ),
    ):
        lines = [_latency(index, subject, levels, key) for index, subject in enumerate(found.subjects)]
        if any(line.points for line in lines):
            made.append(_plot(title, note, lines, (Axis("tok/s"), Axis("ms"))))
    for key, title, unit in (
        ("utilization", "GPUs busy against concurrency", "%"),
        ("power_w", "GPU power against concurrency", "W a GPU"),
    ):
        lines = [_gpus(index, subject, levels, key) for index, subject in enumerate(found.subjects)]
        seen = sorted({point.x for line in lines for point in line.points})
        if seen:
            top = 100.0 if key == "utilization" else None
            note = (
                "Mean over GPUs while the level was measured; the whisker spans the least and most busy GPU."
            )
            axes = (Axis("requests in flight", seen, log=True), Axis(unit, top=top))
            made.append(_plot(title, note, lines, axes))
    lines = [_course(index, subject) for index, subject in enumerate(found.subjects)]
    if any(line.points for line in lines):
        note = "Mean over GPUs; markers and numbers: the passes of the levels. Of several starts the first."
        made.append(
            _plot(
                "GPUs busy over time",
                note,
                lines,
                (Axis("s since the benchmark began"), Axis("%", top=100.0)),
            )
        )
    return made


def _plot(title: str, note: str, lines: Sequence[Series], axes: tuple[Axis, Axis]) -> Json:
    drawn = [line for line in lines if line.points]
    svg = line_chart(title, drawn, *axes)
    return {"title": title, "note": note, "svg": svg, "drawn": (drawn, *axes)}


def _throughput(index: int, subject: Subject, levels: Sequence[int]) -> Series:
    points, dots = [], []
    for level in levels:
        value = value_of(subject, AGGREGATE, level)
        if value is None:
            continue
        points.append(Point(level, value, f"{subject.name}, {_at(level)}: {number(value, 'tok/s')} tok/s"))
        for bench in subject.benches:
            passes = rates_of(bench).passes.get(level, ())
            dots += [(float(level), part[AGGREGATE]) for part in passes if AGGREGATE in part]
    return Series(index, subject.name, points, dots if len(dots) > len(points) else ())


def _latency(index: int, subject: Subject, levels: Sequence[int], key: str) -> Series:
    points = []
    for level in levels:
        rate, seconds = value_of(subject, AGGREGATE, level), _mean(subject, level, lambda s: _p50(s, key))
        if rate is not None and seconds is not None:
            words = (
                f"{subject.name}, {_at(level)}: {number(seconds, 'ms')} ms at {number(rate, 'tok/s')} tok/s"
            )
            points.append(Point(rate, seconds * 1000, words, str(level)))
    return Series(index, subject.name, points)


def _gpus(index: int, subject: Subject, levels: Sequence[int], key: str) -> Series:
    points, spans = [], []
    for level in levels:
        means = [mean for bench in subject.benches for mean in _gpu_means(stages(bench).get(level), key)]
        if means:
            value = sum(means) / len(means)
            unit = "%" if key == "utilization" else "W"
            words = f"{subject.name}, {_at(level)}: {value:.0f} {unit} ({min(means):.0f} to {max(means):.0f})"
            points.append(Point(level, value, words))
            spans.append((float(level), min(means), max(means)))
    return Series(index, subject.name, points, spans=spans)


def _course(index: int, subject: Subject) -> Series:
    """How busy the GPUs were from the benchmark's start on, and a point in the middle of each pass."""
    bench, path, points = subject.benches[0], [], []
    for row in tables(bench.get("over_time")):
        at, said = positive(row.get("t_s")), row.get("utilization")
        busy = 0.0 if said == 0 else positive(said)
        if at is not None and busy is not None:
            path.append((at, busy))
    for level, stage in sorted(stages(bench).items()) if path else ():
        for count, one in enumerate(tables(stage.get("passes")), 1):
            wall = positive(one.get("wall_s"))
            if wall is None:
                continue
            middle = (positive(one.get("started_s")) or 0.0) + wall / 2
            inside = [busy for at, busy in path if abs(at - middle) <= wall / 2]
            at, busy = min(path, key=lambda place: abs(place[0] - middle))
            mean = sum(inside) / len(inside) if inside else busy
            words = f"{subject.name}, {_at(level)}, pass {count}: GPUs {mean:.0f} % busy"
            points.append(Point(at, busy, words, str(level)))
    return Series(index, subject.name, points, path=path)


def _gpu_means(stage: Mapping[str, Any] | None, key: str) -> list[float]:
    gpus = tables(table(table(stage).get("server")).get("gpus"))
    means = [table(gpu.get(key)).get("mean") for gpu in gpus]
    return [mean for mean in means if isinstance(mean, int | float)]


def _p50(stage: Mapping[str, Any], key: str) -> float | None:
    value = table(stage.get(key)).get("p50")
    return value if isinstance(value, int | float) and value > 0 else None


def _mean(subject: Subject, level: int, of: Callable[[Mapping[str, Any]], float | None]) -> float | None:
    known = [
        value for bench in subject.benches if (s := stages(bench).get(level)) and (value := of(s)) is not None
    ]
    return sum(known) / len(known) if known else None


def _at(level: int) -> str:
    return "one request" if level == ONE else f"{level} in flight"


# --- bars -------------------------------------------------------------------------------------------------------


def _bars(found: Compared) -> list[Json]:
    """The single stream of each subject, as a share of the fastest."""
    rates = [(subject.name, value_of(subject, AGGREGATE, ONE)) for subject in found.subjects]
    top = max((rate for _, rate in rates if rate), default=None)
    if top is None:
        return []
    return [
        {"number": index, "name": name, "text": number(rate, "tok/s"), "width": 100 * (rate or 0) / top}
        for index, (name, rate) in enumerate(rates)
    ]


def waterfalls(subjects: Sequence[Subject]) -> list[Json]:
    """The phases of each subject's start (its first release's timeline), on one scale."""
    rows = []
    for subject in subjects:
        spans = [
            (str(item.get("name")), float(item["seconds"]))
            for item in tables(subject.about.get("timeline"))
            if isinstance(item.get("seconds"), int | float) and item["seconds"] >= 0
        ]
        if spans:
            rows.append((subject.name, spans))
    longest = max((sum(seconds for _, seconds in spans) for _, spans in rows), default=0.0) or 1.0
    order = list(dict.fromkeys(name for _, spans in rows for name, _ in spans))
    made = []
    for name, spans in rows:
        began, bars = 0.0, []
        for phase, seconds in spans:
            bars.append(
                {
                    "phase": phase,
                    "kind": order.index(phase) % 8,
                    "left": round(100 * began / longest, 3),
                    "width": round(100 * seconds / longest, 3),
                    "words": f"{name}, {phase}: {seconds:.1f} s, from {began:.1f} s on",
                }
            )
            began += seconds
        made.append({"name": name, "total": f"{began:.1f} s", "bars": bars})
    return made


# --- tables -----------------------------------------------------------------------------------------------------


def _verdicts(comparison: Comparison) -> Json:
    rows: list[Json] = []
    last = None
    for item in comparison.findings:
        unit: Literal["tok/s", "ms"] = "tok/s" if item.figure.endswith("tok_s") else "ms"
        rows.append(
            {
                "level": ""
                if item.concurrency == last
                else "one"
                if item.concurrency == ONE
                else item.concurrency,
                "figure": TITLES[item.figure],
                "values": (number(item.reference, unit), number(item.value, unit)),
                "change": "" if item.effect is None else str(item.effect),
                "word": item.word(),
                "kind": {True: "better", False: "worse", None: "open"}[item.better],
            }
        )
        last = item.concurrency
    names = (comparison.reference, comparison.name)
    kind = {True: "better", False: "worse", None: "open"}[comparison.pooled.better]
    return {"names": names, "rows": rows, "sentence": comparison.sentences()[-1], "kind": kind}


def _said(found: Compared) -> list[tuple[str, list[str]]]:
    """What each server did at each level, in its own words."""
    said = [(subject.name, server_words(subject.benches[0])) for subject in found.subjects if subject.benches]
    return [(name, lines) for name, lines in said if lines]


def _fingerprints(subjects: Sequence[Subject]) -> list[tuple[str, list[str]]]:
    rows: list[tuple[str, Callable[[Subject], Any]]] = [
        ("releases", lambda s: ", ".join(map(str, s.about.get("releases") or ()))),
        ("starts", lambda s: s.count()),
        ("SGLang", lambda s: s.about.get("sglang")),
        ("model", lambda s: table(s.about.get("model")).get("path") or s.benches[0].get("model")),
        ("model's files", lambda s: table(s.about.get("model")).get("fingerprint")),
        ("host", lambda s: s.about.get("host")),
        ("GPUs", lambda s: _counted(list(map(str, s.about.get("gpus") or [])))),
        ("measured", lambda s: _moment(s.benches[0].get("started"))),
        ("load from", lambda s: s.benches[0].get("place")),
        ("prompt / output tokens", lambda s: _workload(s.benches[0])),
        ("client", lambda s: _client(table(s.benches[0].get("client")))),
        ("gate's word", lambda s: s.about.get("verdict")),
    ]
    made = [(title, [str(value) if (value := of(s)) else "" for s in subjects]) for title, of in rows]
    return [(title, values) for title, values in made if any(values)]


def _counted(names: Sequence[str]) -> str:
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _moment(started: Any) -> str:
    if positive(started) is None or started > _LAST_SECOND:
        return ""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(started))


def _workload(bench: Mapping[str, Any]) -> str:
    known = {**table(bench.get("spec")), **table(bench.get("workload"))}
    if known.get("prompt_tokens") is None:
        return ""
    prefix = f", {known['shared_prefix']} shared" if known.get("shared_prefix") else ""
    return f"{known['prompt_tokens']} / {known.get('output_tokens')}{prefix}"


def _client(client: Mapping[str, Any]) -> str:
    words = [
        f"{name} {client[key]}" for name, key in (("Python", "python"), ("httpx", "httpx")) if client.get(key)
    ]
    return ", ".join([*words, *([str(client["loop"])] if client.get("loop") else [])])


def _raw(subjects: Sequence[Subject]) -> list[list[str]]:
    """A row a subject, benchmark and level."""
    rows = []
    for subject in subjects:
        for index, bench in enumerate(subject.benches):
            name = subject.name if len(subject.benches) == 1 else f"{subject.name} [{index + 1}]"
            for level, stage in sorted(stages(bench).items()):
                if not stage:
                    continue
                rate = bench.get("single_stream_tok_s") if level == ONE else None
                times = [
                    number(value if isinstance(value, int | float) else None, "ms")
                    for metric in ("ttft_s", "tpot_s", "itl_s")
                    for value in (table(stage.get(metric)).get(q) for q in ("p50", "p95"))
                ]
                rows.append(
                    [
                        name,
                        "one" if level == ONE else str(level),
                        f"{stage.get('completed', '-')}/{stage.get('requests', '-')}",
                        number(stage.get(AGGREGATE) or rate, "tok/s"),
                        number(stage.get("steady_tok_s"), "tok/s"),
                        *times,
                        trouble(stage, bench),
                    ]
                )
    return rows


def _embedded(found: Compared) -> Markup:
    """The comparison and the benchmarks without their samples."""
    document = {
        **comparison_document(found),
        "benches": {
            subject.name: [_without(dict(bench)) for bench in subject.benches] for subject in found.subjects
        },
    }
    return _script_data(document, indent=1)


def _script_data(document: Any, indent: int | None = None) -> Markup:
    """A document as JSON that may stand within a page."""
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    for sign, escaped in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")):
        text = text.replace(sign, escaped)
    return Markup(text)


def _without(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without(item) for key, item in value.items() if key not in _LEFT_OUT}
    return [_without(item) for item in value] if isinstance(value, list) else value
