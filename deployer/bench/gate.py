"""The gate: from a benchmark to pass, fail or inconclusive. Pure.

Two halves. The absolute one is a table of thresholds: throughput keys are lower bounds in tokens a second, time keys
upper bounds in seconds; ``@N`` names the level. The relative one (`deployer.bench.relative`) holds the throughput
against earlier proven starts. Whatever both say, every request has to be completed and the output has to be sane.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from deployer.bench.noise import Noise
from deployer.bench.rates import UNFINISHED, positive, rates_of, table, tables, trouble
from deployer.bench.relative import Relative, Result, Tolerance, judge

Json = dict[str, Any]

SINGLE = "single_stream_tok_s"
#: Lower bounds of a level, in tokens a second.
RATES = ("aggregate_tok_s", "steady_tok_s")
#: Upper bounds of a level, in seconds. p99 is reported and never gates: it varies by 17 % between equal runs.
TIMES = tuple(f"{name}_{q}_s" for name in ("ttft", "itl", "tpot") for q in ("p50", "p95"))

#: Servers that had restarted badly have been seen to answer the first 100 to 200 requests and then hang.
FEWEST_REQUESTS = 200
#: More than this share of outputs that are one token over and over is a broken model, not an odd prompt.
REPETITIVE_SHARE = 0.1


@dataclass(frozen=True)
class Check:
    """One threshold held against what was measured; ``measured`` is None where it was not."""

    key: str
    bound: Literal["min", "max"]
    threshold: float
    measured: float | None
    result: Result

    def as_dict(self) -> Json:
        """The check as it appears in a JSON document."""
        return {
            "key": self.key,
            "bound": self.bound,
            "threshold": self.threshold,
            "measured": self.measured,
            "result": self.result,
        }


@dataclass(frozen=True)
class Verdict:
    """What the gate says. ``reasons`` are sentences with numbers, the decisive ones first.

    ``broken``: requests failed or the output is not sane, which no further measurement excuses. ``relative`` is None
    without a baseline.
    """

    result: Result
    reasons: list[str]
    checks: list[Check] = field(default_factory=list)
    relative: Relative | None = None
    broken: bool = False
    set_aside: list[Json] = field(default_factory=list)

    def summary(self, name: str = "the baseline") -> str:
        """The verdict in one line, such as ``pass: +1.2 % (-2.9..+5.3) against 3 starts of tp8``."""
        if self.relative is None:
            return (
                f"{self.result}: by the thresholds alone"
                if self.checks
                else f"{self.result}: nothing to compare with"
            )
        return f"{self.result}: {self.relative.against(name)}"

    def as_dict(self) -> Json:
        """The verdict as it appears in a JSON document; ``set_aside`` are passes whose measurement was disturbed."""
        return {
            "result": self.result,
            "reasons": self.reasons,
            "checks": [c.as_dict() for c in self.checks],
            "relative": None if self.relative is None else self.relative.as_dict(),
            "set_aside": self.set_aside,
        }


def split_key(key: str) -> tuple[str, int | None]:
    """``("aggregate_tok_s", 32)`` out of ``aggregate_tok_s@32``. ValueError, with what is wrong, for any other."""
    name, at, level = key.partition("@")
    if name == SINGLE:
        if at:
            raise ValueError(f"{SINGLE} has no level, so no @{level}")
        return name, None
    if name in (*RATES, *TIMES):
        if not (level.isascii() and level.isdigit() and int(level) > 0 and level == str(int(level))):
            raise ValueError(f"{name} needs a level, as in {name}@32")
        return name, int(level)
    if "_p99" in name:
        raise ValueError("p99 is reported but does not gate: it varies too much between equal runs; take p95")
    near = difflib.get_close_matches(name, (SINGLE, *RATES, *TIMES), n=1, cutoff=0.5)
    if near:
        wanted = near[0] if near[0] == SINGLE else f"{near[0]}@{level or 'N'}"
        raise ValueError(f"no such threshold; did you mean {wanted}?")
    allowed = ", ".join((SINGLE, *(f"{name}@N" for name in (*RATES, *TIMES))))
    raise ValueError(f"no such threshold; there are {allowed}")


def evaluate(
    bench: Mapping[str, Any],
    gate: Mapping[str, float],
    *,
    baseline: Sequence[Mapping[str, Any]] = (),
    earlier: Sequence[Mapping[str, Any]] = (),
    noise: Noise | None = None,
    tolerance: Tolerance | None = None,
    name: str = "the baseline",
    beside: tuple[str, Mapping[str, Any]] | None = None,
) -> Verdict:
    """Hold a benchmark against a gate. ValueError for a key that does not exist (see `split_key`).

    ``baseline``: bench documents of proven starts, newest first; ``name`` says of what. ``earlier``: earlier starts of
    the candidate's own configuration that could not be decided; they count together with this one. ``beside``: a name
    and a benchmark that is reported against and decides nothing.

    Fail: a request was not completed, the output is not sane, a threshold was missed, or the throughput is lower than
    the baseline's by more than is tolerated and more than noise explains. Inconclusive, unless it fails anyway: the
    run was cut short, the end of its time found a level without an answer or a server on which nothing moved, a
    threshold's figure was not measured soundly, or the noise hides what was asked for.
    """
    broken = [*_incomplete(bench), *_insane(bench)]
    failed = list(broken)
    unsure = [f"the run was cut short: {bench['interrupted']}"] if bench.get("interrupted") else []
    unsure += unfinished(bench)
    notes: list[str] = []
    if not failed and not unsure and not _completed(bench):
        unsure.append("nothing was measured")
    checks = []
    for key, threshold in gate.items():
        check, doubt = _check(bench, key, threshold)
        checks.append(check)
        said = _sentence(check)
        if check.result == "fail":
            failed.append(said)
        elif check.result == "inconclusive":
            unsure.append(f"{said}: {doubt}")
        else:
            notes.append(said)
    relative = judge([bench, *earlier], baseline, noise, tolerance, name) if _completed(bench) else None
    if relative is not None:
        {"fail": failed, "inconclusive": unsure, "pass": notes}[relative.result].extend(relative.reasons)
        notes.append(relative.noise.sentence())
    notes += _remarks(bench, gate, compared=relative is not None)
    if beside is not None and (other := judge([bench], [beside[1]], noise, tolerance, beside[0])):
        notes.append(f"beside it: {_plainly(other, beside[0])}; this does not decide")
    result: Result = "fail" if failed else "inconclusive" if unsure else "pass"
    return Verdict(
        result,
        [*failed, *unsure, *notes],
        checks,
        relative,
        bool(broken),
        [item.as_dict() for item in rates_of(bench).set_aside],
    )


def _remarks(bench: Mapping[str, Any], gate: Mapping[str, float], *, compared: bool) -> list[str]:
    """What does not decide and should be known."""
    found = []
    foreign = table(bench.get("foreign_traffic"))
    if foreign.get("value") is True and not gate:
        found.append("somebody else used the server meanwhile")
    if foreign.get("value") is None and (gate or compared):
        found.append("whether somebody else used the server meanwhile is not known")
    if not _sanity_gates(bench):
        found += _doubtful_output(bench)
    left_out = table(bench.get("budget")).get("cut")
    found += [f"the time was short: {text}" for text in left_out] if isinstance(left_out, list) else []
    sent = sum(_count(stage.get("requests")) for _, stage in _stages(bench))
    if sent < FEWEST_REQUESTS and bench.get("workload"):
        found.append(f"{sent} requests in all: a server that hangs after {FEWEST_REQUESTS} has not shown it")
    if compared:
        found += [] if gate else ["no threshold is set"]
    elif gate:
        found.append("nothing proven to compare with: the thresholds alone decide")
    else:
        found.append(
            "no gate is set and nothing is proven to compare with: only completeness and sane output count"
        )
    return found


def _plainly(other: Relative, name: str) -> str:
    """A comparison that decides nothing, level by level."""
    if other.effect is None:
        return f"nothing could be compared with {name}"
    levels = ", ".join(
        f"{'one' if level == 1 else f'@{level}'} {found.effect:+.1%}" for level, found in other.levels.items()
    )
    return f"throughput {other.effect} against {name} ({levels})"


def _stages(bench: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The stages of a run with their names. What is not measured counts: a server has no right to fail it."""
    names = {"warmups": "warm-up", "singles": "single runs", "fixed": "the fixed prompt"}
    named = [(name, table(bench.get(key))) for key, name in names.items()]
    for level in tables(bench.get("levels")):
        name = f"level {level.get('concurrency')}"
        named += [(f"{name}, the discarded wave", table(level.get("discarded"))), (name, level)]
    return [(name, stage) for name, stage in named if stage]


def _count(value: Any) -> int:
    return int(positive(value) or 0)


def _completed(bench: Mapping[str, Any]) -> int:
    return sum(_count(stage.get("completed")) for _, stage in _stages(bench))


def _incomplete(bench: Mapping[str, Any]) -> list[str]:
    """Requests that failed. Those that our own interruption cut are not the server's fault."""
    found = []
    for name, stage in _stages(bench):
        kinds = {kind: _count(n) for kind, n in table(stage.get("failed")).items() if kind not in UNFINISHED}
        if any(kinds.values()):
            shown = ", ".join(f"{n} {kind}" for kind, n in kinds.items() if n)
            found.append(
                f"{name}: {sum(kinds.values())} of {stage.get('requests')} requests failed ({shown})"
            )
    return found


def unanswered(bench: Mapping[str, Any]) -> int:
    """How many requests were not completed, for whatever reason."""
    return sum(_count(n) for _, stage in _stages(bench) for n in table(stage.get("failed")).values())


def unfinished(bench: Mapping[str, Any]) -> list[str]:
    """Requests that the end of the time cut off and that cast doubt on the server: it may hang, or be far too slow."""
    found = []
    for name, stage in _stages(bench):
        if stalled := _count(table(stage.get("failed")).get("stalled")):
            found.append(
                f"{name}: {stalled} of {stage.get('requests')} requests had not ended when the time was used up, and "
                "nothing had come for a while: it may hang"
            )
    for level in [] if bench.get("interrupted") else tables(bench.get("levels")):
        cut = _count(table(level.get("failed")).get("cut"))
        if cut and cut == _count(level.get("requests")):
            found.append(
                f"level {level.get('concurrency')}: none of its {cut} requests had ended when the time was used up"
            )
    return found


def _insane(bench: Mapping[str, Any]) -> list[str]:
    """Stages in which the output is one token over and over, and checks of the output that did not hold."""
    found = []
    for name, stage in _stages(bench):
        count, done = _count(stage.get("repetitive")), _count(stage.get("completed"))
        if name not in ("warm-up", "the fixed prompt") and count and count > done * REPETITIVE_SHARE:
            heads = [sample["repeats"] for sample in tables(stage.get("samples")) if sample.get("repeats")]
            shown = f", such as {heads[0]!r}" if heads else ""
            found.append(f"{name}: {count} of {done} outputs are one token over and over{shown}")
    return [*found, *_doubtful_output(bench)] if _sanity_gates(bench) else found


def _sanity_gates(bench: Mapping[str, Any]) -> bool:
    return table(bench.get("spec")).get("sanity") == "gate"


def _doubtful_output(bench: Mapping[str, Any]) -> list[str]:
    """Checks of the output that did not hold; whether they decide is a setting of the benchmark."""
    sanity = table(bench.get("sanity"))
    if sanity.get("ok") is not False:
        return []
    texts = [str(item.get("text")) for item in tables(sanity.get("checks")) if item.get("ok") is False]
    return [f"the output is not sane: {text}" for text in texts or ["a check did not hold"]]


def _check(bench: Mapping[str, Any], key: str, threshold: float) -> tuple[Check, str]:
    """One threshold, and the reason where it is inconclusive."""
    name, at = split_key(key)
    bound: Literal["min", "max"] = "max" if name in TIMES else "min"
    stage, measured = _measured(bench, name, at)
    doubt = _doubt(bench, stage)
    if measured is None:
        doubt = f"not measured, {bench['stopped']}" if bench.get("stopped") else "it was not measured"
    elif doubt and name in RATES and (sound := _sound_rate(bench, stage, name)) is not None:
        measured, doubt = sound, ""
    if doubt or measured is None:
        return Check(key, bound, threshold, measured, "inconclusive"), doubt
    held = measured >= threshold if bound == "min" else measured <= threshold
    return Check(key, bound, threshold, measured, "pass" if held else "fail"), ""


def _doubt(bench: Mapping[str, Any], stage: Mapping[str, Any]) -> str:
    """Why a stage's figures prove nothing: what disturbed it, or the first of its passes that was disturbed."""
    parts = tables(stage.get("passes")) or [stage]
    return next((why for part in parts if (why := trouble(part, bench))), "")


def _sound_rate(bench: Mapping[str, Any], level: Mapping[str, Any], name: str) -> float | None:
    """A level's rate over its sound passes alone; None where there is none."""
    seconds = "wall_s" if name == "aggregate_tok_s" else "steady_s"
    tokens = span = 0.0
    for part in tables(level.get("passes")):
        rate, length = positive(part.get(name)), positive(part.get(seconds))
        if rate and length and not trouble(part, bench):
            tokens, span = tokens + rate * length, span + length
    return tokens / span if span else None


def _measured(bench: Mapping[str, Any], name: str, at: int | None) -> tuple[Mapping[str, Any], float | None]:
    """The stage that a figure is of, and the figure; zero is a figure too."""
    if at is None:
        return table(bench.get("singles")), _number(bench.get(SINGLE))
    for level in tables(bench.get("levels")):
        if level.get("concurrency") == at:
            if name in RATES:
                return level, _number(level.get(name))
            metric, quantile, _ = name.split("_")
            return level, _number(table(level.get(f"{metric}_s")).get(quantile))
    return {}, None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) <= sys.float_info.max else None


def _sentence(check: Check) -> str:
    measured = "not measured" if check.measured is None else plain_number(check.measured)
    bound = "at least" if check.bound == "min" else "at most"
    return f"{check.key} is {measured}, {bound} {plain_number(check.threshold)} is asked for"


def plain_number(value: float) -> str:
    """A figure to four digits that count, never with an exponent."""
    if abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{float(f'{value:.4g}'):f}".rstrip("0").rstrip(".")
