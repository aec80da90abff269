"""Stop a service so that nothing of it is left: processes, sockets, GPU memory."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import List, Optional, Set, Tuple

from deployer.metrics import in_flight, parse_loads, totals

from .base import Call, Fail, Json, boottime, systemctl, unit_name
from .lease import Session
from .procs import describe, gpu_processes, listeners, process_stat, unit_pids
from .reading import http_exchange
from .registry import operation
from .systemd import is_down, unit_state

POLL = 0.25
GONE_WAIT = 60.0  # after the last process has been killed: for it, its sockets and its GPU memory to go


def reachable(address: str) -> str:
    """The address to call for a socket that listens on ``address``."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)


def own_listeners(port: int, pids: List[int]) -> List[Json]:
    return [item for item in listeners(port, pids) if item["pid"] in pids]


def requests_in_flight(address: str, port: int) -> Optional[int]:
    """Running and queued requests as the server counts them; None where it does not tell."""

    def get(path: str) -> str:
        answer = http_exchange(address, port, path, 3.0)
        return str(answer["body"]) if answer["status"] == 200 else ""

    with contextlib.suppress(Fail):  # an older server, or one that wants a key: ask its metrics
        loads = parse_loads(get("/v1/loads"))
        if loads is not None:
            return in_flight(loads)
    try:
        counts = totals(get("/metrics"))
    except Fail:
        return None
    gauges = [counts[name] for name in ("num_running_reqs", "num_queue_reqs") if name in counts]
    return int(sum(gauges)) if gauges else None


class Remains:
    """What of a service is still there. Sockets and GPU memory count as long as processes we saw once held them."""

    def __init__(self, unit: str, port: int) -> None:
        self.unit, self.port = unit, port
        self.pids = unit_pids(unit)
        self.ever: Set[int] = set(self.pids)
        self.sockets: Set[Tuple[str, int]] = {
            (item["address"], port) for item in own_listeners(port, self.pids)
        }

    def look(self) -> None:
        self.pids = unit_pids(self.unit)
        self.ever.update(self.pids)
        # One that was still starting may have begun to listen only now.
        self.sockets |= {(item["address"], self.port) for item in own_listeners(self.port, self.pids)}

    def listening(self) -> List[Json]:
        return [
            item for item in listeners(self.port, self.pids) if (item["address"], self.port) in self.sockets
        ]

    def holding_gpus(self) -> List[Json]:
        try:
            return [item for item in gpu_processes() or [] if item["pid"] in self.ever]
        except Fail:
            return []  # what nvidia-smi does not tell must not keep a server from being stopped

    def detail(self) -> Json:
        shown = [dict(describe(pid), state=(process_stat(pid) or ["?"])[0]) for pid in self.pids]
        return {
            "pids": shown,
            "uninterruptible": [item for item in shown if item["state"] == "D"],
            "listeners": self.listening(),
            "gpu_processes": self.holding_gpus(),
        }


def drain(call: Call, remains: Remains, seconds: float) -> Optional[int]:
    """Give requests in flight time to end; returns how many there were at the end, None if unknown."""
    if not remains.sockets:
        return None
    address, port = reachable(sorted(remains.sockets)[0][0]), remains.port
    deadline = boottime() + seconds
    inflight = requests_in_flight(address, port)
    while inflight and boottime() < deadline:
        call.emit({"stage": "draining", "inflight": inflight, "pids": remains.pids})
        call.sleep(min(1.0, max(0.0, deadline - boottime())))
        inflight = requests_in_flight(address, port)
    return inflight


def stop_unit(
    session: Session, call: Call, service: str, port: int, drain_for: float, patience: float
) -> Json:
    """Drain, stop, after ``patience`` seconds kill, and wait until it is really gone. Raises Fail("not-gone")."""
    unit, begun = unit_name(service), boottime()
    remains = Remains(unit, port)
    inflight = drain(call, remains, drain_for)
    with session.holding():
        systemctl("stop", "--no-block", unit, check=False)
    deadline, killed, shown = boottime() + patience, False, 0.0
    while True:
        remains.look()
        down = is_down(unit_state(unit))
        if down and not remains.pids:
            break
        if boottime() > deadline:
            if killed:
                raise Fail("not-gone", f"processes of {unit} do not end even when killed", **remains.detail())
            killed, deadline = True, boottime() + GONE_WAIT
            call.emit({"stage": "killing", "pids": remains.pids})
        if killed:
            with session.holding():
                kill_all(unit)
        elif boottime() > shown + 1.0:
            shown = boottime()
            call.emit(
                {
                    "stage": "stopping",
                    "inflight": inflight,
                    "pids": remains.pids,
                    "port": bool(remains.sockets),
                }
            )
        call.sleep(POLL)
    await_released(call, remains)
    with session.holding():
        systemctl("reset-failed", unit, check=False)
    return {"seconds": boottime() - begun, "inflight": inflight, "killed": killed}


def kill_all(unit: str) -> None:
    for pid in unit_pids(unit):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # gone by itself, which is what we want


def await_released(call: Call, remains: Remains) -> None:
    deadline = boottime() + GONE_WAIT
    while True:
        sockets, holders = remains.listening(), remains.holding_gpus()
        if not sockets and not holders:
            return
        if boottime() > deadline:
            what = "its port" if sockets else "its GPU memory"
            raise Fail("not-gone", f"{remains.unit} has ended, but {what} is still held", **remains.detail())
        memory = sum(item["memory"] or 0 for item in holders)
        call.emit({"stage": "waiting", "pids": remains.pids, "port": bool(sockets), "gpu_memory": memory})
        call.sleep(1.0)


@operation("unit.stop", audited=True)
def unit_stop(session: Session, args: Json, call: Call) -> Json:
    return stop_unit(
        session,
        call,
        args["service"],
        int(args["port"]),
        float(args.get("drain") or 0.0),
        float(args.get("stop_timeout") or 120.0),
    )
