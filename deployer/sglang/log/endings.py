"""How a server ended according to systemd, a signal, or silence: no exception is needed for these. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict, cast

from deployer.sglang.log.indexed_log import NOISE, IndexedLog
from deployer.sglang.log.launch_file import CONSEQUENCE
from deployer.sglang.log.record import message_of
from deployer.sglang.log.signatures import STOPPED, UNKNOWN, Cause
from deployer.sglang.log.text import Line
from deployer.sglang.log.tracebacks import Trace

_STOP = re.compile(
    r"SIGTERM received|Gracefully exiting|INFO: +Shutting down|^Stopping \S+.*\.\.\.|^Stopped \S+"
    r"|: Deactivated successfully|Received signal (?:15|2)\b|SIGINT received"
)
#: The unit has failed: a "Stopped" after it is only part of its automatic restart.
_OVER = re.compile(r"Failed with result '|: Scheduled restart job")
_STOP_EXCEPTION = re.compile(r"(?:asyncio\.\w+\.)?(?:KeyboardInterrupt|CancelledError|SystemExit: 0)\b")
_UNIT_LINE = re.compile(r"Main process exited, code=(\w+), status=(\d+)(?:/(\w+))?|Failed with result '([\w-]+)'")
#: Exit statuses of systemd's own, before the engine runs (systemd.exec(5)).
_BEFORE_EXEC = {
    200: ("unit_workdir", "the unit's working directory cannot be entered", "check home and permissions"),
    203: ("unit_exec", "the engine's Python cannot be executed", "check engine.python on the host"),
    216: ("unit_group", "the unit's group does not exist", "check the service's user on the host"),
    217: (
        "unit_user",
        "the unit's user does not exist",
        "create the user, or name another one in the inventory",
    ),
}
_NO_MESSAGE = "the server ended without an error message"
#: What to do about a failure that no signature explains.
READ_THE_LOG = "read the evidence and the log; `deployer logs` shows all of it"


class UnitEnd(TypedDict, total=False):
    """What systemd reports about the end of a unit: ``exec_code`` is ``exited``, ``killed`` or ``dumped``."""

    result: str | None
    exec_code: str | int | None
    exec_status: int | None


def as_unit_end(report: Mapping[str, Any]) -> UnitEnd:
    """Return what a report about a unit says of its end."""
    return cast(UnitEnd, {key: report[key] for key in UnitEnd.__annotations__ if key in report})


def unit_end(lines: Sequence[Line]) -> UnitEnd:
    """Return what systemd's own lines in the log say about the end of the unit."""
    end: UnitEnd = {}
    for line in lines:
        if line.source == "systemd" and (reported := _UNIT_LINE.search(line.text)):
            if reported[4]:
                end["result"] = reported[4]
            else:
                end["exec_code"], end["exec_status"] = reported[1], int(reported[2])
    return end


def stop_index(log: IndexedLog, traces: Sequence[Trace]) -> int | None:
    """Return the position of the line with which the server was asked to stop."""
    systemd = [at for at, line in enumerate(log.lines) if line.source == "systemd"]
    over = next((at for at in systemd if _OVER.search(log.lines[at].text)), len(log.lines))
    for index in log.telling:
        line = log.lines[index]
        if index > over and line.source == "systemd":
            continue
        if _STOP.search(message_of(line.text)) and (line.source != "engine" or not NOISE.search(line.text)):
            return index
    return next((trace.first for trace in traces if trace.errors and is_stop(trace.errors[0])), None)


def is_stop(error: str) -> bool:
    """Return whether an exception only says that the process was asked to stop (Ctrl-C)."""
    return bool(_STOP_EXCEPTION.match(error))


def stopped(log: IndexedLog, index: int) -> Cause:
    """Return the cause of a server that was asked to stop in line ``index``."""
    phase = log.phase_at(index)
    lines, numbers = log.show(log.around(index, 0, 2) if index >= 0 else [])
    cause = f"the server was asked to stop while it was {'serving' if phase == 'ready' else 'starting'}"
    remedy = "nothing is wrong with it; systemd's journal and the shell histories show who stopped the unit"
    return Cause(STOPPED, phase, cause, remedy, lines, None, numbers)


def by_unit(log: IndexedLog, unit: UnitEnd, reached: str) -> Cause | None:
    """Return what systemd's report alone proves."""
    result, status = unit.get("result"), unit.get("exec_status")
    lines, numbers = log.show(log.tail())
    if result == "exit-code" and status in _BEFORE_EXEC:
        name, cause, remedy = _BEFORE_EXEC[status]
        return Cause(name, "launch", cause, remedy, lines, None, numbers)
    if result == "timeout":
        cause = "systemd ended it because its time for the start or the stop was over"
        return Cause("unit_timeout", reached, cause, "raise the unit's timeout", lines, None, numbers)
    if result in ("success", "signal") and status == 15:
        return stopped(log, len(log.lines) - 1)
    if result in ("signal", "core-dump", "exit-code", "watchdog"):
        return silence(log, unit, reached)
    return None


def silence(log: IndexedLog, unit: UnitEnd, reached: str) -> Cause:
    """Return the cause of a failure that left no known error: the first line that says ERROR, else that it ended."""
    cause = first_error(log.lines, reached)
    if cause.cause != _NO_MESSAGE:
        return cause
    if log.consequences:
        return replace(cause, cause="a process of the server failed, and its error is not in this log")
    if unit.get("result") == "signal" and unit.get("exec_status") == 9:
        return replace(
            cause,
            cause="the server was killed (SIGKILL) without a message: by the OOM killer, by a person, or by itself "
            "after an error that did not reach the log",
            remedy="look at `dmesg -T | grep -i oom`, and for who used kill",
        )
    return cause


def first_error(lines: Sequence[Line], reached: str) -> Cause:
    """Return the first line that says ERROR as the cause, else only that the server ended."""
    plain = [line for line in lines if not NOISE.search(line.text) and not CONSEQUENCE.search(line.text)]
    cause, near = _NO_MESSAGE if plain else "the server printed nothing", plain[-5:]
    for index, line in enumerate(plain):
        if re.search(r"\b(?:ERROR|CRITICAL|FATAL)\b", line.text):
            cause, near = message_of(line.text).strip()[:500], plain[max(0, index - 2) : index + 4]
            break
    shown = [line for line in near if line.text.strip()]
    evidence = tuple(line.text.strip()[:500] for line in shown)
    return Cause(UNKNOWN, reached, cause, READ_THE_LOG, evidence, None, tuple(line.number for line in shown))
