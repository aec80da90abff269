"""Whether a server refuses new requests while those in flight end.

By SGLang's sources the eight versions whose flags are known (0.4.6.post5 to 0.5.23) are alike in this:

* SIGTERM (``srt/managers/tokenizer_manager.py``, ``sigterm_watchdog``) makes ``/health`` answer 503 (0.4.6.post5: 200
  still), waits without a limit until no request is left, looks every 5 s, and goes on taking new ones: nothing else
  reads ``gracefully_exit``. Under steady traffic it never ends.
* SIGINT is left to uvicorn (``srt/entrypoints/http_server.py``, ``uvicorn.run`` or ``uvicorn.Server``), which stops
  listening, closes idle connections, waits for the answers under way, and leaves them at a second SIGINT. Then
  ``launch_server.py`` kills the schedulers.
* ``/pause_generation`` (from 0.5.2) aborts the requests in flight, or (``in_place``, ``retract``, from 0.5.9) halts
  them too, and holds new ones back without an answer. ``/abort_request`` takes ``abort_all`` from 0.5.2. Both want
  the key of a server that has one. ``/flush_cache`` is refused while requests run. ``SGL_FORCE_SHUTDOWN`` (from 0.5.2)
  only skips the waiting.

So SIGINT beside SIGTERM drains, unless uvicorn does not serve or does so in processes of its own. This module travels
to the host with the agent, so it imports nothing of deployer and keeps to Python 3.8 and its standard library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

#: Seconds that a server has to say how many requests are in flight.
COUNT_TIMEOUT = 3.0


def cannot_refuse(argv: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return why a server with this command line cannot refuse new requests while it drains; empty if it can."""
    if not any("sglang" in word for word in argv[:4]):
        return "it is not a server of SGLang's"
    workers = _value(argv, "--tokenizer-worker-num")
    if workers not in ("", "1"):
        return f"it has {workers} HTTP workers (--tokenizer-worker-num)"
    if "--enable-http2" in argv:
        return "its HTTP/2 server (--enable-http2) has no way to do so"
    if environment.get("SGLANG_RUST_SERVER", "0").lower() in ("1", "true"):
        return "its HTTP server in Rust (SGLANG_RUST_SERVER) has no way to do so"
    return ""


def _value(argv: Sequence[str], flag: str) -> str:
    """Return the value of a flag, empty if it is not given."""
    given = ""
    for at, word in enumerate(argv):
        if word == flag:
            given = "".join(argv[at + 1 : at + 2])
        elif word.startswith(flag + "="):
            given = word[len(flag) + 1 :]
    return given
