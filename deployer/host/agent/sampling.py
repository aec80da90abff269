"""One operation: look at GPUs, connections and the machine for some seconds, again and again, without touching any."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Dict, List, Optional, Set

from .base import STATE_DIR, Call, Fail, Json, boottime, read_text
from .lease import Session
from .procs import SMI_TIMEOUT, number, nvidia_smi, socket_address, whole
from .registry import operation

BASIC = ["index", "utilization.gpu", "power.draw", "power.limit", "memory.used", "memory.total"]
MORE = BASIC + ["temperature.gpu", "clocks.sm", "clocks.max.sm"]
# The newest first: drivers before 535 call the last field otherwise, and old ones lack some.
QUERIES = [MORE + ["clocks_event_reasons.active"], MORE + ["clocks_throttle_reasons.active"], MORE, BASIC]
NAMES = {
    "index": "index",
    "utilization.gpu": "utilization",
    "power.draw": "power_w",
    "power.limit": "power_limit_w",
    "memory.used": "memory_used",
    "memory.total": "memory_total",
    "temperature.gpu": "temperature_c",
    "clocks.sm": "clock_mhz",
    "clocks.max.sm": "clock_max_mhz",
    "clocks_event_reasons.active": "throttle",
    "clocks_throttle_reasons.active": "throttle",
}
LONGEST = 60.0
WILDCARDS = ("0.0.0.0", "::")


class Gpus:
    """nvidia-smi, asked for what this driver knows."""

    def __init__(self) -> None:
        self.queries = list(QUERIES)
        self.problem: Optional[str] = None

    def look(self, until: float) -> Optional[List[Json]]:
        """The GPUs now; None where they cannot be seen. ``until`` (monotonic): when nvidia-smi is given up."""
        while self.queries and self.problem is None:
            try:
                rows = nvidia_smi("--query-gpu=" + ",".join(self.queries[0]), until)
            except Fail as failure:
                if failure.code == "timeout" or len(self.queries) == 1:
                    self.problem = failure.message
                else:
                    del self.queries[0]
                continue
            if rows is None:
                return None
            found = [
                self.gpu(row)
                for row in rows
                if len(row) == len(self.queries[0]) and whole(row[0]) is not None
            ]
            if not found:
                self.problem = "nvidia-smi names no GPU"
            return found or None
        return None

    def gpu(self, row: List[Optional[str]]) -> Json:
        found: Dict[str, Any] = dict.fromkeys(NAMES.values())
        for field, cell in zip(self.queries[0], row):
            name = NAMES[field]
            if name == "throttle":
                found[name] = mask(cell)
            elif name.startswith("memory"):
                found[name] = int(number(cell) or 0) << 20
            else:
                found[name] = number(cell)
        found["index"] = int(found["index"] or 0)
        return found


def mask(cell: Optional[str]) -> Optional[int]:
    try:
        return int(cell or "", 16)
    except ValueError:
        return None


def connections(port: int, address: str) -> int:
    """Established TCP connections to a port of an address (of all, for 0.0.0.0 and ::), without this program's own."""
    inodes = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            inodes.add(os.readlink("/proc/self/fd/" + name))
    clients: List[str] = []
    ours: Set[str] = set()
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in (read_text(path) or "").splitlines()[1:]:
            fields = line.split()
            here, there = fields[1].rpartition(":")[2], fields[2].rpartition(":")[2]
            if int(there, 16) == port and "socket:[%s]" % fields[9] in inodes:
                ours.add(here)
            if int(here, 16) != port or fields[3] != "01":
                continue
            if address in WILDCARDS or socket_address(fields[1].rpartition(":")[0]) == address:
                clients.append(there)
    return sum(there not in ours for there in clients)


def table(path: str) -> Dict[str, int]:
    """Names and numbers of a file like /proc/meminfo."""
    found = {}
    for line in (read_text(path) or "").splitlines():
        words = line.replace(":", " ").split()
        if len(words) > 1 and words[1].isdigit():
            found[words[0]] = int(words[1])
    return found


def machine() -> Json:
    memory = table("/proc/meminfo")
    disks = {}
    for path in ("/", STATE_DIR if os.path.isdir(STATE_DIR) else "/var"):
        space = os.statvfs(path)
        disks[path] = {"free": space.f_bavail * space.f_frsize, "total": space.f_blocks * space.f_frsize}
    return {
        "memory_total": memory.get("MemTotal", 0) << 10,
        "memory_available": memory.get("MemAvailable", 0) << 10,
        "swap_total": memory.get("SwapTotal", 0) << 10,
        "swap_free": memory.get("SwapFree", 0) << 10,
        "load": list(os.getloadavg()),
        "cpus": os.cpu_count() or 1,
        "disks": disks,
        "uptime": boottime(),
    }


def swapped() -> int:
    """Pages that went to swap or came back, since boot."""
    counted = table("/proc/vmstat")
    return counted.get("pswpin", 0) + counted.get("pswpout", 0)


@operation("sample")
def sample(session: Session, args: Json, call: Call) -> Json:
    seconds = min(LONGEST, max(0.0, float(args.get("seconds") or 0.0)))
    interval = max(0.2, float(args.get("interval") or 1.0))
    port, gpus, samples = args.get("port"), Gpus(), []
    pages, begun = swapped(), time.monotonic()
    ends, until = begun + seconds, begun + max(SMI_TIMEOUT, seconds + 1.0)
    while True:
        looked = time.monotonic()
        samples.append(
            {
                "t": round(looked - begun, 3),
                "gpus": gpus.look(until),
                "connections": connections(int(port), args.get("address") or "::") if port else None,
            }
        )
        took, left = time.monotonic() - looked, ends - time.monotonic()
        if left <= 0:
            break
        call.sleep(min(interval, left))
        if took > 1.0 and time.monotonic() + took > until:
            call.sleep(max(0.0, ends - time.monotonic()))
            break  # a driver this slow would not answer in time
    return {
        "now": time.time(),
        "samples": samples,
        "machine": dict(machine(), pages_swapped=swapped() - pages),
        "problem": gpus.problem,
    }
