"""Send the requests of one stage, or one process's share of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import Coroutine
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

from deployer.bench.load import stream
from deployer.bench.load.prompts import prompt
from deployer.bench.load.saturation import Saturation, no_collection
from deployer.bench.load.spec import Json, Spec
from deployer.bench.load.stats import Request
from deployer.bench.load.transport import Transport


@dataclass
class Job:
    """What to send: ``total`` requests in ``width`` streams, of which ``streams`` are this process's.

    Request i belongs to stream i modulo ``width``; a stream sends one after another. Moments are on the
    monotonic clock (``time.perf_counter``), which all processes of a machine share: ``start_at`` (None: now),
    ``stop_at`` after which nothing new is sent, ``cut_at`` at which what is under way is cut. ``deadline``
    is how long the whole may take, in seconds; to exceed it is a failure of the server's. ``max_tokens`` is the length
    of an answer. ``length`` and
    ``shared`` are as `deployer.bench.load.prompts.prompt` takes them; ``texts`` replaces the prompts that would be
    drawn.
    """

    label: str
    width: int
    total: int
    max_tokens: int
    length: float
    shared: float
    salt: str
    deadline: float
    streams: list[int]
    start_at: float | None = None
    stop_at: float | None = None
    cut_at: float | None = None
    texts: list[str] | None = None

    def as_json(self) -> Json:
        """Return the job as it is handed to another process."""
        return asdict(self)


@dataclass
class Done:
    """The result of a job. ``stopped`` and ``cut``: it was not begun, or not ended, because the time was up."""

    requests: list[Request]
    client: Json = field(default_factory=dict)
    stopped: bool = False
    cut: bool = False


def tls_context(spec: Spec) -> ssl.SSLContext | None:
    """Return what https needs; making it takes 30 ms, so it is made once."""
    return httpx.create_ssl_context(trust_env=False) if spec.base_url.startswith("https:") else None


def client(tls: ssl.SSLContext | None, api_key: str | None, patience: float | None) -> httpx.AsyncClient:
    """Return a client of the measured server; ``patience`` is its read time-out in seconds, None: no limit."""
    headers = {"content-type": "application/json", "accept-encoding": "identity", "connection": "close"}
    if api_key:
        headers["authorization"] = f"Bearer {api_key}"
    return httpx.AsyncClient(
        headers=headers,
        timeout=httpx.Timeout(connect=5, read=patience, write=10, pool=None),
        transport=Transport(tls),
        trust_env=False,
        follow_redirects=patience is not None,
    )


def body(spec: Spec, job: Job, index: int) -> bytes:
    """Return the body of one request. It is made before its time: making it is not the server's latency."""
    if job.texts is not None:
        text = job.texts[index]
    else:
        seed = f"{spec.seed}/{job.salt}/{job.label}/{index}"
        text = prompt(seed, job.length, shared=job.shared, common=f"{spec.seed}/{job.salt}")
    document = {
        "model": spec.model,
        "prompt": text,
        "max_tokens": job.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps(document).encode()


class Drive:
    """One job in this process. ``requests`` fills as it goes on, so progress can be read from it."""

    def __init__(self, spec: Spec, job: Job, stop: asyncio.Event) -> None:
        self.spec = spec
        self.job = job
        self.stop = stop
        indices = [i for first in job.streams for i in range(first, job.total, job.width)]
        self.requests = {index: Request(index, job.max_tokens) for index in sorted(indices)}
        self.stopped = False
        self.cut = False

    def counts(self) -> Json:
        """Return ``{done, failed, chunks, kinds}`` so far."""
        every = self.requests.values()
        kinds = [(r.index, r.kind) for r in every if r.kind not in (None, "cut")]
        return {
            "done": sum(1 for r in every if r.completed),
            "failed": len(kinds),
            "kinds": kinds,
            "chunks": sum(len(r.stamps) for r in every),
        }

    async def run(self, tls: ssl.SSLContext | None, api_key: str | None) -> Done:
        """Send it all; return when everything has ended, one way or another."""
        job = self.job
        url = self.spec.base_url + "/v1/completions"
        async with client(tls, api_key, None) as maker:
            ready = {i: maker.build_request("POST", url, content=body(self.spec, job, i)) for i in self.requests}
        if job.start_at is not None:
            await asyncio.sleep(max(0.0, job.start_at - time.perf_counter()))
        saturation = Saturation()
        watch = asyncio.ensure_future(saturation.watch())
        try:
            with no_collection():
                await self._send(Transport(tls), ready)
                busy = saturation.summary()
        finally:
            watch.cancel()
        return Done(list(self.requests.values()), busy, self.stopped, self.cut)

    async def _send(self, transport: Transport, ready: dict[int, httpx.Request]) -> None:
        job = self.job

        async def one_stream(first: int) -> None:
            for index in range(first, job.total, job.width):
                if job.stop_at is not None and time.perf_counter() > job.stop_at:
                    self.stopped = True
                    return
                request = self.requests[index]
                await self._bounded(stream.perform(transport, ready[index], request), request)

        everyone = asyncio.gather(*(one_stream(first) for first in job.streams))
        stopped = asyncio.ensure_future(self.stop.wait())
        limit = job.deadline
        if job.cut_at is not None:
            limit = min(limit, max(0.0, job.cut_at - time.perf_counter()))
        both: set[asyncio.Future[Any]] = {everyone, stopped}
        try:
            await asyncio.wait(both, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if everyone.done():
                everyone.result()
                return
            everyone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await everyone
            if self.stop.is_set():
                return
            self.cut = limit < job.deadline
            for request in self.requests.values():
                if request.kind == "cut" and not self.cut:
                    request.kind, request.detail = "deadline", f"the stage was cut after {limit:g} s"
        finally:
            stopped.cancel()

    async def _bounded(self, work: Coroutine[Any, Any, None], request: Request) -> None:
        """Perform one request within its own time limit."""
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
