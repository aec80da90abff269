"""`diagnose`: why a launch failed, from a log file, a release kept on the host, or the service's last run."""

from __future__ import annotations

import time
from contextlib import closing, suppress
from itertools import islice

from deployer.deploy.session import Session
from deployer.errors import AgentError, UsageError
from deployer.inspect.history import history
from deployer.inspect.log_file import excerpt_of
from deployer.records.codec import encode
from deployer.sglang.log.diagnosis import Diagnosis, Origin, diagnose
from deployer.sglang.log.encoding import is_wide, text_of
from deployer.sglang.log.endings import UnitEnd
from deployer.sglang.log.text import Line, plain, read, read_ends
from deployer.sglang.server.info import redact

#: The kernel's messages are read from this much before a run: it may kill before systemd notices.
_KERNEL_BEFORE = 60.0
#: How many lines of a run's journal are read from its beginning, and how many from its end.
FIRST_LINES = 20_000
NEWEST_LINES = 60_000
#: Control characters that a log may well hold.
_TEXT_CONTROLS = frozenset(b"\t\n\r\x0b\x0c\x1b\x08\x07")


def of_file(path: str) -> Diagnosis:
    """Return the diagnosis of a log file, compressed or not; ``-`` is standard input.

    Of a very long one only the beginning and the end are read, and ``left_out`` says so. Raise UsageError if it cannot
    be read.
    """
    excerpt = excerpt_of(path)
    if not _is_text(excerpt.head[:4096]):
        raise UsageError(
            f"{path} is not a text file, so it cannot be a log", remedy="name the server's log, or pipe it in"
        )
    if excerpt.unread and not excerpt.head:
        raise UsageError(f"{path} cannot be unpacked: {excerpt.unread}", remedy="copy it again")
    origin: Origin = {"source": "standard input" if path == "-" else path}
    if excerpt.gap:
        origin["left_out"] = excerpt.gap
    if excerpt.unread:
        origin["unread"] = excerpt.unread
    mark, gap, lines = excerpt.head[:400], bool(excerpt.tail), excerpt.lines or 0
    head, tail = redact(text_of(excerpt.head)), redact(text_of(excerpt.tail, mark))
    del excerpt  # may be large
    return diagnose(read_ends(head, tail, lines) if gap else read(head), origin=origin)


def _is_text(start: bytes) -> bool:
    """Whether a file that begins so may be a log. Some hold a few control characters, or zeros after a power cut."""
    if is_wide(start):
        return True
    strange = sum(byte < 32 and byte not in _TEXT_CONTROLS for byte in start)
    if strange * 30 <= len(start):
        return True
    try:
        start.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.end < len(start) - 4:  # not merely cut there
            return False
    return strange * 10 <= len(start)


def of_release(session: Session, number: int) -> Diagnosis:
    """Return the diagnosis of a release's last start: from its journal if the host still has it, else its kept log.

    Raise Refused if there is no such release.
    """
    state = session.state()
    release = history(session.service.name, state).numbered(number)
    name, failure = release.release, release.failure
    origin: Origin = {"source": f"release {name}", "release": name, "state": release.state}
    lines = _journal(session, release.invocation_id or "", origin)
    if not lines:
        origin["source"] = f"the log kept with release {name}"
        kept = session.client.release_file(session.service.name, name, "log.txt")
        lines = read(kept or "\n".join(failure.log_tail if failure else ()))
    if failure:
        origin["recorded"] = {
            "signature": failure.signature,
            "phase": failure.phase,
            "cause": failure.cause,
            "remedy": failure.remedy,
        }
    if release.timeline:
        origin["recorded_timeline"] = encode(release.timeline)
    if not (failure or release.invocation_id or any(line.text.strip() for line in lines)):
        origin["never_started"] = True
    return diagnose(lines, running=True if state.running_name == name else None, origin=origin)


def of_service(session: Session) -> Diagnosis:
    """Return the diagnosis of the service's current run, or of its last one."""
    state = session.state()
    unit = state.unit
    journal: Origin = {}
    lines = _journal(session, unit.invocation_id, journal)
    if not lines:
        started = [item.invocation_id for item in state.releases if item.invocation_id]
        lines = _journal(session, started[-1], journal) if started else []
    first = next((line.stamp for line in lines if line.stamp), None)
    kernel = _kernel(session, first) if first else []
    end = UnitEnd(result=unit.result, exec_code=unit.exec_code, exec_status=unit.exec_status)
    failed = not unit.ok and unit.result not in ("", "success")
    origin: Origin = {
        "source": f"{session.unit} on {session.host_config.name}",
        "unit": {"active": unit.active, "sub": unit.sub, "restarts": unit.restarts, **end},
        "kernel_messages": len(kernel),
        **journal,
    }
    number = (state.running_name or state.live_name or "").split("-")[0]
    if unit.restarts and not failed and number.isdecimal():
        origin["restarted"] = (
            f"systemd has started it again (restarts: {unit.restarts}): "
            f"`deployer diagnose --release {int(number)}` shows why its first run ended"
        )
    return diagnose(lines, end if failed else None, kernel, running=unit.ok, origin=origin)


def _journal(session: Session, invocation: str, origin: Origin) -> list[Line]:
    """Return what a run of the unit logged: all of it, or both ends of a long log, which ``origin`` then says."""
    if not invocation:
        return []
    with closing(session.log(invocation_id=invocation)) as log:
        logged = list(islice(log, FIRST_LINES))
    if len(logged) == FIRST_LINES:
        last = logged[-1].t or 0.0
        newest = list(session.log(invocation_id=invocation, lines=NEWEST_LINES))
        later = [entry for entry in newest if (entry.t or 0.0) > last]
        if later and len(later) == len(newest):
            origin["left_out"] = (
                f"the middle of a long log: only the first {FIRST_LINES:,} lines and the newest {len(newest):,} were "
                "read, and the newest are numbered as if they followed the first"
            )
        logged += later
    return [
        Line(number, plain(entry.text), entry.t or None, entry.source, entry.piece)
        for number, entry in enumerate(logged, 1)
    ]


def _kernel(session: Session, since: float) -> list[Line]:
    """Return the kernel's messages since then, as far as the host's journal shows them."""
    before = max(0.0, min(since, time.time()) - _KERNEL_BEFORE)
    lines = []
    with suppress(AgentError):
        for entry in session.log(since=before, kernel=True):
            lines.append(Line(0, entry.text, entry.t or 0.0, "kernel"))
    return lines
