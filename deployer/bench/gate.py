"""The gate: from a benchmark to pass, fail or inconclusive. Pure.

Two halves. The absolute one is a table of thresholds: throughput keys are lower bounds in tokens a second, time keys
upper bounds in seconds; ``@N`` names the level. The relative one (`deployer.bench.relative`) compares the throughput
with earlier proven starts. Whatever both say, every request must be completed and the output must be sane.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from deployer.bench.rates import Rates, rates_of
from deployer.bench.relative import Tolerance, judge
from deployer.config.bench import RATE_GATES, SINGLE_GATE, TIME_GATES, split_key
from deployer.records.bench import BenchRun, Level, Stage
from deployer.records.verdict import Check, Noise, Relative, Verdict

#: Servers that restarted badly have been seen to answer the first 100 to 200 requests and then hang.
FEWEST_REQUESTS = 200
#: More than this share of outputs that are one token over and over is a broken model, not an odd prompt.
REPETITIVE_SHARE = 0.1


@dataclass(frozen=True)
class Policy:
    """What a benchmark is held against.

    ``baseline``: benchmarks of proven starts, the newest first; ``name`` says of what. ``earlier``: earlier starts of
    the candidate's own configuration that could not be decided; they count together with this one. ``beside``: a name
    and a benchmark that is reported against and decides nothing.
    """

    thresholds: Mapping[str, float] = field(default_factory=dict)
    tolerance: Tolerance = field(default_factory=Tolerance)
    name: str = "the baseline"
    baseline: tuple[BenchRun, ...] = ()
    earlier: tuple[BenchRun, ...] = ()
    noise: Noise = field(default_factory=Noise)
    beside: tuple[str, BenchRun] | None = None


def evaluate(bench: BenchRun, policy: Policy) -> Verdict:
    """Judge a benchmark. Raise ValueError for a threshold that does not exist (see `deployer.config.bench.split_key`).

    Fail: a request was not completed, the output is not sane, a threshold was missed, or the throughput is lower than
    the baseline's by more than is tolerated and more than noise explains. Inconclusive, unless it fails anyway: the
    run was cut short, the end of its time left a level without an answer or a server on which nothing moved, a
    threshold's figure was not measured soundly, or noise hides the loss that a pass must rule out.
    """
    rates = rates_of(bench)
    relative = judge([bench, *policy.earlier], policy.baseline, policy.noise, policy.tolerance, policy.name)
    broken = [*_incomplete(bench), *_insane(bench)]
    failed = list(broken)
    unsure = [f"the run was cut short: {bench.interrupted}"] if bench.interrupted else []
    unsure += unfinished(bench)
    notes: list[str] = []
    if not failed and not unsure and not any(stage.completed for _, stage in bench.stages):
        unsure.append("nothing was measured")
    checks = []
    for key, threshold in policy.thresholds.items():
        check, doubt = _check(bench, rates, key, threshold)
        checks.append(check)
        if check.result == "fail":
            failed.append(_sentence(check))
        elif check.result == "inconclusive":
            unsure.append(f"{key}: {doubt}")
        else:
            notes.append(_sentence(check))
    if relative is not None:
        {"fail": failed, "inconclusive": unsure, "pass": notes}[relative.result].extend(relative.reasons)
        notes.append(str(relative.noise))
    notes += _remarks(bench, policy.thresholds, compared=relative is not None)
    if policy.beside is not None:
        name, other = policy.beside
        if (effect := judge([bench], [other], policy.noise, policy.tolerance, name)) is not None:
            notes.append(f"for information only: {_plainly(effect, name)}")
    return Verdict(
        "fail" if failed else "inconclusive" if unsure else "pass",
        (*failed, *unsure, *notes),
        tuple(checks),
        relative,
        rates.set_aside,
        broken=bool(broken),
    )


def _remarks(bench: BenchRun, thresholds: Mapping[str, float], *, compared: bool) -> Iterator[str]:
    """What does not decide and should be known."""
    if bench.foreign and not thresholds:
        yield "somebody else used the server meanwhile"
    if bench.foreign is None and (thresholds or compared):
        yield "whether somebody else used the server meanwhile is unknown"
    if not _sanity_gates(bench):
        yield from _doubtful_output(bench)
    for text in bench.cut:
        yield f"the time was short: {text}"
    sent = sum(stage.requests for _, stage in bench.stages)
    if sent < FEWEST_REQUESTS and bench.workload:
        yield f"only {sent} requests were sent; a hang that appears after ~{FEWEST_REQUESTS} would go unnoticed"
    if compared and not thresholds:
        yield "no threshold is set"
    elif not compared:
        yield (
            "no proven start to compare with: only the thresholds decide"
            if thresholds
            else "no threshold is set and no proven start to compare with: only completeness and sane output count"
        )


def _plainly(other: Relative, name: str) -> str:
    """A comparison that decides nothing, level by level."""
    if other.effect is None:
        return f"nothing could be compared with {name}"
    levels = ", ".join(f"{level.label} {level.effect:+.1%}" for level in other.levels)
    return f"throughput {other} against {name} ({levels})"


def _incomplete(bench: BenchRun) -> Iterator[str]:
    """Requests that failed. Those that our own end cut off are not the server's fault."""
    for name, stage in bench.stages:
        if kinds := stage.failures:
            listed = ", ".join(f"{n} {kind}" for kind, n in kinds.items())
            yield f"{name}: {sum(kinds.values())} of {stage.requests} requests failed ({listed})"


def unfinished(bench: BenchRun) -> list[str]:
    """Return what the end of the time cut off and casts doubt on the server: it may hang, or be far too slow."""
    texts = [
        f"{name}: {stalled} of {stage.requests} requests had not ended when the time was used up, and nothing had "
        "arrived for a while: the server may hang"
        for name, stage in bench.stages
        if (stalled := stage.failed.get("stalled", 0)) > 0
    ]
    for level in () if bench.interrupted else bench.levels:
        cut = level.failed.get("cut", 0)
        if cut > 0 and cut == level.requests:
            where = f"level {level.concurrency}"
            texts.append(f"{where}: none of its {cut} requests had ended when the time was used up")
    return texts


def _insane(bench: BenchRun) -> Iterator[str]:
    """Stages in which the output is one token over and over, and checks of the output that failed."""
    for name, stage in bench.stages:
        if not isinstance(stage, Stage) or stage in (bench.warmups, bench.fixed):
            continue
        count, done = stage.repetitive, stage.completed
        if count > 0 and count > done * REPETITIVE_SHARE:
            example = next((f", such as {sample.repeats!r}" for sample in stage.samples if sample.repeats), "")
            yield f"{name}: {count} of {done} outputs are one token over and over{example}"
    if _sanity_gates(bench):
        yield from _doubtful_output(bench)


def _sanity_gates(bench: BenchRun) -> bool:
    return bench.spec is not None and bench.spec.sanity == "gate"


def _doubtful_output(bench: BenchRun) -> Iterator[str]:
    """Checks of the output that failed; whether they decide is a setting of the benchmark."""
    if bench.sanity and bench.sanity.ok is False:
        texts = [check.text for check in bench.sanity.checks if check.ok is False]
        yield from (f"the output is not sane: {text}" for text in texts or ["a check failed"])


def _check(bench: BenchRun, rates: Rates, key: str, threshold: float) -> tuple[Check, str]:
    """One threshold, and the reason if it is inconclusive."""
    name, at = split_key(key)
    bound: Literal["min", "max"] = "max" if name in TIME_GATES else "min"
    level = next((item for item in bench.levels if item.concurrency == at), None)
    measured = bench.single_stream_tok_s if name == SINGLE_GATE else _measured(level, name)
    doubt = rates.doubts.get(at, "")
    if measured is None:
        doubt = f"not measured, {bench.stopped}" if bench.stopped else "it was not measured"
    elif doubt and level and (sound := _sound_rate(rates, level, name)) is not None:
        measured, doubt = sound, ""
    if doubt or measured is None:
        return Check(key, bound, threshold, measured, "inconclusive"), doubt
    held = measured >= threshold if bound == "min" else measured <= threshold
    return Check(key, bound, threshold, measured, "pass" if held else "fail"), ""


def _sound_rate(rates: Rates, level: Level, name: str) -> float | None:
    """A level's rate over its sound passes alone; None for a time, or if no pass is sound."""
    disturbed = {item.repeat for item in rates.set_aside if item.concurrency == level.concurrency}
    tokens = span = 0.0
    for index, part in enumerate(level.passes):
        figures = {
            "aggregate_tok_s": (part.aggregate_tok_s, part.wall_s),
            "steady_tok_s": (part.steady_tok_s, part.steady_s),
        }
        rate, length = figures.get(name, (None, None))
        if rate and length and rate > 0 and length > 0 and index not in disturbed:
            tokens, span = tokens + rate * length, span + length
    return tokens / span if span else None


def _measured(level: Level | None, name: str) -> float | None:
    """A level's figure by the name that its threshold has; zero is a figure too."""
    if level is None:
        return None
    if name in RATE_GATES:
        return level.aggregate_tok_s if name == RATE_GATES[0] else level.steady_tok_s
    metric, quantile, _ = name.split("_")
    value: float | None = getattr(getattr(level, f"{metric}_s"), quantile, None)
    return value


def _sentence(check: Check) -> str:
    measured = "not measured" if check.measured is None else plain_number(check.measured)
    bound = "minimum" if check.bound == "min" else "maximum"
    return f"{check.key}: {measured} ({bound} {plain_number(check.threshold)})"


def plain_number(value: float) -> str:
    """Return a figure with four significant digits, never with an exponent."""
    if abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{float(f'{value:.4g}'):f}".rstrip("0").rstrip(".")
