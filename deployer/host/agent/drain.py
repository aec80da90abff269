"""Requests of a server that is being stopped: who keeps new ones out, which end in time, and which are cut off."""

from __future__ import annotations

import contextlib
import signal
from typing import Optional

from deployer.draining import COUNT_TIMEOUT, cannot_refuse
from deployer.metrics import requests_in_flight
from deployer.reach import reachable

from .base import Call, Fail, Json
from .lease import Session
from .machine import Machine
from .service import Service

MARGIN = 2.0  # seconds before systemd would kill it, within which what is left is cut off
NOTICE = 5.0  # seconds for a server to stop listening; a second signal before that would be lost


def counted(machine: Machine, address: str, port: int) -> Optional[int]:
    """Running and queued requests as the server counts them; None if it does not report them, or wants a key."""

    def get(path: str) -> str:
        with contextlib.suppress(Fail):
            answer = machine.http(address, port, path, COUNT_TIMEOUT)
            return str(answer["body"]) if answer["status"] == 200 else ""
        return ""

    return requests_in_flight(get)


class Drain:
    """The requests of one server, from before its stop to their end.

    A server that can refuse new requests (`deployer.draining`) does so from its stop on. The requests under way then
    have ``seconds`` to end, and are cut off after that. Any other server keeps taking new ones, so deployer waits for
    it before its stop.
    """

    def __init__(self, session: Session, call: Call, service: Service, port: int, seconds: float) -> None:
        self.session, self.call, self.service, self.port = session, call, service, port
        self.machine = session.machine
        self.seconds, self.begun = seconds, self.machine.boottime()
        sockets = service.listeners(port)
        self.bound: Optional[str] = min(item["address"] for item in sockets) if sockets else None
        state = service.state()
        process = self.machine.process(state["MainPID"]) if sockets else None
        self.main: int = state["MainPID"]
        #: Whether somebody stops it already, whose drain goes on.
        self.under_way = state["ActiveState"] == "deactivating" and not sockets
        self.refuses = process is not None and not cannot_refuse(process["argv"], process["environment"])
        self.told = self.shut = self.deaf = self.cut = False
        self.inflight = self.ask()
        self.left = 0
        self.aborted = 0

    def ask(self) -> Optional[int]:
        """How many requests the server counts; None if it does not say."""
        return counted(self.machine, reachable(self.bound), self.port) if self.bound else None

    def connections(self) -> int:
        """Connections of clients. Of a server that refuses new requests each is one under way."""
        return self.machine.connections(self.port, self.bound) if self.bound else 0

    def wait_until_idle(self) -> None:
        """Give the requests of a server that goes on taking new ones time to end."""
        while not self.refuses and self.inflight and self.machine.boottime() < self.begun + self.seconds:
            self.call.emit({"stage": "draining", "inflight": self.inflight, "pids": self.service.pids()})
            self.call.sleep(min(1.0, max(0.0, self.begun + self.seconds - self.machine.boottime())))
            self.inflight = self.ask()

    def refuse(self) -> None:
        """Have it refuse new requests, under the lock and when systemd has begun to stop it. An idle one just ends."""
        self.left = self.connections()
        if self.refuses and (self.inflight or self.left):
            self.seconds = min(self.seconds, self.limit())
            self.begun = self.machine.boottime()
            self.machine.kill(self.main, signal.SIGINT)
            self.told = True

    def limit(self) -> float:
        """Seconds after which systemd would kill it."""
        shown: Json = {}
        with contextlib.suppress(Fail):
            shown = self.machine.properties(self.service.unit, "Service")
        return max(0.0, float(shown.get("TimeoutStopUSec") or 2**64) / 1e6 - MARGIN)

    def look(self, listening: bool) -> bool:
        """Whether requests are still under way that have time. When it is over, what is left is cut off, once."""
        if not self.told or self.cut:
            return False
        self.left, spent = self.connections(), self.machine.boottime() - self.begun
        self.deaf = listening and spent > NOTICE
        if listening and spent < max(self.seconds, NOTICE):
            return True
        if not listening and not self.shut:
            self.shut = True
            self.inflight = max(self.inflight or 0, self.left)
        if not self.left or spent < self.seconds:
            return bool(self.left)
        self.cut, self.aborted = True, self.left
        self.call.emit({"stage": "aborting", "inflight": self.left})
        with self.session.holding():
            self.machine.kill(self.main, signal.SIGINT)
        return False

    def killed(self) -> None:
        """What is under way now is cut off by a kill."""
        self.aborted = max(self.aborted, self.connections() if self.told or self.inflight else 0)

    def result(self) -> Json:
        inflight = max(self.inflight or 0, self.aborted) if self.aborted else self.inflight
        # One that ended before it could be looked at again had stopped listening, too.
        return {"inflight": inflight, "aborted": self.aborted, "refused": self.told and not self.deaf}
