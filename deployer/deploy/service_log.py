"""The service's log, from the host's journal, with secrets taken out."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Unpack

from deployer.deploy.session import Session
from deployer.errors import AgentError
from deployer.host.client import JournalPart
from deployer.records.events import LogLine
from deployer.sglang.server.info import redact


def start_log(session: Session, invocation_id: str, *, limit: int = 20_000) -> list[str]:
    """Return the last lines that one start of the service printed, without pieces of progress bars.

    It is empty if the host cannot read its journal.
    """
    try:
        lines = entries(session, lines=limit, invocation_id=invocation_id)
        return [line.text for line in lines if not line.piece and line.engine]
    except AgentError:
        return []


def entries(session: Session, **part: Unpack[JournalPart]) -> Generator[LogLine, None, None]:
    """Yield the journal's lines (see `HostClient.journal`), with secrets taken out."""
    state = session.state()
    names = {item.release for item in state.releases if item.state in ("live", "candidate")}
    keys = (session.api_key(name) for name in {*names, state.running_name})
    secrets = [key for key in keys if key]
    with session.client.journal(session.service.name, **part) as stream:
        for entry in stream.until_end():
            if entry is not None:
                yield replace(entry, text=redact(entry.text, secrets))
