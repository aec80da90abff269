"""The gate: from a benchmark to pass, fail or inconclusive. Pure.

A gate is a table of thresholds. Throughput keys are lower bounds in tokens a second, time keys upper bounds
in seconds; ``@N`` names the level. Whatever the thresholds, every request has to be completed and the
output has to be sane.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Json = dict[str, Any]
Result = Literal["pass", "fail", "inconclusive"]

SINGLE = "single_stream_tok_s"
#: Lower bounds of a level, in tokens a second.
RATES = ("aggregate_tok_s", "steady_tok_s")
#: Upper bounds of a level, in seconds. p99 is reported and never gates: it varies by 17 % between equal runs.
TIMES = tuple(f"{name}_{q}_s" for name in ("ttft", "itl", "tpot") for q in ("p50", "p95"))

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
    """What the gate says. ``reasons`` are sentences with numbers, the decisive ones first."""

    result: Result
    reasons: list[str]
    checks: list[Check] = field(default_factory=list)

    def as_dict(self) -> Json:
        """The verdict as it appears in a JSON document."""
        return {"result": self.result, "reasons": self.reasons, "checks": [c.as_dict() for c in self.checks]}


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


def validate_gate_keys(gate: Mapping[str, float], levels: Collection[int] | None = None) -> list[str]:
    """All that is wrong with a gate's keys and values, one sentence each; empty when nothing is.

    With ``levels`` (those the benchmark will run) also thresholds for levels that will not be measured.
    """
    problems = []
    for key, threshold in gate.items():
        try:
            _, level = split_key(key)
        except ValueError as error:
            problems.append(f"{key}: {error}")
            continue
        if not (math.isfinite(threshold) and threshold > 0):
            problems.append(f"{key}: the threshold must be a number above 0, not {threshold!r}")
        if levels is not None and level is not None and level not in levels:
            shown = ", ".join(map(str, sorted(levels))) or "none"
            problems.append(f"{key}: level {level} is not among the benchmark's levels ({shown})")
    return problems


def evaluate(
    bench: Mapping[str, Any], gate: Mapping[str, float], *, baseline: Mapping[str, Any] | None = None
) -> Verdict:
    """Hold a benchmark against a gate. ValueError for a key that does not exist (see `validate_gate_keys`).

    Fail: a request was not completed, the output is one token over and over, or a threshold was missed.
    Inconclusive, unless it fails anyway: the run was cut short, a threshold's level was not measured, or it
    was measured with a saturated client or with somebody else's traffic. ``baseline`` (the live release's
    own benchmark) is compared and reported; it decides nothing.
    """
    failed = [*_incomplete(bench), *_insane(bench)]
    unsure = [f"the run was cut short: {bench['interrupted']}"] if bench.get("interrupted") else []
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
    foreign = bench.get("foreign_traffic") or {}
    if foreign.get("value") is True and not gate:
        notes.append("somebody else used the server meanwhile")
    if foreign.get("value") is None and gate:
        notes.append("whether somebody else used the server meanwhile is not known")
    if not gate:
        notes.append("no gate is set: only completeness and sane output were asked for")
    if baseline is not None:
        notes += _comparison(bench, baseline)
    result: Result = "fail" if failed else "inconclusive" if unsure else "pass"
    return Verdict(result, [*failed, *unsure, *notes], checks)


def _stages(bench: Mapping[str, Any]) -> list[tuple[str, Json]]:
    """The stages of a run with their names. Warm-ups count: a server has no right to fail them."""
    named = [("warm-up", bench.get("warmups")), ("single runs", bench.get("singles"))]
    for level in bench.get("levels") or []:
        if level.get("discarded"):
            named.append((f"level {level['concurrency']}, the discarded wave", level["discarded"]))
        named.append((f"level {level['concurrency']}", level))
    return [(name, stage) for name, stage in named if stage]


def _completed(bench: Mapping[str, Any]) -> int:
    return sum(int(stage["completed"]) for _, stage in _stages(bench))


def _incomplete(bench: Mapping[str, Any]) -> list[str]:
    """Requests that failed. Those that our own interruption cut are not the server's fault."""
    found = []
    for name, stage in _stages(bench):
        kinds = {kind: n for kind, n in stage["failed"].items() if kind != "cut"}
        if kinds:
            shown = ", ".join(f"{n} {kind}" for kind, n in kinds.items())
            found.append(f"{name}: {sum(kinds.values())} of {stage['requests']} requests failed ({shown})")
    return found


def _insane(bench: Mapping[str, Any]) -> list[str]:
    """Stages in which the output is one token over and over."""
    found = []
    for name, stage in _stages(bench):
        count, done = int(stage.get("repetitive") or 0), int(stage["completed"])
        if name != "warm-up" and count and count > done * REPETITIVE_SHARE:
            heads = [sample["repeats"] for sample in stage.get("samples", []) if sample.get("repeats")]
            shown = f", such as {heads[0]!r}" if heads else ""
            found.append(f"{name}: {count} of {done} outputs are one token over and over{shown}")
    return found


def _check(bench: Mapping[str, Any], key: str, threshold: float) -> tuple[Check, str]:
    """One threshold, and the reason where it is inconclusive."""
    name, at = split_key(key)
    bound: Literal["min", "max"] = "max" if name in TIMES else "min"
    stage, measured = _measured(bench, name, at)
    doubt = ""
    if measured is None:
        doubt = "it was not measured" if not bench.get("stopped") else f"not measured, {bench['stopped']}"
    elif (stage.get("failed") or {}).get("cut"):
        doubt = "the run was cut short meanwhile"
    elif stage.get("foreign_traffic") is True or (bench.get("foreign_traffic") or {}).get("value") is True:
        doubt = "somebody else used the server meanwhile"
    elif (stage.get("client") or {}).get("client_limited"):
        doubt = "the load client itself was saturated"
    if doubt or measured is None:
        return Check(key, bound, threshold, measured, "inconclusive"), doubt
    held = measured >= threshold if bound == "min" else measured <= threshold
    return Check(key, bound, threshold, measured, "pass" if held else "fail"), ""


def _measured(bench: Mapping[str, Any], name: str, at: int | None) -> tuple[Json, float | None]:
    if at is None:
        return bench.get("singles") or {}, bench.get(SINGLE)
    for level in bench.get("levels") or []:
        if level["concurrency"] == at:
            if name in RATES:
                return level, level.get(name)
            metric, quantile, _ = name.split("_")
            return level, (level.get(f"{metric}_s") or {}).get(quantile)
    return {}, None


def _sentence(check: Check) -> str:
    measured = "not measured" if check.measured is None else plain_number(check.measured)
    bound = "at least" if check.bound == "min" else "at most"
    return f"{check.key} is {measured}, {bound} {plain_number(check.threshold)} is asked for"


def plain_number(value: float) -> str:
    """A figure to four digits that count, never with an exponent."""
    if abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{float(f'{value:.4g}'):f}".rstrip("0").rstrip(".")


def _comparison(bench: Mapping[str, Any], baseline: Mapping[str, Any]) -> list[str]:
    """Against the baseline: the geometric mean of the levels' throughput ratios, and the single stream's."""
    before = {level["concurrency"]: level.get("aggregate_tok_s") for level in baseline.get("levels") or []}
    ratios = {}
    for level in bench.get("levels") or []:
        old, new = before.get(level["concurrency"]), level.get("aggregate_tok_s")
        if old and new:
            ratios[level["concurrency"]] = new / old
    found = []
    if ratios:
        mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
        each = ", ".join(f"@{n} {ratio - 1:+.1%}" for n, ratio in ratios.items())
        found.append(f"throughput against the baseline: {mean - 1:+.1%} in the geometric mean ({each})")
    old, new = baseline.get(SINGLE), bench.get(SINGLE)
    if old and new:
        found.append(f"single stream against the baseline: {new / old - 1:+.1%}")
    return found
