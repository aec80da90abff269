"""Waiting until a started server is ready, or has provably failed.

Three witnesses come on one stream of the agent (``watch``): the unit, the log, the endpoint; ``/proc`` figures tell
whether anything moves. Ready is ``/health`` 200 from our own process and one generation of our own. A refused
connection is never a failure: SGLang binds its port last.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from deployer.config.fields import STALL_DEFAULTS
from deployer.deploy.generation import generate_once
from deployer.deploy.launch_failure import LaunchFailure, explain, log_tail
from deployer.deploy.load_progress import LoadProgress
from deployer.errors import DeployerError
from deployer.host.protocol import Host, Json
from deployer.records.answers import Started
from deployer.sglang.log.endings import as_unit_end
from deployer.sglang.log.failures import classify, fatal_patterns
from deployer.sglang.log.launch import PHASES, LaunchLog, LaunchState, Span, finish_timeline, noteworthy
from deployer.sglang.server.info import redact

#: Seconds without any sign of progress before a phase counts as stalled, where the inventory does not say.
DEFAULT_STALL: dict[str, float] = dict(STALL_DEFAULTS)
#: A rank that waits for another spins, so CPU time proves little: it stretches the stall time to this many times.
CPU_ONLY = 3.0
#: In these phases a hang looks busy (NCCL spins), so CPU time proves nothing.
_SPINNING = frozenset({"dist-init"})
#: What systemd says about an end, by our name and by systemd's.
_UNIT_FIGURES = {"result": "Result", "exec_code": "ExecMainCode", "exec_status": "ExecMainStatus"}
#: So many answers from a process that is not ours, one after the other, are no passing state.
_STRANGERS = 4
_LOG_LINES = 10_000
_BYTES = 1 << 16
_MEMORY = 1 << 24
_CPU_SECONDS = 0.2
#: What a fatal line leaves the traceback behind it, to reach the journal, in seconds.
TRACEBACK_PAUSE = 0.25

Clock = Callable[[], float]


@dataclass(frozen=True)
class WaitUpdate:
    """News of a launch. ``t``: seconds since the start was asked for. ``quiet``: seconds without progress.

    ``lines`` are the log lines since the last update, without secrets. ``bytes_read`` is what the service's processes
    have read from storage since loading began, ``bytes_total`` the size of the model, where known; ``cached``: the
    weights come out of the page cache. ``estimate`` is an earlier launch's seconds per phase, ``remaining`` what that
    leaves, ``estimate_from`` the release whose launch it was.
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
    estimate: dict[str, float] = field(default_factory=dict)
    estimate_from: str | None = None
    remaining: float | None = None
    lines: tuple[str, ...] = ()
    quiet: float = 0.0


@dataclass(frozen=True)
class WaitResult:
    """How a wait ended. ``timeline`` is ``[{name, seconds}]`` and sums up to ``seconds``."""

    ready: bool
    timeline: list[dict[str, Any]]
    seconds: float
    failure: LaunchFailure | None
    log_tail: list[str]
    state: LaunchState


def wait_ready(
    host: Host,
    *,
    service: str,
    port: int,
    started: Started | Mapping[str, Any],
    deadline: float,
    address: str = "127.0.0.1",
    stall: Mapping[str, float] | None = None,
    on_update: Callable[[WaitUpdate], None] | None = None,
    api_key: str | None = None,
    estimate: Mapping[str, float] | Iterable[Mapping[str, Any]] | None = None,
    estimate_from: str | None = None,
    model_bytes: int | None = None,
    health_path: str = "/health",
    clock: Clock = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> WaitResult:
    """Wait until the server that ``started`` names is ready, or has failed.

    ``deadline`` and ``stall`` (by phase) are in seconds; ``deadline`` counts from the start of the unit, also where the
    wait is taken up later. A failed launch is a result, not an exception. Raises ChannelLost when the connection
    breaks (call again with the same ``started`` to take it up), AgentError when the host cannot watch.
    """
    wait = _Wait(
        host=host,
        service=service,
        port=port,
        address=address,
        started=asdict(started) if isinstance(started, Started) else dict(started),
        deadline=deadline,
        stall={**DEFAULT_STALL, **(stall or {})},
        on_update=on_update or (lambda update: None),
        api_key=api_key,
        estimate=_estimate(estimate),
        estimate_from=estimate_from,
        model_bytes=model_bytes,
        health_path=health_path,
        clock=clock,
        sleep=sleep,
    )
    return wait.run()


@dataclass
class _Wait:
    host: Host
    service: str
    port: int
    address: str
    started: Json
    deadline: float
    stall: dict[str, float]
    on_update: Callable[[WaitUpdate], None]
    api_key: str | None
    estimate: dict[str, float]
    estimate_from: str | None
    model_bytes: int | None
    health_path: str
    clock: Clock
    sleep: Callable[[float], None]

    def __post_init__(self) -> None:
        self._log = LaunchLog()
        self._lines: deque[str] = deque(maxlen=_LOG_LINES)
        self._new: list[str] = []
        self._in_bar = False
        self._received = 0
        self._unit: Json = {}
        self._proc: Json = {}
        self._loading = LoadProgress(self.model_bytes)
        self._health: str | None = None
        self._strangers = 0
        self._offset = -self.clock()
        self._moved = self._worked = self._told = self.clock()
        self._generation: queue.SimpleQueue[tuple[bool, str]] | None = None
        self._lost: tuple[float, str] | None = None

    def run(self) -> WaitResult:
        arguments = {
            "service": self.service,
            **self.started,
            "port": self.port,
            "address": self.address,
            "fatal": fatal_patterns(),
            "health_path": self.health_path,
            "probe_interval": 0.5,
        }
        with self.host.stream("watch", arguments) as stream:
            while True:
                try:
                    event = stream.next(timeout=0.05 if self._generation else 0.5)
                except StopIteration:
                    answer = stream.result
                    return self._failed(
                        str(answer.get("proof", "vanished")), dict(answer.get("detail") or {})
                    )
                result = self._take(event) if event else None
                result = result or self._judge()
                if result:
                    return result
                self._tell(force=event is not None)

    # Witnesses

    def _take(self, event: Json) -> WaitResult | None:
        t = float(event.get("t") or 0.0)
        self._offset = max(self._offset, t - self.clock())
        kind = event.get("kind")
        if kind == "log":
            self._take_lines(event.get("lines") or [], t)
        elif kind == "unit":
            self._unit = event
            self._moved = self.clock()
        elif kind == "proc":
            self._take_proc(event)
        elif kind == "health":
            return self._take_health(event, t)
        elif kind == "failed":
            return self._failed(str(event.get("proof")), dict(event.get("detail") or {}))
        return None

    def _take_lines(self, lines: list[Json], t: float) -> None:
        self._received += len(lines)
        for line in lines:
            text = redact(str(line.get("text", "")), self._secrets)
            if line.get("source") == "systemd":
                self._keep(text)
                continue
            piece = bool(line.get("piece"))
            self._log.feed(text, float(line.get("t") or t), piece)
            if noteworthy(text):
                self._moved = self.clock()
                self._keep(text, piece)

    def _take_proc(self, event: Json) -> None:
        before, self._proc = self._proc, event
        self._loading.take(event, self._log.state.phase)
        if not before:
            return

        def change(name: str) -> float:
            return abs(float(event.get(name) or 0) - float(before.get(name) or 0))

        if change("read_bytes") >= _BYTES or change("rss") >= _MEMORY or change("gpu_memory") >= _MEMORY:
            self._moved = self.clock()
        if change("cpu_seconds") >= _CPU_SECONDS:
            self._worked = self.clock()

    def _take_health(self, event: Json, t: float) -> WaitResult | None:
        self._health = str(event.get("state"))
        if not self._health.isdigit():
            return None
        if not event.get("ours"):
            self._strangers += 1
            if self._strangers >= _STRANGERS:
                return self._failed("not-ours", {"port": self.port, "state": self._health})
            return None
        self._strangers = 0
        for phase in ("http-up", "warm-up"):
            self._log.reached(phase, t)
        if self._health == "200":
            self._log.reached("ready", t)
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
        if self._elapsed() > self.deadline:
            return self._failed("deadline", {})
        phase = "warm-up" if self._generation else self._log.state.phase
        limit = self.stall.get(phase, DEFAULT_STALL["load"])
        quiet, idle = now - self._moved, now - self._worked
        if quiet > limit and (phase in _SPINNING or idle > limit or quiet > CPU_ONLY * limit):
            return self._failed("stall", {"quiet": round(quiet, 1), "limit": limit})
        return None

    def _ready(self) -> WaitResult:
        self._tell(force=True)
        state, seconds = self._log.state, self._elapsed()
        tail = log_tail(self._lines)
        return WaitResult(True, finish_timeline(state, seconds), seconds, None, tail, state)

    def _failed(self, proof: str, detail: Json) -> WaitResult:
        seconds = self._elapsed()
        if proof not in ("stall", "deadline"):
            self._read_on(proof)
        state, tail = self._log.state, log_tail(self._lines)
        unit = {name: self._unit[name] for name in _UNIT_FIGURES if name in self._unit}
        unit.update({name: detail[theirs] for name, theirs in _UNIT_FIGURES.items() if theirs in detail})
        detail = redact({**detail, **unit}, self._secrets)
        found = classify(
            list(self._lines), as_unit_end(detail), stalled=state.phase if proof == "stall" else None
        )
        failure = explain(proof, found, detail, state, port=self.port, deadline=self.deadline, log_tail=tail)
        self._tell(force=True)
        return WaitResult(False, finish_timeline(state, max(seconds, state.t)), seconds, failure, tail, state)

    # Help

    @property
    def _secrets(self) -> list[str]:
        return [self.api_key] if self.api_key else []

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
        """The stream ends with the proof, but the traceback that explains it may still be under way."""
        if proof == "fatal-line":
            self.sleep(TRACEBACK_PAUSE)
        end = self.clock() + 0.5
        lines: list[Json] = []
        try:
            with self.host.stream(
                "journal", {"service": self.service, "cursor": self.started["cursor"], "follow": False}
            ) as more:
                while self.clock() < end:
                    if event := more.next(timeout=0.1):
                        lines.append(
                            {**event, "t": self._elapsed()}
                        )  # the journal's own time is the wall clock
        except (StopIteration, DeployerError):
            pass
        self._take_lines(lines[self._received :], 0.0)

    def _tell(self, *, force: bool) -> None:
        now = self.clock()
        if not force and now - self._told < 1.0:
            return
        self._told = now
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
                gpu_memory=self._proc.get("gpu_memory"),
                estimate=self.estimate,
                estimate_from=self.estimate_from,
                remaining=self._remaining(state),
                lines=tuple(self._new),
                quiet=now - self._moved,
            )
        )
        self._new.clear()

    def _in_phase(self, state: LaunchState) -> float:
        return max(0.0, self._elapsed() - state.spans[-1].start)

    def _generate(self, answers: queue.SimpleQueue[tuple[bool, str]]) -> None:
        limit = max(30.0, self.stall["warm-up"])
        answers.put(generate_once(self.host, self.address, self.port, api_key=self.api_key, timeout=limit))

    def _remaining(self, state: LaunchState) -> float | None:
        if not self.estimate:
            return None
        later = PHASES[PHASES.index(state.phase) + 1 :]
        here = max(0.0, self.estimate.get(state.phase, 0.0) - self._in_phase(state))
        return here + sum(self.estimate.get(phase, 0.0) for phase in later)


def _estimate(given: Mapping[str, float] | Iterable[Mapping[str, Any]] | None) -> dict[str, float]:
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return {str(name): float(seconds) for name, seconds in given.items()}
    return {str(item["name"]): float(item["seconds"]) for item in given}
