"""The agent's ways to run: channel (the default), guard, recover, assess, notify."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from importlib import import_module
from typing import IO, Any, ClassVar, Dict, Iterable, List, Optional

from . import greet  # noqa: F401  for its operations, which register themselves
from .base import AUDITED, OPERATIONS, Call, Fail, Json, Operation
from .lease import Session, audit
from .machine import Machine

LONG = ("unit.stop", "unit.exclude", "converge")  # audited when they begin, too
EXIT_ABANDONED = 3
EXIT_NOT_ROOT = 13
TIDYING = 2.0  # seconds that programs of `run` have to end, and the folders that were made for them to go
#: The modules of the operations that are not there at once, in the order in which they are searched: they are compiled
#: when one is needed.
LATER = ("look", "releases", "transition", "stop", "converge", "watch", "run", "gauges", "notify")
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def all_operations(wanted: Optional[str] = None) -> Dict[str, Operation]:
    """All operations, or as many as it takes to find the one that is wanted."""
    for name in LATER:
        if wanted in OPERATIONS:
            break
        import_module("." + name, __package__)
    return OPERATIONS


def trace() -> str:
    """The traceback of the error at hand."""
    import traceback  # here, because most agents need none

    return traceback.format_exc()


def perform(function: Operation, session: Session, call: Call, op: str, args: Json) -> Json:
    """Run one operation; failures of any kind come out as Fail."""
    result = "ok"
    try:
        if op in LONG:
            audit(session, op, args, "begun")
        return function(session, args, call)
    except Fail as failure:
        result = failure.code
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        result = "bad-request"
        raise Fail(result, f"{op}: {type(error).__name__}: {error}", traceback=trace()) from error
    except OSError as error:
        result = "os-error"
        raise Fail(result, f"{op}: {error}", errno=error.errno, path=error.filename) from error
    finally:
        if op in AUDITED:
            audit(session, op, args, result)


class Channel:
    """The conversation with one operator: a thread for each request, whole lines out."""

    operations: ClassVar[Dict[str, Operation]] = OPERATIONS
    new_call = Call

    def __init__(self, machine: Machine, output: IO[bytes]) -> None:
        self.session = Session(machine)
        self.calls: Dict[Any, Call] = {}
        self.running: Dict[Any, threading.Thread] = {}  # programs, for the operation `run`
        self.output, self.lock = output, threading.Lock()

    def send(self, message: Json) -> None:
        line = json.dumps(message, ensure_ascii=True, separators=(",", ":")).encode("ascii") + b"\n"
        with self.lock:
            self.output.write(line)
            self.output.flush()

    def answer(self, call: Call, request: Json) -> None:
        op = request.get("op")
        try:
            if op not in self.operations and op not in all_operations(op):
                raise Fail("unknown-op", f"this agent has no operation {op!r}")
            args = request.get("args") or {}
            reply = {"id": call.id, "ok": perform(self.operations[op], self.session, call, op, args)}
        except Fail as failure:
            reply = {"id": call.id, "error": failure.as_json()}
        except Exception as error:
            detail = {"traceback": trace()}
            reply = {"id": call.id, "error": {"code": "internal", "message": repr(error), "detail": detail}}
        call.end()
        self.calls.pop(call.id, None)
        self.running.pop(call.id, None)
        try:
            self.send(reply)
        except OSError:
            pass  # the operator is gone; the end of our input shows it too

    def converse(self, lines: Iterable[bytes]) -> str:
        """Take requests up to the last; return what becomes of the lease: ``released`` or ``abandoned``."""
        try:
            for line in lines:
                message = json.loads(line)
                if message.get("op") == "bye":
                    return "released"
                if "cancel" in message:
                    call = self.calls.get(message["cancel"])
                    if call:
                        call.cancel()
                    continue
                call = self.calls[message.get("id")] = self.new_call(self.send, message.get("id"))
                thread = threading.Thread(target=self.answer, args=(call, message), daemon=True)
                if message.get("op") == "run":
                    self.running[call.id] = thread
                thread.start()
        except (OSError, EOFError, ValueError):
            pass  # whatever broke the conversation, its end is the same
        return "abandoned"

    def leave(self, state: str) -> None:
        """End what is under way and the lease, if it is held."""
        for call in list(self.calls.values()):
            call.cancel()
        if self.session.generation is not None:
            audit(self.session, "lease.end", {"service": self.session.service}, state)
            self.session.finish(state)
        until = time.monotonic() + TIDYING
        for thread in list(self.running.values()):
            thread.join(max(0.0, until - time.monotonic()))


def interrupted(signum: int, frame: Any) -> None:
    raise EOFError


def main(argv: List[str]) -> int:
    machine = Machine()
    if os.geteuid() != 0 and machine.state_dir == "/var/lib/deployer":
        print("deployer: the agent must run as root", file=sys.stderr)
        return EXIT_NOT_ROOT
    if len(argv) == 2 and argv[0] in ("guard", "recover", "assess"):
        from .assess import assess
        from .guard import guard, recover

        # Stopped in the middle, it gives its lease back and says so.
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
        return {"guard": guard, "recover": recover, "assess": assess}[argv[0]](machine, argv[1])
    if len(argv) == 2 and argv[0] == "notify":
        from .notify import deliver

        return deliver(machine, argv[1])
    channel = Channel(machine, sys.stdout.buffer)
    for signum in SIGNALS:
        signal.signal(signum, interrupted)
    state = channel.converse(sys.stdin.buffer)
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    channel.leave(state)
    sys.stdout.flush()
    # Threads of cancelled requests may still wait for a child or a socket.
    os._exit(0 if state == "released" else EXIT_ABANDONED)
