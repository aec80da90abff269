"""The service's log, from the host's journal, with secrets taken out."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace

from deployer.deploy.session import Session
from deployer.errors import AgentError, Refused
from deployer.records.events import LogLine
from deployer.records.release import Release
from deployer.sglang.server.info import redact


def read(session: Session, *, lines: int, follow: bool, release: int | None) -> Iterator[LogLine]:
    """Yield the log's lines, oldest first; with ``follow`` they go on until the caller stops.

    ``release`` limits them to the last start of that release. Raise Refused if it was never started.
    """
    invocation = None
    if release is not None:
        invocation = numbered_release(session, release).invocation_id
        if not invocation:
            raise Refused(f"release {release} was never started, so it has no log")
    for entry in entries(session, lines=lines, follow=follow, invocation_id=invocation):
        if not entry.piece:  # of a progress bar the finished line is enough
            yield entry


def start_log(session: Session, invocation_id: str, *, limit: int = 20_000) -> list[str]:
    """Return the last lines that one start of the service printed, without pieces of progress bars.

    It is empty if the host cannot read its journal.
    """
    try:
        lines = entries(session, lines=limit, invocation_id=invocation_id)
        return [line.text for line in lines if not line.piece and line.source == "engine"]
    except AgentError:
        return []


def numbered_release(session: Session, number: int) -> Release:
    """Return release ``number``. Raise Refused if there is none."""
    release = next((item for item in session.state().releases if item.number == number), None)
    if release is None:
        raise Refused(f"there is no release {number}", remedy="`deployer history` lists them")
    return release


def entries(
    session: Session,
    *,
    lines: int | None = None,
    follow: bool = False,
    cursor: str | None = None,
    invocation_id: str | None = None,
    since: float | None = None,
    kernel: bool = False,
) -> Generator[LogLine, None, None]:
    """Yield the journal's lines (see `HostClient.journal`), with secrets taken out."""
    state = session.state()
    names = {item.release for item in state.releases if item.state in ("live", "candidate")}
    keys = (session.api_key(name) for name in {*names, state.running_name})
    secrets = [key for key in keys if key]
    with session.client.journal(
        session.service.name,
        lines=lines,
        follow=follow,
        cursor=cursor,
        invocation_id=invocation_id,
        since=since,
        kernel=kernel,
    ) as stream:
        while True:
            try:
                entry = stream.next(timeout=None)
            except StopIteration:
                return
            if entry is not None:
                yield replace(entry, text=redact(entry.text, secrets))
