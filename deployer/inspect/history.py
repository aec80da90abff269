"""`history` and `logs`: which releases were tried and what came of each; what a release's server printed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from deployer.deploy.session import Session
from deployer.errors import Refused
from deployer.records.codec import encode
from deployer.records.effect import ArgumentInEffect, InEffect
from deployer.records.events import LogLine
from deployer.records.host import ServiceState
from deployer.records.release import Release

#: The keys of a release's manifest that the documents show.
_SHOWN = (
    "release",
    "number",
    "profile",
    "state",
    "was_live",
    "previous",
    "created",
    "promoted",
    "operator",
    "sglang",
    "verdict",
    "failure",
    "bench_summary",
    "benches",
    "in_effect",
    "timeline",
)


@dataclass(frozen=True)
class History:
    """The releases of a service, the newest first, and which of them is live."""

    service: str
    live: str | None
    releases: tuple[Release, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the document of ``history --json`` (docs/cli.md)."""
        releases = [self.entry(release) for release in self.releases]
        return {"service": self.service, "live": self.live, "releases": releases}

    def entry(self, release: Release) -> dict[str, Any]:
        """Return one release as the document shows it."""
        manifest = release.as_json()
        return {key: manifest.get(key) for key in _SHOWN} | {"live": release.release == self.live}

    def numbered(self, number: int) -> Release:
        """Return release ``number``. Raise Refused if there is none."""
        release = next((item for item in self.releases if item.number == number), None)
        if release is None:
            raise Refused(f"there is no release {number}", remedy="`deployer history` lists them")
        return release


@dataclass(frozen=True)
class ReleaseReport:
    """One release, with what was in effect when it was verified, argument by argument."""

    history: History
    release: Release
    arguments: tuple[ArgumentInEffect, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the document of ``history N --json``."""
        entry = self.history.entry(self.release)
        return {"service": self.history.service, **entry, "arguments": encode(self.arguments)}


def history(service: str, state: ServiceState) -> History:
    """Return the releases of a service; ``live`` is the state of the one that is live, and of no other."""
    live = state.live_name

    def now(release: Release) -> str:
        if release.release == live:
            return "live"
        return "superseded" if release.state == "live" else release.state

    releases = (replace(release, state=now(release)) for release in reversed(state.releases))
    return History(service, live, tuple(releases))


def history_of(session: Session) -> History:
    """Return the releases of the session's service."""
    return history(session.service.name, session.state())


def release_report(session: Session, number: int) -> ReleaseReport:
    """Return one release with its arguments. Raise Refused if there is none of that number."""
    releases = history_of(session)
    release = releases.numbered(number)
    arguments: tuple[ArgumentInEffect, ...] = ()
    text = session.client.release_file(session.service.name, release.release, "in_effect.json")
    with suppress(ValueError):  # a release from before this was kept, or whose folder is gone
        arguments = InEffect.from_json(json.loads(text or "{}")).arguments
    return ReleaseReport(releases, release, arguments)


def log(session: Session, *, lines: int, follow: bool, release: int | None) -> Iterator[LogLine]:
    """Yield the service's log, oldest line first; with ``follow`` it goes on until the caller stops.

    ``release`` limits it to the last start of that release. Raise Refused if it was never started.
    """
    invocation = None
    if release is not None:
        invocation = history_of(session).numbered(release).invocation_id
        if not invocation:
            raise Refused(f"release {release} was never started, so it has no log")
    for entry in session.log(lines=lines, follow=follow, invocation_id=invocation):
        if not entry.piece:  # the finished line of a progress bar is enough
            yield entry
