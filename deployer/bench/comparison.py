"""Benchmarks against each other: figure by figure, with intervals and a verdict each. Pure.

Throughput has the gate's noise model (`deployer.bench.relative`): passes, levels and starts, with the noise that the
service has shown. Times (TTFT, TPOT) are compared by their medians. The noise of TPOT is that of a start and of a level
as for throughput, TTFT has its own; what the requests or the passes themselves show, whichever is more, is added.

Whatever the interval does not exclude may be all there is: where it holds 0 no effect is shown, however large the
difference of the two figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from deployer.bench.rates import FEWEST_LEVELS, Logs, Rates, mean, rates_of, trouble
from deployer.bench.relative import TAIL, compared, measured_alike, quantile, with_interval
from deployer.records.bench import ONE, About, BenchRun, Level, Quantiles, Singles
from deployer.records.codec import Json
from deployer.records.verdict import Effect, Noise, SetAside

Shown = Literal["more", "less", "no effect shown", "not compared"]

#: Figures of a level, by their names in bench.json: rates in tok/s (more is better), times in s (less is better).
RATES = ("aggregate_tok_s", "steady_tok_s")
TIMES = ("ttft_s", "tpot_s")
#: Noise of the time to first token between two starts: a share, and seconds (scheduling on either side). It hangs on
#: how arrivals meet prefill batches, so it differs more than throughput: equal starts of one machine gave 25 and 48 ms.
TTFT_START, TTFT_FLOOR = 0.15, 0.010
#: Two-sided 95 % of the normal distribution; the ranks of a median's interval follow from it.
_Z = 1.96


@dataclass(frozen=True)
class Subject:
    """Benchmarks that are taken together under one name.

    ``starts`` says, benchmark by benchmark, which start of a server it measured; equal texts are one start.
    """

    name: str
    benches: tuple[BenchRun, ...]
    starts: tuple[str, ...]
    about: About = field(default_factory=About)

    def count(self) -> int:
        """How many starts it is made of."""
        return len(set(self.starts))

    def levels(self) -> set[int]:
        """The levels with a rate; 1 is the single stream."""
        return {level for bench in self.benches for level in rates_of(bench).passes}

    def label(self, index: int) -> str:
        """The name of one of its benchmarks."""
        return self.name if len(self.benches) == 1 else f"{self.name}, benchmark {index + 1}"


@dataclass(frozen=True, slots=True)
class Change(Effect):
    """One figure of two subjects; values in tok/s or s. ``concurrency`` None means all levels together."""

    figure: str = ""
    concurrency: int | None = None
    reference: float | None = None
    value: float | None = None

    @property
    def verdict(self) -> Shown:
        """What the interval shows."""
        if self.interval is None:
            return "not compared"
        return "more" if self.low > 0 else "less" if self.high < 0 else "no effect shown"

    @property
    def better(self) -> bool | None:
        """Whether the change is for the better; None if none is shown."""
        if self.verdict not in ("more", "less"):
            return None
        return (self.verdict == "less") == (self.figure in TIMES)

    def word(self) -> str:
        """Return the verdict as a word of the figure."""
        if self.verdict in ("more", "less"):
            words = ("shorter", "longer") if self.figure in TIMES else ("slower", "faster")
            return words[self.verdict == "more"]
        return "within noise" if self.verdict == "no effect shown" else "not compared"

    def phrase(self) -> str:
        """Return the verdict for a sentence."""
        return "within noise: no effect shown" if self.verdict == "no effect shown" else self.word()

    def as_json(self) -> Json:
        """Return its JSON, with the verdict in words."""
        return {**Effect.as_json(self), "verdict": self.verdict, "word": self.word(), "better": self.better}


@dataclass(frozen=True)
class Comparison:
    """One subject against the reference."""

    name: str
    reference: str
    pooled: Change
    changes: tuple[Change, ...]
    set_aside: tuple[SetAside, ...] = ()

    def at(self, figure: str, concurrency: int) -> Change | None:
        """Return the change of one figure at one level."""
        changes = (item for item in self.changes if (item.figure, item.concurrency) == (figure, concurrency))
        return next(changes, None)

    def _rates(self) -> list[Change]:
        return [item for item in self.changes if item.figure == RATES[0] and item.effect is not None]

    def sentences(self) -> list[str]:
        """Return the result in words: throughput at each level, and over all of them."""
        against = f"{self.name} against {self.reference}"
        rates = self._rates()
        if not rates:
            return [f"{against}: {self.in_short()}"]
        each = (
            f"for one, {item.phrase()}" if item.concurrency == ONE else f"at {item.concurrency}, {item.phrase()}"
            for item in rates
        )
        lines = [f"{against}: {item} {where}" for item, where in zip(rates, each, strict=True)]
        if len(rates) > 1 and self.pooled.effect is not None:
            lines.append(f"{against}: {self.in_short()}")
        return lines

    def in_short(self) -> str:
        """Return throughput over all levels with its verdict, and the change at each, in one line."""
        if self.pooled.effect is None:
            return "no level is sound in both, so nothing can be concluded"
        each = (
            f"{'one' if item.concurrency == 1 else f'@{item.concurrency}'} {item.effect:+.1%}" for item in self._rates()
        )
        return f"{self.pooled} over all levels ({', '.join(each)}), {self.pooled.phrase()}"

    def as_json(self) -> Json:
        """Return its JSON."""
        return {
            "name": self.name,
            "against": self.reference,
            "pooled": self.pooled.as_json(),
            "findings": [item.as_json() for item in self.changes],
            "sentences": self.sentences(),
            "set_aside": [item.as_json() for item in self.set_aside],
        }


def differences(reference: Subject, other: Subject) -> list[str]:
    """Return why two subjects are not comparable, in words; empty if they are."""
    texts = []
    if reference.benches and other.benches and (why := measured_alike(other.benches[0], reference.benches[0])):
        texts.append(why)
    one, two = reference.about.model, other.about.model
    if one.path and two.path and one.path != two.path:
        return [*texts, f"the model: {one.path} and {two.path}"]
    if one.fingerprint and two.fingerprint and one.fingerprint != two.fingerprint:
        return [*texts, "the model's files changed between the measurements"]
    names = [subject.benches[0].model for subject in (reference, other) if subject.benches]
    if not (one.path and two.path) and names[1:] and names[0] != names[1]:
        texts.append(f"the model: {names[0]} and {names[1]}")
    return texts


def compare(reference: Subject, other: Subject, noise: Noise) -> Comparison:
    """Compare ``other`` with ``reference`` in all figures that both have."""
    ours, theirs = _rates(other), _rates(reference)
    levels = {level for rates in (*ours, *theirs) for level in rates.passes}
    aside = tuple(item for rates in ours for item in rates.set_aside)
    changes: list[Change] = []
    pooled = Change(figure=RATES[0])
    for figure in RATES:
        sides = _logs(ours, theirs, figure)
        if sides is None:
            continue
        mine, others = sides
        relative = compared(mine, others, noise)
        for level in relative.levels:
            at = level.concurrency
            values = [math.exp(mean([mean(logs[at]) for logs in side])) for side in (others, mine)]
            changes.append(Change(level.effect, level.interval, figure, at, *values))
        if figure == RATES[0]:
            pooled = Change(relative.effect, relative.interval, figure)
    without = levels - {item.concurrency for item in changes if item.figure == RATES[0]}
    for at in sorted(without):
        values_at = (value_of(subject, RATES[0], at) for subject in (reference, other))
        changes.append(Change(None, None, RATES[0], at, *values_at))
    changes += _times(reference, other, noise)
    order = {name: index for index, name in enumerate((*RATES, *TIMES))}
    changes.sort(key=lambda item: (item.concurrency or 0, order[item.figure]))
    return Comparison(other.name, reference.name, pooled, tuple(changes), aside)


def _rates(subject: Subject) -> list[Rates]:
    """The sound passes, start by start; benchmarks of one start are more passes of it."""
    by_start: dict[str, list[Rates]] = {}
    for bench, start in zip(subject.benches, subject.starts, strict=True):
        by_start.setdefault(start, []).append(rates_of(bench))
    merged = []
    for parts in by_start.values():
        levels = sorted({level for part in parts for level in part.passes})
        passes = {n: tuple(one for part in parts for one in part.passes.get(n, ())) for n in levels}
        merged.append(Rates(passes, tuple(item for part in parts for item in part.set_aside)))
    return merged


def _logs(ours: Sequence[Rates], theirs: Sequence[Rates], figure: str) -> tuple[list[Logs], list[Logs]] | None:
    """The logarithms of one figure, start by start, at the levels that all of them have. None without any."""
    sides: list[list[dict[int, tuple[float, ...]]]] = []
    for side in (ours, theirs):
        starts = []
        for rates in side:
            logs = {
                level: tuple(math.log(part[figure]) for part in passes if figure in part)
                for level, passes in rates.passes.items()
            }
            starts.append({level: values for level, values in logs.items() if values})
        most = max((len(logs) for logs in starts), default=0)
        # One start that measured little must not take the levels from all others.
        sides.append([logs for logs in starts if logs and len(logs) >= FEWEST_LEVELS * most])
    if not all(sides):
        return None
    common = sorted(set.intersection(*(set(logs) for side in sides for logs in side)))
    if not common:
        return None
    mine, others = ([{n: logs[n] for n in common} for logs in side] for side in sides)
    return list(mine), list(others)


@dataclass(frozen=True)
class _Median:
    """The median of a time in one benchmark: its logarithm, and the variance of that (without start and level)."""

    log: float
    variance: float


def _times(reference: Subject, other: Subject, noise: Noise) -> list[Change]:
    changes = []
    for figure in TIMES:
        by_level = [_medians(subject, figure) for subject in (reference, other)]
        levels = sorted(set.intersection(*map(set, by_level)))
        for level in levels:
            sides = [medians[level] for medians in by_level]
            values = [math.exp(mean([item.log for item in side])) for side in sides]
            spread = math.sqrt(math.fsum(_variance(side, noise, figure) for side in sides))
            half = quantile(noise, TAIL / len(levels)) * spread
            effect, interval = with_interval(math.log(values[1]) - math.log(values[0]), half)
            changes.append(Change(effect, interval, figure, level, *values))
    return changes


def _medians(subject: Subject, figure: str) -> dict[int, list[_Median]]:
    """By level: one median for each start that has one there, the mean over its benchmarks."""
    by_level: dict[int, dict[str, list[_Median]]] = {}
    for bench, start in zip(subject.benches, subject.starts, strict=True):
        for level, stage in bench.by_concurrency.items():
            if one := _median(bench, stage, figure):
                by_level.setdefault(level, {}).setdefault(start, []).append(one)
    return {level: [_mean(parts) for parts in starts.values()] for level, starts in by_level.items()}


def _mean(parts: Sequence[_Median]) -> _Median:
    variance = math.fsum(item.variance for item in parts) / len(parts) ** 2
    return _Median(mean([item.log for item in parts]), variance)


def _median(bench: BenchRun, stage: Singles | Level, figure: str) -> _Median | None:
    """The median of one benchmark's stage; None if nothing sound has one."""
    passes = stage.passes if isinstance(stage, Level) else ()
    sound = [part.repeat for part in passes if not trouble(bench, part)]
    if not sound and (passes or trouble(bench, stage)):
        return None
    samples = [
        (item.repeat, value)
        for item in stage.samples
        if (value := getattr(item, figure)) is not None and value > 0 and (not passes or item.repeat in sound)
    ]
    logs = sorted(math.log(value) for _, value in samples)
    quantiles: Quantiles | None = getattr(stage, figure)
    centre = quantiles.p50 if quantiles else None
    if centre is None or centre <= 0:
        return None
    if logs and len(sound) < len(passes):
        centre = math.exp(median(logs))
    by_pass: dict[int, list[float]] = {}
    for number, value in samples:
        if number is not None:
            by_pass.setdefault(number, []).append(math.log(value))
    centres = [median(values) for values in by_pass.values()]
    between = 0.0
    if len(centres) > 1:
        middle = mean(centres)
        between = math.fsum((x - middle) ** 2 for x in centres) / (len(centres) - 1) / len(centres)
    return _Median(math.log(centre), max(_median_variance(logs), between))


def _median_variance(logs: Sequence[float]) -> float:
    """The variance of the median of sorted values, from the ranks that hold it with 95 % (any distribution)."""
    n = len(logs)
    if n < 2:
        return 0.0
    reach = _Z * math.sqrt(n) / 2
    low, high = max(0, math.floor(n / 2 - reach)), min(n - 1, math.ceil(n / 2 + reach) - 1)
    return float(((logs[high] - logs[low]) / (2 * _Z)) ** 2)


def _variance(side: Sequence[_Median], noise: Noise, figure: str) -> float:
    """Of the mean over one side's starts: what the noise lets expect, or what they show if that is more."""
    n = len(side)
    own = noise.start**2 + noise.level**2
    if figure == "ttft_s":
        own = max(own, TTFT_START**2)
    floor = TTFT_FLOOR if figure == "ttft_s" else 0.0
    expected = math.fsum(own + (floor / math.exp(item.log)) ** 2 + item.variance for item in side) / n**2
    if n < 2:
        return expected
    middle = mean([item.log for item in side])
    shown = math.fsum((item.log - middle) ** 2 for item in side) / (n - 1) / n
    return max(expected, shown)


def value_of(subject: Subject, figure: str, level: int) -> float | None:
    """Return a figure of a level as the benchmarks have it, sound or not: the mean over those that do."""
    values = []
    for bench in subject.benches:
        stage = bench.level(level)
        value: float | None = getattr(stage, figure, None)
        if level == ONE and stage is None:
            value = bench.single_stream_tok_s
        if value is not None and value > 0:
            values.append(value)
    return mean(values) if values else None
