"""One request: the bytes of a streamed answer, parsed and timed."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx

from deployer.bench.load.stats import Request
from deployer.bench.load.transport import Transport

_EVENT_LIMIT = 4 * 1024 * 1024
_TEXT_KEPT = 4096
_DETAIL_KEPT = 300
_scan: Any = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
_MOST_TOKENS = 1 << 40


class EventSplitter:
    """Server-sent events out of a byte stream, however it is cut.

    ``feed`` returns the data of the events that the piece completed. Lines end in LF, CR or CRLF; comments
    and other fields are passed over; what follows the last blank line is not an event. An event above 4 MiB
    raises ValueError.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False
        self._first = True

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the data of each event completed by ``piece``, in order."""
        if piece.startswith(b"data: ") and piece.endswith(b"\n\n") and not (self._rest or self._data or self._after_cr):
            whole = piece[6:-2]  # the usual case: one whole event, or some
            if b"\r" not in whole:
                self._first = False
                if b"\n" not in whole:
                    return [whole]
                several = whole.split(b"\n\ndata: ")
                if not any(b"\n" in event for event in several):
                    return several
        if self._after_cr and piece:
            self._after_cr = False
            if piece[:1] == b"\n":
                piece = piece[1:]
        if not piece:
            return []
        events: list[bytes] = []
        lines = (self._rest + piece).splitlines(keepends=True)
        self._rest = b"" if lines[-1][-1:] in (b"\n", b"\r") else lines.pop()
        self._after_cr = not self._rest and lines[-1][-1:] == b"\r"
        for line in lines:
            self._line(line.rstrip(b"\r\n"), events)
        if self._size + len(self._rest) > _EVENT_LIMIT:
            raise ValueError(f"an event of more than {_EVENT_LIMIT} bytes")
        return events

    def _line(self, line: bytes, events: list[bytes]) -> None:
        if self._first:
            self._first = False
            if line[:3] == b"\xef\xbb\xbf":
                line = line[3:]
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
                self._data = []
                self._size = 0
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value[1:] if value[:1] == b" " else value)
            self._size += len(value)


def _parsed(text: str) -> Any:
    """Parse JSON without what json.loads does around the parser, a third of its time. Raise ValueError if not valid."""
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        end = -1
    return value if end == len(text) else json.loads(text)  # blanks around it, or an error with its place


def absorb(request: Request, data: bytes, now: float) -> None:
    """Take one event that arrived at ``now`` into the record. Raise ValueError if it is not what was promised."""
    request.end = now
    if data == b"[DONE]":
        return
    event = _parsed(data.decode())
    if not isinstance(event, dict):
        raise ValueError("an event that is not an object")
    if event.get("error"):
        request.kind = "error"
        request.detail = str(event["error"])[:_DETAIL_KEPT]
        return
    for choice in event.get("choices") or []:
        text = choice.get("text")
        if text:
            request.stamps.append(now)
            if len(request.text) < _TEXT_KEPT:
                request.text += text
    usage = event.get("usage")
    if usage:
        request.tokens = _count(usage["completion_tokens"])
        request.prompt_tokens = _count(usage.get("prompt_tokens") or 0)


def sound(text: str) -> str:
    """Return a server's text without halves of characters, which no file can hold."""
    return text.encode("utf-8", "replace").decode()


def _count(value: Any) -> int:
    """Return a number of tokens. Raise ValueError if it is not valid."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_TOKENS:
        raise ValueError(f"not a number of tokens: {str(value)[:40]}")
    return value


def conclude(request: Request) -> None:
    """Set the kind of a request whose stream ended properly."""
    request.text = sound(request.text)
    if request.kind == "error":
        return
    if request.end is None:  # a proxy's page, say: what answered was not a completions API
        request.kind, request.detail = "protocol", "an answer without a single event"
    elif request.tokens is None:
        request.kind, request.detail = "no-usage", "the stream ended without a usage count"
    elif not request.stamps:
        request.kind, request.detail = "empty", f"{request.tokens} tokens and no text"
    elif request.tokens < request.max_tokens:
        request.kind, request.detail = "short", f"{request.tokens} of {request.max_tokens} tokens"
    else:
        request.kind = None


async def perform(transport: Transport, ready: httpx.Request, request: Request) -> None:
    """Send one request and record what comes back. Never raises for what a server can do; never retries.

    Straight to the transport: what an httpx client does on the way (redirects, cookies, authentication) is
    nothing here, and a fifth of a request's work.
    """
    splitter = EventSplitter()

    def sink(data: bytes, now: float) -> None:
        for event in splitter.feed(data):
            absorb(request, event, now)

    def sent(now: float) -> None:
        request.sent = now

    ready.extensions = {**ready.extensions, "sink": sink, "sent": sent}
    request.intent = time.perf_counter()
    try:
        response = await transport.handle_async_request(ready)
        if response.status_code != 200:
            request.kind = f"http-{response.status_code}"
            request.detail = response.content[:_DETAIL_KEPT].decode("utf-8", "replace")
            return
        conclude(request)
    except httpx.TimeoutException as error:
        request.kind = "connect" if isinstance(error, httpx.ConnectTimeout) else "timeout"
        request.detail = type(error).__name__
    except httpx.ConnectError as error:
        request.kind, request.detail = "connect", str(error)
    except (httpx.NetworkError, httpx.RemoteProtocolError) as error:
        gone = not isinstance(error, httpx.RemoteProtocolError) or "without" in str(error)
        request.kind, request.detail = ("reset" if gone else "protocol"), str(error) or type(error).__name__
    except Exception as error:  # whatever a server may send that is not what was promised
        request.kind, request.detail = "protocol", f"{type(error).__name__}: {error}"
    finally:
        if request.end is None or not request.completed:
            request.end = time.perf_counter()
