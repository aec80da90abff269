"""How a server ended, as far as systemd, a signal or silence tell: no exception is needed for these. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from deployer.sglang.log.evidence import NOISE, STOPPED, UNKNOWN, Evidence, Failure
from deployer.sglang.log.launch_file import CONSEQUENCE, read_start
from deployer.sglang.log.text import Line
from deployer.sglang.log.tracebacks import Trace, message_of

_STOP = re.compile(
    r"SIGTERM received|Gracefully exiting|INFO: +Shutting down|^Stopping \S+.*\.\.\.|^Stopped \S+"
    r"|: Deactivated successfully|Received signal (?:15|2)\b|SIGINT received"
)
#: The unit has failed: "Stopped" after it is only a part of its automatic restart.
_OVER = re.compile(r"Failed with result '|: Scheduled restart job")
_STOP_EXCEPTION = re.compile(r"(?:asyncio\.\w+\.)?(?:KeyboardInterrupt|CancelledError|SystemExit: 0)\b")
_UNIT_LINE = re.compile(
    r"Main process exited, code=(\w+), status=(\d+)(?:/(\w+))?|Failed with result '([\w-]+)'"
)
#: Exit statuses of systemd's own, before the engine runs (systemd.exec(5)).
_BEFORE_EXEC = {
    200: ("unit_workdir", "the unit's working directory cannot be entered", "check home and permissions"),
    203: ("unit_exec", "the engine's Python cannot be executed", "check engine.python on the host"),
    216: ("unit_group", "the unit's group does not exist", "check the service's user on the host"),
    217: ("unit_user", "the unit's user does not exist", "create the user, or name another in the inventory"),
}
_NO_WORD = "the server ended without an error message"
_REMEDY = "read the evidence and the log; `deployer logs` shows all of it"


def unit_of(lines: Sequence[Line]) -> dict[str, Any]:
    """What systemd's own lines in the log say about the end of the unit."""
    unit: dict[str, Any] = {}
    for line in lines:
        if line.source == "systemd" and (found := _UNIT_LINE.search(line.text)):
            if found[4]:
                unit["result"] = found[4]
            else:
                unit.update(exec_code=found[1], exec_status=int(found[2]))
    return unit


def stop_index(evidence: Evidence, traces: Sequence[Trace]) -> int | None:
    """The line with which the server was told to stop."""
    over = next(
        (
            at
            for at, line in enumerate(evidence.lines)
            if line.source == "systemd" and _OVER.search(line.text)
        ),
        len(evidence.lines),
    )
    for index in evidence.telling:
        line = evidence.lines[index]
        if index > over and line.source == "systemd":
            continue
        if _STOP.search(message_of(line.text)) and (line.source != "engine" or not NOISE.search(line.text)):
            return index
    return next((trace.first for trace in traces if trace.errors and is_stop(trace.errors[0])), None)


def is_stop(error: str) -> bool:
    """Whether an exception only tells that the process was told to stop (Ctrl-C)."""
    return bool(_STOP_EXCEPTION.match(error))


def stopped(evidence: Evidence, index: int) -> Failure:
    """The server was told to stop in line ``index``."""
    phase = evidence.phase_at(index)
    lines, numbers = evidence.show(evidence.around(index, 0, 2) if index >= 0 else [])
    return Failure(
        STOPPED,
        phase,
        f"the server was told to stop while it {'served' if phase == 'ready' else 'was starting'}",
        "nothing is wrong with it; the journal of systemd and the shell histories know who stopped the unit",
        lines,
        None,
        numbers,
    )


def by_unit(evidence: Evidence, unit: Mapping[str, Any], reached: str) -> Failure | None:
    """What systemd's word alone proves (``result``, ``exec_code``, ``exec_status``)."""
    result, status = unit.get("result"), unit.get("exec_status")
    lines, numbers = evidence.show(evidence.tail())
    if result == "exit-code" and status in _BEFORE_EXEC:
        name, cause, remedy = _BEFORE_EXEC[status]
        return Failure(name, "launch", cause, remedy, lines, None, numbers)
    if result == "timeout":
        said = "systemd's own time-out of the start or the stop ended it"
        return Failure("unit_timeout", reached, said, "raise it", lines, None, numbers)
    if result in ("success", "signal") and status == 15:
        return stopped(evidence, len(evidence.lines) - 1)
    if result in ("signal", "core-dump", "exit-code", "watchdog"):
        return silence(evidence, unit, reached)
    return None


def silence(evidence: Evidence, unit: Mapping[str, Any], reached: str) -> Failure:
    """A failure that left no error in the log."""
    failure = _silent(evidence.lines, reached)
    if failure.cause == _NO_WORD:
        if evidence.consequences:
            said = "a process of the server failed, and this log does not hold its error"
            failure = replace(failure, cause=said)
        elif unit.get("result") == "signal" and unit.get("exec_status") == 9:
            failure = replace(
                failure,
                cause="the server was killed (SIGKILL) and said nothing: by the OOM killer, by somebody, or by itself "
                "after an error that did not reach the log",
                remedy="look at `dmesg -T | grep -i oom` and at who used kill",
            )
    return failure


def silent(lines: Sequence[Line]) -> Failure:
    """A launch that failed and left no traceback: the first line that says ERROR, else only that it ended."""
    return _silent(lines, read_start(lines).state.phase)


def _silent(lines: Sequence[Line], reached: str) -> Failure:
    plain = [line for line in lines if not NOISE.search(line.text) and not CONSEQUENCE.search(line.text)]
    for index, line in enumerate(plain):
        if re.search(r"\b(?:ERROR|CRITICAL|FATAL)\b", line.text):
            near = plain[max(0, index - 2) : index + 4]
            cause = message_of(line.text).strip()[:500]
            return Failure(UNKNOWN, reached, cause, _REMEDY, *_texts(near))
    cause = _NO_WORD if plain else "the server printed nothing"
    return Failure(UNKNOWN, reached, cause, _REMEDY, *_texts(plain[-5:]))


def _texts(lines: Sequence[Line]) -> tuple[tuple[str, ...], None, tuple[int, ...]]:
    shown = [line for line in lines if line.text.strip()]
    return tuple(line.text.strip()[:500] for line in shown), None, tuple(line.number for line in shown)
