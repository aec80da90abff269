"""What every module of the agent uses: failures, requests under way, checked names, the table of operations."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import signal
import subprocess
import threading
from typing import Any, Callable, Dict, List, Set

from . import source

Json = Dict[str, Any]

SCHEMA = 1
CHILD_ENV = dict(os.environ, LC_ALL="C", SYSTEMD_PAGER="", SYSTEMD_COLORS="0", SYSTEMD_LOG_LEVEL="notice")


class Fail(Exception):
    """An operation's refusal or failure: a code for programs, a message for people, details for both."""

    def __init__(self, code: str, message: str, **detail: Any) -> None:
        super().__init__(message)
        self.code, self.message, self.detail = code, message, detail

    def as_json(self) -> Json:
        return {"code": self.code, "message": self.message, "detail": self.detail}


class Call:
    """A request under way: where its events go, and whether it was cancelled."""

    def __init__(self, send: Callable[[Json], None], call_id: Any = None) -> None:
        self.send, self.id = send, call_id
        self.ended = threading.Event()
        self.cancelled = False
        self.children: List[subprocess.Popen[bytes]] = []

    def emit(self, event: Json) -> None:
        self.check()
        self.send({"id": self.id, "event": event})

    def check(self) -> None:
        if self.cancelled:
            raise Fail("cancelled", "cancelled by the operator")

    def pause(self, seconds: float) -> None:
        """Wait, but not beyond the end of the call."""
        self.ended.wait(seconds)

    def sleep(self, seconds: float) -> None:
        self.pause(seconds)
        self.check()

    def cancel(self) -> None:
        self.cancelled = True
        self.end()

    def end(self) -> None:
        """Stop what the call started: its threads see ``ended``, its child processes are killed."""
        self.ended.set()
        for child in self.children:
            if child.poll() is None:
                kill_group(child)

    def spawn(self, argv: List[str], **options: Any) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            argv, start_new_session=True, stdout=subprocess.PIPE, **dict({"env": CHILD_ENV}, **options)
        )
        self.children.append(child)
        if self.ended.is_set():
            self.end()
        return child


def kill_group(child: subprocess.Popen[bytes]) -> None:
    """Kill a program and its whole process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


#: Called with the session of the connection, the request's arguments and the call; returns the answer.
Operation = Callable[[Any, Json, Call], Json]
OPERATIONS: Dict[str, Operation] = {}
AUDITED: Set[str] = set()


def operation(name: str, audited: bool = False) -> Callable[[Operation], Operation]:
    """Register a function as an operation. ``audited``: it changes the host, so each call leaves a line."""

    def register(function: Operation) -> Operation:
        OPERATIONS[name] = function
        if audited:
            AUDITED.add(name)
        return function

    return register


def own_hash() -> str:
    return hashlib.sha256(source()).hexdigest()[:12]


def checked(value: Any, what: str) -> str:
    """Return a name that is safe as a file name and as a unit's instance. Raise Fail ``bad-request`` otherwise."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", value):
        raise Fail("bad-request", "%s %r is not a valid name" % (what, value))
    return value
