"""Typed calls to a host: one method for each operation of ``docs/architecture.md``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

from deployer.errors import AgentError
from deployer.host.protocol import Host
from deployer.host.streams import Answer, Decoded, Event, Events, decoded, translated
from deployer.reach import HEALTH_TIMEOUT
from deployer.records.answers import (
    Converged,
    Hello,
    HooksKept,
    HttpAnswer,
    LeaseGrant,
    MadeRoom,
    Metric,
    ProbeReport,
    Proof,
    Ran,
    Started,
    Stopped,
)
from deployer.records.codec import Json, encode
from deployer.records.endpoint import Endpoint
from deployer.records.events import LogLine, RunLine, StopEvent, WatchEvent, watch_event
from deployer.records.hardware import Listener
from deployer.records.hook import HostHooks
from deployer.records.host import Hold, HostState, Owner, Transition
from deployer.records.release import Release
from deployer.records.samples import Sampled
from deployer.records.step import Step

#: Seconds that an operation has which waits for the host's lock and for systemd.
LONG = 150.0

#: Keys of a transition that the host fills in.
_WRITTEN_BY_THE_HOST = frozenset(
    {"boot_id", "started", "updated", "invocation_id", "cursor", "started_boottime", "timeline"}
)


class JournalPart(TypedDict, total=False):
    """The part of a journal to read: the last ``lines``, what follows a cursor or a time, one start of the unit."""

    lines: int | None
    follow: bool
    cursor: str | None
    invocation_id: str | None
    since: float | None
    kernel: bool


def _given(args: Json) -> Json:
    """Return the arguments without those that are None: the host has its own defaults."""
    return {name: value for name, value in args.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Limits:
    """How long stopping and starting a service may take, in seconds, and the GPUs whose memory is waited for."""

    drain: float
    stop: float
    ready: float
    gpus: Sequence[int] | None = None

    def arguments(self, endpoint: Endpoint) -> Json:
        """Return the arguments that stop a server."""
        return {
            "service": endpoint.service,
            "port": endpoint.port,
            "address": endpoint.address,
            "drain": self.drain,
            "stop_timeout": self.stop,
            "gpus": None if self.gpus is None else list(self.gpus),
        }


class HostClient:
    """A connected host: the only door to it.

    Every method raises AgentError, ChannelLost, and what `deployer.host.streams.translated` names.
    """

    def __init__(self, host: Host) -> None:
        self._host = host

    @property
    def name(self) -> str:
        """The host's name in the inventory."""
        return self._host.name

    def _call(self, op: str, args: Json | None = None, *, timeout: float = 30.0) -> Json:
        try:
            return self._host.call(op, args, timeout=timeout)
        except AgentError as error:
            raise translated(error, self.name) from error.__cause__

    def _ask(
        self, decode: Callable[[Json], Decoded], op: str, args: Json | None = None, timeout: float = 30.0
    ) -> Decoded:
        return decoded(decode, self._call(op, args, timeout=timeout), self.name)

    def _stream(
        self, op: str, args: Json, event: Callable[[Json], Event | None], answer: Callable[[Json], Answer]
    ) -> Events[Event, Answer]:
        try:
            return Events(self._host.stream(op, args), self.name, event, answer)
        except AgentError as error:
            raise translated(error, self.name) from error.__cause__

    def close(self, *, bye: bool = True) -> None:
        """End the connection; with ``bye`` a held lease is given back."""
        self._host.close(bye=bye)

    # -- reading ------------------------------------------------------------------------------------------------

    def hello(self) -> Hello:
        """Return who answers: agent and machine."""
        return self._ask(Hello.from_json, "hello")

    def observe(
        self,
        services: Mapping[str, int],
        *,
        engine: str | None = None,
        model: str | None = None,
        gpus: bool = False,
        patience: float | None = None,
        timeout: float = LONG,
    ) -> HostState:
        """Return the host's state. ``services``: names with their ports; ``engine``: a Python; ``model``: a path there;
        ``patience``: seconds that nvidia-smi has for all questions together."""
        args: Json = {
            "services": [{"service": name, "port": port} for name, port in services.items()],
            "gpus": gpus,
            "patience": patience,
            "engine": None if engine is None else {"python": engine},
            "model": None if model is None else {"path": model},
        }
        return self._ask(HostState.from_json, "observe", _given(args), timeout)

    def release_read(
        self, service: str, release: str, files: Sequence[str] = ()
    ) -> tuple[Release, dict[str, str | None]]:
        """Return a release and the texts of these of its files; a file that does not exist is None."""
        answer = self._call("release.read", {"service": service, "release": release, "files": list(files)})
        return decoded(Release.from_json, answer["manifest"], self.name), dict(answer.get("files") or {})

    def release_file(self, service: str, release: str, name: str) -> str | None:
        """Return the text of one file of a release, None if there is no such file or release."""
        try:
            return self.release_read(service, release, [name])[1][name]
        except AgentError:
            return None

    def listeners(self, port: int) -> list[Listener]:
        """Return the sockets that listen on ``port``."""
        answer = self._call("listeners", {"port": port})
        return [decoded(Listener.from_json, item, self.name) for item in answer["listeners"]]

    def http(
        self,
        method: str,
        path: str,
        endpoint: Endpoint,
        *,
        body: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = HEALTH_TIMEOUT,
    ) -> HttpAnswer:
        """Send one HTTP request to a server from its own host. Raise AgentError ``http`` if there is no answer."""
        args = endpoint.request(method, path, body=body, headers=headers, timeout=timeout)
        return self._ask(HttpAnswer.from_json, "http", args, timeout + 10.0)

    def sample(self, seconds: float, *, interval: float = 1.0, endpoint: Endpoint | None = None) -> Sampled:
        """Look at GPUs, connections and the machine for some seconds (60 at most), as one call.

        ``endpoint`` is the server whose connections are counted.
        """
        args = {
            "seconds": seconds,
            "interval": interval,
            "port": endpoint.port if endpoint else None,
            "address": endpoint.address if endpoint else None,
        }
        return self._ask(Sampled.from_json, "sample", args, seconds + LONG)

    # -- the lease ----------------------------------------------------------------------------------------------

    def lease_acquire(
        self,
        *,
        owner: Owner,
        service: str,
        reason: str,
        ttl: float,
        reclaim: LeaseGrant | None = None,
        wait: float = 0.0,
    ) -> LeaseGrant:
        """Take the lease within ``wait`` seconds. Raise LeaseHeld; with ``reclaim`` LeaseLost if others took it."""
        args: Json = {
            "owner": owner.as_json(),
            "service": service,
            "reason": reason,
            "ttl": ttl,
            "wait": wait,
            "reclaim": None if reclaim is None else {"generation": reclaim.generation, "token": reclaim.token},
        }
        return self._ask(LeaseGrant.from_json, "lease.acquire", _given(args), LONG + wait)

    def hold_set(self, service: str, owner: Owner, reason: str, seconds: float | None) -> Hold:
        """Put the host on hold, for some seconds or (None) until it is released. Raise OnHold if it is already."""
        args = {"service": service, "owner": owner.as_json(), "reason": reason, "seconds": seconds}
        return self._ask(lambda answer: Hold.from_json(answer["hold"]), "hold.set", args)

    def hold_release(self, service: str) -> Hold | None:
        """End the hold and return it; None if there was none."""
        decode = lambda answer: Hold.from_json(answer["hold"]) if answer["hold"] else None  # noqa: E731
        return self._ask(decode, "hold.release", {"service": service})

    def lease_renew(self, *, timeout: float = 30.0) -> float:
        """Send a heartbeat and return the seconds until the lease would expire. Raise LeaseLost."""
        return float(self._call("lease.renew", timeout=timeout)["expires_in"])

    def lease_release(self) -> None:
        """Give the lease back."""
        self._call("lease.release", timeout=LONG)

    def hooks_set(self, service: str, hooks: HostHooks | None) -> HooksKept:
        """Have the host keep whom it tells what it does by itself, and where it writes metrics."""
        return self._ask(HooksKept.from_json, "hooks.set", {"service": service, "hooks": encode(hooks)}, LONG)

    def settle(self, service: str, *, healthy: bool) -> None:
        """Have the host keep whether the live release is healthy at the end of a restoration."""
        self._call("settle", {"service": service, "healthy": healthy}, timeout=LONG)

    def metrics(self, service: str) -> tuple[Metric, ...]:
        """Return the service's metrics."""
        answer = self._call("metrics", {"service": service})
        return tuple(decoded(Metric.from_json, item, self.name) for item in answer["metrics"])

    # -- changing -----------------------------------------------------------------------------------------------

    def stage(self, release: Release, files: Mapping[str, Mapping[str, Any]], *, user: str | None = None) -> str:
        """Write a release's folder whole and return its path. Raise AgentError ``exists``.

        ``files``: name -> ``{"text", "mode"}``; ``user`` owns those that nobody else may read.
        """
        args: Json = {
            "service": release.service,
            "release": release.release,
            "files": dict(files),
            "manifest": release.as_json(),
            "user": user,
        }
        return str(self._call("stage", _given(args), timeout=LONG)["path"])

    def release_update(
        self,
        service: str,
        release: str,
        *,
        patch: Mapping[str, Any] | None = None,
        files: Mapping[str, str] | None = None,
        append: Mapping[str, str] | None = None,
    ) -> Release:
        """Replace keys of a release's manifest, replace or lengthen its files, and return the release."""
        args: Json = {"service": service, "release": release}
        for name, value in (("patch", patch), ("files", files), ("append", append)):
            if value:
                args[name] = encode(value)
        answer = self._call("release.update", args, timeout=LONG)
        return decoded(Release.from_json, answer["manifest"], self.name)

    def probe(self, service: str, text: str) -> ProbeReport:
        """Return how systemd understands a unit text. Nothing is started."""
        return self._ask(ProbeReport.from_json, "probe", {"service": service, "text": text}, LONG)

    def transition_begin(self, service: str, transition: Transition) -> Transition:
        """Record the transition and start the guard."""
        given = {key: value for key, value in transition.as_json().items() if key not in _WRITTEN_BY_THE_HOST}
        return self._transition("transition.begin", {"service": service, "transition": given})

    def transition_step(self, service: str, step: Step, patch: Mapping[str, Any] | None = None) -> Transition:
        """Record that a step begins."""
        return self._transition("transition.step", {"service": service, "step": step, "patch": encode(patch or {})})

    def _transition(self, op: str, args: Json) -> Transition:
        return decoded(Transition.from_json, self._call(op, args, timeout=LONG)["transition"], self.name)

    def transition_end(self, service: str) -> None:
        """Remove the transition and stop the guard."""
        self._call("transition.end", {"service": service}, timeout=LONG)

    def unit_stop(self, endpoint: Endpoint, limits: Limits) -> Events[StopEvent, Stopped]:
        """Stop a server until nothing of it is left. Raise AgentError ``not-gone`` if something of it stays."""
        return self._stream("unit.stop", limits.arguments(endpoint), StopEvent.from_json, Stopped.from_json)

    def unit_exclude(self, service: str) -> Events[StopEvent, MadeRoom]:
        """Stop and disable the services that the transition has recorded as exclusive."""
        return self._stream("unit.exclude", {"service": service}, StopEvent.from_json, MadeRoom.from_json)

    def unit_start(self, service: str, release: str, text: str) -> Started:
        """Put a candidate in force and start it."""
        args = {"service": service, "release": release, "text": text}
        return self._ask(Started.from_json, "unit.start", args, LONG)

    def promote(
        self, service: str, release: str, text: str, *, expect_live: str | None, expect_invocation: str
    ) -> None:
        """Make the proven unit the live one. Raise WorldMoved if live release or process are not as expected."""
        expect = {"live": expect_live, "invocation_id": expect_invocation}
        args = {"service": service, "release": release, "text": text, "expect": expect}
        self._call("promote", args, timeout=LONG)

    def converge(
        self,
        endpoint: Endpoint,
        limits: Limits,
        *,
        repair: bool,
        restart: Sequence[str] = (),
        exclusive: Sequence[str] = (),
        await_ready: bool = True,
    ) -> Events[StopEvent, Converged]:
        """Make the host equal to its live release and start it. ``repair``: a live server that hangs is restarted;
        ``restart``: why one that serves is. It is not started beside a service that is ``exclusive``."""
        args = limits.arguments(endpoint) | {
            "ready_timeout": limits.ready,
            "start": True,
            "repair": repair,
            "restart": list(restart),
            "exclusive": [{"service": name} for name in exclusive],
            "await_ready": await_ready,
        }
        return self._stream("converge", args, StopEvent.from_json, Converged.from_json)

    def prune(self, service: str, keep: int) -> list[str]:
        """Remove old releases beyond ``keep`` and return the names of those removed."""
        removed: list[str] = self._call("prune", {"service": service, "keep": keep}, timeout=LONG)["removed"]
        return removed

    # -- watching -----------------------------------------------------------------------------------------------

    def watch(
        self,
        endpoint: Endpoint,
        started: Started,
        *,
        fatal: Sequence[str] = (),
        health_path: str = "/health",
        probe_interval: float = 0.5,
    ) -> Events[WatchEvent, Proof]:
        """Follow a launch: unit, log, endpoint, processes. It ends with the first proof of failure."""
        args: Json = {
            "service": endpoint.service,
            "port": endpoint.port,
            "address": endpoint.address,
            "invocation_id": started.invocation_id,
            "cursor": started.cursor,
            "fatal": list(fatal),
            "health_path": health_path,
            "probe_interval": probe_interval,
            "started_boottime": started.started_boottime,
            "attach": started.attach or None,
        }
        return self._stream("watch", _given(args), watch_event, Proof.from_json)

    def journal(self, service: str, **part: Unpack[JournalPart]) -> Events[LogLine, None]:
        """Read the service's journal (with ``kernel`` the kernel's messages), from a cursor or a time on."""
        args = _given({"service": service, "follow": False, **part})
        return self._stream("journal", args, LogLine.from_json, lambda _: None)

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        timeout: float,
        user: str | None = None,
        files: Mapping[str, str] | None = None,
    ) -> Events[RunLine, Ran]:
        """Run a program in a private temporary folder that holds ``files``; cancelling ends its process group."""
        args = _given(
            {
                "argv": list(argv),
                "stdin": stdin,
                "env": dict(env or {}),
                "timeout": timeout,
                "files": dict(files) if files else None,
                "user": user,
            }
        )
        return self._stream("run", args, RunLine.from_json, Ran.from_json)
