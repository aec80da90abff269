"""HTTP/1.1 under httpx, made for timing: a connection a request, and bytes handed on the moment they arrive.

httpx's own transport wakes a task and passes four generators for every chunk, which is most of a load
client's work (0.12 ms of 0.13 ms a token) and shows as latency with many streams. This one calls a function
in the event loop's own callback instead, and wakes a task once, at the end of the answer: what it does at
the head would fall, where many streams begin together, on the others' first tokens. What a request may carry
in ``extensions``:

* ``sink``: called with (bytes of the body, moment) for a 200; the response's own body is then empty.
* ``sent``: called with the moment at which the whole request had been handed to the socket.

Moments are ``time.perf_counter()``. Errors are those of httpx. No redirects, proxies, keep-alive or HTTP/2.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any, ClassVar, TypeVar, cast

import httpx

T = TypeVar("T")
Sink = Callable[[bytes, float], None]

_HEAD_LIMIT = 64 * 1024
_BODY_KEPT = 16 * 1024 * 1024
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: [^\r\n]*)?\Z")
_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;[^\r\n]*)?\Z")


@lru_cache(maxsize=4096)
def _plain_size(text: bytes) -> int:
    """Return the size of a chunk with something in it; -1 for whatever needs a closer look."""
    return int(text, 16) or -1 if text.isalnum() and _SIZE.match(text) else -1


class ResponseReader:
    """One HTTP/1.1 response out of bytes, however they are cut. Raise ValueError for what is not one."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: list[tuple[bytes, bytes]] = []
        self.done = False
        self._rest = b""
        self._left: int | None = None  # of the body or the chunk; None: until the connection ends
        self._chunked = False
        self._state: Callable[[list[bytes]], bool] = self._head
        self._between = False  # two chunks, with nothing left over

    def feed(self, data: bytes) -> bytes:
        """Take in what arrived; return the bytes of the body that it held."""
        if self._between:  # the usual case: one whole chunk
            line = data.find(b"\r\n", 0, 10)
            if line > 0 and _plain_size(data[:line]) == len(data) - line - 4 and data.endswith(b"\r\n"):
                return data[line + 2 : -2]
        self._rest += data
        body: list[bytes] = []
        while self._state(body):
            pass
        self._between = self._state == self._size and not self._rest
        return body[0] if len(body) == 1 else b"".join(body)

    def end(self) -> None:
        """Take in that the connection has ended. Raise ValueError if more was to come."""
        if self.status is None:
            raise ValueError("the server closed the connection without sending a response")
        if not self.done and (self._chunked or self._left is not None):
            raise ValueError("the server closed the connection without sending the whole body")
        self.done = True

    def _head(self, _body: list[bytes]) -> bool:
        end = _HEAD_END.search(self._rest)
        if not end:
            if len(self._rest) > _HEAD_LIMIT:
                raise ValueError("a head without an end")
            if not b"HTTP/1.".startswith(self._rest[:7]):
                raise ValueError(f"not an HTTP/1.1 response: {self._rest[:40]!r}")
            return False
        first, *lines = re.split(rb"\r?\n", self._rest[: end.start()])
        self._rest = self._rest[end.end() :]
        status = _STATUS.match(first)
        if not status:
            raise ValueError(f"not an HTTP/1.1 response: {first[:40]!r}")
        code = int(status[1])
        if 100 <= code < 200:
            if code == 101:
                raise ValueError("the server wants to speak another protocol")
            return True
        for line in lines:
            name, colon, value = line.partition(b":")
            if not colon or not name or name != name.strip():
                raise ValueError(f"not a header: {line[:40]!r}")
            self.headers.append((name, value.strip()))
        self._framing(code)
        self.status = code
        return True

    def _framing(self, code: int) -> None:
        """How the body ends."""
        values: dict[bytes, list[bytes]] = {}
        for name, value in self.headers:
            values.setdefault(name.lower(), []).append(value)
        self._state = self._counted
        if code in (204, 304):
            self._left = 0
        elif b"transfer-encoding" in values:
            coding = b",".join(values[b"transfer-encoding"]).lower()
            if coding != b"chunked":
                raise ValueError(f"a transfer coding that was not requested: {coding[:40]!r}")
            self._chunked, self._state = True, self._size
        elif b"content-length" in values:
            lengths = set(values[b"content-length"])
            text = lengths.pop()
            if lengths or not re.fullmatch(rb"[0-9]{1,18}", text):
                raise ValueError(f"not a length: {text[:40]!r}")
            self._left = int(text)

    def _counted(self, body: list[bytes]) -> bool:
        piece = self._rest if self._left is None else self._rest[: self._left]
        self._rest = self._rest[len(piece) :]
        if piece:
            body.append(piece)
        if self._left is not None:
            self._left -= len(piece)
            if not self._left:
                self._over()
        return False

    def _line(self) -> bytes | None:
        line, end, rest = self._rest.partition(b"\n")
        if not end:
            if len(line) > _HEAD_LIMIT:
                raise ValueError("a line without an end")
            return None
        self._rest = rest
        return line[:-1] if line[-1:] == b"\r" else line

    def _size(self, _body: list[bytes]) -> bool:
        line = self._line()
        if line is None:
            return False
        size = _SIZE.match(line)
        if not size:
            raise ValueError(f"not the size of a chunk: {line[:40]!r}")
        self._left = int(size[1], 16)
        self._state = self._chunk if self._left else self._trailer
        return True

    def _chunk(self, body: list[bytes]) -> bool:
        assert self._left is not None
        piece, self._rest = self._rest[: self._left], self._rest[self._left :]
        if piece:
            body.append(piece)
        self._left -= len(piece)
        if self._left:
            return False
        self._state = self._after_chunk
        return True

    def _after_chunk(self, _body: list[bytes]) -> bool:
        line = self._line()
        if line is None:
            return False
        if line:
            raise ValueError(f"a chunk longer than it says: {line[:40]!r}")
        self._state = self._size
        return True

    def _trailer(self, _body: list[bytes]) -> bool:
        line = self._line()
        if line is None:
            return False
        if not line:
            self._over()
            return False
        return True

    def _over(self) -> None:
        self.done = True
        self._state = lambda _body: False


class _Exchange(asyncio.BufferedProtocol):
    """One request and its answer on a connection of their own."""

    buffer = memoryview(bytearray(64 * 1024))  # emptied in the callback that fills it: one serves all

    def __init__(self, loop: asyncio.AbstractEventLoop, sink: Sink | None) -> None:
        self.reader = ResponseReader()
        self.sink = sink
        self.failure: Exception | None = None
        self.kept: list[bytes] = []
        self.size = 0
        self.over: asyncio.Future[None] = loop.create_future()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> Any:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        now = time.perf_counter()
        reader = self.reader
        try:
            body = reader.feed(bytes(self.buffer[:nbytes]))
        except ValueError as error:
            self.fail(httpx.RemoteProtocolError(str(error)))
            return
        if body:
            if self.sink is not None and reader.status == 200:
                try:
                    self.sink(body, now)
                except Exception as error:  # the reader of the events decides what becomes of the request
                    self.fail(error)
                    return
            else:
                self.keep(body)
        if reader.done:
            self.finish()

    def keep(self, body: bytes) -> None:
        self.kept.append(body)
        self.size += len(body)
        if self.size > _BODY_KEPT:
            self.fail(httpx.RemoteProtocolError("an endless answer"))

    def eof_received(self) -> None:
        try:
            self.reader.end()
        except ValueError as error:
            self.fail(httpx.RemoteProtocolError(str(error)))
        else:
            self.finish()

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(httpx.ReadError(str(exc or "the connection broke")))

    def fail(self, error: Exception) -> None:
        """The first failure counts, and only before the end."""
        if not self.over.done():
            self.failure = error
            self.finish()

    def finish(self) -> None:
        if not self.over.done():
            self.over.set_result(None)
        if self.transport is not None:
            self.transport.abort()

    async def wait(self, patience: float | None) -> None:
        if patience is None:
            await self.over
        elif not (await asyncio.wait({self.over}, timeout=patience))[0]:
            raise httpx.ReadTimeout("no answer in time")
        if self.failure is not None:
            raise self.failure


class Transport(httpx.AsyncBaseTransport):
    """See the module. ``tls`` is used for https; names are resolved once in a process."""

    _addresses: ClassVar[dict[tuple[str, int], list[Any]]] = {}

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._tls = tls

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send it; the response is there once all of it has arrived, within the time-out for reading."""
        loop = asyncio.get_running_loop()
        patience = request.extensions.get("timeout") or {}
        secure = request.url.scheme == "https"
        if secure and self._tls is None:
            raise httpx.UnsupportedProtocol("https without a TLS context")
        exchange = _Exchange(loop, request.extensions.get("sink"))
        host, port = request.url.host, request.url.port or (443 if secure else 80)
        wire = _wire(request)
        sock = await self._connect(loop, host, port, patience.get("connect"))
        try:
            if secure:
                connecting = loop.create_connection(lambda: exchange, sock=sock, ssl=self._tls, server_hostname=host)
                await _in_time(connecting, patience.get("connect"))
                assert exchange.transport is not None
                exchange.transport.write(wire)
                _report_sent(request)
            else:
                await _send(loop, sock, wire)
                _report_sent(request)
                await loop.create_connection(lambda: exchange, sock=sock)
            await exchange.wait(patience.get("read"))
        except BaseException as error:
            exchange.finish()
            if exchange.transport is None:
                sock.close()
            if isinstance(error, OSError):
                kind = httpx.ConnectError if secure else httpx.WriteError
                raise kind(str(error)) from error
            raise
        return httpx.Response(
            exchange.reader.status or 0,
            headers=exchange.reader.headers,
            content=b"".join(exchange.kept),
        )

    async def _connect(
        self, loop: asyncio.AbstractEventLoop, host: str, port: int, patience: float | None
    ) -> socket.socket:
        problem: OSError = OSError(f"no address for {host}")
        try:
            if (host, port) not in self._addresses:
                infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                self._addresses[host, port] = [(family, address) for family, _, _, _, address in infos]
        except OSError as error:
            raise httpx.ConnectError(f"{host}: {error}") from error
        for place in list(self._addresses[host, port]):
            family, address = place
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                # On loopback the handshake is over within the first call, and the second shows it (0): no turn of
                # the loop, in which other streams would send first, lies between meaning to send and sending.
                if sock.connect_ex(address) and sock.connect_ex(address):
                    await _in_time(loop.sock_connect(sock, address), patience)
            except OSError as error:
                problem = error
                sock.close()
                continue
            except BaseException:
                sock.close()
                raise
            self._addresses[host, port] = [place]
            return sock
        raise httpx.ConnectError(str(problem))


def _wire(request: httpx.Request) -> bytes:
    head = b"".join(b"%s: %s\r\n" % pair for pair in request.headers.raw)
    return b"%s %s HTTP/1.1\r\n%s\r\n" % (request.method.encode(), request.url.raw_path, head) + request.content


async def _send(loop: asyncio.AbstractEventLoop, sock: socket.socket, wire: bytes) -> None:
    """At once where the socket takes it, as it does but for very long prompts."""
    try:
        taken = sock.send(wire)
    except (BlockingIOError, InterruptedError):
        taken = 0
    if taken < len(wire):
        await loop.sock_sendall(sock, wire[taken:])


def _report_sent(request: httpx.Request) -> None:
    sent = request.extensions.get("sent")
    if sent is not None:
        sent(time.perf_counter())


async def _in_time(work: Awaitable[T], patience: float | None) -> T:
    try:
        return await asyncio.wait_for(work, patience)
    except asyncio.TimeoutError:  # noqa: UP041 (another one before Python 3.11)
        raise httpx.ConnectTimeout("no connection in time") from None
