"""The transport over real sockets: when its caller is told what."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import httpx
import pytest

from deployer.bench.load.transport import Transport

OK = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\n"
PIECES = [OK, b"3\r\none\r\n", b"3\r\ntwo\r\n", b"0\r\n\r\n"]


def ask(pieces: list[bytes], *, patience: float | None = None, sink: bool = True) -> tuple[httpx.Response, list[Any]]:
    """The answer of a server that sends these pieces one by one, and what happened in which order."""
    order: list[Any] = []

    async def main() -> httpx.Response:
        served = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                await reader.readuntil(b"\r\n\r\n")
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.02)
            with contextlib.suppress(ConnectionError):
                writer.close()
                await writer.wait_closed()
            served.set()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        extensions: dict[str, Any] = {"timeout": {"read": patience}, "sent": lambda _: order.append("sent")}
        if sink:
            extensions["sink"] = lambda data, _: order.append(data)
        request = httpx.Request("POST", f"http://127.0.0.1:{port}/", content=b"x", extensions=extensions)
        async with server:
            try:
                answer = await Transport(None).handle_async_request(request)
                order.append("answer")
            finally:
                await served.wait()
        return answer

    return asyncio.run(main()), order


def test_a_task_is_woken_once_at_the_end_of_the_answer() -> None:
    answer, order = ask(PIECES)
    assert order == ["sent", b"one", b"two", "answer"]
    assert (answer.status_code, answer.content) == (200, b"")


def test_without_a_sink_the_body_is_in_the_answer() -> None:
    answer, order = ask(PIECES, sink=False)
    assert (answer.content, order) == (b"onetwo", ["sent", "answer"])


def test_the_body_of_a_refusal_is_no_event() -> None:
    answer, order = ask([NOT_FOUND + b"gone"])
    assert (answer.status_code, answer.content, order) == (404, b"gone", ["sent", "answer"])


def test_an_answer_that_breaks_off_is_an_error() -> None:
    with pytest.raises(httpx.RemoteProtocolError, match="without sending the whole body"):
        ask(PIECES[:2])


def test_patience_ends() -> None:
    with pytest.raises(httpx.ReadTimeout):
        ask([*PIECES[:2], *[b"1\r\nx\r\n"] * 50], patience=0.1)
