"""Typed calls to a host: one method for each operation of ``docs/architecture.md``, and the operator's heartbeat."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from deployer.errors import AgentError, ChannelLost, DeployerError, LeaseHeld, LeaseLost, WorldMoved
from deployer.host.channel import FULL, disk_is_full
from deployer.host.protocol import Host, Json, Stream
from deployer.records.answers import Hello, HttpAnswer, LeaseGrant, ProbeReport, ReleaseFiles, Started
from deployer.records.hardware import Listener
from deployer.records.host import HostState, Owner, Transition
from deployer.records.samples import Sampled

LONG = 150.0  # longer than the host waits for its lock and systemd together


def translated(error: AgentError, host: str) -> DeployerError:
    """The host's refusal as the error that says what it means to the operator; others stay as they are."""
    lease = error.detail.get("lease") or {}
    if error.code == "lease-held":
        owner = Owner.from_json(lease.get("owner") or {})
        left = float(lease.get("expires_in") or 0.0)
        why = f" for {lease['service']}" if lease.get("service") else ""
        return LeaseHeld(
            f"{host} is being changed{why} by {owner}, for another {left:.0f} s at least", detail=error.detail
        )
    if error.code == "lease-lost":
        return LeaseLost(f"{host}: {error.message}", detail=error.detail)
    if error.code == "moved":
        return WorldMoved(f"{host}: {error.message}", detail=error.detail)
    if disk_is_full(error.code, error.detail):
        where = f" of {error.detail['path']}" if error.detail.get("path") else ""
        return AgentError(
            error.code,
            f"{host}: the disk{where} is full: {error.message}",
            remedy=FULL,
            detail=error.detail,
        )
    return error


class ClientStream:
    """A stream whose errors are the operator's."""

    def __init__(self, stream: Stream, host: str) -> None:
        self._stream, self._host = stream, host

    def next(self, timeout: float | None = None) -> Json | None:
        try:
            return self._stream.next(timeout)
        except AgentError as error:
            raise translated(error, self._host) from error.__cause__

    @property
    def result(self) -> Json:
        return self._stream.result

    def cancel(self) -> None:
        self._stream.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()


class HostClient:
    """A connected host. Every method raises AgentError, ChannelLost, and what `translated` names."""

    def __init__(self, host: Host) -> None:
        self.host = host

    @property
    def name(self) -> str:
        return self.host.name

    def call(self, op: str, args: Json | None = None, *, timeout: float = 30.0) -> Json:
        """One operation by name, with the operator's errors."""
        try:
            return self.host.call(op, args, timeout=timeout)
        except AgentError as error:
            raise translated(error, self.host.name) from error.__cause__

    def stream(self, op: str, args: Json | None = None) -> Stream:
        """One streaming operation by name, with the operator's errors."""
        try:
            return ClientStream(self.host.stream(op, args), self.host.name)
        except AgentError as error:
            raise translated(error, self.host.name) from error.__cause__

    def close(self, *, bye: bool = True) -> None:
        self.host.close(bye=bye)

    # -- reading ------------------------------------------------------------------------------------------------

    def hello(self) -> Hello:
        return Hello.from_json(self.call("hello"))

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
        """The host's state. ``services``: names with their ports; ``engine``: a Python; ``model``: a path there;
        ``patience``: seconds that nvidia-smi has, all questions together."""
        args: Json = {
            "services": [{"service": name, "port": port} for name, port in services.items()],
            "gpus": gpus,
        }
        if patience is not None:
            args["patience"] = patience
        if engine is not None:
            args["engine"] = {"python": engine}
        if model is not None:
            args["model"] = {"path": model}
        return HostState.from_json(self.call("observe", args, timeout=timeout))

    def release_read(self, service: str, release: str, files: Sequence[str] = ()) -> ReleaseFiles:
        args = {"service": service, "release": release, "files": list(files)}
        return ReleaseFiles.from_json(self.call("release.read", args))

    def listeners(self, port: int) -> list[Listener]:
        return [Listener.from_json(item) for item in self.call("listeners", {"port": port})["listeners"]]

    def http(
        self,
        method: str,
        path: str,
        *,
        port: int,
        address: str = "127.0.0.1",
        body: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 25.0,
    ) -> HttpAnswer:
        """One HTTP request made on the host. AgentError with code ``http`` when there is no answer."""
        args = {
            "method": method,
            "path": path,
            "port": port,
            "address": address,
            "body": body,
            "headers": dict(headers or {}),
            "timeout": timeout,
        }
        return HttpAnswer.from_json(self.call("http", args, timeout=timeout + 10.0))

    def sample(
        self, seconds: float, *, interval: float = 1.0, port: int | None = None, address: str | None = None
    ) -> Sampled:
        """Look at GPUs, connections and the machine for some seconds (60 at most), as one call.

        ``address`` and ``port`` say where the service listens whose connections are counted.
        """
        args = {"seconds": seconds, "interval": interval, "port": port, "address": address}
        return Sampled.from_json(self.call("sample", args, timeout=seconds + LONG))

    # -- the lease ----------------------------------------------------------------------------------------------

    def lease_acquire(
        self,
        *,
        owner: Owner | Mapping[str, Any],
        service: str,
        reason: str,
        ttl: float,
        reclaim: LeaseGrant | None = None,
        wait: float = 0.0,
    ) -> LeaseGrant:
        """Take the lease within ``wait`` seconds. LeaseHeld; with ``reclaim`` LeaseLost where others took it."""
        args: Json = {
            "owner": owner.as_json() if isinstance(owner, Owner) else dict(owner),
            "service": service,
            "reason": reason,
            "ttl": ttl,
            "wait": wait,
        }
        if reclaim is not None:
            args["reclaim"] = {"generation": reclaim.generation, "token": reclaim.token}
        return LeaseGrant.from_json(self.call("lease.acquire", args, timeout=LONG + wait))

    def lease_renew(self, *, timeout: float = 30.0) -> float:
        """Send a heartbeat; returns the seconds until the lease would expire. LeaseLost."""
        return float(self.call("lease.renew", timeout=timeout)["expires_in"])

    def lease_release(self) -> None:
        self.call("lease.release", timeout=LONG)

    # -- changing -----------------------------------------------------------------------------------------------

    def stage(
        self,
        service: str,
        release: str,
        files: Mapping[str, Json],
        manifest: Json,
        *,
        user: str | None = None,
    ) -> str:
        """Write a release's folder whole; returns its path. AgentError ``exists``."""
        args: Json = {"service": service, "release": release, "files": dict(files), "manifest": manifest}
        if user is not None:
            args["user"] = user
        return str(self.call("stage", args, timeout=LONG)["path"])

    def release_update(
        self,
        service: str,
        release: str,
        *,
        patch: Json | None = None,
        files: Mapping[str, Any] | None = None,
        append: Mapping[str, str] | None = None,
    ) -> Json:
        """Change a release's manifest (top level), replace or lengthen its files; returns the manifest."""
        args: Json = {"service": service, "release": release}
        for name, value in (("patch", patch), ("files", files), ("append", append)):
            if value:
                args[name] = dict(value)
        manifest: Json = self.call("release.update", args, timeout=LONG)["manifest"]
        return manifest

    def probe(self, service: str, text: str) -> ProbeReport:
        return ProbeReport.from_json(self.call("probe", {"service": service, "text": text}, timeout=LONG))

    def transition_begin(self, service: str, transition: Json) -> Transition:
        args = {"service": service, "transition": transition}
        return Transition.from_json(self.call("transition.begin", args, timeout=LONG)["transition"])

    def transition_step(self, service: str, step: str, patch: Json | None = None) -> Transition:
        args = {"service": service, "step": step, "patch": patch or {}}
        return Transition.from_json(self.call("transition.step", args, timeout=LONG)["transition"])

    def transition_end(self, service: str) -> None:
        self.call("transition.end", {"service": service}, timeout=LONG)

    def unit_stop(self, **args: Any) -> Stream:
        """Stream; answers `Stopped`. AgentError ``not-gone`` when something of the service stays."""
        return self.stream("unit.stop", args)

    def unit_start(self, service: str, release: str, text: str) -> Started:
        args = {"service": service, "release": release, "text": text}
        return Started.from_json(self.call("unit.start", args, timeout=LONG))

    def promote(
        self, service: str, release: str, text: str, *, expect_live: str | None, expect_invocation: str
    ) -> None:
        """Make the proven unit the live one. WorldMoved when live release or process are not as expected."""
        expect = {"live": expect_live, "invocation_id": expect_invocation}
        args = {"service": service, "release": release, "text": text, "expect": expect}
        self.call("promote", args, timeout=LONG)

    def converge(self, **args: Any) -> Stream:
        """Stream; answers `Converged`."""
        return self.stream("converge", args)

    def prune(self, service: str, keep: int) -> list[str]:
        """Remove old releases beyond ``keep``; returns the names of those removed."""
        removed: list[str] = self.call("prune", {"service": service, "keep": keep}, timeout=LONG)["removed"]
        return removed

    # -- watching -----------------------------------------------------------------------------------------------

    def watch(self, **args: Any) -> Stream:
        return self.stream("watch", args)

    def journal(self, **args: Any) -> Stream:
        return self.stream("journal", args)

    def run(self, **args: Any) -> Stream:
        return self.stream("run", args)


class Heartbeat:
    """Keeps a lease alive from a thread of its own, three times within its life.

    ``lost`` is the error that ended it: LeaseLost at once, ChannelLost when the connection broke or nothing was renewed
    for a whole life. In the second case the connection is ended too, so that whoever waits on it learns.
    """

    def __init__(self, client: HostClient, ttl: float) -> None:
        self._client, self._ttl = client, ttl
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self.lost: DeployerError | None = None

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop beating. The lease stays until it is given back or expires."""
        self._stopped.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(5.0)

    def check(self) -> None:
        """Raise what was lost, if anything was."""
        if self.lost is not None:
            raise self.lost

    def _beat(self) -> None:
        renewed = time.monotonic()
        while not self._stopped.wait(self._ttl / 3):
            try:
                self._client.lease_renew(timeout=max(1.0, self._ttl / 3))
                renewed = time.monotonic()
            except LeaseLost as error:
                self.lost = error
                return
            except (ChannelLost, AgentError) as error:
                broken = isinstance(error, ChannelLost) and "timeout" not in error.detail
                if self._stopped.is_set():
                    return
                if broken or time.monotonic() > renewed + self._ttl:
                    self.lost = error
                    self._client.close(bye=False)
                    return

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
