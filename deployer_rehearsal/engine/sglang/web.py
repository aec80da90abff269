"""A small HTTP/1.1 server on asyncio that looks like uvicorn, its access log included."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import email.utils
import json
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, urlsplit

MAX_BODY = 64 * 1024 * 1024
KEEP_ALIVE = 5.0


class HttpError(Exception):
    """An answer that ends the handling of a request."""

    def __init__(self, status: int, body: Any = None) -> None:
        super().__init__(status)
        self.status = status
        self.body = body


@dataclasses.dataclass
class Exchange:
    """One request, and how to answer it: once by :meth:`send`, or by :meth:`start` and any number of :meth:`chunk`."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    writer: asyncio.StreamWriter
    log: Callable[[str], None]
    keep_alive: bool = True
    answered: bool = False
    streaming: bool = False
    stalled: bool = False
    breaking: Callable[[Exchange, bytes], bytes] | None = None
    """Returns what is sent instead of each piece of a streamed answer."""

    def json(self) -> dict[str, Any]:
        """Return the body as a JSON object. Raise HttpError 400 if it is not JSON, 422 if not an object."""
        try:
            data = json.loads(self.body or b"{}")
        except ValueError as error:
            raise HttpError(400, {"detail": [{"type": "json_invalid", "msg": f"JSON decode error: {error}"}]}) from None
        if not isinstance(data, dict):
            raise HttpError(422, {"detail": [{"type": "dict_type", "msg": "Input should be a valid dictionary"}]})
        return data

    @property
    def gone(self) -> bool:
        """Whether the client has closed the connection."""
        return self.writer.is_closing()

    def _head(self, status: int, headers: list[tuple[str, str]]) -> bytes:
        try:
            phrase = HTTPStatus(status).phrase
        except ValueError:
            phrase = ""
        peer = self.writer.get_extra_info("peername") or ("", 0)
        self.log(f'INFO:     {peer[0]}:{peer[1]} - "{self.method} {self.path} HTTP/1.1" {status} {phrase}')
        self.answered = True
        lines = [
            f"HTTP/1.1 {status} {phrase}",
            f"date: {email.utils.formatdate(usegmt=True)}",
            "server: uvicorn",
        ]
        lines += [f"{name}: {value}" for name, value in headers]
        if not self.keep_alive:
            lines.append("connection: close")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def send(self, status: int, body: Any = None, kind: str = "application/json") -> None:
        """Send a whole answer: text and bytes as they are, anything else as JSON."""
        if isinstance(body, bytes):
            data = body
        elif isinstance(body, str):
            data = body.encode("utf-8")
        else:
            data = b"" if body is None else json.dumps(body, separators=(",", ":")).encode("utf-8")
        headers = [("content-length", str(len(data)))]
        if data and kind:
            headers.append(("content-type", kind))
        self._write(self._head(status, headers) + data)

    def start(self, kind: str = "text/event-stream; charset=utf-8") -> None:
        """Begin a streamed answer."""
        self.streaming = True
        self._write(self._head(200, [("content-type", kind), ("transfer-encoding", "chunked")]))

    def chunk(self, data: bytes) -> None:
        """Send a piece of a streamed answer."""
        if self.breaking is not None:
            data = self.breaking(self, data)
        if data:
            self._write(b"%x\r\n%b\r\n" % (len(data), data))

    def event(self, payload: Any) -> None:
        """Send one server-sent event."""
        text = payload if isinstance(payload, str) else json.dumps(payload, separators=(",", ":"))
        self.chunk(b"data: " + text.encode("utf-8") + b"\n\n")

    def finish(self) -> None:
        """End a streamed answer."""
        if self.streaming and not self.stalled:
            self._write(b"0\r\n\r\n")

    def _write(self, data: bytes) -> None:
        """asyncio complains on the server's log of each write after the client is gone."""
        if not self.gone:
            self.writer.write(data)


Handler = Callable[[Exchange], Awaitable[None]]


class Connections:
    """Serves connections; ``handler`` answers each request."""

    def __init__(self, handler: Handler, log: Callable[[str], None]) -> None:
        self._handler = handler
        self._log = log
        self._open: set[asyncio.StreamWriter] = set()
        self._under_way: dict[asyncio.StreamWriter, Exchange] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._shut = False
        self._quiet = asyncio.Event()
        """Set while no request is under way."""

    def close(self) -> None:
        """Close all connections. A request without an answer gets the one that uvicorn has for it."""
        for exchange in self._under_way.values():
            if not exchange.answered:
                exchange.keep_alive = False
                exchange.send(500, "Internal Server Error", "text/plain; charset=utf-8")
        for writer in list(self._open):
            writer.close()

    async def shut(self) -> None:
        """Take no further request, and return when those under way have their answers, as uvicorn does at SIGINT."""
        self._shut = True
        for writer in list(self._open):
            if writer in self._under_way:
                self._under_way[writer].keep_alive = False
            else:
                writer.close()
        await asyncio.sleep(0.1)
        if self._under_way:
            self._log("INFO:     Waiting for connections to close. (CTRL+C to force quit)")
            await self._quiet.wait()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection in a task of its own.

        Until Python 3.12 asyncio logs a traceback of each task that it made itself and that is cancelled as the server
        ends, even before the task began.
        """
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer request after request."""
        self._open.add(writer)
        try:
            while True:
                exchange = await _read(reader, writer, self._log)
                if exchange is None or self._shut:
                    return
                self._under_way[writer] = exchange
                self._quiet.clear()
                await self._answer(exchange)
                await writer.drain()
                self._over(writer)
                if not exchange.keep_alive:
                    return
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            return
        finally:
            self._over(writer)
            self._open.discard(writer)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def _over(self, writer: asyncio.StreamWriter) -> None:
        self._under_way.pop(writer, None)
        if not self._under_way:
            self._quiet.set()

    async def _answer(self, exchange: Exchange) -> None:
        try:
            await self._handler(exchange)
        except HttpError as error:
            if not exchange.answered:
                exchange.send(error.status, error.body)
        if not exchange.answered:
            exchange.send(500, "Internal Server Error", "text/plain; charset=utf-8")
        while exchange.stalled and not exchange.gone:
            await asyncio.sleep(0.5)


async def _read(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, log: Callable[[str], None]
) -> Exchange | None:
    """Return the next request of a connection; None if the client has no more or is idle for too long."""
    try:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), KEEP_ALIVE)
    except (TimeoutError, asyncio.IncompleteReadError):
        return None
    first, *rest = head.decode("latin-1").split("\r\n")
    method, target, version = first.split(" ", 2)
    headers = {}
    for line in rest:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = await _chunked(reader)
    else:
        body = await reader.readexactly(min(int(headers.get("content-length", "0")), MAX_BODY))
    parts = urlsplit(target)
    wish = headers.get("connection", "").lower()
    keep = wish != "close" if version == "HTTP/1.1" else wish == "keep-alive"
    return Exchange(method, parts.path, dict(parse_qsl(parts.query)), headers, body, writer, log, keep)


async def _chunked(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while True:
        size = int((await reader.readline()).split(b";")[0], 16)
        piece = await reader.readexactly(size + 2)
        if size == 0:
            return body
        body += piece[:-2]
        if len(body) > MAX_BODY:
            raise ValueError("body too large")


def epoch() -> int:
    return int(time.time())
