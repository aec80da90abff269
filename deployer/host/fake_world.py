"""What a fake host consists of: services, releases, a lease, and engines that behave as scripted."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from deployer.errors import AgentError
from deployer.records.codec import Json


@dataclass(frozen=True)
class Engine:
    """How a release's server behaves once started. Times are seconds after the start."""

    log: tuple[str, ...] = ()
    ready_after: float | None = 0.0
    """When it begins to answer; None: never."""
    fails_after: float | None = None
    """When its main process ends with status 1; None: it stays."""
    http: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Answers by path, besides 200 for /health."""
    argv: tuple[str, ...] = ()


@dataclass
class FakeService:
    """One service's files and process."""

    live: str | None = None
    candidate: str | None = None
    transition: Json | None = None
    releases: dict[str, Json] = field(default_factory=dict)
    enabled: bool = False
    running: str | None = None
    """The release of the running process."""
    ran: str | None = None
    """The release that ran last: whose log the journal has."""
    started: float = 0.0
    invocation_id: str = ""
    failed: bool = False
    reset: bool = True


@dataclass
class FakeWorld:
    """One host. ``observed`` is merged over what `observe` answers (gpus, engine, model and the like)."""

    name: str = "fake"
    boot_id: str = "boot-1"
    engines: dict[str, Engine] = field(default_factory=dict)
    services: dict[str, FakeService] = field(default_factory=dict)
    observed: Json = field(default_factory=dict)
    sampled: Json = field(default_factory=dict)
    """Merged over what `sample` answers."""
    lease: Json | None = None
    calls: list[tuple[str, Json]] = field(default_factory=list)
    faults: dict[str, list[Exception]] = field(default_factory=dict)
    """Errors to raise instead of running an operation: one for each call, in order."""
    run: Callable[[Json], tuple[list[str], int]] = lambda args: ([], 0)
    """What the `run` operation prints, and its status."""
    kernel_log: tuple[str, ...] = ()
    """The kernel's messages, as `journal` with ``kernel`` answers."""

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        self.pids = itertools.count(1000)

    def service(self, name: str) -> FakeService:
        return self.services.setdefault(name, FakeService())

    def engine(self, release: str | None) -> Engine:
        return self.engines.get(release or "", Engine())

    def make_live(self, service: str, release: str, text: str | None = None) -> None:
        """Put a release on the host as proven and running, as an earlier deployment would have left it."""
        state = self.service(service)
        state.live = text or f"[X-Deployer]\nRelease={release}\n"
        number = int(release.split("-", maxsplit=1)[0]) if release[:4].isdigit() else 0
        manifest = {"schema": 1, "release": release, "number": number, "state": "live", "was_live": True}
        state.releases.setdefault(release, {"manifest": manifest, "files": {"unit": state.live}})
        state.enabled = True
        self.start(state, release)

    def start(self, state: FakeService, release: str | None) -> None:
        state.running, state.started, state.failed = release, time.monotonic(), False
        state.ran = release
        state.invocation_id = secrets.token_hex(16)

    def settle(self, state: FakeService) -> None:
        """Let time have its effect: a process that was to end has ended."""
        after = self.engine(state.running).fails_after
        if state.running and after is not None and time.monotonic() >= state.started + after:
            state.running, state.failed = None, True

    def ready(self, state: FakeService) -> bool:
        after = self.engine(state.running).ready_after
        return state.running is not None and after is not None and time.monotonic() >= state.started + after


def release_of(text: str | None) -> str | None:
    """``Release=`` of a unit text."""
    lines = (text or "").splitlines()
    return next((line.partition("=")[2].strip() for line in lines if line.startswith("Release=")), None)


def manifest_of(state: FakeService, release: str) -> Json:
    if release not in state.releases:
        raise AgentError("not-found", f"there is no release {release}")
    manifest: Json = state.releases[release]["manifest"]
    return manifest


def manifest_argv(state: FakeService, release: str) -> list[str]:
    known = state.releases.get(release)
    return list(known["manifest"].get("argv") or []) if known else []
