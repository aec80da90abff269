"""A comparison as one page: plots, verdicts, waterfalls of the starts, what differs, raw numbers. Pure.

The page loads nothing from the network: style sheet, script (tooltips, hiding a line, copying the numbers) and plots
are in it, and a content security policy forbids the rest.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from deployer.bench.comparison import Subject, value_of
from deployer.bench.rates import rates_of, trouble
from deployer.bench.server import sentences
from deployer.inspect.compare import Compared
from deployer.records.bench import ONE, BenchRun, ClientFacts, Level, Quantiles, Singles
from deployer.report.bench_table import number
from deployer.report.charts import Axis, Point, Series, line_chart, swatch
from deployer.report.comparison_view import all_doubts, comparison_document, rows
from deployer.report.interactive import figure
from deployer.resources import shipped

AGGREGATE = "aggregate_tok_s"
#: Parts of a bench document that are too long for a page; `bench.json` in the release has them.
_LEFT_OUT = ("samples", "itl_histogram", "over_time")
_LAST_SECOND = 253_402_300_799  # of the year 9999


def comparison_page(compared: Compared, now: float | None = None, library: str = "") -> str:
    """The whole page as HTML; with the text of plotly.js as ``library`` its plots can be zoomed into."""
    written = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now))
    names = [subject.name for subject in compared.subjects]
    starts = waterfalls(compared.subjects)
    drawn = plots(compared)
    return _template().render(
        title=" / ".join(names),
        written=written,
        legend=[(swatch(index), name) for index, name in enumerate(names)],
        comparisons=[(item, list(rows(item))) for item in compared.comparisons],
        kinds={True: "better", False: "worse", None: "open"},
        noise=str(compared.noise),
        plots=drawn,
        library=Markup(library),
        figures=_script_data([figure(plot.lines, plot.x, plot.y) for plot in drawn]) if library else "",
        singles=_bars(compared),
        starts=starts,
        phases=list(dict.fromkeys((phase.kind, phase.name) for row in starts for phase in row.phases)),
        servers=_servers(compared),
        arguments=[(row.name, [row.values.get(name) for name in names]) for row in compared.arguments],
        names=names,
        fingerprints=_fingerprints(compared.subjects),
        doubts=all_doubts(compared) + [f"{c.name}: {item}" for c in compared.comparisons for item in c.set_aside],
        raw=_raw(compared.subjects),
        data=_embedded(compared),
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


@dataclass(frozen=True)
class Plot:
    """One plot: its title, a note on it, its lines and axes."""

    title: str
    note: str
    lines: Sequence[Series]
    x: Axis
    y: Axis

    @property
    def svg(self) -> Markup:
        """The plot for paper, and for a browser without scripts."""
        return line_chart(self.title, self.lines, self.x, self.y)


def plots(compared: Compared) -> list[Plot]:
    """Return the plots for which there are figures."""
    levels = compared.levels()

    def lines(draw: Callable[..., Series], *more: Any) -> list[Series]:
        drawn = (draw(index, subject, *more) for index, subject in enumerate(compared.subjects))
        return [line for line in drawn if line.points]

    rates = Axis("tok/s")
    drawn = [
        Plot(
            "Throughput against concurrency",
            "Aggregate tok/s of all streams; small dots are single passes or starts.",
            lines(_throughput, levels),
            Axis("requests in flight", levels, log=True),
            rates,
        ),
        Plot(
            "Time per token against throughput",
            "Median of the requests; the number is the concurrency.",
            lines(_latency, levels, "tpot_s"),
            rates,
            Axis("ms"),
        ),
        Plot(
            "Time to first token against throughput",
            "Median, from the intent to send; it includes queueing.",
            lines(_latency, levels, "ttft_s"),
            rates,
            Axis("ms"),
        ),
    ]
    for key, title, y in (
        ("utilization", "GPUs busy against concurrency", Axis("%", top=100.0)),
        ("power_w", "GPU power against concurrency", Axis("W per GPU")),
    ):
        gpus = lines(_gpus, levels, key)
        seen = sorted({point.x for line in gpus for point in line.points})
        note = "Mean over GPUs while the level was measured; the whisker spans the least and most busy GPU."
        drawn.append(Plot(title, note, gpus, Axis("requests in flight", seen, log=True), y))
    drawn.append(
        Plot(
            "GPUs busy over time",
            "Mean over GPUs; markers and numbers are the passes of the levels. Of several starts the first.",
            lines(_course),
            Axis("s since the benchmark began"),
            Axis("%", top=100.0),
        )
    )
    return [plot for plot in drawn if plot.lines]


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
            words = f"{subject.name}, {_at(level)}: {number(seconds, 'ms')} ms at {number(rate, 'tok/s')} tok/s"
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


class Bar(NamedTuple):
    """A bar of a subject; ``width`` is in percent."""

    number: int
    name: str
    text: str
    width: float


class Phase(NamedTuple):
    """A phase of a start; ``left`` and ``width`` are in percent."""

    name: str
    kind: int
    left: float
    width: float
    words: str


class Waterfall(NamedTuple):
    """The phases of one subject's start."""

    name: str
    total: str
    phases: Sequence[Phase]


def _bars(compared: Compared) -> list[Bar]:
    """The single stream of each subject, as a share of the fastest."""
    rates = [(subject.name, value_of(subject, AGGREGATE, ONE)) for subject in compared.subjects]
    top = max((rate for _, rate in rates if rate), default=None)
    if top is None:
        return []
    return [
        Bar(index, name, number(rate, "tok/s"), 100 * (rate or 0) / top) for index, (name, rate) in enumerate(rates)
    ]


def waterfalls(subjects: Sequence[Subject]) -> list[Waterfall]:
    """Return the phases of each subject's start (its first release's timeline), on one scale."""
    spans = {subject.name: [item for item in subject.about.timeline or () if item.seconds >= 0] for subject in subjects}
    longest = max((sum(item.seconds for item in own) for own in spans.values()), default=0.0) or 1.0
    order = list(dict.fromkeys(item.name for own in spans.values() for item in own))
    rows = []
    for name, own in spans.items():
        began, phases = 0.0, []
        for item in own:
            words = f"{name}, {item.name}: {item.seconds:.1f} s, from {began:.1f} s on"
            left, width = (round(100 * seconds / longest, 3) for seconds in (began, item.seconds))
            phases.append(Phase(item.name, order.index(item.name) % 8, left, width, words))
            began += item.seconds
        if phases:
            rows.append(Waterfall(name, f"{began:.1f} s", phases))
    return rows


# --- tables -----------------------------------------------------------------------------------------------------


def _servers(compared: Compared) -> list[tuple[str, list[str]]]:
    """What each server did at each level, a sentence a level."""
    texts = [(subject.name, sentences(subject.benches[0])) for subject in compared.subjects if subject.benches]
    return [(name, lines) for name, lines in texts if lines]


def _fingerprints(subjects: Sequence[Subject]) -> list[tuple[str, list[str]]]:
    facts: list[tuple[str, Callable[[Subject], Any]]] = [
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
    table = [(title, [str(value) if (value := of(s)) else "" for s in subjects]) for title, of in facts]
    return [(title, values) for title, values in table if any(values)]


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
    """A row for each subject, benchmark and level."""
    table = []
    for subject in subjects:
        for index, bench in enumerate(subject.benches):
            name = subject.name if len(subject.benches) == 1 else f"{subject.name} [{index + 1}]"
            for level, stage in sorted(bench.by_concurrency.items()):
                aggregate, steady = getattr(stage, AGGREGATE, None), getattr(stage, "steady_tok_s", None)
                rate = bench.single_stream_tok_s if level == ONE else None
                quantiles = (_quantiles(stage, key) for key in ("ttft_s", "tpot_s", "itl_s"))
                table.append(
                    [
                        name,
                        "one" if level == ONE else str(level),
                        f"{stage.completed}/{stage.requests}",
                        number(aggregate or rate, "tok/s"),
                        number(steady, "tok/s"),
                        *(number(value, "ms") for one in quantiles for value in (one.p50, one.p95)),
                        trouble(bench, stage),
                    ]
                )
    return table


def _embedded(compared: Compared) -> Markup:
    """The comparison and the benchmarks without their samples."""
    document = {
        **comparison_document(compared),
        "benches": {
            subject.name: [_without(bench.as_json()) for bench in subject.benches] for subject in compared.subjects
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
