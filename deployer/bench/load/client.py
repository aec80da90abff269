"""The load client: measures a server's streaming completions. A script and a module.

As a script (``python client.py``, with the other files of `deployer.bench.load.spec.FILES` beside it) it reads a
JSON spec from stdin, the API key from ``DEPLOYER_BENCH_API_KEY``, and writes JSON lines to stdout: progress, and last
``{"event": "result", "bench": {...}}``. It needs httpx and Python 3.9. Exit status: 0 measured (whatever
the result), 2 the spec is wrong, 130 interrupted (the result then says what was cut).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

if not __package__:  # on the host the files lie side by side; by this they are the package that they were
    here = os.path.dirname(os.path.abspath(__file__))
    for name in ("deployer", "deployer.bench", "deployer.bench.load"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [here]
    sys.modules["deployer"].__path__ += [os.path.join(here, "..", "..")]
    # httpx's own command line, with click and rich, takes a third of its import; httpx does without it.
    sys.modules["httpx._main"] = None  # type: ignore[assignment]

from deployer.bench.load.run import Run
from deployer.bench.load.spec import API_KEY_VARIABLE, Spec
from deployer.bench.load.workers import work

Json = dict[str, Any]
Emit = Callable[[Json], None]
T = TypeVar("T")


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
    """One JSON line to stdout."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def main() -> int:
    """The script: spec on stdin, JSON lines on stdout. ``--worker``: one more process of a run under way."""
    key = os.environ.pop(API_KEY_VARIABLE, None)
    if sys.argv[1:] == ["--worker"]:
        with contextlib.suppress(BrokenPipeError):
            _run_in_loop(work(emit_line, key))
        return 0
    try:
        spec = Spec.from_json(json.load(sys.stdin))
    except (ValueError, TypeError) as error:
        print(f"client.py: the spec is wrong: {error}", file=sys.stderr)
        return 2
    bench = run(spec, emit_line, key)
    try:
        emit_line({"event": "result", "bench": bench})
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter complains at its exit
        return 1
    return 130 if bench["interrupted"] else 0


if __name__ == "__main__":
    sys.exit(main())
