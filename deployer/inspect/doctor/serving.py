"""Checks of the service itself: does it serve, is it what was released, what does its log say."""

from __future__ import annotations

import re
from collections import Counter

from deployer.inspect.doctor.base import Answer, Fine, Hit, Theme, Unknown
from deployer.inspect.doctor.evidence import Evidence
from deployer.sglang.log.failures import UNKNOWN, classify
from deployer.sglang.log.launch_file import read_start
from deployer.sglang.log.text import read_lines
from deployer.sglang.log.tracebacks import tracebacks
from deployer.sglang.rules.base import Severity
from deployer.sglang.server.info import aliases
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


@THEME.check(
    "not-serving",
    Severity.ERROR,
    "nothing healthy serves",
    trips="no process of the service runs, or its /health is not 200, or another unit answers on its port",
    next="find out why: the cause of the last failure is in the log of that start",
    measure="deployer status; deployer logs -n 200; deployer converge",
)
def not_serving(e: Evidence) -> Answer:
    unit = e.state.unit
    shown = f"{unit.active} ({unit.sub}), result {unit.result or 'none'}"
    health = f"/health: {e.health.status} after {e.health.seconds:.1f} s"
    if e.state.running is not None and e.health.ok:
        return Fine(f"the unit is {shown}; /health is 200")
    if e.changing:
        return _not_yet(e, shown, health)
    if e.state.running is None:
        return Hit(f"no process runs; the unit is {shown}", (f"sglang-{e.service}.service: {shown}",))
    if not e.health.ours:
        return Hit("another unit answers on the service's port", (f"/health: {e.health.status}",))
    return Hit(f"/health answers {e.health.status}", (health,))


def _not_yet(e: Evidence, unit: str, health: str) -> Hit:
    """Nothing serves, as somebody is about to change what does."""
    doing = "no process runs at this moment"
    if e.state.running is not None:
        texts = [line.text for line in e.lines if line.engine]
        state = read_start(list(read_lines(texts))).state
        doing = f"{e.release or 'a process'} is on its way"
        if texts:
            doing += f", in phase {state.phase}" + (f": {state.waiting_for}" if state.waiting_for else "")
    return Hit(
        f"{doing}; {e.changing}",
        (f"sglang-{e.service}.service: {unit}", health),
        next="leave it alone and wait for its end: that change proves what it starts, or goes back by itself",
        measure="deployer status --watch",
    )


@THEME.check(
    "change-under-way",
    Severity.ADVICE,
    "somebody is changing this host",
    trips="a lease of the host is held, whether for this service or for another one",
    next="wait for its end before anything is changed or measured: figures taken now are of two servers, or of "
    "none",
    measure="deployer status --watch",
)
def change_under_way(e: Evidence) -> Answer:
    if not e.lease:
        return Fine("nobody holds the host's lease")
    change = e.changing or f"the service {e.lease.service} is being changed by {e.lease.owner}"
    return Hit(
        change, (f"the lease is held by {e.lease.owner}, since {max(0.0, e.now - e.lease.acquired):.0f} s",)
    )


@THEME.check(
    "health-slow",
    Severity.WARNING,
    "/health is slow",
    trips=f"/health takes more than {SLOW_HEALTH:g} s, where 1 to 2 s are usual",
    next="the scheduler may be busy with one long prefill, or the machine with something else: look at the queue and "
    "at the processors",
    measure="deployer doctor --seconds 20",
)
def health_slow(e: Evidence) -> Answer:
    if not e.health.ok:
        return Unknown("/health is not 200")
    text = f"/health took {e.health.seconds:.2f} s"
    return Hit(text, (text,)) if e.health.seconds > SLOW_HEALTH else Fine(text)


@THEME.check(
    "restarted",
    Severity.WARNING,
    "systemd restarted the service",
    trips="the unit restarted since somebody started it",
    next="something killed it: the log before the restart says what",
    measure="deployer logs -n 500",
)
def restarted(e: Evidence) -> Answer:
    count = e.state.unit.restarts
    if count:
        return Hit(f"{count_of(count, 'restart')} since it was started", (f"NRestarts={count}",))
    return Fine("no restarts")


@THEME.check(
    "just-started",
    Severity.ADVICE,
    "it started a moment ago",
    trips=f"the process is younger than {YOUNG:g} s",
    next="the first requests compile kernels and fill caches: figures are not steady yet, look again later",
    measure="deployer doctor",
)
def just_started(e: Evidence) -> Answer:
    if e.age is None:
        return Unknown("no process runs")
    text = f"started {e.age:.0f} s ago"
    return Hit(text, (text,)) if e.age < YOUNG else Fine(text)


@THEME.check(
    "drift",
    Severity.WARNING,
    "the host differs from its live release",
    trips="drop-ins or other unit files change the unit, another release runs than is live, the service "
    "is not enabled, "
    "or a change was left under way",
    next="make the host equal to its live release again",
    measure="deployer converge; deployer status",
)
def drift(e: Evidence) -> Answer:
    found = [text for text in e.drift if "restarted" not in text]
    if e.state.transition is not None and not e.changing:
        found.append(f"a change to {e.state.transition.to} was left in step {e.state.transition.step}")
    if found:
        return Hit(f"{len(found)} differences", tuple(found))
    return Fine(f"unit files, enablement and process are those of {e.release or 'no release'}")


@THEME.check(
    "argument-changed",
    Severity.WARNING,
    "an argument is in effect with another value than was asked for",
    trips="/server_info shows another value for an argument of the release, and its profile does not allow that",
    next="ask in the profile for what SGLang runs with, or allow the change in [verify] allow_changed",
    measure="deployer history {number}",
)
def argument_changed(e: Evidence) -> Answer:
    if not e.checks:
        return Unknown(
            "the server does not tell its arguments, or the release does not say what was asked for"
        )
    wrong = [
        check
        for check in e.checks
        if check.verdict == "changed" and not e.allowed.intersection(aliases(check.argument))
    ]
    if wrong:
        evidence = [f"{check.argument}: asked {check.requested!r}, is {check.effective!r}" for check in wrong]
        return Hit(f"{len(wrong)} of {len(e.checks)} arguments", tuple(evidence))
    equal = sum(check.verdict == "equal" for check in e.checks)
    return Fine(f"{equal} of {len(e.checks)} arguments of {e.release} are in effect as asked")


@THEME.check(
    "idle",
    Severity.ADVICE,
    "no requests",
    trips="nothing runs now, and no micro-batch was decoded in the last minutes",
    next="what is about load (slots, graphs, GPUs) cannot be judged now: look again while requests run",
    measure="deployer doctor",
)
def idle(e: Evidence) -> Answer:
    if e.busy or e.batches.decodes:
        running = "unknown" if e.running is None else str(e.running)
        return Fine(f"{running} requests run; {len(e.batches.decodes)} decode lines in {e.window / 60:g} min")
    return Hit(f"no request runs, and none did in the last {e.window / 60:g} min", ())


@THEME.check(
    "log-errors",
    Severity.WARNING,
    "errors in the log",
    trips="tracebacks or lines at level ERROR since the server was ready",
    next="read them in place; a known cause is named",
    measure="deployer logs -n 500",
)
def log_errors(e: Evidence) -> Answer:
    if not e.lines:
        return Unknown("the log cannot be read")
    lines = e.serving_lines
    wrong = [line for line in lines if _ERROR.search(_STAMP.sub("", line))]
    raised = any("Traceback (most recent call last)" in line for line in lines)
    chains = tracebacks(list(read_lines(lines))) if raised else []
    if not wrong and not chains:
        return Fine(f"none in {len(lines)} lines" + (" (the newest)" if e.cut else ""))
    failure = classify(lines) if chains else None
    known = (
        f"; known as {failure.signature}: {failure.cause}" if failure and failure.signature != UNKNOWN else ""
    )
    evidence = failure.evidence if failure and failure.evidence else tuple(_most(wrong))
    return Hit(
        f"{len(chains)} tracebacks, {len(wrong)} lines with errors{known}",
        evidence,
        next=failure.remedy if failure and known else None,
    )


@THEME.check(
    "log-warnings",
    Severity.ADVICE,
    "warnings in the log",
    trips="lines since the server was ready that speak of warnings, failures, time-outs or fallbacks",
    next="see whether one of them is about what you are after",
    measure="deployer logs -n 500",
)
def log_warnings(e: Evidence) -> Answer:
    if not e.lines:
        return Unknown("the log cannot be read")
    found = [
        line for line in e.serving_lines if _WARNING.search(line) and not _ERROR.search(_STAMP.sub("", line))
    ]
    if found:
        return Hit(f"{len(found)} lines", tuple(_most(found)))
    return Fine(f"none in {len(e.serving_lines)} lines")


def _most(lines: list[str]) -> list[str]:
    """The most frequent lines, numbers aside, with how often each came."""
    kinds = Counter(_DIGITS.sub("#", _STAMP.sub("", line)) for line in lines)
    example = {_DIGITS.sub("#", _STAMP.sub("", line)): line for line in lines}
    return [f"{count} x {example[kind][:300]}" for kind, count in kinds.most_common(3)]
