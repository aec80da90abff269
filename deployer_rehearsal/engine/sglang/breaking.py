"""Answers that break: the faults http-error, broken-stream and bad-counters."""

from __future__ import annotations

import asyncio
import json
import math
import re
import socket
import struct
from typing import Any

from .engine import Engine
from .faults import Fault
from .web import Exchange, HttpError

#: The answer of a proxy in front of the server, with status 200.
PAGE = b"<html><body><h1>Sign in</h1><p>Your session has ended.</p></body></html>\n"
GARBAGE = b'data: {"choices": [{"te\xff\xfe\n\n'
NO_TEXT = b"\x00\xff\xfe{]"
NUMBERS = {"nan": math.nan, "negative": -5.0, "huge": 1e300, "infinite": math.inf}
_FOR_EVER = 1e6


async def break_answer(engine: Engine, exchange: Exchange) -> bool:
    """Answer a generation instead of the server and return True, or arrange for its stream to break."""
    engine.asked += engine.status == "Up"
    error = engine.faults.get("http-error")
    if error and due(error, engine.asked):
        status = int(error.options.get("status", 500))
        text = "Internal server error" if status == 500 else f"status {status} on request"
        raise HttpError(status, {"object": "error", "message": text, "type": "InternalServerError", "code": status})
    broken = engine.faults.get("broken-stream")
    if not (broken and due(broken, engine.asked) and exchange.json().get("stream")):
        return False
    how = broken.options.get("how", "reset")
    if how == "page":
        exchange.start("text/html")
        exchange.chunk(PAGE)
        exchange.finish()
        return True
    exchange.breaking = Break(str(how), int(broken.options.get("tokens", 3)))
    return False


def due(fault: Fault, number: int) -> bool:
    """Whether a fault applies to the ``number``-th generation: from ``at`` on, one in ``every``."""
    first = int(fault.options.get("at", 1))
    return number >= first and (number - first) % int(fault.options.get("every", 1)) == 0


class Break:
    """Breaks a stream after so many pieces: see `deployer_rehearsal.engine.sglang.web.Exchange.breaking`."""

    def __init__(self, how: str, pieces: int) -> None:
        self.how = how
        self.left = pieces

    def __call__(self, exchange: Exchange, data: bytes) -> bytes:
        """Return what is sent instead of a piece; end the connection if that is the fault."""
        self.left -= 1
        if self.left >= 0:
            return data
        if self.how == "garbage":
            return GARBAGE if self.left == -1 else data
        if self.how == "stall":
            exchange.stalled = True
        elif self.how == "reset":
            peer = exchange.writer.get_extra_info("socket")
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            exchange.writer.transport.abort()
        else:
            exchange.writer.close()
        return b""


async def break_counters(engine: Engine, endpoint: str, answer: Any) -> Any:
    """Return /v1/loads (a dictionary) or /metrics (text) as under the fault bad-counters."""
    fault = engine.faults.get("bad-counters")
    if fault is None or fault.options.get("endpoint", endpoint) != endpoint:
        return answer
    how = str(fault.options.get("how", "missing"))
    if how == "missing":
        raise HttpError(404, {"detail": "Not Found"})
    if how == "hang":
        await asyncio.sleep(_FOR_EVER)
    if how == "garbage":
        return NO_TEXT
    number = NUMBERS[how]
    if isinstance(answer, str):
        text = {"nan": "NaN", "infinite": "+Inf"}.get(how, f"{number}")
        return re.sub(r"(?m)^(?!#)(.*) \S+$", rf"\g<1> {text}", answer)
    return json.dumps(_with_number(answer, number))


def _with_number(value: Any, number: float) -> Any:
    if isinstance(value, dict):
        return {key: _with_number(item, number) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_number(item, number) for item in value]
    return number if isinstance(value, int | float) and not isinstance(value, bool) else value
