"""Where a diagnosis takes its log from: a file, a release that is kept on the host, the service's last run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import islice

from deployer.deploy import service_log as logs
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

#: So much earlier than a run the kernel's messages are looked at: it may kill before systemd notices.
_KERNEL_BEFORE = 60.0
#: Of a run's journal so many lines are read from its beginning, and so many from its end.
FIRST_LINES = 20_000
NEWEST_LINES = 60_000
#: Control characters that a log may well hold.
_TEXT_CONTROLS = frozenset(b"\t\n\r\x0b\x0c\x1b\x08\x07")


def of_file(path: str) -> Diagnosis:
    """The diagnosis of a log file, compressed or not; ``-`` is standard input. UsageError where it cannot be read.

    Of a very long one the beginning and the end are read, and what was left out is told.
    """
    found = excerpt_of(path)
    if not _is_text(found.head[:4096]):
        raise UsageError(
            f"{path} is not a text file, so it is no log", remedy="name the server's log, or pipe it in"
        )
    if found.unread and not found.head:
        raise UsageError(f"{path} cannot be unpacked: {found.unread}", remedy="copy it again")
    extra: Origin = {"source": "standard input" if path == "-" else path}
    if found.gap:
        extra["left_out"] = found.gap
    if found.unread:
        extra["unread"] = found.unread
    mark, gap, lines = found.head[:2], bool(found.tail), found.lines or 0
    head = redact(text_of(found.head))
    tail = redact(text_of(found.tail, mark))
    del found  # may be large
    return diagnose(read_ends(head, tail, lines) if gap else read(head), origin=extra)


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
    """The diagnosis of a release's last start: its journal where the host still has it, else what the release kept."""
    state = session.state()
    record = history(session.service.name, state).numbered(number)
    release, failure = record.release, record.failure
    extra: Origin = {"source": f"release {release}", "release": release, "state": record.state}
    lines = _journal(session, record.invocation_id or "", extra)
    if not lines:
        extra["source"] = f"what release {release} kept"
        kept = session.client.release_file(session.service.name, release, "log.txt")
        lines = read(kept or "\n".join(failure.log_tail if failure else ()))
    if failure:
        extra["recorded"] = {
            name: getattr(failure, name) for name in ("signature", "phase", "cause", "remedy")
        }
    if record.timeline:
        extra["recorded_timeline"] = encode(record.timeline)
    if not (failure or record.invocation_id or any(line.text.strip() for line in lines)):
        extra["never_started"] = True
    running = session.state().running
    serves = running is not None and running.release == release
    return diagnose(lines, running=True if serves else None, origin=extra)


def of_service(session: Session) -> Diagnosis:
    """The diagnosis of the service's run under way, or of its last one."""
    state = session.state()
    unit = state.unit
    told: Origin = {}
    lines = _journal(session, unit.invocation_id, told)
    if not lines:
        kept = [item.invocation_id for item in state.releases if item.invocation_id]
        lines = _journal(session, kept[-1], told) if kept else []
    first = next((line.stamp for line in lines if line.stamp), None)
    kernel = list(_kernel(session, first)) if first else []
    ended = unit.active not in ("active", "activating", "reloading")
    facts = UnitEnd(result=unit.result, exec_code=unit.exec_code, exec_status=unit.exec_status)
    extra: Origin = {
        "source": f"{session.unit} on {session.host_config.name}",
        "unit": {"active": unit.active, "sub": unit.sub, "restarts": unit.restarts, **facts},
        "kernel_messages": len(kernel),
        **told,
    }
    failed = ended and unit.result not in ("", "success")
    number = (state.running_name or state.live_name or "").split("-")[0]
    if unit.restarts and not failed and number.isdecimal():
        extra["restarted"] = (
            f"systemd has started it again (restarts: {unit.restarts}): "
            f"`deployer diagnose --release {int(number)}` tells why its first run ended"
        )
    return diagnose(lines, facts if failed else None, kernel, running=not ended, origin=extra)


def _journal(session: Session, invocation: str, extra: Origin) -> list[Line]:
    """What a run of the unit logged: all of it, or both ends of a long log, which ``extra`` then tells."""
    if not invocation:
        return []
    with closing(logs.entries(session, invocation_id=invocation, follow=False)) as entries:
        found = list(islice(entries, FIRST_LINES))
    if len(found) == FIRST_LINES:
        seen = found[-1].t or 0.0
        newest = list(logs.entries(session, invocation_id=invocation, follow=False, lines=NEWEST_LINES))
        later = [entry for entry in newest if (entry.t or 0.0) > seen]
        if later and len(later) == len(newest):
            extra["left_out"] = (
                f"the middle of a long log: the first {FIRST_LINES:,} lines and the newest {len(newest):,} were "
                "read; the lines after it are numbered as if it were not there"
            )
        found += later
    return [
        Line(number, plain(entry.text), entry.t or None, entry.source, entry.piece)
        for number, entry in enumerate(found, 1)
    ]


def _kernel(session: Session, since: float) -> Iterator[Line]:
    """The kernel's messages since then, as far as the host's journal shows them."""
    before = max(0.0, min(since, time.time()) - _KERNEL_BEFORE)
    with suppress(AgentError):
        for entry in logs.entries(session, since=before, kernel=True):
            yield Line(0, entry.text, entry.t or 0.0, "kernel")
