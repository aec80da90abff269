"""The operator's end of the channel: requests out, answers and events in, over any two-way byte pipe."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import queue
import threading
import time
import zlib
from collections import deque
from types import TracebackType
from typing import Protocol, Self

from deployer.errors import AgentError, AuthenticationFailed, ChannelLost, HostError
from deployer.host import agent
from deployer.records.codec import Json

READY = b"READY\n"
#: The remedy for a full disk of the host.
FULL = "free some space on the host's disk (`df -h`, `df -i`), then run the command again"
EXIT_NOT_ROOT = 13
MINIMUM_PYTHON = "3.8"

#: The agent needs the standard library alone: no site-packages, and nothing that the environment sets for Python.
FLAGS = ("-I", "-S")
#: Runs on the host: prints READY, then reads the agent's packed length and text from stdin and runs it. It stands
#: between single quotes in whatever shell the account has, so it has no such quote, no backslash and no exclamation
#: mark.
BOOTSTRAP = (
    "import sys, zlib; "
    'sys.version_info < (3, 8) and sys.exit("deployer: needs Python 3.8 or later, this is " + sys.version.split()[0]); '
    'sys.stdout.write("READY" + chr(10)); sys.stdout.flush(); '
    "b = sys.stdin.buffer; c = zlib.decompress(b.read(int(b.readline()))); "
    'exec(compile(c, "deployer-agent", "exec"), {"__name__": "__main__", "SOURCE": c})'
)


class Pipe(Protocol):
    """Bytes to and from the agent's process."""

    def send(self, data: bytes) -> None:
        """Write all of it. Raise OSError if that is no longer possible."""

    def recv(self) -> bytes:
        """Wait for bytes and return them; none at the end."""

    def close(self) -> None:
        """End both directions. It never raises and may be called again."""

    def ending(self, wait: float = 0.0) -> tuple[int | None, str]:
        """Return the exit status (None: unknown) and the end of stderr, after at most ``wait`` seconds."""


def begin_agent(pipe: Pipe, name: str, *, python: str, timeout: float) -> bytes:
    """Wait for the bootstrap's READY, then send the agent. Return what arrived beyond READY (normally nothing).

    ``python`` is the host's setting of that name. Raise HostError if no agent can run there, ChannelLost if the
    connection breaks.
    """
    seen = await_ready(pipe, timeout)
    if READY not in seen:
        status, stderr = pipe.ending(2.0)
        pipe.close()
        raise not_ready(name, python, status, stderr or seen.decode("utf-8", "replace"))
    source = zlib.compress(agent.source(), 1)  # a third of it: a slow line is where it tells
    try:
        pipe.send(b"%d\n" % len(source) + source)
    except OSError as error:
        raise ChannelLost(f"{name}: the connection broke while the agent was sent: {error}") from error
    return seen.partition(READY)[2]


def await_ready(pipe: Pipe, timeout: float) -> bytes:
    """Return everything up to READY, or to the end. Close the pipe if neither comes within ``timeout`` seconds."""
    seen = b""
    timer = threading.Timer(timeout, pipe.close)
    timer.daemon = True
    timer.start()
    try:
        while READY not in seen and len(seen) < 1 << 20:  # a login shell may print something first
            data = pipe.recv()
            if not data:
                break
            seen += data
    except OSError:
        pass  # the same as an end
    finally:
        timer.cancel()
    return seen


def not_ready(name: str, python: str, status: int | None, output: str) -> HostError:
    """Return why there is no agent, from what its bootstrap printed when ``python`` was to run it."""
    last = output.strip().splitlines()[-1] if output.strip() else "no output"
    if "needs Python" in output or "SyntaxError" in output:
        return HostError(
            f"{name}: the host's Python is too old: {last}",
            remedy=f'set `python = ".../python3"` of the host in the inventory to Python {MINIMUM_PYTHON} or later',
        )
    ended = "no answer in time" if status is None else f"exit status {status}"
    return HostError(
        f"{name}: the host's Python (`python` in the inventory: {python}) did not start: {ended}: {last}",
        remedy=f"install python3 ({MINIMUM_PYTHON} or later) there, or set `python` of the host in the inventory to "
        f"one that is; `{python} -c 'print(1)'` on the host must print 1 and nothing else",
    )


class ChannelHost:
    """A `Host` that speaks the protocol over a pipe to a running agent."""

    def __init__(self, name: str, pipe: Pipe, first: bytes = b"") -> None:
        self._name = name
        self._pipe = pipe
        self._ids = itertools.count(1)
        self._sending = threading.Lock()
        self._waiting: dict[int, queue.SimpleQueue[Json | None]] = {}
        #: Requests that were sent before anybody called for their answers.
        self._begun: dict[str, tuple[int, queue.SimpleQueue[Json | None]]] = {}
        self._lost: str | None = None
        self._closed = False
        self._reader = threading.Thread(target=self._read, args=(first,), name=f"channel-{name}", daemon=True)
        self._reader.start()

    @property
    def name(self) -> str:
        return self._name

    def hello(self, timeout: float = 30.0) -> Json:
        """Make the first exchange. Raise AuthenticationFailed if the agent is not root."""
        try:
            answer = self.call("hello", {"quick": True}, timeout=timeout)
        except ChannelLost as error:
            status, stderr = self._pipe.ending(2.0)
            self.close(bye=False)
            if status == EXIT_NOT_ROOT:
                raise AuthenticationFailed(
                    f"{self._name}: deployer must be root on the host and is not",
                    remedy='log in as root, or allow sudo (`sudo = "auto"` in the inventory)',
                ) from error
            raise HostError(f"{self._name}: the agent ended at once: {stderr or error.message}") from error
        return answer

    def call(self, op: str, args: Json | None = None, *, timeout: float = 30.0) -> Json:
        begun = self._begun.pop(_spelt(op, args), None) if self._begun else None
        call_id, answers = begun or self._request(op, args)
        deadline = time.monotonic() + timeout
        try:
            while True:
                message = take(answers, max(0.0, deadline - time.monotonic()))
                if message is _NOTHING:
                    raise ChannelLost(
                        f"{self._name}: no answer to {op} within {timeout:g} s", detail={"timeout": timeout}
                    )
                if message is None:
                    raise self.lost_error()
                if "event" not in message:
                    return result_of(message)
        finally:
            self._waiting.pop(call_id, None)

    def begin(self, op: str, args: Json) -> None:
        """Send the request now; the next `call` of the same takes its answer."""
        call = self._request(op, args)
        self._begun[_spelt(op, args)] = call

    def stream(self, op: str, args: Json | None = None) -> ChannelStream:
        call_id, answers = self._request(op, args)
        return ChannelStream(self, call_id, answers)

    def close(self, *, bye: bool = True) -> None:
        if self._closed:
            return
        self._closed = True
        if bye and self._lost is None:
            with contextlib.suppress(ChannelLost):
                self._send({"op": "bye"})
                self._reader.join(5.0)  # the agent ends after it has given the lease back
        self._pipe.close()
        if threading.current_thread() is not self._reader:
            self._reader.join(5.0)

    def cancel(self, call_id: int) -> None:
        """Tell the host to stop an operation; nothing more of it is delivered."""
        if self._waiting.pop(call_id, None) is not None:
            with contextlib.suppress(ChannelLost):
                self._send({"cancel": call_id})

    def forget(self, call_id: int) -> None:
        self._waiting.pop(call_id, None)

    def _request(self, op: str, args: Json | None) -> tuple[int, queue.SimpleQueue[Json | None]]:
        call_id, answers = next(self._ids), queue.SimpleQueue[Json | None]()
        self._waiting[call_id] = answers
        if self._lost is not None:
            self._waiting.pop(call_id, None)
            raise self.lost_error()
        try:
            self._send({"id": call_id, "op": op, "args": args or {}})
        except ChannelLost:
            self._waiting.pop(call_id, None)
            raise
        return call_id, answers

    def _send(self, message: Json) -> None:
        line = json.dumps(message, ensure_ascii=True, separators=(",", ":")).encode("ascii") + b"\n"
        try:
            with self._sending:
                self._pipe.send(line)
        except OSError as error:
            raise ChannelLost(f"{self._name}: the connection broke: {error or type(error).__name__}") from error

    def _read(self, first: bytes) -> None:
        reason = "the host closed it"
        pending = first
        try:
            while True:
                *lines, pending = pending.split(b"\n")
                for line in lines:
                    message = json.loads(line)
                    answers = self._waiting.get(message.get("id"))
                    if answers is not None:
                        answers.put(message)
                data = self._pipe.recv()
                if not data:
                    break
                pending += data
        except OSError as error:
            reason = str(error) or type(error).__name__
        except ValueError:
            reason = "something that is not the protocol arrived"
        self._lost = reason
        for answers in list(self._waiting.values()):
            answers.put(None)

    def lost_error(self) -> ChannelLost:
        """Return why nothing can be sent or received any more."""
        if self._closed:
            return ChannelLost(f"{self._name}: the connection was closed")
        stderr = self._pipe.ending()[1].strip()
        tail = f" ({stderr.splitlines()[-1]})" if stderr else ""
        return ChannelLost(f"{self._name}: the connection broke: {self._lost or 'no answer'}{tail}")


_NOTHING: Json = {}


def take(answers: queue.SimpleQueue[Json | None], timeout: float | None) -> Json | None:
    """Return the next message, None at the channel's end, _NOTHING after ``timeout`` seconds."""
    try:
        return answers.get(timeout=timeout)
    except queue.Empty:
        return _NOTHING


def _spelt(op: str, args: Json | None) -> str:
    return json.dumps([op, args or {}], sort_keys=True)


def disk_is_full(code: str, detail: Json) -> bool:
    """Return whether an error of the agent says that the host's disk is full."""
    return code == "no-space" or detail.get("errno") in (errno.ENOSPC, errno.EDQUOT)


def result_of(message: Json) -> Json:
    """Return the answer in a final message. Raise AgentError if it is an error."""
    if "error" in message:
        error = message["error"]
        detail = error.get("detail") or {}
        remedy = FULL if disk_is_full(error["code"], detail) else None
        raise AgentError(error["code"], error["message"], detail=detail, remedy=remedy)
    answer: Json = message["ok"]
    return answer


class ChannelStream:
    """Events of one operation under way."""

    def __init__(self, host: ChannelHost, call_id: int, answers: queue.SimpleQueue[Json | None]) -> None:
        self._host, self._id, self._answers = host, call_id, answers
        self._result: Json | None = None
        self._ended = False

    def next(self, timeout: float | None = None) -> Json | None:
        if self._ended:
            raise StopIteration
        message = take(self._answers, timeout)
        if message is _NOTHING:
            return None
        if message is None:
            self._end()
            raise self._host.lost_error()
        if "event" in message:
            event: Json = message["event"]
            return event
        self._end()
        self._result = result_of(message)
        raise StopIteration

    @property
    def result(self) -> Json:
        if self._result is None:
            raise RuntimeError("the operation has not ended with an answer")
        return self._result

    def cancel(self) -> None:
        if not self._ended:
            self._ended = True
            self._host.cancel(self._id)

    def _end(self) -> None:
        self._ended = True
        self._host.forget(self._id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()


class Tail:
    """The last lines of a stream, collected from another thread."""

    def __init__(self, limit: int = 16384) -> None:
        self._pieces: deque[bytes] = deque()
        self._size, self._limit, self.last = 0, limit, 0.0

    def add(self, data: bytes) -> None:
        self._pieces.append(data)
        self._size += len(data)
        self.last = time.monotonic()
        while self._size > self._limit and len(self._pieces) > 1:
            self._size -= len(self._pieces.popleft())

    def text(self) -> str:
        return b"".join(self._pieces).decode("utf-8", "replace")
