"""Operations that follow something: watch (a start, by three witnesses) and journal."""

from __future__ import annotations

import contextlib
import math
import queue
import re
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from deployer.reach import serves

from .base import Call, Fail, Json, operation
from .gpus import gpu_memory
from .lease import Session
from .machine import Machine, entry_time, is_up, journal_lines
from .service import Service

UNIT_INTERVAL = 0.2
PROC_INTERVAL = 1.0
BATCH = 0.1  # seconds for which events are collected before they are judged
MOST = 1000  # events that are judged together
LAST_WORDS = 5.0  # seconds that the journal has, after a unit has failed, to deliver its last lines
LAST_WORDS_BLIND = 0.8  # seconds to wait for them if journald does not say whether there are more
Item = Tuple[str, Any]


class Witnesses:
    """Threads that look at one start and put what they see into one queue."""

    def __init__(self, machine: Machine, call: Call, args: Json) -> None:
        self.machine, self.call, self.args = machine, call, args
        self.service = Service(machine, args["service"])
        self.port, self.address = int(args["port"]), args.get("address") or "127.0.0.1"
        self.addresses = machine.resolve(self.address)
        self.started = start_time(self.service, args)
        self.delivered = 0  # when the newest line in `seen` was written (microseconds)
        self.seen: queue.SimpleQueue[Item] = queue.SimpleQueue()
        for witness in (self.log, self.unit_changes, self.health, self.processes):
            threading.Thread(target=self.guarded, args=(witness,), daemon=True).start()

    def guarded(self, witness: Callable[[], None]) -> None:
        """A witness that fails once (systemctl timed out, say) goes on; the others never notice."""
        while not self.call.ended.is_set():
            with contextlib.suppress(Fail, OSError, ValueError, IndexError):
                witness()
            self.call.pause(0.2)

    def at(self) -> float:
        return round(self.machine.boottime() - self.started, 3)

    def log(self) -> None:
        offset = time.time() - self.machine.boottime() + self.started
        cursor = self.args.get("cursor") or ""
        since = None if cursor else math.floor(offset - 1)
        unit = self.service.unit
        for entry in self.machine.journal_entries(self.call, unit, cursor=cursor, since=since, follow=True):
            self.args["cursor"] = entry.get("__CURSOR") or cursor  # where to go on should journalctl die
            for line in journal_lines(entry):
                self.seen.put(("log", dict(line, t=round(line["t"] - offset, 3))))
            self.delivered = entry_time(entry)

    def unit_changes(self) -> None:
        last: Optional[Json] = None
        while not self.call.ended.is_set():
            state = self.service.state()
            shown = {
                "active": state["ActiveState"],
                "sub": state["SubState"],
                "result": state["Result"],
                "restarts": state["NRestarts"],
                "invocation_id": state["InvocationID"],
                "main_pid": state["MainPID"],
                "exec_code": state["ExecMainCode"],
                "exec_status": state["ExecMainStatus"],
            }
            if shown != last:
                self.seen.put(("unit", (dict(shown, kind="unit", t=self.at()), state)))
                last = shown
            self.call.pause(UNIT_INTERVAL)

    def owner(self) -> Tuple[bool, Optional[Json]]:
        """Whether our unit answers on the port, and who else does (None: nobody, any more)."""
        pids = self.service.pids()
        sockets = self.machine.listeners(self.port, pids)
        here = [item for item in sockets if any(serves(item["address"], name) for name in self.addresses)]
        ours = any(item["pid"] in pids for item in here)
        return ours, None if ours or not here else here[0]

    def health(self) -> None:
        path, last = self.args.get("health_path") or "/health", ""
        interval = float(self.args.get("probe_interval") or 1.0)
        while not self.call.ended.is_set():
            begun, ours = time.monotonic(), False
            try:
                state = str(self.machine.http(self.address, self.port, path)["status"])
            except Fail as failure:
                state = failure.detail["state"]
            seconds = round(time.monotonic() - begun, 3)
            if state != "refused":
                ours, stranger = self.owner()
                if stranger:
                    self.call.pause(UNIT_INTERVAL)
                    ours, stranger = self.owner()  # twice: a socket may just have changed hands
                if stranger:
                    self.seen.put(("stranger", stranger))
            if state != last or state == "200":
                event = {"kind": "health", "t": self.at(), "state": state, "seconds": seconds, "ours": ours}
                self.seen.put(("health", event))
                last = state
            self.call.pause(0.25 if state == "refused" else interval)

    def processes(self) -> None:
        used: Dict[int, Tuple[int, float]] = {}  # by every process there ever was
        while not self.call.ended.is_set():
            begun, pids, rss = time.monotonic(), self.service.pids(), 0
            for pid in pids:
                usage = self.machine.usage(pid)
                if usage:
                    used[pid] = usage[:2]
                    rss += usage[2]
            event = {
                "kind": "proc",
                "t": self.at(),
                "rss": rss,
                "read_bytes": sum(read for read, _ in used.values()),
                "cpu_seconds": round(sum(cpu for _, cpu in used.values()), 2),
                "pids": len(pids),
                "gpu_memory": gpu_memory(self.machine, pids),
            }
            self.seen.put(("proc", event))
            self.call.pause(max(0.1, PROC_INTERVAL - (time.monotonic() - begun)))


def start_time(service: Service, args: Json) -> float:
    """When the start was requested (CLOCK_BOOTTIME): from the arguments, the transition, or as systemd remembers."""
    now = service.machine.boottime()
    if args.get("attach"):
        return now
    if args.get("started_boottime"):
        return float(args["started_boottime"])
    transition = service.transition() or {}
    same_boot = transition.get("boot_id") == service.machine.boot_id
    if same_boot and transition.get("invocation_id") == args.get("invocation_id"):
        return float(transition.get("started_boottime") or now)
    left = service.state()["InactiveExitTimestamp"]
    return now - (time.time() - left) if left else now


class Watch:
    """Judges what the witnesses see: passes it on, and ends with the first proof of failure."""

    def __init__(self, machine: Machine, call: Call, args: Json) -> None:
        self.machine, self.call = machine, call
        self.fatal = [re.compile(pattern) for pattern in args.get("fatal") or []]
        self.invocation: Optional[str] = args.get("invocation_id")
        self.restarts: Optional[int] = None
        self.witnesses = Witnesses(machine, call, args)

    def run(self) -> Json:
        try:
            while True:
                proof = self.judge(self.take(BATCH))
                if proof:
                    if proof["proof"] in ("unit", "restart", "vanished"):
                        self.last_words()
                    self.call.emit(dict(proof, kind="failed", t=self.witnesses.at()))
                    return proof
        finally:
            self.call.end()

    def last_words(self) -> None:
        """Pass on all that a failed unit has logged: for an error, that is what matters most."""
        end: float
        try:
            end, patience = self.machine.journal_end(self.witnesses.service.unit), LAST_WORDS
        except (Fail, ValueError):
            end, patience = math.inf, LAST_WORDS_BLIND
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            delivered = self.witnesses.delivered
            items = self.take(0.05)
            self.judge(items)
            if not items and delivered >= end:
                return

    def take(self, seconds: float) -> List[Item]:
        """What arrives within ``seconds``, or what is there if that is much already."""
        events = self.witnesses.seen
        if events.qsize() < MOST:
            self.call.pause(seconds)
        self.call.check()
        return [events.get() for _ in range(min(MOST, events.qsize()))]

    def judge(self, items: List[Item]) -> Optional[Json]:
        lines = [item for kind, item in items if kind == "log"]
        if lines:
            self.call.emit({"kind": "log", "t": self.witnesses.at(), "lines": lines})
        proofs = [self.judge_line(line) for line in lines if line["source"] == "engine"]
        for kind, item in items:
            if kind == "unit":
                self.call.emit(item[0])
                proofs.append(self.judge_unit(item[1]))
            elif kind == "stranger":
                proofs.append({"proof": "not-ours", "detail": item})
            elif kind != "log":
                self.call.emit(item)
        return next((proof for proof in proofs if proof), None)

    def judge_line(self, line: Json) -> Optional[Json]:
        pattern = next((fatal for fatal in self.fatal if fatal.search(line["text"])), None)
        return {"proof": "fatal-line", "detail": dict(line, pattern=pattern.pattern)} if pattern else None

    def judge_unit(self, state: Json) -> Optional[Json]:
        self.invocation = self.invocation or state["InvocationID"]
        if self.restarts is None:  # counted since somebody started the unit, which may be long ago
            self.restarts = state["NRestarts"]
        if state["LoadState"] == "not-found" and not is_up(state):
            return {"proof": "vanished", "detail": state}
        if state["NRestarts"] > self.restarts or (state["InvocationID"] != self.invocation and is_up(state)):
            return {"proof": "restart", "detail": state}
        return None if is_up(state) else {"proof": "unit", "detail": state}


@operation("watch")
def watch(session: Session, args: Json, call: Call) -> Json:
    return Watch(session.machine, call, dict(args)).run()


@operation("journal")
def journal(session: Session, args: Json, call: Call) -> Json:
    entries = session.machine.journal_entries(
        call,
        Service(session.machine, args["service"]).unit,
        cursor=args.get("cursor") or "",
        since=None if args.get("since") is None else float(args["since"]),
        lines=None if args.get("lines") is None else int(args["lines"]),
        follow=bool(args.get("follow")),
        invocation=args.get("invocation_id") or "",
        kernel=bool(args.get("kernel")),
    )
    for entry in entries:
        for line in journal_lines(entry):
            call.emit(line)
    call.check()
    return {}
