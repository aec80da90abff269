"""A host in memory: the real channel and the real agent, on a machine that is not there.

    world = FakeWorld()
    world.engines["0002-pp8"] = Engine(log=("oops",), fails_after=0.1)
    client = HostClient(FakeHost(world))

Every connection of one world sees the same host. ``world.calls`` records the requests. There is no guard: what the host
would do by itself after its operator is gone happens when a test calls `deployer.host.agent.guard.look`.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from deployer.host.agent.base import Call, Operation
from deployer.host.agent.files import read_text, write_link
from deployer.host.agent.lease import Session, read_lease
from deployer.host.agent.main import Channel, all_operations
from deployer.host.agent.service import Service
from deployer.host.channel import ChannelHost, ChannelStream
from deployer.records.codec import Json
from tests.fakes.machine import Engine, FakeMachine

PAUSE = 0.005  # seconds for which the agent's operations wait at most before they look again

__all__ = ["Engine", "FakeHost", "FakeService", "FakeWorld"]


class FakeService(Service):
    """A service of a world, as tests look at it and change it behind the agent's back."""

    machine: FakeMachine

    @property
    def live(self) -> str | None:
        return read_text(self.live_path)

    @property
    def candidate(self) -> str | None:
        return read_text(self.candidate_path)

    @property
    def release(self) -> str | None:
        """The release of the running process."""
        unit = self.machine.unit(self.unit)
        return unit.release if unit.pid else None

    def end(self, active: str = "failed") -> None:
        self.machine.end(self.unit, active)

    def restart(self) -> None:
        self.machine.start(self.unit)

    def keep(self, release: str, manifest: Json, files: Mapping[str, str]) -> None:
        """Put a release's folder on the host."""
        number = int(release[:4]) if release[:4].isdigit() else 0
        folder = f"{self.releases}/{release}"
        self.machine.write_changed(f"{folder}/manifest.json", "")
        self.machine.write_json(f"{folder}/manifest.json", {"release": release, "number": number, **manifest})
        for name, text in files.items():
            self.machine.write_file(f"{folder}/{name}", text)

    def make_live(self, release: str) -> None:
        """Put a release on the host as proven and running, as an earlier deployment would have left it."""
        text = f"[X-Deployer]\nRelease={release}\n"
        self.keep(release, {"state": "live", "was_live": True}, {"unit": text})
        self.machine.write_file(self.live_path, text)
        for link in (self.enable_link, self.recover_link, self.assess_link):
            write_link(link, self.live_path)
        self.restart()

    def file(self, release: str, name: str) -> str:
        text = read_text(f"{self.releases}/{release}/{name}")
        assert text is not None, name
        return text


@dataclass
class FakeWorld:
    """One host. ``observed`` is merged over what `observe` answers (gpus, engine, model and the like)."""

    name: str = "fake"
    engines: dict[str, Engine] = field(default_factory=dict)
    observed: Json = field(default_factory=dict)
    sampled: Json = field(default_factory=dict)
    """Merged over what `sample` answers."""
    calls: list[tuple[str, Json]] = field(default_factory=list)
    faults: dict[str, list[BaseException]] = field(default_factory=dict)
    """What to raise instead of running an operation: one for each call, in order."""
    run: Callable[[Json], tuple[list[str], int]] = lambda args: ([], 0)
    """What the `run` operation prints, and its status."""

    def __post_init__(self) -> None:
        self.machine = FakeMachine(self.engines)

    def copy(self) -> FakeWorld:
        """Another host in the same state."""
        other = FakeWorld(self.name, dict(self.engines), dict(self.observed), dict(self.sampled), run=self.run)
        other.machine = self.machine.copy(other.engines)
        return other

    def service(self, name: str) -> FakeService:
        return FakeService(self.machine, name)

    @property
    def lease(self) -> Json | None:
        return read_lease(self.machine)

    def make_live(self, name: str, release: str) -> None:
        self.service(name).make_live(release)


class HastyCall(Call):
    """A call that looks again sooner than on a real host."""

    def pause(self, seconds: float) -> None:
        super().pause(min(seconds, PAUSE))


def played(session: Session, args: Json, call: Call) -> Json:
    """The operation `run`, with the output that the world gave it."""
    for line in args["lines"]:
        call.emit({"line": line})
    return {"status": args["status"], "stderr": ""}


class FakeChannel(Channel):
    operations: ClassVar[dict[str, Operation]] = {**all_operations(), "run": played}
    new_call = HastyCall


class AgentPipe:
    """The agent at the other end of a channel, in a thread of this process. It is the agent's output, too."""

    def __init__(self, machine: FakeMachine) -> None:
        self.requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.closed = False
        self.channel = FakeChannel(machine, cast(Any, self))
        self.thread = threading.Thread(target=self.serve, name="agent", daemon=True)
        self.thread.start()

    def serve(self) -> None:
        self.channel.leave(self.channel.converse(iter(self.requests.get, b"")))
        self.answers.put(b"")

    def write(self, data: bytes) -> None:
        self.answers.put(data)

    def flush(self) -> None:
        pass

    def send(self, data: bytes) -> None:
        if self.closed:
            raise OSError("closed")
        self.requests.put(data)

    def recv(self) -> bytes:
        return self.answers.get()

    def close(self) -> None:
        self.closed = True
        self.requests.put(b"")
        self.thread.join(5.0)

    def ending(self, wait: float = 0.0) -> tuple[int | None, str]:
        return None, ""


class FakeHost(ChannelHost):
    """One connection to a `FakeWorld`."""

    def __init__(self, world: FakeWorld) -> None:
        self.world = world
        super().__init__(world.name, AgentPipe(world.machine))

    def call(self, op: str, args: Json | None = None, *, timeout: float = 30.0) -> Json:
        self.record(op, args)
        answer = super().call(op, args, timeout=timeout)
        return {**answer, **{"observe": self.world.observed, "sample": self.world.sampled}.get(op, {})}

    def stream(self, op: str, args: Json | None = None) -> ChannelStream:
        self.record(op, args)
        if op == "run":
            lines, status = self.world.run(args or {})
            args = {"lines": lines, "status": status}
        return super().stream(op, args)

    def record(self, op: str, args: Json | None) -> None:
        if self._closed:
            raise self.lost_error()
        self.world.calls.append((op, json.loads(json.dumps(args or {}))))
        if self.world.faults.get(op):
            raise self.world.faults[op].pop(0)
