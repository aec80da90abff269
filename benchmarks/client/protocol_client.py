"""The least that a client in Python can do: an asyncio.Protocol by hand. What the others are measured against.

    python protocol_client.py URL STREAMS WAVES TOKENS [PROMPT_WORDS]

One process, one connection a request; no framing of chunks, no time limits, no errors that are told apart, nothing
counted that a gate would need. It takes the moment, finds the events, reads their JSON. The result is one JSON
document on stdout: ``{"ttft_s": [...], "itl_s": [[...], ...], "tokens": n, "failed": n}``.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from urllib.parse import urlsplit

_DONE = b"data: [DONE]"


class Exchange(asyncio.Protocol):
    """One request and its answer."""

    def __init__(self, wire: bytes, over: asyncio.Future[None]) -> None:
        self.wire, self.over = wire, over
        self.rest = b""
        self.sent = 0.0
        self.stamps: list[float] = []
        self.tokens: int | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.sent = time.perf_counter()
        transport.write(self.wire)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        *events, self.rest = (self.rest + data).split(b"\n\n")
        for event in events:
            at = event.find(b"data: {")
            if at >= 0:
                found = json.loads(event[at + 6 :])
                if found["choices"]:
                    self.stamps.append(now)
                elif found["usage"]:
                    self.tokens = found["usage"]["completion_tokens"]
            elif _DONE in event:
                self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(None)


def request(path: str, netloc: str, tokens: int, words: int, number: int) -> bytes:
    """One request as it goes on the wire."""
    body = json.dumps(
        {
            "model": "mock",
            "prompt": f"{number} " + "word " * words,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    head = (
        f"POST {path}/v1/completions HTTP/1.1\r\nHost: {netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


async def measure(url: str, streams: int, waves: int, tokens: int, words: int) -> list[Exchange]:
    """All requests: ``streams`` at a time, each stream one after another."""
    place = urlsplit(url)
    loop = asyncio.get_running_loop()
    ready = [request(place.path, place.netloc, tokens, words, i) for i in range(streams * waves)]
    found: list[Exchange] = []

    async def stream(first: int) -> None:
        for wave in range(waves):
            over = loop.create_future()
            exchange = Exchange(ready[first + wave * streams], over)
            found.append(exchange)
            await loop.create_connection(lambda: exchange, place.hostname or "", place.port or 80)  # noqa: B023
            await over

    gc.disable()
    await asyncio.gather(*(stream(first) for first in range(streams)))
    return found


def main() -> None:
    """The script."""
    url, *numbers = sys.argv[1:]
    streams, waves, tokens, words = (*map(int, numbers), 128)[:4]
    try:
        import uvloop  # type: ignore[import-not-found]
    except ImportError:
        loop = asyncio.new_event_loop()
    else:
        loop = uvloop.new_event_loop()
    found = loop.run_until_complete(measure(url, streams, waves, tokens, words))
    whole = [one for one in found if one.tokens == tokens]
    result = {
        "ttft_s": [one.stamps[0] - one.sent for one in whole],
        "itl_s": [[b - a for a, b in zip(one.stamps, one.stamps[1:], strict=False)] for one in whole],
        "tokens": sum(one.tokens or 0 for one in whole),
        "failed": len(found) - len(whole),
    }
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
