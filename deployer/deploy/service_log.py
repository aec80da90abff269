"""The service's log, from the host's journal, with secrets taken out."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from deployer.deploy.model import Json
from deployer.deploy.session import Session
from deployer.errors import AgentError, Refused
from deployer.sglang.server.info import redact


def read(session: Session, *, lines: int, follow: bool, release: int | None) -> Iterator[Json]:
    """Entries ``{t, text, source}``, oldest first; with ``follow`` they go on until the caller stops.

    ``release`` limits them to the last start of that release. Refused where it was never started.
    """
    invocation = None
    if release is not None:
        invocation = release_manifest(session, release).get("invocation_id")
        if not invocation:
            raise Refused(f"release {release} was never started, so it has no log")
    asked = {"lines": lines, "follow": follow, "invocation_id": invocation}
    for entry in entries(session, **asked):
        if not entry.get("piece"):  # of a progress bar the finished line is enough
            yield entry


def start_log(session: Session, invocation_id: str, *, limit: int = 20_000) -> list[str]:
    """The last lines that one start of the service has printed, without pieces of progress bars; secrets taken out.

    Empty where the host cannot tell.
    """
    try:
        found = entries(session, lines=limit, invocation_id=invocation_id)
        return [entry["text"] for entry in found if not entry.get("piece") and entry["source"] == "engine"]
    except AgentError:
        return []


def release_manifest(session: Session, number: int) -> Json:
    """The manifest of release ``number``; Refused where there is none."""
    manifest = next((item for item in session.state().releases if item.get("number") == number), None)
    if manifest is None:
        raise Refused(f"there is no release {number}", remedy="`deployer history` lists them")
    return manifest


def entries(session: Session, **asked: object) -> Generator[Json, None, None]:
    """The journal's entries for what was ``asked`` (arguments of the host's `journal`), secrets taken out."""
    state = session.state()
    names = [item["release"] for item in state.releases if item.get("state") in ("live", "candidate")]
    keys = [session.api_key(name) for name in [*names, state.running.release if state.running else None]]
    secrets = [key for key in keys if key]
    with session.client.journal(service=session.service.name, **asked) as stream:
        while True:
            try:
                entry = stream.next(timeout=None)
            except StopIteration:
                return
            if entry is not None:
                yield {**entry, "text": redact(entry["text"], secrets)}
