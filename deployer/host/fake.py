"""A host in memory: the same operations, the same rules for lease, transition and compare-and-set, a scripted engine.

    world = FakeWorld()
    world.engines["0002-pp8"] = Engine(log=("oops",), fails_after=0.1)
    client = HostClient(FakeHost(world))

Every connection of one world sees the same host. ``world.calls`` records what was asked. There is no guard: what the
host would do by itself after its operator is gone is not played here.
"""

from __future__ import annotations

import json
import time
from types import TracebackType
from typing import Self, TypeVar

from deployer.errors import AgentError, ChannelLost
from deployer.host.fake_changing import OPERATIONS, STREAMS, Events
from deployer.host.fake_reading import acquire, finish, view
from deployer.host.fake_world import Engine, FakeService, FakeWorld
from deployer.records.codec import Json

T = TypeVar("T")

__all__ = ["Engine", "FakeHost", "FakeService", "FakeStream", "FakeWorld"]


def as_sent(value: T) -> T:
    """A value as it arrives over the wire: a copy, and JSON."""
    copy: T = json.loads(json.dumps(value))
    return copy


class FakeHost:
    """One connection to a `FakeWorld`."""

    def __init__(self, world: FakeWorld) -> None:
        self.world = world
        self.generation: int | None = None
        self.closed = False

    @property
    def name(self) -> str:
        return self.world.name

    def call(self, op: str, args: Json | None = None, *, timeout: float = 30.0) -> Json:
        function = OPERATIONS.get(op)
        if function is None:
            stream = self.stream(op, args)
            try:
                while True:
                    stream.next()
            except StopIteration:
                return stream.result
        self._begin(op, args)
        if op == "lease.acquire":
            return as_sent(acquire(self, as_sent(args or {})))
        with self.world.lock:
            return as_sent(function(self, as_sent(args or {})))

    def stream(self, op: str, args: Json | None = None) -> FakeStream:
        self._begin(op, args)
        function = STREAMS.get(op)
        if function is None:
            raise AgentError("unknown-op", f"this agent has no operation {op!r}")
        return FakeStream(self, function(self, as_sent(args or {})))

    def close(self, *, bye: bool = True) -> None:
        if not self.closed:
            self.closed = True
            finish(self, "released" if bye else "abandoned")

    def _begin(self, op: str, args: Json | None) -> None:
        if self.closed:
            raise ChannelLost(f"{self.name}: the connection was closed")
        self.world.calls.append((op, as_sent(args or {})))
        if self.world.faults.get(op):
            raise self.world.faults[op].pop(0)

    def own(self, expired_too: bool = False) -> Json:
        """Our lease. AgentError ``lease-lost`` when it is not ours any more."""
        lease = self.world.lease
        if self.generation is None or lease is None:
            raise AgentError("lease-lost", "this connection holds no lease")
        shown = view(self.world)
        if lease["generation"] != self.generation or lease["state"] != "held":
            raise AgentError("lease-lost", "the lease was taken over", detail={"lease": shown})
        if not expired_too and shown is not None and not shown["valid"]:
            raise AgentError("lease-lost", "the lease has expired", detail={"lease": shown})
        return lease


class FakeStream:
    """A stream that is produced as it is read."""

    def __init__(self, host: FakeHost, events: Events) -> None:
        self._host, self._events = host, events
        self._result: Json | None = None
        self._ended = False

    def next(self, timeout: float | None = None) -> Json | None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._ended:
            if self._host.closed:
                self._ended = True
                raise ChannelLost(f"{self._host.name}: the connection was closed")
            try:
                event = next(self._events)
            except StopIteration as end:
                self._ended, self._result = True, end.value
                break
            except AgentError:
                self._ended = True
                raise
            if event is not None:
                return event
            if deadline is not None and time.monotonic() >= deadline:
                return None
            time.sleep(0.005)
        raise StopIteration

    @property
    def result(self) -> Json:
        if self._result is None:
            raise RuntimeError("the operation has not ended with an answer")
        return self._result

    def cancel(self) -> None:
        self._ended = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()
