"""A host that plays a script on a clock of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from deployer.errors import AgentError
from deployer.records.codec import Json
from tests.unit.sglang.log.logs import launch


class ScriptedStream:
    """Events at their ``t``; the clock moves to them. Then silence, or the end with ``result``."""

    def __init__(
        self, host: ScriptedHost, events: Iterable[Json], result: Json | None, *, at_once: bool = False
    ) -> None:
        self._host, self._events, self._result, self._at_once = host, list(events), result, at_once
        self.cancelled = False

    def next(self, timeout: float | None = None) -> Json | None:
        assert timeout is not None, "a wait without a time limit would hang"
        if threading.active_count() > 1:
            time.sleep(0.0005)  # a generation is under way, in real time
        if self._events:
            event = self._events[0]
            if isinstance(event, Exception):
                raise event
            if self._at_once:
                return self._events.pop(0)
            if event.get("t", 0.0) <= self._host.now + timeout:
                self._host.now = max(self._host.now, event.get("t", 0.0))
                return self._events.pop(0)
        elif self._result is not None:
            raise StopIteration
        self._host.now += timeout
        return None

    @property
    def result(self) -> Json:
        assert self._result is not None
        return self._result

    def cancel(self) -> None:
        self.cancelled = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()


class ScriptedHost:
    """``watch`` plays ``events``; ``journal`` gives ``journal``; ``http`` is answered by ``http``."""

    name = "box"

    def __init__(
        self,
        events: Iterable[Any],
        *,
        result: Json | None = None,
        journal: Iterable[Json] = (),
        http: Callable[[Json], Json] | None = None,
    ) -> None:
        self.now = 0.0
        self.requests: list[Json] = []
        self.watched: Json = {}
        self._events, self._result, self._journal = events, result, list(journal)
        self._http = http or (lambda args: {"status": 200, "headers": {}, "body": "{}", "seconds": 0.1})

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def call(self, op: str, args: Json | None = None, *, timeout: float = 30.0) -> Json:
        assert op == "http"
        self.requests.append(args or {})
        return self._http(args or {})

    def stream(self, op: str, args: Json | None = None) -> ScriptedStream:
        if op == "journal":
            return ScriptedStream(self, self._journal, {}, at_once=True)
        assert op == "watch"
        self.watched = args or {}
        return ScriptedStream(self, self._events, self._result)

    def close(self, *, bye: bool = True) -> None:
        pass


def unit(t: float, **fields: Any) -> Json:
    return {
        "kind": "unit",
        "t": t,
        "active": "active",
        "sub": "running",
        "result": "success",
        "restarts": 0,
        **fields,
    }


def log(t: float, *texts: str, source: str = "engine") -> Json:
    lines = [{"t": t, "text": text, "source": source, "piece": False} for text in texts]
    return {"kind": "log", "t": t, "lines": lines}


def health(t: float, state: str, ours: bool = True) -> Json:
    return {"kind": "health", "t": t, "state": state, "seconds": 0.1, "ours": ours}


def proc(t: float, **figures: float) -> Json:
    return {
        "kind": "proc",
        "t": t,
        "rss": 0,
        "read_bytes": 0,
        "cpu_seconds": 0.0,
        "pids": 1,
        "gpu_memory": 0,
        **figures,
    }


def failed(t: float, proof: str, **detail: Any) -> Json:
    return {"kind": "failed", "t": t, "proof": proof, "detail": detail}


def real_launch(name: str) -> list[Json]:
    """A real log as the events of a watch."""
    return [
        {"kind": "log", "t": t, "lines": [{"t": t, "text": text, "source": "engine", "piece": piece}]}
        for t, piece, text in launch(name)
    ]


def no_answer(state: str) -> AgentError:
    return AgentError("http", "no answer", detail={"state": state})
