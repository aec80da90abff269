"""The stand-in's scheduler: micro-batch slots visited in turn, on a clock that the caller drives. Pure.

Like SGLang's: ``pp_size + pp_async_batch_depth`` slots under pipeline parallelism, else one; a slot admits up to the
micro-batch cap; prefill goes before decode; what finds no place waits. The engine drives it with the event loop's
clock, ``simulate`` with a virtual one, so what is measured on a host is what the unit tests compute.
"""

from __future__ import annotations

import dataclasses
import heapq
import random
from collections import deque
from collections.abc import Callable

from .speeds import Speeds


@dataclasses.dataclass
class Request:
    """One generation. ``on_token(request, index)`` is called for each token, ``index`` from 0."""

    prompt_tokens: int
    output_tokens: int
    on_token: Callable[[Request, int], None]
    rid: str = ""
    produced: int = 0
    aborted: bool = False

    @property
    def finished(self) -> bool:
        return self.aborted or self.produced >= self.output_tokens


@dataclasses.dataclass
class Slot:
    """One place of the loop: its requests, and when the batch in flight (if any) is done."""

    running: list[Request] = dataclasses.field(default_factory=list)
    arriving: list[Request] = dataclasses.field(default_factory=list)
    ready_at: float | None = None


@dataclasses.dataclass(frozen=True)
class PrefillDone:
    """A ``Prefill batch`` was launched."""

    new_requests: int
    new_tokens: int
    running: int
    queued: int
    usage_tokens: int


@dataclasses.dataclass(frozen=True)
class DecodeDone:
    """A decode result of one slot."""

    batch: int
    tokens: int
    queued: int
    eager: bool


Event = PrefillDone | DecodeDone


class Scheduler:
    """Micro-batch slots over a :class:`Speeds`. Times are seconds on the caller's clock."""

    def __init__(self, speeds: Speeds, max_running: int, report: Callable[[float, Event], None] | None = None) -> None:
        self.speeds = speeds
        self.cap = speeds.cap
        self.max_running = max_running
        self.queue: deque[Request] = deque()
        self.slots = [Slot() for _ in range(speeds.slots)]
        self.hung = False
        self.last_output = 0.0
        self.generated = 0
        #: Requests that hold a place in a slot.
        self.running = 0
        self._report = report or (lambda now, event: None)
        self._position = 0
        self._free_at = 0.0
        self._results: list[tuple[float, int]] = []
        self._noise = random.Random(speeds.seed + 1)

    @property
    def in_turn(self) -> int:
        """Requests in the current slot, SGLang's running batch; all of them without a pipeline."""
        slot = self.slots[(self._position - 1) % len(self.slots)]
        return len(slot.running) + len(slot.arriving)

    @property
    def used_tokens(self) -> int:
        return sum(request.prompt_tokens + request.produced for slot in self.slots for request in slot.running)

    @property
    def in_flight(self) -> int:
        """Requests not answered yet, waiting ones included."""
        return self.running + len(self.queue)

    def submit(self, request: Request, now: float) -> None:
        """Queue a request; it is admitted at the next visit of a slot with room."""
        if self.in_flight == 0:
            self._free_at = max(self._free_at, now)
        self.queue.append(request)

    def next_time(self) -> float | None:
        """Return when :meth:`advance` has something to do next; None while idle or hung."""
        if self.hung or self.in_flight == 0:
            return None
        times = [self._results[0][0]] if self._results else []
        visit = self._next_visit()
        if visit is not None:
            times.append(visit)
        return min(times) if times else None

    def advance(self, now: float) -> float | None:
        """Do everything that is due at ``now``; return when something is due next, as :meth:`next_time` does."""
        while True:
            due = self.next_time()
            if due is None or due > now:
                return due
            if self._results and self._results[0][0] <= due:
                moment, index = heapq.heappop(self._results)
                self._deliver(moment, self.slots[index])
            else:
                self._visit(due)

    def _next_visit(self) -> float | None:
        """Return when the loop reaches a slot that it can launch; it waits for the first result in flight."""
        for offset in range(len(self.slots)):
            slot = self.slots[(self._position + offset) % len(self.slots)]
            if slot.ready_at is not None:
                return None
            if slot.running or self._admissible(slot):
                self._position = (self._position + offset) % len(self.slots)
                return self._free_at
        return None

    def _admissible(self, slot: Slot) -> int:
        if not self.queue:
            return 0
        room = min(self.cap - len(slot.running), self.max_running - self.running)
        return max(0, min(room, len(self.queue)))

    def _visit(self, now: float) -> None:
        index = self._position
        slot = self.slots[index]
        admitted = self._admissible(slot)
        if admitted:
            slot.arriving = [self.queue.popleft() for _ in range(admitted)]
            self.running += admitted
            tokens = sum(request.prompt_tokens for request in slot.arriving)
            event = PrefillDone(admitted, tokens, len(slot.running), len(self.queue), self.used_tokens)
            latency = self._jitter(self.speeds.prefill_seconds(admitted, tokens))
            occupied = latency / min(self.speeds.pp, 3)
            self._report(now, event)
        else:
            active = [len(other.running) + len(other.arriving) for other in self.slots]
            active = [size for size in active if size]
            eager = sum(self.speeds.is_eager(size) for size in active) / len(active)
            latency = self._jitter(self.speeds.decode_seconds(self.running, eager, self.cap))
            occupied = latency / len(active)
        slot.ready_at = now + latency
        heapq.heappush(self._results, (slot.ready_at, index))
        self._free_at = now + occupied
        self._position = (index + 1) % len(self.slots)

    def _jitter(self, seconds: float) -> float:
        noise = self.speeds.noise
        return seconds * max(0.2, 1.0 + self._noise.gauss(0.0, noise)) if noise else seconds

    def _deliver(self, now: float, slot: Slot) -> None:
        slot.ready_at = None
        self._free_at = max(self._free_at, now)
        self.last_output = now
        if slot.arriving:
            receivers, slot.arriving = slot.arriving, []
            slot.running += receivers
        else:
            receivers = slot.running
            event = DecodeDone(len(receivers), self.used_tokens, len(self.queue), self.speeds.is_eager(len(receivers)))
            self._report(now, event)
        for request in receivers:
            if not request.finished:
                request.produced += 1
                self.generated += 1
                request.on_token(request, request.produced - 1)
        held = len(slot.running)
        slot.running = [request for request in slot.running if not request.finished]
        self.running -= held - len(slot.running)


@dataclasses.dataclass(frozen=True)
class Simulated:
    """The figures that a client would measure that sends all requests at once."""

    wall: float
    tokens: int
    first_token: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.wall


def simulate(
    speeds: Speeds,
    concurrency: int,
    output_tokens: int = 128,
    *,
    prompt_tokens: int = 128,
    max_running: int = 64,
    spread: float = 0.02,
) -> Simulated:
    """Play one wave of ``concurrency`` requests that arrive within ``spread`` seconds, on a virtual clock."""
    scheduler = Scheduler(speeds, max_running)
    last = 0.0
    first = 0.0
    clock = 0.0

    def on_token(request: Request, index: int) -> None:
        nonlocal last, first
        last = clock
        first = max(first, clock) if index == 0 else first

    arrivals = [spread * position / max(concurrency, 1) for position in range(concurrency)]
    for arrival in arrivals:
        due = scheduler.next_time()
        while due is not None and due <= arrival:
            clock = due
            due = scheduler.advance(due)
        clock = arrival
        scheduler.submit(Request(prompt_tokens, output_tokens, on_token), arrival)
    due = scheduler.next_time()
    while due is not None:
        clock = max(clock, due)
        due = scheduler.advance(due)
    return Simulated(last, concurrency * output_tokens, first)
