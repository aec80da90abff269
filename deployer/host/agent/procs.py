"""Processes, control groups and sockets as the kernel shows them in /proc and /sys."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import time
from functools import lru_cache
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from deployer.reach import serves

from .base import Json
from .files import read_text

LISTEN, ESTABLISHED = "0A", "01"


def hierarchies(pid: Any) -> Dict[str, str]:
    """The process's control group in each hierarchy; the v2 one has an empty name."""
    lines = (read_text(f"/proc/{pid}/cgroup") or "").splitlines()
    return {name: path for _, name, path in (line.split(":", 2) for line in lines)}


@lru_cache(maxsize=1)
def systemd_hierarchy() -> Tuple[str, str]:
    """The hierarchy systemd keeps its units in, and the path of its tree there: known by its own ``init.scope``."""
    for name, path in hierarchies(1).items():
        if path.endswith("/init.scope") and name in ("", "name=systemd"):
            return name, path[: -len("/init.scope")]
    return ("name=systemd" if "name=systemd" in hierarchies(1) else ""), ""


def cgroup_of(pid: Any) -> str:
    """The process's place in systemd's tree; empty if it has ended."""
    name, root = systemd_hierarchy()
    path = hierarchies(pid).get(name, "")
    return path[len(root) :] if path.startswith(root + "/") else path


def unit_of(cgroup: str) -> Optional[str]:
    return next((part for part in cgroup.split("/") if part.endswith((".service", ".scope"))), None)


def all_pids() -> List[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def unit_folder(unit: str) -> Optional[str]:
    """The unit's control group in the file system, if it is in the usual place and really systemd's."""
    name, root = systemd_hierarchy()
    for mount in ("/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"):
        if os.path.isdir(f"{mount}{root}/init.scope") and bool(name) == (mount == "/sys/fs/cgroup/systemd"):
            folder = f"{mount}{root}/system.slice/{unit}"
            return folder if os.path.isdir(folder) else None
    return None


def pids_below(folder: str) -> List[int]:
    texts = [read_text(os.path.join(path, "cgroup.procs")) or "" for path, _, _ in os.walk(folder)]
    return sorted({int(word) for text in texts for word in text.split() if word != "0"})


def socket_owners(inodes: List[str], pids: List[int]) -> Dict[str, int]:
    wanted = {"socket:[%s]" % inode: inode for inode in inodes}
    owners: Dict[str, int] = {}
    for pid in pids:
        if len(owners) == len(wanted):
            break
        with contextlib.suppress(OSError):
            for name in os.listdir("/proc/%d/fd" % pid):
                with contextlib.suppress(OSError):
                    target = os.readlink("/proc/%d/fd/%s" % (pid, name))
                    if target in wanted:
                        owners.setdefault(wanted[target], pid)
    return owners


def own_sockets() -> Set[str]:
    """What this program's descriptors lead to."""
    targets = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            targets.add(os.readlink("/proc/self/fd/" + name))
    return targets


class Socket(NamedTuple):
    """A TCP socket of the machine."""

    address: str
    port: int
    peer_port: int
    state: str
    inode: str


def socket_address(text: str) -> str:
    """Return an address of /proc/net/tcp or tcp6 in the usual notation."""
    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, b"".join(words))


def sockets() -> Iterator[Socket]:
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in (read_text(path) or "").splitlines()[1:]:
            fields = line.split()
            (address, _, port), peer = fields[1].partition(":"), fields[2].rpartition(":")[2]
            yield Socket(socket_address(address), int(port, 16), int(peer, 16), fields[3], fields[9])


def table(path: str) -> Dict[str, int]:
    """Names and numbers of a file like /proc/meminfo."""
    rows = ((read_text(path) or "").replace(":", " ")).splitlines()
    pairs = [words for words in (row.split() for row in rows) if len(words) > 1 and words[1].isdigit()]
    return {words[0]: int(words[1]) for words in pairs}


class Processes:
    """The part of a `Machine` that the kernel shows."""

    def unit_pids(self, unit: str) -> List[int]:
        """Every live process in the unit's control group (zombies hold nothing and do not count)."""
        folder = unit_folder(unit)
        # Without it systemd's tree is mounted elsewhere, the unit has a slice of its own, or it has no processes.
        pids = pids_below(folder) if folder else [pid for pid in all_pids() if unit_of(cgroup_of(pid)) == unit]
        return [pid for pid in pids if self.process_stat(pid)[:1] not in ([], ["Z"])]

    def process_stat(self, pid: int) -> List[str]:
        """The fields of ``/proc/PID/stat`` from the state on; empty if the process has ended."""
        return (read_text("/proc/%d/stat" % pid) or "").rpartition(")")[2].split()

    def birth(self, pid: int) -> Optional[int]:
        """When a process started, in clock ticks since the boot: with its pid that names it. None if it has ended."""
        fields = self.process_stat(pid)
        return None if fields[:1] in ([], ["Z"]) else int(fields[19])

    def process(self, pid: int) -> Optional[Json]:
        """A live process's argv, environment and start (epoch seconds); None if it has ended."""
        fields = self.process_stat(pid) if pid else []
        if not fields or fields[0] == "Z":
            return None
        pairs = (read_text("/proc/%d/environ" % pid) or "").split("\0")
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return {
            "argv": (read_text("/proc/%d/cmdline" % pid) or "").split("\0")[:-1],
            "environment": dict(pair.split("=", 1) for pair in pairs if "=" in pair),
            "started": round(time.time() - age, 1),
        }

    def usage(self, pid: int) -> Optional[Tuple[int, float, int]]:
        """Bytes a process has read, its CPU seconds, and its resident bytes; None if it has ended."""
        fields = self.process_stat(pid)
        if len(fields) <= 21:
            return None
        read = re.search(r"^read_bytes: (\d+)", read_text("/proc/%d/io" % pid) or "", re.M)
        cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return int(read.group(1)) if read else 0, cpu, int(fields[21]) * os.sysconf("SC_PAGE_SIZE")

    def describe(self, pid: Optional[int]) -> Json:
        cgroup = cgroup_of(pid) if pid else ""
        comm = (read_text("/proc/%d/comm" % pid) or "").strip() if pid else ""
        return {
            "pid": pid,
            "comm": comm or None,
            "cgroup": cgroup or None,
            "unit": unit_of(cgroup) if cgroup else None,
        }

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):  # gone by itself, which is what we want
            os.kill(pid, number)

    def listeners(self, port: int, first: Optional[List[int]] = None) -> List[Json]:
        """TCP sockets in LISTEN on a port. ``first``: pids to search before all others."""
        rows = [row for row in sockets() if row.port == port and row.state == LISTEN]
        owners = socket_owners([row.inode for row in rows], (first or []) + all_pids()) if rows else {}
        return [dict(self.describe(owners.get(row.inode)), address=row.address, port=port) for row in rows]

    def connections(self, port: int, bound: str) -> int:
        """Established connections to a listener on ``bound``, without this program's own."""
        before = list(sockets())
        mine = own_sockets()
        # What is there before and after was there in between, so an own connection that lasts is among ``mine``;
        # one that opens or closes meanwhile is not counted at all. (Inodes may differ: of one just accepted.)
        after = {row[:-1] for row in sockets()}
        lasting = [row for row in before if row.state == ESTABLISHED and row[:-1] in after]
        ours = {row.port for row in lasting if row.peer_port == port and "socket:[%s]" % row.inode in mine}
        return sum(row.port == port and serves(bound, row.address) and row.peer_port not in ours for row in lasting)

    def init(self) -> str:
        """The name of the first process."""
        return (read_text("/proc/1/comm") or "").strip()

    def memory_total(self) -> Optional[int]:
        """The machine's memory in bytes, None if the kernel does not report it."""
        total = table("/proc/meminfo").get("MemTotal")
        return None if total is None else total << 10

    def vitals(self) -> Json:
        """Memory, swap, load and uptime."""
        memory = table("/proc/meminfo")
        return {
            "memory_total": memory.get("MemTotal", 0) << 10,
            "memory_available": memory.get("MemAvailable", 0) << 10,
            "swap_total": memory.get("SwapTotal", 0) << 10,
            "swap_free": memory.get("SwapFree", 0) << 10,
            "load": list(os.getloadavg()),
            "cpus": os.cpu_count() or 1,
        }

    def pages_swapped(self) -> int:
        """Pages that were swapped out or in since boot."""
        counts = table("/proc/vmstat")
        return counts.get("pswpin", 0) + counts.get("pswpout", 0)
