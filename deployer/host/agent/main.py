"""The agent's three ways to run: channel (the default), guard, recover."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from typing import Any, Dict, List

# Imported for their operations, which register themselves.
from . import converge, leasing, reading, releases, stopping, transition, watching  # noqa: F401
from .base import STATE_DIR, Call, Fail, Json
from .guard import guard, recover
from .lease import Session, audit
from .registry import AUDITED, OPERATIONS

LONG = ("unit.stop", "converge")  # audited when they begin, too
EXIT_ABANDONED = 3
EXIT_NOT_ROOT = 13
TIDYING = 2.0  # seconds that programs which are run have to be gone, with the folders that were made for them


def perform(session: Session, call: Call, op: Any, args: Json) -> Json:
    """Run one operation; failures of any kind come out as Fail."""
    function = OPERATIONS.get(op)
    if function is None:
        raise Fail("unknown-op", f"this agent has no operation {op!r}")
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
        raise Fail(
            result, f"{op}: {type(error).__name__}: {error}", traceback=traceback.format_exc()
        ) from error
    except OSError as error:
        result = "os-error"
        raise Fail(result, f"{op}: {error}", errno=error.errno, path=error.filename) from error
    finally:
        if op in AUDITED:
            audit(session, op, args, result)


class Channel:
    """The conversation with one operator: a thread for each request, whole lines out."""

    def __init__(self) -> None:
        self.session = Session()
        self.calls: Dict[Any, Call] = {}
        self.running: Dict[Any, threading.Thread] = {}  # programs, for the operation `run`
        self.output, self.lock = sys.stdout.buffer, threading.Lock()

    def send(self, message: Json) -> None:
        line = json.dumps(message, ensure_ascii=True, separators=(",", ":")).encode("ascii") + b"\n"
        with self.lock:
            self.output.write(line)
            self.output.flush()

    def answer(self, call: Call, request: Json) -> None:
        try:
            reply = {
                "id": call.id,
                "ok": perform(self.session, call, request.get("op"), request.get("args") or {}),
            }
        except Fail as failure:
            reply = {"id": call.id, "error": failure.as_json()}
        except Exception as error:
            detail = {"traceback": traceback.format_exc()}
            reply = {"id": call.id, "error": {"code": "internal", "message": repr(error), "detail": detail}}
        call.end()
        self.calls.pop(call.id, None)
        self.running.pop(call.id, None)
        try:
            self.send(reply)
        except OSError:
            pass  # the operator is gone; the end of our input says so too

    def run(self) -> int:
        for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(signum, self.interrupted)
        try:
            for line in sys.stdin.buffer:
                message = json.loads(line)
                if message.get("op") == "bye":
                    return self.leave("released", 0)
                if "cancel" in message:
                    call = self.calls.get(message["cancel"])
                    if call:
                        call.cancel()
                    continue
                call = self.calls[message.get("id")] = Call(self.send, message.get("id"))
                thread = threading.Thread(target=self.answer, args=(call, message), daemon=True)
                if message.get("op") == "run":
                    self.running[call.id] = thread
                thread.start()
        except (OSError, EOFError, ValueError):
            pass  # whatever broke the conversation, its end is the same
        return self.leave("abandoned", EXIT_ABANDONED)

    @staticmethod
    def interrupted(signum: int, frame: Any) -> None:
        raise EOFError

    def leave(self, state: str, status: int) -> int:
        for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(signum, signal.SIG_IGN)
        for call in list(self.calls.values()):
            call.cancel()
        if self.session.generation is not None:
            audit(self.session, "lease.end", {"service": self.session.service}, state)
            self.session.finish(state)
        until = time.monotonic() + TIDYING
        for thread in list(self.running.values()):
            thread.join(max(0.0, until - time.monotonic()))
        return status


def main(argv: List[str]) -> int:
    if os.geteuid() != 0 and STATE_DIR == "/var/lib/deployer":
        print("deployer: the agent must run as root", file=sys.stderr)
        return EXIT_NOT_ROOT
    if len(argv) == 2 and argv[0] in ("guard", "recover"):
        return (guard if argv[0] == "guard" else recover)(argv[1])
    status = Channel().run()
    sys.stdout.flush()
    os._exit(status)  # threads of cancelled requests may still wait for a child or a socket
