"""A machine in memory for the real agent: systemd, processes, journal, servers and a clock, over a temporary folder."""

from __future__ import annotations

import copy
import itertools
import json
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deployer.host.agent.base import Call, Fail
from deployer.host.agent.files import read_text
from deployer.host.agent.machine import Machine
from deployer.host.agent.service import Service, unit_release
from deployer.records.codec import Json

Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Engine:
    """How a release's server behaves once started. Times are seconds after the start."""

    log: tuple[str, ...] = ()
    ready_after: float | None = 0.0
    """When it begins to listen; None: never."""
    fails_after: float | None = None
    """When its main process ends with status 1; None: it stays."""
    http: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Answers by path, besides 200 for /health."""
    argv: tuple[str, ...] = ()
    """Its command line; empty: the one of the release's manifest."""
    environment: dict[str, str] = field(default_factory=dict)
    """Its variables besides those of the release's manifest."""
    port: int | None = None
    """The only port on which it listens; None: on every port."""
    traffic: tuple[float, ...] = ()
    """How long each request takes; as soon as one has ended, the next is sent."""


@dataclass
class Unit:
    """A unit as systemd holds it."""

    active: str = "inactive"
    pid: int = 0
    release: str | None = None
    invocation: str = ""
    started: float = 0.0
    restarts: int = 0
    sub: str = ""
    stops: bool = True
    """Whether it ends when it is asked to; otherwise only when killed."""
    refusing: float | None = None
    """When it began to refuse new requests."""
    under_way: list[float] = field(default_factory=list)
    """The ends of the requests that it then had."""


class FakeMachine(Machine):
    """What the agent asks of a machine, answered from memory. Its files are real ones below ``folder``."""

    outranking: tuple[str, ...] = ()

    def __init__(self, engines: dict[str, Engine] | None = None) -> None:
        super().__init__()
        self.engines = {} if engines is None else engines
        self.boot_id = secrets.token_hex(8)
        self.units: dict[str, Unit] = {}
        self.journal: list[Json] = []
        self.kernel_log: tuple[str, ...] = ()
        self.strangers: list[Json] = []
        """Listeners of other programs."""
        self.left: dict[int, signal.Signals | None] = {}
        """Processes outside their unit, which hold its port and 1 GiB of a GPU, and the signal that ends each."""
        self.gpus_after: dict[int, float] = {}
        """GPUs by their indices, and when the driver begins to list each, as `boottime` counts."""
        self.asked: list[list[str]] = []
        """Clients of systemd, besides systemctl, that were run."""
        self.posts: list[tuple[str, Json, dict[str, str]]] = []
        self.statuses: list[int | Fail] = []
        """What the receivers of posts answer, in turn; 200 when there are no more."""
        self.programs: list[tuple[list[str], Json]] = []
        self.skipped = 0.0
        self.pids = itertools.count(1000)
        self.place(tempfile.mkdtemp(prefix="deployer-fake-"))
        for path in (self.state_dir, self.live_dir, self.run_dir, self.wants_dir):
            Path(path).mkdir()

    def place(self, folder: str) -> None:
        """Have its files in this folder, which goes with it."""
        self.folder = folder
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        for name in ("state", "volatile", "live", "run", "wants"):
            setattr(self, f"{name}_dir", f"{folder}/{name}")

    def copy(self, engines: dict[str, Engine]) -> FakeMachine:
        """Another machine in the same state."""
        other = copy.copy(self)
        other.left, other.asked, other.posts, other.programs = dict(self.left), [], [], []
        other.engines, other.units, other.journal = engines, copy.deepcopy(self.units), list(self.journal)
        other.place(tempfile.mkdtemp(prefix="deployer-fake-"))
        shutil.copytree(self.folder, other.folder, symlinks=True, dirs_exist_ok=True)
        return other

    def reboot(self) -> None:
        """Lose what is in memory. Nothing is started: that is recover's, or systemd's."""
        self.boot_id = secrets.token_hex(8)
        self.units.clear()
        self.left.clear()
        for folder in (self.run_dir, self.volatile_dir):
            shutil.rmtree(folder, ignore_errors=True)

    # -- clock --------------------------------------------------------------------------------------------------

    def boottime(self) -> float:
        return time.monotonic() + self.skipped

    def sleep(self, seconds: float) -> None:
        """Time passes, but nobody waits for it."""
        self.skipped += seconds
        time.sleep(min(seconds, 0.001))

    # -- systemd ------------------------------------------------------------------------------------------------

    def engine(self, unit: Unit) -> Engine:
        return self.engines.get(unit.release or "", Engine())

    def unit(self, name: str) -> Unit:
        unit = self.units.setdefault(name, Unit())
        after = self.engine(unit).fails_after
        if unit.pid and after is not None and self.boottime() >= unit.started + after:
            unit.pid, unit.active = 0, "failed"
        if unit.sub == "stop-sigterm" and unit.stops and not self.requests(unit):
            unit.pid, unit.active, unit.sub = 0, "inactive", ""
        return unit

    def requests(self, unit: Unit) -> int:
        """How many requests are under way. Of each kind there is always one, until new ones are refused."""
        if not unit.pid or unit.refusing is None:
            return len(self.engine(unit).traffic) if unit.pid else 0
        return sum(self.boottime() < end for end in unit.under_way)

    def interrupt(self, unit: Unit) -> None:
        """SIGINT, as SGLang's uvicorn takes it: refuse new requests; at the second, leave those under way."""
        if unit.refusing is not None:
            unit.under_way = []
            return
        unit.refusing = self.boottime()
        age = unit.refusing - unit.started
        unit.under_way = [unit.refusing + length - age % length for length in self.engine(unit).traffic]

    def fragment(self, name: str) -> str:
        paths = [f"{folder}/{name}" for folder in (self.run_dir, self.live_dir)]
        return next((path for path in paths if read_text(path) is not None), "")

    def start(self, name: str) -> None:
        """Start a unit from the file that is in force: what its engine logs is in the journal at once."""
        unit = self.unit(name)
        unit.release = unit_release(read_text(self.fragment(name)) or "")
        unit.active, unit.pid, unit.started = "active", next(self.pids), self.boottime()
        unit.invocation, unit.refusing = secrets.token_hex(16), None
        for text in self.engine(unit).log:
            number, micros = len(self.journal) + 1, round(time.time() * 1e6)
            stamps = {"__CURSOR": str(number), "__REALTIME_TIMESTAMP": str(micros + number), "_PID": "42"}
            self.journal.append({**stamps, "MESSAGE": text, "unit": name, "invocation": unit.invocation})

    def systemctl(self, *words: str, check: bool = True) -> Done:
        verb, name = words[0], words[-1]
        if verb == "start" and not self.unit(name).pid:
            self.start(name)
        elif verb == "stop" and self.unit(name).active == "active":
            self.unit(name).active, self.unit(name).sub = "deactivating", "stop-sigterm"
        elif verb == "reset-failed" and self.unit(name).active == "failed":
            self.unit(name).active = "inactive"
        return subprocess.CompletedProcess(list(words), 0, "", "")

    def ask_systemd(self, argv: list[str], check: bool = True) -> Done:
        self.asked.append(argv)
        return subprocess.CompletedProcess(argv, 0, "", "")

    def end(self, name: str, active: str = "failed") -> None:
        """End a unit's process, as a crash does (``failed``) or a stop."""
        unit = self.unit(name)
        unit.pid, unit.active, unit.sub = 0, active, ""

    def unit_state(self, unit: str) -> Json:
        held, fragment = self.unit(unit), self.fragment(unit)
        failed = held.active == "failed"
        return {
            "ActiveState": held.active,
            "SubState": held.sub or {"active": "running", "inactive": "dead"}.get(held.active, held.active),
            "Result": "exit-code" if failed else "success",
            "NRestarts": held.restarts,
            "InvocationID": held.invocation,
            "MainPID": held.pid,
            "ExecMainStatus": int(failed),
            "ExecMainCode": int(failed),
            "LoadState": "loaded" if fragment else "not-found",
            "UnitFileState": "enabled" if Path(self.wants_dir, unit).is_symlink() else "disabled",
            "FragmentPath": fragment,
            "DropInPaths": [],
            "Restart": "no",
            "NeedDaemonReload": False,
            "ActiveEnterTimestamp": None,
            "InactiveEnterTimestamp": None,
            "InactiveExitTimestamp": None,
            "StateChangeTimestamp": None,
        }

    def booted(self) -> bool:
        return True

    def systemd_version(self) -> int | None:
        return 252

    def drop_ins(self, unit: str) -> list[str]:
        return []

    def verify(self, path: str) -> Done:
        return subprocess.CompletedProcess([path], 0, "", "")

    def properties(self, unit: str, interface: str) -> Json:
        """Of a unit that `probe` shows: systemd reads the command line that its release's manifest has."""
        service = Service(self, unit.removeprefix("deployer-probe-").removesuffix(".service"))
        argv = service.argv(unit_release(read_text(f"{self.run_dir}/{unit}") or ""))
        return {"ExecStart": [["", argv or []]]} if interface == "Service" else {}

    def notify(self, text: str) -> None:
        pass

    # -- processes ----------------------------------------------------------------------------------------------

    def name_of(self, pid: int | None) -> str:
        return next((name for name in self.units if pid and self.unit(name).pid == pid), "")

    def leave_behind(self, name: str, ends: signal.Signals | None = signal.SIGTERM) -> int:
        """Have a unit end, but for a process of it that stands outside. Return its pid."""
        pid = self.unit(name).pid
        self.end(name, "inactive")
        self.left[pid] = ends
        return pid

    def birth(self, pid: int) -> int | None:
        return 7 * pid if self.name_of(pid) or pid in self.left else None

    def unit_pids(self, unit: str) -> list[int]:
        return [self.unit(unit).pid] if self.unit(unit).pid else []

    def process_stat(self, pid: int) -> list[str]:
        return ["S"] if self.name_of(pid) or pid in self.left else []

    def process(self, pid: int) -> Json | None:
        name = self.name_of(pid)
        if not name:
            return None
        unit = self.unit(name)
        service = Service(self, name.removeprefix("sglang-").removesuffix(".service"))
        argv = list(self.engine(unit).argv) or service.argv(unit.release) or []
        manifests = (item for item in service.manifests() if item["release"] == unit.release)
        recorded = next(manifests, {}).get("environment") or {}
        own = {"DEPLOYER_RELEASE": unit.release} if unit.release else {}
        return {
            "argv": argv,
            "environment": {**recorded, **own, **self.engine(unit).environment},
            "started": time.time() - (self.boottime() - unit.started),
        }

    def usage(self, pid: int) -> tuple[int, float, int] | None:
        return (0, 0.0, 0) if self.name_of(pid) else None

    def describe(self, pid: int | None) -> Json:
        name = self.name_of(pid) or None
        return {
            "pid": pid,
            "comm": "python" if name or pid in self.left else None,
            "cgroup": name and f"/system.slice/{name}",
            "unit": name,
        }

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        if number == signal.SIGINT:
            self.interrupt(self.unit(self.name_of(pid)))
        elif pid not in self.left:
            self.end(self.name_of(pid))
        elif self.left[pid] in (signal.SIGTERM, number):
            del self.left[pid]

    # -- journal ------------------------------------------------------------------------------------------------

    def journal_sync(self) -> None:
        pass

    def journal_cursor(self) -> str:
        return str(len(self.journal))

    def journal_end(self, unit: str) -> int:
        return max((int(entry["__REALTIME_TIMESTAMP"]) for entry in self.journal if entry["unit"] == unit), default=0)

    def journal_entries(
        self,
        call: Call,
        unit: str,
        *,
        cursor: str = "",
        since: float | None = None,
        lines: int | None = None,
        follow: bool = False,
        invocation: str = "",
        kernel: bool = False,
    ) -> Iterator[Json]:
        if kernel:
            stamp = str(round(time.time() * 1e6))
            yield from (
                {"MESSAGE": text, "_TRANSPORT": "kernel", "__REALTIME_TIMESTAMP": stamp} for text in self.kernel_log
            )
            return
        place = int(cursor or 0)
        while True:
            entries, place = self.journal[place:], len(self.journal)
            wanted = [
                entry
                for entry in entries
                if (entry["invocation"] == invocation if invocation else entry["unit"] == unit)
                and int(entry["__REALTIME_TIMESTAMP"]) >= (since or 0.0) * 1e6
            ]
            yield from wanted if lines is None else wanted[len(wanted) - min(lines, len(wanted)) :]
            lines = None
            if not follow or call.ended.is_set():
                return
            call.pause(0.1)

    def was_logged(self, invocation: str, text: str) -> bool:
        return any(entry["invocation"] == invocation and text in entry["MESSAGE"] for entry in self.journal)

    # -- servers and driver -------------------------------------------------------------------------------------

    def serving(self, port: int) -> list[Unit]:
        """Units that listen on a port."""
        units = [self.unit(name) for name in self.units if name.startswith("sglang-")]
        units = [unit for unit in units if self.engine(unit).port in (None, port)]
        after = [(unit, self.engine(unit).ready_after) for unit in units if unit.pid and unit.refusing is None]
        return [unit for unit, at in after if at is not None and self.boottime() >= unit.started + at]

    def listeners(self, port: int, first: list[int] | None = None) -> list[Json]:
        ours = [dict(self.describe(unit.pid), address="127.0.0.1", port=port) for unit in self.serving(port)]
        left = [dict(self.describe(pid), address="127.0.0.1", port=port) for pid in self.left]
        return [*ours, *left, *self.strangers]

    def connections(self, port: int, bound: str) -> int:
        units = [self.unit(name) for name in self.units if name.startswith("sglang-")]
        return sum(self.requests(unit) for unit in units if self.engine(unit).port in (None, port))

    def resolve(self, address: str) -> set[str]:
        return {address}

    def http(
        self,
        address: str,
        port: int,
        path: str,
        timeout: float = 25.0,
        method: str = "GET",
        body: Any = None,
        headers: Any = None,
    ) -> Json:
        units = self.serving(port)
        if not units and not self.strangers:
            raise Fail("http", "connection refused", state="refused")
        counted = json.dumps({"loads": [{"num_running_reqs": sum(map(self.requests, units))}]})
        loads = {"/v1/loads": (200, counted)} if any(self.engine(unit).traffic for unit in units) else {}
        answers = {"/health": (200, ""), **loads, **self.engine(units[0]).http} if units else {}
        status, text = answers.get(path.partition("?")[0], (404, ""))
        return {"status": status, "headers": {}, "body": text, "seconds": 0.001}

    def post(self, url: str, body: Mapping[str, Any], headers: dict[str, str], timeout: float) -> int:
        self.posts.append((url, dict(body), headers))
        status = self.statuses.pop(0) if self.statuses else 200
        if isinstance(status, Fail):
            raise status
        return status

    def run_hook(self, command: list[str], facts: Mapping[str, Any], timeout: float) -> str | None:
        self.programs.append((command, dict(facts)))
        return None

    def nvidia_smi(self, query: str, until: float | None = None) -> list[list[str | None]] | None:
        if self.gpus_after and query == "--query-gpu=index":
            return [[str(index)] for index, at in self.gpus_after.items() if self.boottime() >= at]
        if not self.left or not query.startswith("--query-compute-apps"):
            return None
        return [["GPU-0", str(pid), "1024"] for pid in self.left]
