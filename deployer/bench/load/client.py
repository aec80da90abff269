"""The load client: one run in an event loop of its own, in this process or as a program."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from deployer.bench.load.run import Run
from deployer.bench.load.spec import API_KEY_VARIABLE, Json, Spec
from deployer.bench.load.workers import work

Emit = Callable[[Json], None]
T = TypeVar("T")


def _new_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's loop if it is installed: half the client's work at high rates."""
    try:
        import uvloop  # type: ignore[import-not-found]
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def run(spec: Spec, emit: Emit, api_key: str | None = None) -> Json:
    """Measure and return the bench document; ``emit`` gets the progress events meanwhile.

    In the main thread SIGINT and SIGTERM stop it at once: what was under way is counted as ``cut``, ``interrupted`` has
    the signal, and nothing is raised.
    """
    return _run_in_loop(_run(spec, emit, api_key))


def _run_in_loop(what: Coroutine[Any, Any, T]) -> T:
    loop = _new_loop()
    try:
        return loop.run_until_complete(what)
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


def emit_line(event: Json) -> None:
    """Write one JSON line to stdout."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def worker() -> int:
    """Run as one more process of a run under way, until stdin ends."""
    with contextlib.suppress(BrokenPipeError):
        _run_in_loop(work(emit_line, os.environ.pop(API_KEY_VARIABLE, None)))
    return 0


def main() -> int:
    """Run the spec on stdin and return the exit status."""
    key = os.environ.pop(API_KEY_VARIABLE, None)
    try:
        spec = Spec.from_json(json.load(sys.stdin))
    except (ValueError, TypeError) as error:
        print(f"the load client's spec is invalid: {error}", file=sys.stderr)
        return 2
    bench = run(spec, emit_line, key)
    try:
        emit_line({"event": "result", "bench": bench})
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter complains at its exit
        return 1
    return 130 if bench["interrupted"] else 0
