"""Symptoms of the service itself: does it serve, is it what was released, what does its log say."""

from __future__ import annotations

import re
from collections import Counter

from deployer.inspect.doctor.evidence import Evidence
from deployer.inspect.doctor.symptom import Absent, Answer, Present, Theme, Unclear, present_if
from deployer.reach import unit_name
from deployer.sglang.log.failures import UNKNOWN, classify
from deployer.sglang.log.launch_file import read_start
from deployer.sglang.log.text import read_lines
from deployer.sglang.log.tracebacks import tracebacks
from deployer.text import count_of

THEME = Theme("The service")

#: Seconds that /health may take: it generates a token and looks for it once a second.
SLOW_HEALTH = 5.0
#: Seconds after the start in which figures are not steady.
YOUNG = 120.0
_ERROR = re.compile(r"\b(?:ERROR|CRITICAL|FATAL)\b|^(?:\w+\.)*\w*(?:Error|Exception): |NCCL WARN|\bXid\b")
_WARNING = re.compile(
    r"(?i)\bwarn(?:ing)?\b|\bdeprecated\b|\bfail(?:ed|ure)\b|\btimed? ?out\b|\bfall(?:ing)? ?back\b|\bretry"
)
_DIGITS = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)?")
_STAMP = re.compile(r"^\[[^\]]{0,100}\] ?")


@THEME.symptom("not-serving")
def not_serving(e: Evidence) -> Answer:
    unit = e.state.unit
    state = f"{unit.active} ({unit.sub}), result {unit.result or 'none'}"
    health = f"/health: {e.health.status} after {e.health.seconds:.1f} s"
    if e.state.running is not None and e.health.ok:
        return Absent(f"the unit is {state}; /health is 200")
    if e.changing:
        return _not_yet(e, state, health)
    if e.state.running is None:
        return Present(f"no process runs; the unit is {state}", (f"{unit_name(e.service)}: {state}",))
    if not e.health.ours:
        return Present("another unit answers on the service's port", (f"/health: {e.health.status}",))
    return Present(f"/health answers {e.health.status}", (health,))


def _not_yet(e: Evidence, unit: str, health: str) -> Present:
    """Nothing serves, because somebody is about to change what does."""
    progress = "no process runs at this moment"
    if e.state.running is not None:
        progress = f"{e.release or 'a process'} is starting"
        if e.engine_lines:
            state = read_start(list(read_lines(e.engine_lines))).state
            waiting = f": {state.waiting_for}" if state.waiting_for else ""
            progress += f", in phase {state.phase}{waiting}"
    return Present(
        f"{progress}; {e.changing}",
        (f"{unit_name(e.service)}: {unit}", health),
        next="leave it alone and wait until it ends: that change proves what it starts, or goes back by itself",
        measure="deployer status --watch",
    )


@THEME.symptom("change-under-way")
def change_under_way(e: Evidence) -> Answer:
    lease = e.observed.held_lease
    if lease is None:
        return Absent("nobody holds the host's lease")
    change = e.changing or f"the service {lease.service} is being changed by {lease.owner}"
    held = max(0.0, e.now - lease.acquired)
    return Present(change, (f"{lease.owner} has held the lease for {held:.0f} s",))


@THEME.symptom("health-slow", limit=SLOW_HEALTH)
def health_slow(e: Evidence) -> Answer:
    if not e.health.ok:
        return Unclear("/health is not 200")
    return present_if(e.health.seconds > SLOW_HEALTH, f"/health took {e.health.seconds:.2f} s")


@THEME.symptom("restarted")
def restarted(e: Evidence) -> Answer:
    count = e.state.unit.restarts
    if count:
        return Present(f"{count_of(count, 'restart')} since it was started", (f"NRestarts={count}",))
    return Absent("no restarts")


@THEME.symptom("just-started", limit=YOUNG)
def just_started(e: Evidence) -> Answer:
    age = max(0.0, e.now - e.state.running.started) if e.state.running else 0.0
    return present_if(age < YOUNG, f"started {age:.0f} s ago")


@THEME.symptom("drift")
def drift(e: Evidence) -> Answer:
    differences = [text for text in e.drift if "restarted" not in text]
    if (left := e.state.transition) is not None and not e.changing:
        differences.append(f"a change to {left.to} was left in step {left.step}")
    if differences:
        return Present(count_of(len(differences), "difference"), tuple(differences))
    return Absent(f"unit files, enablement and process are those of {e.release or 'no release'}")


@THEME.symptom("argument-changed")
def argument_changed(e: Evidence) -> Answer:
    effect = e.verification.in_effect
    requested = effect.equal + len(effect.changed) + len(effect.missing)
    if not requested:
        return Unclear("the server does not report its arguments, or the release does not record what it requested")
    if changed := e.verification.refused:
        evidence = (f"{it.argument}: requested {it.requested!r}, is {it.effective!r}" for it in changed)
        return Present(f"{len(changed)} of {requested} arguments", tuple(evidence))
    return Absent(f"{effect.equal} of {requested} arguments of {e.release} are in effect as requested")


@THEME.symptom("idle")
def idle(e: Evidence) -> Answer:
    minutes = f"{e.window / 60:g} min"
    if e.busy or e.batches.decodes:
        running = "an unknown number of" if e.running is None else str(e.running)
        return Absent(f"{running} requests run; {len(e.batches.decodes)} decode lines in {minutes}")
    return Present(f"no request runs, and none did in the last {minutes}")


@THEME.symptom("log-errors")
def log_errors(e: Evidence) -> Answer:
    if not e.lines:
        return Unclear("the log cannot be read")
    lines = e.serving_lines
    errors = [line for line in lines if _is_error(line)]
    raised = any("Traceback (most recent call last)" in line for line in lines)
    chains = tracebacks(list(read_lines(lines))) if raised else []
    if not errors and not chains:
        return Absent(f"none in {len(lines)} lines" + (" (the newest)" if e.cut else ""))
    cause = classify(lines) if chains else None
    known = cause if cause is not None and cause.signature != UNKNOWN else None
    name = f"; known as {known.signature}: {known.cause}" if known else ""
    return Present(
        f"{count_of(len(chains), 'traceback')}, {count_of(len(errors), 'line')} with errors{name}",
        cause.evidence if cause and cause.evidence else _most_frequent(errors),
        next=known.remedy if known else None,
    )


@THEME.symptom("log-warnings")
def log_warnings(e: Evidence) -> Answer:
    if not e.lines:
        return Unclear("the log cannot be read")
    warnings = [line for line in e.serving_lines if _WARNING.search(line) and not _is_error(line)]
    if warnings:
        return Present(count_of(len(warnings), "line"), _most_frequent(warnings))
    return Absent(f"none in {len(e.serving_lines)} lines")


def _is_error(line: str) -> bool:
    return bool(_ERROR.search(_STAMP.sub("", line)))


def _most_frequent(lines: list[str]) -> tuple[str, ...]:
    """Return the most frequent lines, with how often each came; lines that differ in numbers alone count as one."""
    kinds = [_DIGITS.sub("#", _STAMP.sub("", line)) for line in lines]
    examples = dict(zip(kinds, lines, strict=True))
    return tuple(f"{count} x {examples[kind][:300]}" for kind, count in Counter(kinds).most_common(3))
