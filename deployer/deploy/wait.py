"""Waiting until a started server is ready, or has provably failed.

Three witnesses come on one stream of the agent (``watch``): the unit, the log, the endpoint; ``/proc`` figures show
whether anything moves. Ready is ``/health`` 200 from our own process and one generation of our own. A refused
connection is never a failure: SGLang binds its port last.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from deployer.config.fields import STALL_DEFAULTS
from deployer.config.inventory import Deadlines
from deployer.deploy.generation import generate_once
from deployer.deploy.launch_failure import explain, log_tail
from deployer.deploy.launch_progress import Estimate, LoadProgress
from deployer.errors import DeployerError
from deployer.host.client import HostClient
from deployer.records.answers import Started
from deployer.records.endpoint import Endpoint
from deployer.records.events import (
    FailedEvent,
    HealthEvent,
    LogEvent,
    LogLine,
    ProcEvent,
    UnitEvent,
    WatchEvent,
)
from deployer.records.failure import Failure, PhaseTime
from deployer.sglang.log.endings import as_unit_end
from deployer.sglang.log.failures import classify, fatal_patterns
from deployer.sglang.log.launch import LaunchLog, LaunchState, Span, finish_timeline, noteworthy
from deployer.sglang.server.info import redact

#: A rank that waits for another spins, so CPU time proves little: it stretches the stall time to this many times.
CPU_ONLY = 3.0
#: In these phases a hang looks busy (NCCL spins), so CPU time proves nothing.
_SPINNING = frozenset({"dist-init"})
#: What systemd says about an end, by our name and by systemd's.
_UNIT_FIGURES = {"result": "Result", "exec_code": "ExecMainCode", "exec_status": "ExecMainStatus"}
#: This many answers from a process that is not ours, one after the other, are not a passing state.
_STRANGERS = 4
_LOG_LINES = 10_000
_BYTES = 1 << 16
_MEMORY = 1 << 24
_CPU_SECONDS = 0.2
#: Seconds that the traceback behind a fatal line has to reach the journal.
TRACEBACK_PAUSE = 0.25

Clock = Callable[[], float]


@dataclass(frozen=True)
class WaitUpdate:
    """News of a launch. ``t``: seconds since the start was requested. ``quiet``: seconds without progress.

    ``lines`` are the log lines since the last update, without secrets. ``bytes_read`` is what the service's processes
    have read from storage since loading began, ``bytes_total`` the size of the model, if known; ``cached``: the
    weights come out of the page cache. ``estimate`` is an earlier launch, ``remaining`` the seconds that it leaves.
    """

    t: float
    phase: str
    text: str
    phases: tuple[Span, ...]
    state: LaunchState
    health: str | None = None
    bytes_read: int | None = None
    bytes_total: int | None = None
    cached: bool = False
    gpu_memory: int | None = None
    estimate: Estimate | None = None
    remaining: float | None = None
    lines: tuple[str, ...] = ()
    quiet: float = 0.0


@dataclass(frozen=True)
class WaitResult:
    """How a wait ended. ``timeline`` adds up to ``seconds``; ``failure`` is None if the server is ready."""

    timeline: tuple[PhaseTime, ...]
    seconds: float
    failure: Failure | None
    state: LaunchState


@dataclass
class Wait:
    """The wait until the server that ``started`` names is ready, or has failed.

    ``clock`` and ``sleep`` are replaced in tests.
    """

    client: HostClient
    endpoint: Endpoint
    started: Started
    deadlines: Deadlines
    on_update: Callable[[WaitUpdate], None] = lambda update: None
    estimate: Estimate | None = None
    model_bytes: int | None = None
    health_path: str = "/health"
    clock: Clock = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        self._stall = {**STALL_DEFAULTS, **self.deadlines.stall}
        self._log = LaunchLog()
        self._lines: deque[str] = deque(maxlen=_LOG_LINES)
        self._new: list[str] = []
        self._in_bar = False
        self._received = 0
        self._unit: UnitEvent | None = None
        self._proc: ProcEvent | None = None
        self._loading = LoadProgress(self.model_bytes)
        self._health: str | None = None
        self._strangers = 0
        self._offset = -self.clock()
        self._moved = self._worked = self._reported = self.clock()
        self._generation: queue.SimpleQueue[tuple[bool, str]] | None = None
        self._lost: tuple[float, str] | None = None

    def run(self) -> WaitResult:
        """Return how the wait ended. A failed launch is a result, not an exception.

        The overall deadline counts from the start of the unit, even if the wait is taken up later. Raise ChannelLost if
        the connection breaks (wait again with the same ``started`` to take it up), AgentError if the host cannot watch.
        """
        with self.client.watch(
            self.endpoint, self.started, fatal=fatal_patterns(), health_path=self.health_path
        ) as stream:
            while True:
                try:
                    event = stream.next(timeout=0.05 if self._generation else 0.5)
                except StopIteration:
                    return self._failed(stream.result.proof, stream.result.detail)
                if result := (self._take(event) if event else None) or self._judge():
                    return result
                self._report(force=event is not None)

    # Witnesses

    def _take(self, event: WatchEvent) -> WaitResult | None:
        self._offset = max(self._offset, event.t - self.clock())
        match event:
            case LogEvent():
                self._take_lines(event.lines, event.t)
            case UnitEvent():
                self._unit = event
                self._moved = self.clock()
            case ProcEvent():
                self._take_proc(event)
            case HealthEvent():
                return self._take_health(event)
            case FailedEvent():
                return self._failed(event.proof, event.detail)
        return None

    def _take_lines(self, lines: Sequence[LogLine], t: float) -> None:
        self._received += len(lines)
        for line in lines:
            text = redact(line.text, self.endpoint.secrets)
            if line.source == "systemd":
                self._keep(text)
                continue
            self._log.feed(text, line.t or t, line.piece)
            if noteworthy(text):
                self._moved = self.clock()
                self._keep(text, line.piece)

    def _take_proc(self, now: ProcEvent) -> None:
        before, self._proc = self._proc, now
        self._loading.take(now, self._log.state.phase)
        if before is None:
            return
        gpu_memory = abs((now.gpu_memory or 0) - (before.gpu_memory or 0))
        if (
            abs(now.read_bytes - before.read_bytes) >= _BYTES
            or abs(now.rss - before.rss) >= _MEMORY
            or gpu_memory >= _MEMORY
        ):
            self._moved = self.clock()
        if abs(now.cpu_seconds - before.cpu_seconds) >= _CPU_SECONDS:
            self._worked = self.clock()

    def _take_health(self, event: HealthEvent) -> WaitResult | None:
        self._health = event.state
        if not self._health.isdigit():
            return None
        if not event.ours:
            self._strangers += 1
            if self._strangers >= _STRANGERS:
                return self._failed("not-ours", {"port": self.endpoint.port, "state": self._health})
            return None
        self._strangers = 0
        for phase in ("http-up", "warm-up"):
            self._log.reached(phase, event.t)
        if self._health == "200":
            self._log.reached("ready", event.t)
            self._moved = self.clock()
            if self._generation is None:
                self._generation = queue.SimpleQueue()
                threading.Thread(target=self._generate, args=(self._generation,), daemon=True).start()
        return None

    # Judgement

    def _judge(self) -> WaitResult | None:
        now = self.clock()
        if self._generation is not None and not self._generation.empty():
            good, text = self._generation.get()
            if good:
                return self._ready()
            self._lost = (now, text)
        if self._lost and now - self._lost[0] >= 1.0:
            return self._failed("generation", {"answer": self._lost[1]})
        if self._elapsed() > self.deadlines.start:
            return self._failed("deadline", {})
        phase = "warm-up" if self._generation else self._log.state.phase
        limit = self._stall.get(phase, STALL_DEFAULTS["load"])
        quiet, idle = now - self._moved, now - self._worked
        if quiet > limit and (phase in _SPINNING or idle > limit or quiet > CPU_ONLY * limit):
            return self._failed("stall", {"quiet": round(quiet, 1), "limit": limit})
        return None

    def _ready(self) -> WaitResult:
        self._report(force=True)
        state, seconds = self._log.state, self._elapsed()
        return WaitResult(_timeline(state, seconds), seconds, None, state)

    def _failed(self, proof: str, detail: Mapping[str, Any]) -> WaitResult:
        seconds = self._elapsed()
        if proof not in ("stall", "deadline"):
            self._read_on(proof)
        state, tail = self._log.state, log_tail(self._lines)
        unit = {name: getattr(self._unit, name) for name in _UNIT_FIGURES} if self._unit else {}
        unit.update({name: detail[theirs] for name, theirs in _UNIT_FIGURES.items() if theirs in detail})
        detail = redact({**detail, **unit}, self.endpoint.secrets)
        cause = classify(list(self._lines), as_unit_end(detail), stalled=state.phase if proof == "stall" else None)
        failure = explain(
            proof, cause, detail, state, port=self.endpoint.port, deadline=self.deadlines.start, log_tail=tail
        )
        self._report(force=True)
        return WaitResult(_timeline(state, max(seconds, state.t)), seconds, failure, state)

    # Help

    def _elapsed(self) -> float:
        return max(0.0, self.clock() + self._offset)

    def _keep(self, text: str, piece: bool = False) -> None:
        """Remember a line; of a progress bar only its last state."""
        if piece and self._in_bar:
            self._lines.pop()
        self._in_bar = piece
        self._lines.append(text)
        self._new.append(text)

    def _read_on(self, proof: str) -> None:
        # The stream ends with the proof, but the traceback that explains it may still be under way.
        if proof == "fatal-line":
            self.sleep(TRACEBACK_PAUSE)
        end = self.clock() + 0.5
        lines: list[LogLine] = []
        try:
            with self.client.journal(self.endpoint.service, cursor=self.started.cursor) as more:
                while self.clock() < end:
                    if line := more.next(timeout=0.1):
                        # The journal's own time is the wall clock.
                        lines.append(replace(line, t=self._elapsed()))
        except (StopIteration, DeployerError):
            pass
        self._take_lines(lines[self._received :], 0.0)

    def _report(self, *, force: bool) -> None:
        now = self.clock()
        if not force and now - self._reported < 1.0:
            return
        self._reported = now
        state = self._log.state
        spans = [*state.spans[:-1], Span(state.spans[-1].name, state.spans[-1].start, self._in_phase(state))]
        self.on_update(
            WaitUpdate(
                t=self._elapsed(),
                phase=state.phase,
                text=state.waiting_for,
                phases=tuple(spans),
                state=state,
                health=self._health,
                bytes_read=self._loading.read,
                bytes_total=self.model_bytes,
                cached=self._loading.cached,
                gpu_memory=self._proc.gpu_memory if self._proc else None,
                estimate=self.estimate,
                remaining=self.estimate.remaining(state.phase, self._in_phase(state)) if self.estimate else None,
                lines=tuple(self._new),
                quiet=now - self._moved,
            )
        )
        self._new.clear()

    def _in_phase(self, state: LaunchState) -> float:
        return max(0.0, self._elapsed() - state.spans[-1].start)

    def _generate(self, answers: queue.SimpleQueue[tuple[bool, str]]) -> None:
        limit = max(30.0, self._stall["warm-up"])
        answers.put(generate_once(self.client, self.endpoint, timeout=limit))


def _timeline(state: LaunchState, seconds: float) -> tuple[PhaseTime, ...]:
    return tuple(PhaseTime.from_json(span) for span in finish_timeline(state, seconds))
