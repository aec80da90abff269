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

from deployer.bench.comparison import Comparison, Subject, value_of
from deployer.bench.noise import sentence
from deployer.bench.rates import rates_of
from deployer.bench.server import sentences
from deployer.inspect.compare import Compared
from deployer.records.bench import ONE, BenchRun, ClientFacts, Level, Quantiles, Singles
from deployer.report.bench_table import number
from deployer.report.charts import Axis, Point, Series, line_chart, swatch
from deployer.report.comparison_view import TITLES, all_doubts, comparison_document
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
        noise=sentence(found.noise),
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
        rate, seconds = value_of(subject, AGGREGATE, level), _mean(subject, level, key)
        if rate is not None and seconds is not None:
            words = (
                f"{subject.name}, {_at(level)}: {number(seconds, 'ms')} ms at {number(rate, 'tok/s')} tok/s"
            )
            points.append(Point(rate, seconds * 1000, words, str(level)))
    return Series(index, subject.name, points)


def _gpus(index: int, subject: Subject, levels: Sequence[int], key: str) -> Series:
    points, spans = [], []
    for level in levels:
        means = [mean for bench in subject.benches for mean in _gpu_means(bench.level(level), key)]
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
    for row in bench.over_time:
        if row.t_s is not None and row.t_s > 0 and row.utilization is not None and row.utilization >= 0:
            path.append((row.t_s, row.utilization))
    for level in sorted(bench.levels, key=lambda level: level.concurrency) if path else ():
        for count, one in enumerate(level.passes, 1):
            wall = one.wall_s
            if wall is None or wall <= 0:
                continue
            middle = (one.started_s or 0.0) + wall / 2
            inside = [busy for at, busy in path if abs(at - middle) <= wall / 2]
            at, busy = min(path, key=lambda place: abs(place[0] - middle))
            mean = sum(inside) / len(inside) if inside else busy
            words = f"{subject.name}, {_at(level.concurrency)}, pass {count}: GPUs {mean:.0f} % busy"
            points.append(Point(at, busy, words, str(level.concurrency)))
    return Series(index, subject.name, points, path=path)


def _gpu_means(level: Level | None, key: str) -> list[float]:
    gpus = level.server.gpus if level and level.server else ()
    return [spread.mean for gpu in gpus if (spread := getattr(gpu, key)) is not None]


def _quantiles(stage: Singles | Level, key: str) -> Quantiles:
    return getattr(stage, key, None) or Quantiles()


def _mean(subject: Subject, level: int, key: str) -> float | None:
    stages = [stage for bench in subject.benches if (stage := bench.by_concurrency.get(level))]
    known = [value for stage in stages if (value := _quantiles(stage, key).p50) is not None and value > 0]
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
        spans = [(item.name, item.seconds) for item in subject.about.timeline or () if item.seconds >= 0]
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
    for item in comparison.changes:
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
                "change": "" if item.effect is None else str(item),
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
    said = [(subject.name, sentences(subject.benches[0])) for subject in found.subjects if subject.benches]
    return [(name, lines) for name, lines in said if lines]


def _fingerprints(subjects: Sequence[Subject]) -> list[tuple[str, list[str]]]:
    rows: list[tuple[str, Callable[[Subject], Any]]] = [
        ("releases", lambda s: ", ".join(s.about.releases)),
        ("starts", lambda s: s.count()),
        ("SGLang", lambda s: s.about.sglang),
        ("model", lambda s: s.about.model.path or s.benches[0].model),
        ("model's files", lambda s: s.about.model.fingerprint),
        ("host", lambda s: s.about.host),
        ("GPUs", lambda s: _counted(s.about.gpus)),
        ("measured", lambda s: _moment(s.benches[0].started)),
        ("load from", lambda s: s.benches[0].place),
        ("prompt / output tokens", lambda s: _workload(s.benches[0])),
        ("client", lambda s: _client(s.benches[0].client)),
        ("gate's verdict", lambda s: s.about.verdict),
    ]
    made = [(title, [str(value) if (value := of(s)) else "" for s in subjects]) for title, of in rows]
    return [(title, values) for title, values in made if any(values)]


def _counted(names: Sequence[str]) -> str:
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _moment(started: float | None) -> str:
    if started is None or not 0 < started <= _LAST_SECOND:
        return ""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(started))


def _workload(bench: BenchRun) -> str:
    for part in (bench.workload, bench.spec):
        if part and part.prompt_tokens is not None:
            prefix = f", {part.shared_prefix} shared" if part.shared_prefix else ""
            return f"{part.prompt_tokens} / {part.output_tokens}{prefix}"
    return ""


def _client(client: ClientFacts | None) -> str:
    if client is None:
        return ""
    named = (("Python ", client.python), ("httpx ", client.httpx), ("", client.loop))
    return ", ".join(f"{name}{value}" for name, value in named if value)


def _raw(subjects: Sequence[Subject]) -> list[list[str]]:
    """A row a subject, benchmark and level."""
    rows = []
    for subject in subjects:
        for index, bench in enumerate(subject.benches):
            name = subject.name if len(subject.benches) == 1 else f"{subject.name} [{index + 1}]"
            for level, stage in sorted(bench.by_concurrency.items()):
                aggregate, steady = getattr(stage, AGGREGATE, None), getattr(stage, "steady_tok_s", None)
                rate = bench.single_stream_tok_s if level == ONE else None
                quantiles = (_quantiles(stage, key) for key in ("ttft_s", "tpot_s", "itl_s"))
                rows.append(
                    [
                        name,
                        "one" if level == ONE else str(level),
                        f"{stage.completed}/{stage.requests}",
                        number(aggregate or rate, "tok/s"),
                        number(steady, "tok/s"),
                        *(number(value, "ms") for one in quantiles for value in (one.p50, one.p95)),
                        bench.trouble(stage),
                    ]
                )
    return rows


def _embedded(found: Compared) -> Markup:
    """The comparison and the benchmarks without their samples."""
    document = {
        **comparison_document(found),
        "benches": {
            subject.name: [_without(bench.as_json()) for bench in subject.benches]
            for subject in found.subjects
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
