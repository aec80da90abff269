"""Stop a service so that nothing of it is left: processes, strays among them, sockets, GPU memory."""

from __future__ import annotations

import signal
from typing import List, Set

from .base import Call, Fail, Json, operation
from .drain import Drain
from .gpus import gpu_processes
from .lease import Session
from .machine import is_down
from .service import Service
from .strays import recorded, remember, strays

POLL = 0.25
GONE_WAIT = 60.0  # seconds after the last process was killed: for it, its sockets and its GPU memory to go
STOP_TIMEOUT = 120.0  # seconds until it is killed, if the caller does not say


class Remains:
    """What of a service is still there. Sockets and GPU memory count as long as processes we saw once held them."""

    def __init__(self, service: Service, port: int) -> None:
        self.service, self.machine, self.port = service, service.machine, port
        self.pids: List[int] = []
        self.ever: Set[int] = set()
        self.addresses: Set[str] = set()
        self.outside = [item["pid"] for item in strays(service, port)]
        self.look()

    def strays(self) -> List[int]:
        """Those outside the unit that still live."""
        return sorted(set(self.outside).intersection(recorded(self.service))) if self.outside else []

    def look(self) -> None:
        inside = self.service.pids()
        remember(self.service, inside)
        self.pids = sorted({*inside, *self.strays()})
        self.ever.update(self.pids)
        # One that was still starting may have begun to listen only now.
        sockets = self.machine.listeners(self.port, self.pids) if self.port else []
        self.addresses.update(item["address"] for item in sockets if item["pid"] in self.ever)

    def listening(self) -> List[Json]:
        sockets = self.machine.listeners(self.port, self.pids) if self.port else []
        return [item for item in sockets if item["address"] in self.addresses]

    def holding_gpus(self) -> List[Json]:
        try:
            return [item for item in gpu_processes(self.machine) or [] if item["pid"] in self.ever]
        except Fail:
            return []  # an nvidia-smi that does not answer must not keep a server from being stopped

    def detail(self) -> Json:
        stat = self.machine.process_stat
        shown = [dict(self.machine.describe(pid), state=(stat(pid) or ["?"])[0]) for pid in self.pids]
        return {
            "pids": shown,
            "uninterruptible": [item for item in shown if item["state"] == "D"],
            "listeners": self.listening(),
            "gpu_processes": self.holding_gpus(),
        }


def stop_service(session: Session, call: Call, service: Service, port: int, drain_for: float, patience: float) -> Json:
    """Stop a service, and wait until it is really gone.

    Its requests have ``drain_for`` seconds to end. After ``patience`` more it is killed. Raise Fail ``not-gone``.
    """
    machine, unit, begun = session.machine, service.unit, session.machine.boottime()
    remains = Remains(service, port)
    drain = Drain(session, call, service, port, drain_for)
    drain.wait_until_idle()
    with session.holding():
        machine.systemctl("stop", "--no-block", unit, check=False)
        drain.refuse()
        for pid in remains.strays():
            machine.kill(pid, signal.SIGTERM)
    deadline = machine.boottime() + patience + (drain_for if drain.under_way else 0.0)
    killed, shown = False, 0.0
    while True:
        remains.look()
        if is_down(service.state()) and not remains.pids:
            break
        now = machine.boottime()
        draining = not killed and drain.look(bool(remains.listening()))
        if draining:
            deadline = now + patience
        if now > deadline:
            if killed:
                raise Fail("not-gone", f"processes of {unit} do not end even when killed", **remains.detail())
            drain.killed()
            killed, deadline = True, now + GONE_WAIT
            call.emit({"stage": "killing", "pids": remains.pids})
        if killed:
            with session.holding():
                for pid in {*service.pids(), *remains.strays()}:
                    machine.kill(pid)
        elif now > shown + 1.0:
            shown, port_taken = now, bool(remains.addresses)
            stage, inflight = ("draining", drain.left) if draining else ("stopping", drain.inflight)
            call.emit({"stage": stage, "inflight": inflight, "pids": remains.pids, "port": port_taken})
        call.sleep(POLL)
    await_released(call, remains)
    with session.holding():
        machine.systemctl("reset-failed", unit, check=False)
    return dict(drain.result(), seconds=machine.boottime() - begun, killed=killed)


def await_released(call: Call, remains: Remains) -> None:
    deadline = remains.machine.boottime() + GONE_WAIT
    while True:
        sockets, holders = remains.listening(), remains.holding_gpus()
        if not sockets and not holders:
            return
        if remains.machine.boottime() > deadline:
            what = "its port" if sockets else "its GPU memory"
            text = f"{remains.service.unit} has ended, but {what} is still in use"
            raise Fail("not-gone", text, **remains.detail())
        memory = sum(item["memory"] or 0 for item in holders)
        call.emit({"stage": "waiting", "pids": remains.pids, "port": bool(sockets), "gpu_memory": memory})
        call.sleep(1.0)


@operation("unit.stop", audited=True)
def unit_stop(session: Session, args: Json, call: Call) -> Json:
    service, port = Service(session.machine, args["service"]), int(args["port"])
    patience = float(args.get("stop_timeout") or STOP_TIMEOUT)
    return stop_service(session, call, service, port, float(args.get("drain") or 0.0), patience)
