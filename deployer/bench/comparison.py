"""Benchmarks against each other: figure by figure, with intervals and a verdict each. Pure.

Throughput has the gate's noise model (`deployer.bench.relative`): passes, levels and starts, with the noise that the
service has shown. Times (TTFT, TPOT) are compared by their medians. The noise of TPOT is that of a start and of a level
as for throughput, TTFT has its own; what the requests or the passes themselves show, whichever is more, is added.

Whatever the interval does not exclude may be all there is: where it holds 0 no effect is shown, however large the
difference of the two figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from deployer.bench.noise import Noise
from deployer.bench.rates import ONE, Logs, Rates, SetAside, mean, positive, rates_of, table, tables, trouble
from deployer.bench.relative import FEWEST_LEVELS, TAIL, Effect, compared, measured_alike

Json = dict[str, Any]
Verdict = Literal["more", "less", "no effect shown", "not compared"]

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

    ``starts`` tells, benchmark by benchmark, which start of a server it measured; equal texts are one start.
    ``about`` is what else is known of it (profile, SGLang, model, arguments, ...).
    """

    name: str
    benches: tuple[Mapping[str, Any], ...]
    starts: tuple[str, ...]
    about: Mapping[str, Any] = field(default_factory=dict)

    def count(self) -> int:
        """How many starts it is made of."""
        return len(set(self.starts))


@dataclass(frozen=True)
class Finding:
    """One figure of two subjects. ``concurrency`` 1 is the single stream; None means all levels together."""

    figure: str
    concurrency: int | None
    reference: float | None
    value: float | None
    effect: Effect | None
    verdict: Verdict

    @property
    def better(self) -> bool | None:
        """Whether the change is for the better; None where none is shown."""
        if self.verdict not in ("more", "less"):
            return None
        return (self.verdict == "less") == (self.figure in TIMES)

    def word(self) -> str:
        """The verdict as a word of the figure."""
        if self.verdict in ("more", "less"):
            words = ("shorter", "longer") if self.figure in TIMES else ("slower", "faster")
            return words[self.verdict == "more"]
        return "within noise" if self.verdict == "no effect shown" else "not compared"

    def as_dict(self) -> Json:
        """As it appears in JSON: values in tok/s or s, effects as shares."""
        return {
            "figure": self.figure,
            "concurrency": self.concurrency,
            "reference": self.reference,
            "value": self.value,
            "effect": None if self.effect is None else round(self.effect.effect, 6),
            "interval": None
            if self.effect is None
            else [round(self.effect.low, 6), round(self.effect.high, 6)],
            "verdict": self.verdict,
            "word": self.word(),
            "better": self.better,
        }


@dataclass(frozen=True)
class Comparison:
    """One subject against the reference."""

    name: str
    reference: str
    pooled: Finding
    findings: tuple[Finding, ...]
    set_aside: tuple[SetAside, ...] = ()

    def at(self, figure: str, concurrency: int) -> Finding | None:
        """One figure at one level."""
        found = (item for item in self.findings if (item.figure, item.concurrency) == (figure, concurrency))
        return next(found, None)

    def sentences(self) -> list[str]:
        """What it comes to, in words: throughput at each level, and over all of them."""
        against = f"{self.name} against {self.reference}"
        rates = [item for item in self.findings if item.figure == RATES[0] and item.effect is not None]
        if not rates:
            return [f"{against}: {self.in_short()}"]
        said = [f"{against}: {_said(item)}" for item in rates]
        if len(rates) > 1 and self.pooled.effect is not None:
            said.append(f"{against}: {self.in_short()}")
        return said

    def in_short(self) -> str:
        """Throughput over all levels with its verdict, and the change at each, in one line."""
        if self.pooled.effect is None:
            return "no level is sound in both, so nothing can be said"
        each = [
            f"{'one' if item.concurrency == ONE else f'@{item.concurrency}'} {item.effect.effect:+.1%}"
            for item in self.findings
            if item.figure == RATES[0] and item.effect is not None
        ]
        return f"{self.pooled.effect} over all levels ({', '.join(each)}), {_verdict_words(self.pooled)}"

    def as_dict(self) -> Json:
        """As it appears in JSON."""
        return {
            "name": self.name,
            "against": self.reference,
            "pooled": self.pooled.as_dict(),
            "findings": [item.as_dict() for item in self.findings],
            "sentences": self.sentences(),
            "set_aside": [item.as_dict() for item in self.set_aside],
        }


def _said(item: Finding) -> str:
    where = "for one" if item.concurrency == ONE else f"at {item.concurrency}"
    return f"{item.effect} {where}, {_verdict_words(item)}"


def _verdict_words(item: Finding) -> str:
    return "within noise: no effect shown" if item.verdict == "no effect shown" else item.word()


def differences(reference: Subject, other: Subject) -> list[str]:
    """Why two subjects are not comparable, in words; empty where they are."""
    found = []
    if reference.benches and other.benches:
        why = measured_alike(other.benches[0], reference.benches[0])
        if why:
            found.append(why)
    models = [dict(table(subject.about.get("model"))) for subject in (reference, other)]
    for key, what in (("path", "the model"), ("fingerprint", "the model's files")):
        one, two = (model.get(key) for model in models)
        if one and two and one != two:
            found.append(
                f"{what}: {one} and {two}" if key == "path" else f"{what} changed between the measurements"
            )
            break
    else:
        names = [subject.benches[0].get("model") for subject in (reference, other) if subject.benches]
        if not all(model.get("path") for model in models) and names[1:] and names[0] != names[1]:
            found.append(f"the model: {names[0]} and {names[1]}")
    return found


def compare(reference: Subject, other: Subject, noise: Noise) -> Comparison:
    """``other`` against ``reference``, in all figures that both have."""
    ours, theirs = _rates(other), _rates(reference)
    missing = {level for rates in (*ours, *theirs) for level in rates.passes}
    aside = tuple(item for rates in ours for item in rates.set_aside)
    findings: list[Finding] = []
    pooled = Finding(RATES[0], None, None, None, None, "not compared")
    for figure in RATES:
        sides = _logs(ours, theirs, figure)
        if sides is None:
            continue
        mine, others = sides
        relative = compared(mine, others, noise, aside=aside)
        for level, effect in relative.levels.items():
            values = [math.exp(mean([mean(logs[level]) for logs in side])) for side in (others, mine)]
            findings.append(Finding(figure, level, values[0], values[1], effect, _verdict(effect)))
        if figure == RATES[0] and relative.effect is not None:
            pooled = Finding(figure, None, None, None, relative.effect, _verdict(relative.effect))
    compared_at = {item.concurrency for item in findings if item.figure == RATES[0]}
    for level in sorted(missing - compared_at):
        known = [value_of(subject, RATES[0], level) for subject in (reference, other)]
        findings.append(Finding(RATES[0], level, known[0], known[1], None, "not compared"))
    findings += _times(reference, other, noise)
    order = {name: index for index, name in enumerate((*RATES, *TIMES))}
    findings.sort(key=lambda item: (item.concurrency or 0, order[item.figure]))
    return Comparison(other.name, reference.name, pooled, tuple(findings), aside)


def _verdict(effect: Effect) -> Verdict:
    if effect.low > 0:
        return "more"
    return "less" if effect.high < 0 else "no effect shown"


def _rates(subject: Subject) -> list[Rates]:
    """The sound passes, start by start; benchmarks of one start are more passes of it."""
    by_start: dict[str, list[Rates]] = {}
    for bench, start in zip(subject.benches, subject.starts, strict=True):
        by_start.setdefault(start, []).append(rates_of(bench))
    merged = []
    for parts in by_start.values():
        levels = sorted({level for part in parts for level in part.passes})
        passes = {n: tuple(found for part in parts for found in part.passes.get(n, ())) for n in levels}
        merged.append(Rates(passes, tuple(item for part in parts for item in part.set_aside)))
    return merged


def _logs(
    ours: Sequence[Rates], theirs: Sequence[Rates], figure: str
) -> tuple[list[Logs], list[Logs]] | None:
    """The logarithms of one figure, start by start, at the levels that all of them have. None without any."""
    sides: list[list[dict[int, tuple[float, ...]]]] = []
    for side in (ours, theirs):
        found = []
        for rates in side:
            logs = {
                level: tuple(math.log(part[figure]) for part in passes if figure in part)
                for level, passes in rates.passes.items()
            }
            found.append({level: values for level, values in logs.items() if values})
        most = max((len(logs) for logs in found), default=0)
        # One start that measured little must not take the levels from all others.
        sides.append([logs for logs in found if logs and len(logs) >= FEWEST_LEVELS * most])
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


def _times(reference: Subject, other: Subject, noise: Noise) -> list[Finding]:
    found = []
    for figure in TIMES:
        levels = sorted(_levels_with(reference, figure) & _levels_with(other, figure))
        for level in levels:
            sides = [_medians(subject, figure, level) for subject in (reference, other)]
            values = [math.exp(mean([item.log for item in side])) for side in sides]
            spread = math.sqrt(math.fsum(_variance(side, noise, figure) for side in sides))
            half = noise.quantile(TAIL / len(levels)) * spread
            change = math.log(values[1]) - math.log(values[0])
            effect = Effect(
                math.expm1(change), math.expm1(change - half), math.expm1(min(change + half, 700))
            )
            found.append(Finding(figure, level, values[0], values[1], effect, _verdict(effect)))
    return found


def _levels_with(subject: Subject, figure: str) -> set[int]:
    levels = {level for bench in subject.benches for level in stages(bench)}
    return {level for level in levels if _medians(subject, figure, level)}


def stages(bench: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """The levels of a benchmark by concurrency; the single runs are 1 unless that is a level."""
    found: dict[int, Mapping[str, Any]] = {ONE: table(bench.get("singles"))}
    for level in tables(bench.get("levels")):
        at = level.get("concurrency")
        if isinstance(at, int) and not isinstance(at, bool) and at >= 1:
            found[at] = level
    return found


def _medians(subject: Subject, figure: str, level: int) -> list[_Median]:
    """One median a start that has one there: the mean over its benchmarks."""
    by_start: dict[str, list[_Median]] = {}
    for bench, start in zip(subject.benches, subject.starts, strict=True):
        stage = stages(bench).get(level)
        if stage is None:
            continue
        parts = tables(stage.get("passes"))
        sound = [part.get("repeat") for part in parts or [stage] if not trouble(part, bench)]
        samples = [
            (item.get("pass"), value)
            for item in tables(stage.get("samples"))
            if (value := positive(item.get(figure))) and (not parts or item.get("pass") in sound)
        ]
        logs = sorted(math.log(value) for _, value in samples)
        centre = positive(table(stage.get(figure)).get("p50"))
        if not sound or centre is None:
            continue
        if logs and len(sound) < len(parts):
            centre = math.exp(median(logs))
        by_pass: dict[Any, list[float]] = {}
        for number, value in samples:
            if number is not None:
                by_pass.setdefault(number, []).append(math.log(value))
        centres = [median(values) for values in by_pass.values()]
        between = 0.0
        if len(centres) > 1:
            middle = mean(centres)
            between = math.fsum((x - middle) ** 2 for x in centres) / (len(centres) - 1) / len(centres)
        one = _Median(math.log(centre), max(_median_variance(logs), between))
        by_start.setdefault(start, []).append(one)
    return [
        _Median(mean([item.log for item in each]), math.fsum(item.variance for item in each) / len(each) ** 2)
        for each in by_start.values()
    ]


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
    """A figure of a level as the benchmarks tell it, sound or not: the mean over those that have it."""
    known = []
    for bench in subject.benches:
        if level == ONE and not any(item.get("concurrency") == ONE for item in tables(bench.get("levels"))):
            value = positive(bench.get("single_stream_tok_s"))
        else:
            value = positive(table(stages(bench).get(level)).get(figure))
        if value:
            known.append(value)
    return mean(known) if known else None
