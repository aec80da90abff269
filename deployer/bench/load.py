"""The load client: measures a server's streaming completions. A script and a module.

As a script (``python load.py``, with the other files of ``COMPANIONS`` beside it) it reads a JSON spec from
stdin, the API key from ``DEPLOYER_BENCH_API_KEY``, and writes JSON lines to stdout: progress, and last
``{"event": "result", "bench": {...}}``. It needs httpx and Python 3.9. Exit status: 0 measured (whatever
the result), 2 the spec is wrong, 130 interrupted (the result then says what was cut).

What it takes care of, because it distorts results otherwise: a new connection for each request out of a
pool that never queues; the time stamp of a chunk before anything is done with it; no garbage collection
during a level; no retries; and a measure of the client's own saturation.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import fields
from typing import Any

import httpx

if __package__:
    from deployer.bench import stats, stream, traffic
    from deployer.bench.saturation import Saturation, no_collection
    from deployer.bench.spec import Spec, prompt
else:  # on the host: the files lie side by side
    import stats  # type: ignore[import-not-found,no-redef]
    import stream  # type: ignore[import-not-found,no-redef]
    import traffic  # type: ignore[import-not-found,no-redef]
    from saturation import Saturation, no_collection  # type: ignore[import-not-found,no-redef]
    from spec import Spec, prompt  # type: ignore[import-not-found,no-redef]

Json = dict[str, Any]
Emit = Callable[[Json], None]

API_KEY_VARIABLE = "DEPLOYER_BENCH_API_KEY"
SCHEMA = 1

#: What has to lie beside this file where deployer is not installed.
COMPANIONS = ("saturation.py", "spec.py", "stats.py", "stream.py", "traffic.py")

_REPORTED_FAILURES = 5


class Stop(Exception):
    """The run ends early; the message says why."""


class Run:
    """One run of the benchmark: warm-ups, single requests, then the levels."""

    def __init__(self, spec: Spec, emit: Emit, api_key: str | None) -> None:
        self.spec = spec
        self.emit = emit
        self.api_key = api_key
        self.salt = spec.salt or os.urandom(6).hex()
        self.stop = asyncio.Event()
        self.interrupted: str | None = None
        self.words_per_token = 1.0
        self.foreign: list[Json] = []
        self.bench: Json = {}
        self.tls = httpx.create_ssl_context(trust_env=False)  # 30 ms: once, not per level

    def interrupt(self, reason: str) -> None:
        """Stop at once; what is under way is cut."""
        self.interrupted = self.interrupted or reason
        self.stop.set()

    def tell(self, event: Json) -> None:
        """Report progress; a reader that is gone is a reason to stop loading the server."""
        try:
            self.emit(event)
        except OSError:
            self.interrupt("nobody reads the results")

    async def everything(self) -> Json:
        """Run it all and return the bench document, partial when interrupted or without hope."""
        spec = self.spec
        began = time.perf_counter()
        shown = {
            f.name: getattr(spec, f.name) for f in fields(spec) if f.name not in ("base_url", "model", "salt")
        }
        loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]
        self.bench = {
            "schema": SCHEMA,
            "started": time.time(),
            "base_url": spec.base_url,
            "model": spec.model,
            "spec": {**shown, "levels": list(spec.levels), "salt": self.salt},
            "client": {"python": platform.python_version(), "httpx": httpx.__version__, "loop": loop},
            "warmups": None,
            "singles": None,
            "single_stream_tok_s": None,
            "levels": [],
            "stopped": None,
        }
        try:
            await self._stages()
        except Stop as reason:
            self.bench["stopped"] = str(reason)
        self.bench["interrupted"] = self.interrupted
        self.bench["client_limited"] = any(
            level["client"]["client_limited"] for level in self.bench["levels"]
        )
        self.bench["foreign_traffic"] = combined(self.foreign)
        self.bench["seconds"] = round(time.perf_counter() - began, 3)
        return self.bench

    async def _stages(self) -> None:
        spec, bench = self.spec, self.bench
        if spec.warmups:
            warm, _ = await self._stage("warmup", 1, spec.warmups, spec.warmup_tokens)
            bench["warmups"] = stats.stage_summary(warm)
            measured = [r.prompt_tokens for r in warm if r.completed and r.prompt_tokens]
            if measured:
                self.words_per_token = min(max(spec.prompt_tokens / measured[-1], 0.2), 2.0)
            self._hope("the warm-up", warm)
        if spec.singles:
            alone, extra = await self._stage("single", 1, spec.singles, spec.output_tokens)
            bench["singles"] = {**stats.single_summary(alone), **extra}
            bench["single_stream_tok_s"] = stats.single_stream_rate(alone)
            self._hope("the single runs", alone)
        for level in spec.levels:
            requests, extra = await self._stage("level", level, level * spec.waves, spec.output_tokens)
            bench["levels"].append({**stats.level_summary(requests, level), **extra})
            self._hope(f"level {level}", requests)

    def _hope(self, name: str, requests: list[stats.Request]) -> None:
        if self.interrupted:
            raise Stop(f"interrupted ({self.interrupted}) during {name}")
        if not any(r.completed for r in requests):
            first = requests[0]
            raise Stop(
                f"none of the {len(requests)} requests of {name} was completed ({first.kind}: {first.detail})"
            )

    async def _stage(self, name: str, width: int, total: int, asked: int) -> tuple[list[stats.Request], Json]:
        """``total`` requests, ``width`` at a time. Returns the requests and what was seen beside them."""
        label = f"level {width}" if name == "level" else name
        requests = [stats.Request(index, asked) for index in range(total)]
        words = round(self.spec.prompt_tokens * self.words_per_token)
        bodies = [self._body(label, index, words, asked) for index in range(total)]
        before = await self._counters()
        began = time.perf_counter()
        async with self._client(width) as client, self._watched(name, width, requests) as saturation:
            await self._drive(client, name, width, requests, bodies)
            busy = saturation.summary()
        seconds = time.perf_counter() - began
        ours = sum(r.tokens or 0 for r in requests if r.completed)
        unsure = sum(r.asked for r in requests if not r.completed and r.intent is not None)
        after = await self._counters(at_least=None if before.tokens is None else before.tokens + ours)
        foreign = traffic.judge(before, after, ours=ours, unsure=unsure, seconds=seconds)
        self.foreign.append({"stage": label, **foreign})
        for request in requests:
            if self.api_key:
                request.detail = request.detail.replace(self.api_key, "***")
        return requests, {"client": busy, "foreign_traffic": foreign["value"]}

    async def _counters(self, at_least: float | None = None) -> traffic.Counters:
        if self.stop.is_set():
            return traffic.Counters()
        async with self._client(2, patience=5.0) as client:
            return await traffic.settled(client, self.spec.base_url, at_least=at_least)

    def _body(self, label: str, index: int, words: int, asked: int) -> bytes:
        """The request, made before its time: making it is not the server's latency."""
        document = {
            "model": self.spec.model,
            "prompt": prompt(self.spec, self.salt, label, index, words),
            "max_tokens": asked,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return json.dumps(document).encode()

    def _client(self, width: int, patience: float | None = None) -> httpx.AsyncClient:
        """A client whose pool never queues nor looks for idle connections (both cost more than a connect)."""
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        if self.api_key:
            headers["authorization"] = f"Bearer {self.api_key}"
        return httpx.AsyncClient(
            headers=headers,
            limits=httpx.Limits(max_connections=width + 8, max_keepalive_connections=0),
            timeout=httpx.Timeout(connect=5, read=patience, write=10, pool=None),
            verify=self.tls,
            trust_env=False,
            follow_redirects=patience is not None,
        )

    @contextlib.asynccontextmanager
    async def _watched(
        self, name: str, width: int, requests: list[stats.Request]
    ) -> AsyncIterator[Saturation]:
        """Progress and saturation beside a stage, with the garbage collector out of the way."""
        saturation = Saturation()
        reported: set[int] = set()
        began = time.perf_counter()

        def report(*, ended: bool) -> None:
            for r in requests:
                if (
                    r.kind not in (None, "cut")
                    and r.index not in reported
                    and len(reported) < _REPORTED_FAILURES
                ):
                    reported.add(r.index)
                    said = f"{name} C={width}: request {r.index} failed ({r.kind})"
                    self.tell({"event": "note", "text": said})
            seconds = time.perf_counter() - began
            chunks = sum(len(r.stamps) for r in requests)
            self.tell(
                {
                    "event": name,
                    "concurrency": width,
                    "done": sum(1 for r in requests if r.completed),
                    "failed": sum(1 for r in requests if r.kind not in (None, "cut")),
                    "total": len(requests),
                    "tok_s": round(chunks / seconds, 1) if seconds > 0 else 0.0,  # chunks: usage comes last
                    "seconds": round(seconds, 1),
                    "ended": ended,
                }
            )

        async def ticker() -> None:
            while True:
                await asyncio.sleep(self.spec.progress_interval)
                report(ended=False)

        beside = [asyncio.ensure_future(saturation.watch()), asyncio.ensure_future(ticker())]
        try:
            with no_collection():
                yield saturation
        finally:
            for task in beside:
                task.cancel()
            report(ended=True)

    async def _drive(
        self,
        client: httpx.AsyncClient,
        name: str,
        width: int,
        requests: list[stats.Request],
        bodies: list[bytes],
    ) -> None:
        """Send them all: ``width`` streams, each taking every ``width``-th request; up to the deadline or a stop."""
        url = self.spec.base_url + "/v1/completions"
        deadline = self.spec.deadline(-(-len(requests) // width))
        if name == "level" and self.spec.level_deadline:
            deadline = self.spec.level_deadline

        async def one_stream(first: int) -> None:
            for index in range(first, len(requests), width):
                await self._bounded(
                    stream.perform(client, url, bodies[index], requests[index]), requests[index]
                )

        everyone = asyncio.gather(*(one_stream(first) for first in range(width)))
        stopped = asyncio.ensure_future(self.stop.wait())
        both: set[asyncio.Future[Any]] = {everyone, stopped}
        try:
            await asyncio.wait(both, timeout=deadline, return_when=asyncio.FIRST_COMPLETED)
            if everyone.done():
                everyone.result()
                return
            everyone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await everyone
            if not self.stop.is_set():
                for request in requests:
                    if request.kind == "cut":
                        request.kind, request.detail = "deadline", f"the stage was cut after {deadline:g} s"
        finally:
            stopped.cancel()

    async def _bounded(self, work: Coroutine[Any, Any, None], request: stats.Request) -> None:
        """One request within its own time limit."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task}, timeout=self.spec.request_timeout)
            if task.done():
                task.result()
            else:
                request.kind, request.detail = "timeout", f"not ended after {self.spec.request_timeout:g} s"
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=5)


def combined(stages: list[Json]) -> Json:
    """One answer for all stages: true if one is, false if all are, else null; with the evidence."""
    values = [stage["value"] for stage in stages]
    value = True if any(v is True for v in values) else (False if values and None not in values else None)
    shown = [stage for stage in stages if stage["value"] is value] if value is not False else stages
    return {"value": value, "evidence": [f"{s['stage']}: {'; '.join(s['evidence'])}" for s in shown]}


def _new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed: half the client's work at high rates."""
    try:
        import uvloop  # type: ignore[import-not-found]
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def run(spec: Spec, emit: Emit, api_key: str | None = None) -> Json:
    """Measure, and return the bench document; ``emit`` gets the progress events meanwhile.

    Runs an event loop of its own. In the main thread SIGINT and SIGTERM stop it at once: what was under way
    is counted as ``cut`` and ``interrupted`` says so; nothing is raised.
    """
    loop = _new_loop()
    try:
        return loop.run_until_complete(_run(spec, emit, api_key))
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _run(spec: Spec, emit: Emit, api_key: str | None) -> Json:
    this = Run(spec, emit, api_key)
    loop = asyncio.get_running_loop()
    previous = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.getsignal(number)
            loop.add_signal_handler(number, this.interrupt, number.name)
    try:
        return await this.everything()
    finally:
        for number, handler in previous.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


def main() -> int:
    """The script: spec on stdin, JSON lines on stdout."""
    try:
        spec = Spec.from_json(json.load(sys.stdin))
    except (ValueError, TypeError) as error:
        print(f"load.py: the spec is wrong: {error}", file=sys.stderr)
        return 2

    def emit(event: Json) -> None:
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()

    bench = run(spec, emit, os.environ.pop(API_KEY_VARIABLE, None))
    try:
        emit({"event": "result", "bench": bench})
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter complains at its exit
        return 1
    return 130 if bench["interrupted"] else 0


if __name__ == "__main__":
    sys.exit(main())
