"""More processes of the load client: what one core cannot take is spread over several.

A worker is this program once more, on the same interpreter. It is spoken to in JSON lines: a job in; progress
and, at the end, all requests out. All use one clock (CLOCK_MONOTONIC is the machine's), so what they saw can
be put together. Its stdin ends: so does it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from deployer.bench.load.drive import Done, Drive, Job, tls_context
from deployer.bench.load.levels import worst_client
from deployer.bench.load.spec import Json, Spec
from deployer.bench.load.stats import Request

#: What one process is given: streams (all of whose chunks may come at once, at 0.02 ms each), tokens a second
#: (at 0.03 ms each on asyncio's own loop), and how many processes there are at most.
STREAMS_EACH = 128
TOKENS_EACH = 8000.0
MOST = 8

_LONGEST_LINE = 1 << 28


def processes_for(width: int, rate: float | None, cores: int) -> int:
    """Return how many processes a level of ``width`` streams at about ``rate`` tokens a second is spread over."""
    wanted = max(ceil(width / STREAMS_EACH), ceil((rate or 0.0) / TOKENS_EACH))
    return max(1, min(wanted, cores, MOST, width))


def usable_cores() -> int:
    """Return the number of processors that this process may run on."""
    return len(os.sched_getaffinity(0))


def shares(job: Job, processes: int, start_at: float) -> list[Job]:
    """Return the job in parts of nearly equally many streams, all beginning at one moment."""
    parts = [job.streams[first::processes] for first in range(processes)]
    return [replace(job, streams=streams, start_at=start_at) for streams in parts if streams]


def command(*arguments: str) -> list[str]:
    """Return the command that runs this program once more, whether it is a folder or a zipapp."""
    root = __file__
    for _ in __name__.split("."):
        root = os.path.dirname(root)
    start = "import sys; sys.path.insert(0, {!r}); from {}.__main__ import main; sys.exit(main())"
    return [sys.executable, "-c", start.format(os.path.abspath(root), __package__), *arguments]


class Child:
    """A process of ours that is spoken to in JSON lines. ``take`` gets each line of its, None at its end."""

    def __init__(self, process: asyncio.subprocess.Process, take: Callable[[Json | None], None]) -> None:
        self.process = process
        self._reader = asyncio.ensure_future(self._read(take))

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        environment: dict[str, str],
        first: Json,
        take: Callable[[Json | None], None],
    ) -> Child:
        """Start it; ``first`` is the first line it gets."""
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **environment},
            limit=_LONGEST_LINE,
        )
        child = cls(process, take)
        child.send(first)
        return child

    def send(self, message: Json) -> None:
        """Send one line. To a child that is gone it is lost; `take` has got its None."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, RuntimeError):
            self.process.stdin.write(json.dumps(message).encode() + b"\n")

    async def _read(self, take: Callable[[Json | None], None]) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(ValueError):  # killed within a line, or one without an end
            while line := await self.process.stdout.readline():
                take(json.loads(line))
        take(None)

    async def end(self, *, at_once: bool = False) -> None:
        """Close its stdin and make sure it is gone; ``at_once``: one that has nothing to tidy."""
        assert self.process.stdin is not None
        if at_once:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
        with contextlib.suppress(OSError, RuntimeError):
            self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), 3)
        except asyncio.TimeoutError:  # noqa: UP041 (another one before Python 3.11)
            self.process.kill()
            await self.process.wait()
        await self._reader


class Crew:
    """The workers of a run, started when they are first needed."""

    def __init__(self, spec: Json, environment: dict[str, str]) -> None:
        self._spec = spec
        self._environment = environment
        self._children: list[Child] = []
        self._lines: list[asyncio.Queue[Json | None]] = []
        self._counts: list[Json] = []

    async def _grow(self, number: int) -> None:
        begun = len(self._children)
        for _ in range(begun, number):
            lines: asyncio.Queue[Json | None] = asyncio.Queue()
            self._lines.append(lines)
            self._children.append(
                await Child.start(command("--worker"), self._environment, self._spec, lines.put_nowait)
            )
        for lines in self._lines[begun:]:
            if await lines.get() is None:
                raise RuntimeError("a process of the load client did not start")

    async def run(self, job: Job, processes: int) -> Done:
        """Spread the job over so many processes; return the requests of all of them in order."""
        await self._grow(processes)
        building = 0.2 + 0.002 * job.total / processes
        parts = shares(job, processes, time.perf_counter() + building)
        self._counts = [{} for _ in parts]
        for child, part in zip(self._children, parts):  # noqa: B905 (Python 3.9 has no strict)
            child.send({"job": part.as_json()})
        parts_done = [await self._one(number) for number in range(len(parts))]
        requests = sorted((r for done in parts_done for r in done.requests), key=lambda r: r.index)
        return Done(
            requests,
            {**worst_client(done.client for done in parts_done), "processes": len(parts)},
            any(done.stopped for done in parts_done),
            any(done.cut for done in parts_done),
        )

    async def _one(self, number: int) -> Done:
        while True:
            message = await self._lines[number].get()
            if message is None:
                raise RuntimeError("a process of the load client ended in the middle of a level")
            if "counts" in message:
                self._counts[number] = message["counts"]
            if "done" in message:
                done = message["done"]
                requests = [Request(**one) for one in done.pop("requests")]
                return Done(requests=requests, **done)

    def counts(self) -> Json:
        """Return the progress of all of them together, as `Drive.counts` has it."""
        known = [one for one in self._counts if one]
        total: Json = {key: sum(one[key] for one in known) for key in ("done", "failed", "chunks")}
        return {**total, "kinds": [tuple(pair) for one in known for pair in one["kinds"]]}

    def stop(self) -> None:
        """Make them cut what is under way."""
        for child in self._children:
            child.send({"stop": True})

    async def end(self) -> None:
        """End all of them."""
        for child in self._children:
            await child.end()
        self._children = []


def lines_of_stdin(take: Callable[[str | None], None]) -> None:
    """Read stdin in a thread of its own; ``take`` runs in the event loop, with None at the end."""
    loop = asyncio.get_running_loop()

    def pump() -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            for line in sys.stdin:
                loop.call_soon_threadsafe(take, line)
            loop.call_soon_threadsafe(take, None)

    threading.Thread(target=pump, daemon=True).start()


async def work(emit: Callable[[Json], None], api_key: str | None) -> None:
    """Run as a worker: the spec in the first line of stdin, then jobs, until its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process handles Ctrl-C
    messages: asyncio.Queue[Json | None] = asyncio.Queue()
    stop = asyncio.Event()

    def take(line: str | None) -> None:
        message = json.loads(line) if line else None
        if message is None or "stop" in message:
            stop.set()
        if message is None or "stop" not in message:
            messages.put_nowait(message)

    lines_of_stdin(take)
    first = await messages.get()
    if first is None:
        return
    spec = Spec.from_json(first)
    tls = tls_context(spec)
    emit({"ready": True})
    while (message := await messages.get()) is not None:
        drive = Drive(spec, Job(**message["job"]), stop)
        emit({"done": await _finished(drive, drive.run(tls, api_key), emit, spec.progress_interval)})


async def _finished(drive: Drive, running: Any, emit: Callable[[Json], None], interval: float) -> Json:
    async def ticker() -> None:
        while True:
            await asyncio.sleep(interval)
            emit({"counts": drive.counts()})

    beside = asyncio.ensure_future(ticker())
    try:
        done: Done = await running
    finally:
        beside.cancel()
    return {
        "requests": [vars(r) for r in done.requests],
        "client": done.client,
        "stopped": done.stopped,
        "cut": done.cut,
    }
