"""The serving part: the scheduler on the event loop's clock, its log lines, health, and what the GPUs are doing."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from . import words
from .faults import Faults
from .gpustate import GpuState
from .launch import CONTEXT_GIB
from .lines import Rank, ranks
from .resolve import Plan
from .scheduler import DecodeDone, Event, PrefillDone, Request, Scheduler
from .speeds import Speeds


class Engine:
    """Generations in micro-batches. ``log(message, rank)`` writes a record."""

    def __init__(
        self,
        plan: Plan,
        faults: Faults,
        log: Callable[[str, Rank | None], None],
        gpu_state: GpuState,
        holders: dict[int, int],
    ) -> None:
        self.plan = plan
        self.faults = faults
        self.status = "Starting"
        self.log = log
        self.started = time.time()
        self.asked = 0
        self.generations = 0
        self.scheduler = Scheduler(self._speeds(), plan.max_running, self._report)
        self.finished = 0
        self.prompt_tokens = 0
        self.last_throughput = 0.0
        self.last_graph = False
        self.draining = False
        self._leaders = [rank for rank in ranks(plan.tp, plan.pp, plan.ep) if rank.leads_stage]
        self._interval = max(int(plan.fields["decode_log_interval"]), 1)
        self._results = 0
        self._since_line = (0, time.monotonic())
        self._last_prefill = time.monotonic()
        self._wake: asyncio.TimerHandle | None = None
        self._gpu_state = gpu_state
        self._holders = holders
        self._live: dict[str, Request] = {}

    # generation

    def submit(
        self, prompt: Any, limit: int, options: dict[str, Any], on_token: Callable[[Request, str], None]
    ) -> Request:
        """Start a generation; ``on_token(request, text)`` is called for each token until ``request.finished``."""
        temperature = float(options.get("temperature") or 0.0)
        seed = options.get("seed", options.get("sampling_seed"))
        length = limit if options.get("ignore_eos") else words.natural_length(prompt, limit)
        texts = self._texts(prompt, temperature, None if seed is None else int(seed))

        def emit(request: Request, index: int) -> None:
            on_token(request, next(texts))
            if request.finished:
                self._live.pop(request.rid, None)
                self.finished += 1

        request = Request(words.count_tokens(prompt), length, emit, rid=os.urandom(16).hex())
        self._live[request.rid] = request
        self.prompt_tokens += request.prompt_tokens
        if self.status == "Up":
            self.generations += 1
            hang = self.faults.get("hang-at-request")
            if hang and self.generations >= int(hang.options.get("at", 1)):
                self.scheduler.hung = True
        self.scheduler.speeds = self._speeds()
        self.scheduler.submit(request, self._now())
        self._arm()
        return request

    def abort(self, request: Request) -> None:
        """Abandon a generation whose client is gone."""
        request.aborted = True
        self._live.pop(request.rid, None)
        if request in self.scheduler.queue:
            self.scheduler.queue.remove(request)

    def _speeds(self) -> Speeds:
        """Return the step times under the current faults."""
        slow = self.faults.get("slow")
        acts = slow is not None and self.generations >= int(slow.options.get("at", 0))
        percent = float(slow.options.get("percent", 50)) if slow and acts else 0.0
        return self.plan.speeds(percent, graphs_lost=self.faults.get("graphs-lost") is not None)

    @property
    def open_requests(self) -> list[str]:
        return list(self._live)

    def _texts(self, prompt: Any, temperature: float, seed: int | None) -> Iterator[str]:
        garbage = self.faults.get("garbage-output")
        if garbage is None:
            return words.answer(prompt, temperature, seed)
        return iter(lambda: str(garbage.options.get("text", "!")), None)

    # the clock

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def _arm(self) -> None:
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        due = self.scheduler.next_time()
        if due is not None:
            self._wake = asyncio.get_running_loop().call_at(due, self._advance)

    def _advance(self) -> None:
        self._wake = None
        self.scheduler.advance(self._now())
        self._arm()

    # health

    @property
    def hung(self) -> bool:
        return self.scheduler.hung

    async def probe(self, timeout: float) -> bool:
        """Run SGLang's health check: a one-token generation, polled once a second. False after ``timeout`` seconds."""
        if not self.scheduler.in_flight and not self.hung:
            self._prefill_line(PrefillDone(1, 1, 0, 0, 0))
        begin = time.monotonic()
        while time.monotonic() - begin < timeout:
            await asyncio.sleep(1.0)
            if not self.hung:
                return True
        return False

    # log lines

    def _usage(self, tokens: int) -> float:
        return tokens / self.plan.max_total_tokens

    def _report(self, now: float, event: Event) -> None:
        if isinstance(event, PrefillDone):
            self._prefill_line(event)
            return
        self._results += 1
        if self._results % self._interval == 0:
            self._decode_line(event)

    def _prefill_line(self, event: PrefillDone) -> None:
        moment = time.monotonic()
        rate = event.new_tokens / max(moment - self._last_prefill, 1e-3)
        self._last_prefill = moment
        for rank in self._leaders:
            self.log(
                f"Prefill batch, #new-seq: {event.new_requests}, #new-token: {event.new_tokens}, #cached-token: 0, "
                f"token usage: {self._usage(event.usage_tokens):.2f}, #running-req: {event.running}, "
                f"#queue-req: {event.queued}, #pending-token: 0, cuda graph: False, "
                f"input throughput (token/s): {rate:.2f}",
                rank,
            )

    def _decode_line(self, event: DecodeDone) -> None:
        moment = time.monotonic()
        generated, begin = self._since_line
        self.last_throughput = (self.scheduler.generated - generated) / max(moment - begin, 1e-3)
        self._since_line = (self.scheduler.generated, moment)
        self.last_graph = not event.eager
        for rank in self._leaders:
            self.log(
                f"Decode batch, #running-req: {event.batch}, #token: {event.tokens}, "
                f"token usage: {self._usage(event.tokens):.2f}, cuda graph: {not event.eager}, "
                f"gen throughput (token/s): {self.last_throughput:.2f}, #queue-req: {event.queued}",
                rank,
            )

    # what the GPUs do

    @property
    def memory_gib(self) -> float:
        plan = self.plan
        return CONTEXT_GIB + plan.weight_gib + plan.kv_gib + plan.graph_gib

    def write_gpu_state(self) -> None:
        """Record for ``nvidia-smi`` how busy the GPUs are."""
        running = self.scheduler.running
        if self.hung:
            busy = 100
        elif not running:
            busy = 0
        else:
            busy = min(99, (30 if self.plan.pp > 1 else 55) + running)
        mib = [self.memory_gib * 1024.0] * len(self._holders)
        self._gpu_state.write(self._holders, mib, busy)
