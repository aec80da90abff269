"""Operations that follow something: watch (a start, by three witnesses), journal, run."""

from __future__ import annotations

import contextlib
import math
import os
import pwd
import queue
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from .base import (
    BOOT_ID,
    CHILD_ENV,
    TRANSITION,
    Call,
    Fail,
    Json,
    boottime,
    checked,
    read_intact,
    read_text,
    transition_path,
    unit_name,
)
from .lease import Session
from .procs import gpu_memory, listeners, process_stat, unit_pids
from .reading import http_exchange
from .registry import operation
from .systemd import entry_time, is_up, journal_end, journal_entries, journal_lines, unit_state

HEALTH_TIMEOUT = 25.0  # /health of a busy server answers after up to 20 s
UNIT_INTERVAL = 0.2
PROC_INTERVAL = 1.0
LAST_WORDS = 5.0  # after a unit has failed: how long the journal may take to deliver its last lines
LAST_WORDS_BLIND = 0.8  # how long they are waited for where journald does not say whether there are more
Item = Tuple[str, Any]


class Witnesses:
    """Threads that look at one start and put what they see into one queue."""

    def __init__(self, call: Call, args: Json) -> None:
        self.call, self.args = call, args
        self.unit = unit_name(args["service"])
        self.port, self.address = int(args["port"]), args.get("address") or "127.0.0.1"
        self.addresses = ["0.0.0.0", "::"] + [
            str(found[4][0]) for found in socket.getaddrinfo(self.address, None)
        ]
        self.started = start_time(args)
        self.delivered = 0  # when the newest line was written that is in `seen` (microseconds)
        self.seen: queue.SimpleQueue[Item] = queue.SimpleQueue()
        for witness in (self.log, self.unit_changes, self.health, self.processes):
            threading.Thread(target=self.guarded, args=(witness,), daemon=True).start()

    def guarded(self, witness: Callable[[], None]) -> None:
        """A witness that fails once (systemctl timed out, say) goes on; the others never notice."""
        while not self.call.ended.is_set():
            with contextlib.suppress(Fail, OSError, ValueError, IndexError):
                witness()
            self.call.ended.wait(0.2)

    def at(self) -> float:
        return round(boottime() - self.started, 3)

    def log(self) -> None:
        offset = time.time() - boottime() + self.started
        cursor = self.args.get("cursor") or ""
        options = (
            ["--follow", f"--after-cursor={cursor}"] if cursor else ["--follow", f"--since=@{offset - 1:.0f}"]
        )
        for entry in journal_entries(
            self.call, self.unit, [*options, "--no-tail"] if not cursor else options
        ):
            self.args["cursor"] = entry.get("__CURSOR") or cursor  # where to go on should journalctl die
            for line in journal_lines(entry):
                self.seen.put(("log", dict(line, t=round(line["t"] - offset, 3))))
            self.delivered = entry_time(entry)

    def unit_changes(self) -> None:
        last: Optional[Json] = None
        while not self.call.ended.is_set():
            state = unit_state(self.unit)
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
            self.call.ended.wait(UNIT_INTERVAL)

    def owner(self) -> Tuple[bool, Optional[Json]]:
        """Whether our unit answers on the port, and else who does (None: nobody, any more)."""
        pids = unit_pids(self.unit)
        here = [item for item in listeners(self.port, pids) if item["address"] in self.addresses]
        ours = [item for item in here if item["pid"] in pids]
        return bool(ours), None if ours or not here else here[0]

    def health(self) -> None:
        path, last = self.args.get("health_path") or "/health", ""
        interval = float(self.args.get("probe_interval") or 1.0)
        while not self.call.ended.is_set():
            begun = time.monotonic()
            ours = False
            try:
                state = str(http_exchange(self.address, self.port, path, HEALTH_TIMEOUT)["status"])
            except Fail as failure:
                state = failure.detail["state"]
            seconds = time.monotonic() - begun
            if state != "refused":
                ours, stranger = self.owner()
                if stranger:
                    time.sleep(UNIT_INTERVAL)
                    ours, stranger = self.owner()  # twice: a socket may just have changed hands
                if stranger:
                    self.seen.put(("stranger", stranger))
            if state != last or state == "200":
                event = {
                    "kind": "health",
                    "t": self.at(),
                    "state": state,
                    "seconds": round(seconds, 3),
                    "ours": ours,
                }
                self.seen.put(("health", event))
                last = state
            self.call.ended.wait(0.25 if state == "refused" else interval)

    def processes(self) -> None:
        seen: Dict[int, Tuple[int, float]] = {}
        page, ticks = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
        while not self.call.ended.is_set():
            begun, pids, rss = time.monotonic(), unit_pids(self.unit), 0
            for pid in pids:
                fields = process_stat(pid)
                if len(fields) > 21:
                    found = re.search(r"^read_bytes: (\d+)", read_text(f"/proc/{pid}/io") or "", re.M)
                    cpu = (int(fields[11]) + int(fields[12])) / ticks
                    seen[pid] = (int(found.group(1)) if found else 0, cpu)
                    rss += int(fields[21]) * page
            event = {
                "kind": "proc",
                "t": self.at(),
                "rss": rss,
                "read_bytes": sum(read for read, _ in seen.values()),
                "cpu_seconds": round(sum(cpu for _, cpu in seen.values()), 2),
                "pids": len(pids),
                "gpu_memory": gpu_memory(pids),
            }
            self.seen.put(("proc", event))
            self.call.ended.wait(max(0.1, PROC_INTERVAL - (time.monotonic() - begun)))


def start_time(args: Json) -> float:
    """When the start was asked for (CLOCK_BOOTTIME): as told, as the transition says, or as systemd remembers."""
    if args.get("attach"):
        return boottime()
    if args.get("started_boottime"):
        return float(args["started_boottime"])
    transition = read_intact(transition_path(args["service"]), TRANSITION) or {}
    if transition.get("boot_id") == BOOT_ID and transition.get("invocation_id") == args.get("invocation_id"):
        return float(transition.get("started_boottime") or boottime())
    left = unit_state(unit_name(args["service"]))["InactiveExitTimestamp"]
    return boottime() - (time.time() - left) if left else boottime()


class Watch:
    """Judges what the witnesses see: passes it on, and ends with the first proof of failure."""

    def __init__(self, call: Call, args: Json) -> None:
        self.call = call
        self.fatal = [re.compile(pattern) for pattern in args.get("fatal") or []]
        self.invocation: Optional[str] = args.get("invocation_id")
        self.restarts: Optional[int] = None
        self.witnesses = Witnesses(call, args)

    def run(self) -> Json:
        try:
            while True:
                proof = self.judge(self.take(0.1))
                if proof:
                    if proof["proof"] in ("unit", "restart", "vanished"):
                        self.last_words()
                    self.call.emit(dict(proof, kind="failed", t=self.witnesses.at()))
                    return proof
        finally:
            self.call.end()

    def last_words(self) -> None:
        """Pass on what a failed unit has said to its end: for an error, that is what matters most."""
        end: float
        try:
            end, patience = journal_end(self.witnesses.unit), LAST_WORDS
        except (Fail, ValueError):
            end, patience = math.inf, LAST_WORDS_BLIND
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            items = self.take(0.05)
            self.judge(items)
            if not items and self.witnesses.delivered >= end:
                return

    def take(self, seconds: float) -> List[Item]:
        """What arrives within ``seconds``; at once what is there, if a log line or a state is among it."""
        items: List[Item] = []
        deadline = time.monotonic() + seconds
        while len(items) < 1000:
            try:
                items.append(self.witnesses.seen.get(timeout=max(0.001, deadline - time.monotonic())))
            except queue.Empty:
                break
        self.call.check()
        return items

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
    return Watch(call, dict(args)).run()


@operation("journal")
def journal(session: Session, args: Json, call: Call) -> Json:
    unit, options = unit_name(args["service"]), []
    if args.get("cursor"):
        options.append(f"--after-cursor={args['cursor']}")
    if args.get("since") is not None:
        options.append(f"--since=@{float(args['since']):.6f}")
    if args.get("lines") is not None:
        options.append(f"--lines={int(args['lines'])}")
    elif args.get("follow"):
        options.append("--no-tail")
    if args.get("follow"):
        options.append("--follow")
    matches = None
    if args.get("invocation_id"):
        invocation = args["invocation_id"]
        matches = [f"_SYSTEMD_INVOCATION_ID={invocation}", "+", f"INVOCATION_ID={invocation}", "_PID=1"]
    if args.get("kernel"):
        matches = ["_TRANSPORT=kernel"]
    for entry in journal_entries(call, unit, options, matches):
        for line in journal_lines(entry):
            call.emit(line)
    call.check()
    return {}


def private_folder(files: Json) -> str:
    """A new folder with these files: in the usual place or, where that is full, in memory."""
    trouble: Optional[OSError] = None
    for place in (None, "/dev/shm", "/run"):
        folder = None
        try:
            folder = tempfile.mkdtemp(prefix="deployer-run-", dir=place)
            for name, text in files.items():
                with open(os.path.join(folder, checked(name, "file")), "w", encoding="utf-8") as file:
                    file.write(text)
            return folder
        except OSError as error:
            trouble = trouble or error
            if folder:
                shutil.rmtree(folder, ignore_errors=True)
    raise Fail("no-space", "there is no room for temporary files: %s" % trouble)


@operation("run")
def run(session: Session, args: Json, call: Call) -> Json:
    """Run a program on the host, its standard output line by line. No shell is involved."""
    folder = private_folder(args.get("files") or {})
    argv, env = list(args["argv"]), dict(CHILD_ENV)
    try:
        if args.get("user"):
            account = pwd.getpwnam(args["user"])
            for path in [folder] + [os.path.join(folder, name) for name in os.listdir(folder)]:
                os.chown(path, account.pw_uid, account.pw_gid)
            env.update(HOME=account.pw_dir, USER=account.pw_name, LOGNAME=account.pw_name)
            argv = [
                "setpriv",
                f"--reuid={account.pw_uid}",
                f"--regid={account.pw_gid}",
                "--init-groups",
                "--",
                *argv,
            ]
        env.update(args.get("env") or {})
        return run_child(
            call, argv, env, folder, args.get("stdin") or "", float(args.get("timeout") or 3600.0)
        )
    except KeyError as error:
        raise Fail("no-user", f"the host has no account {args.get('user')}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_child(
    call: Call, argv: List[str], env: Dict[str, str], folder: str, stdin: str, timeout: float
) -> Json:
    try:
        child = call.spawn(argv, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=folder)
    except OSError as error:
        raise Fail("command", f"{argv[0]} cannot be run: {error.strerror}", argv=argv) from error
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    tail: List[bytes] = []

    def feed() -> None:
        with contextlib.suppress(OSError), child.stdin as pipe:  # type: ignore[union-attr]
            pipe.write(stdin.encode("utf-8"))

    def collect() -> None:
        for line in child.stderr:  # type: ignore[union-attr]
            tail.append(line)
            del tail[:-200]

    late = threading.Timer(timeout, call.end)
    helpers = [threading.Thread(target=feed, daemon=True), threading.Thread(target=collect, daemon=True)]
    for thread in [*helpers, late]:
        thread.daemon = True
        thread.start()
    try:
        for line in child.stdout:
            call.emit({"line": line.decode("utf-8", "replace").rstrip("\r\n")})
        status = child.wait()
        for thread in helpers:
            thread.join(2.0)
    finally:
        late.cancel()
        timed_out = call.ended.is_set() and not call.cancelled
        call.end()
    call.check()
    text = b"".join(tail).decode("utf-8", "replace")[-8192:]
    if timed_out:
        raise Fail("timeout", f"{argv[0]} took longer than {timeout:g} s", stderr=text)
    return {"status": status, "stderr": text}
