"""Connections of the stand-in server."""

from __future__ import annotations

import asyncio
from typing import Any

from deployer_rehearsal.engine.sglang.web import Connections, Exchange


class Closed(asyncio.Transport):
    """A connection whose client is gone already."""

    def is_closing(self) -> bool:
        return True

    def close(self) -> None:
        pass


async def answer(exchange: Exchange) -> None:
    exchange.send(200, "")


def test_a_connection_accepted_as_the_server_ends_is_no_error() -> None:
    complaints: list[dict[str, Any]] = []

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        accept = Connections(answer, print).accept
        protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader(), accept)
        # It runs in the loop's last turn: its task is cancelled before it begins.
        loop.call_soon(protocol.connection_made, Closed())

    asyncio.run(serve())
    assert not complaints
