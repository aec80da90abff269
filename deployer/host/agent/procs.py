"""Processes, control groups, listening sockets and GPUs, as the kernel and the driver show them."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import socket
import time
from functools import lru_cache
from typing import Any, Dict, List, Optional, Tuple

from .base import Fail, Json, execute, read_text

SMI_TIMEOUT = 5.0  # seconds; a driver in trouble can keep nvidia-smi for ever
SMI_LIMIT = 1 << 20  # bytes; one in trouble may print without end


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
    """The process's place in systemd's tree; empty when it is gone."""
    name, root = systemd_hierarchy()
    path = hierarchies(pid).get(name, "")
    return path[len(root) :] if path.startswith(root + "/") else path


def unit_of(cgroup: str) -> Optional[str]:
    return next((part for part in cgroup.split("/") if part.endswith((".service", ".scope"))), None)


def all_pids() -> List[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def unit_folder(unit: str) -> Optional[str]:
    """The unit's control group in the file system, where it is in the usual place and really systemd's."""
    name, root = systemd_hierarchy()
    for mount in ("/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"):
        if os.path.isdir(f"{mount}{root}/init.scope") and bool(name) == (mount == "/sys/fs/cgroup/systemd"):
            folder = f"{mount}{root}/system.slice/{unit}"
            return folder if os.path.isdir(folder) else None
    return None


def pids_below(folder: str) -> List[int]:
    texts = [read_text(os.path.join(path, "cgroup.procs")) or "" for path, _, _ in os.walk(folder)]
    return sorted({int(word) for text in texts for word in text.split() if word != "0"})


def unit_pids(unit: str) -> List[int]:
    """Every live process in the unit's control group (zombies hold nothing and do not count)."""
    folder = unit_folder(unit)
    # Without the folder systemd's tree is mounted elsewhere, the unit has a slice of its own, or it has no processes.
    pids = pids_below(folder) if folder else [pid for pid in all_pids() if unit_of(cgroup_of(pid)) == unit]
    return [pid for pid in pids if process_stat(pid)[:1] not in ([], ["Z"])]


def process_stat(pid: int) -> List[str]:
    """The fields of ``/proc/PID/stat`` from the state on; empty when the process is gone."""
    return (read_text("/proc/%d/stat" % pid) or "").rpartition(")")[2].split()


def describe(pid: Optional[int]) -> Json:
    cgroup = cgroup_of(pid) if pid else ""
    comm = (read_text("/proc/%s/comm" % pid) or "").strip() if pid else ""
    return {
        "pid": pid,
        "comm": comm or None,
        "cgroup": cgroup or None,
        "unit": unit_of(cgroup) if cgroup else None,
    }


def environment_of(pid: int) -> Dict[str, str]:
    pairs = (read_text("/proc/%d/environ" % pid) or "").split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


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


def socket_address(text: str) -> str:
    """An address as /proc/net/tcp and tcp6 have it, as people write it; one of IPv4 inside IPv6 as IPv4."""
    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return socket.inet_ntop(family, b"".join(words)).replace("::ffff:", "")


def listeners(port: int, first: Optional[List[int]] = None) -> List[Json]:
    """TCP sockets in LISTEN on a port. ``first``: pids to look at before all others."""
    found: List[Tuple[str, str]] = []
    for path, family in (("/proc/net/tcp", socket.AF_INET), ("/proc/net/tcp6", socket.AF_INET6)):
        for line in (read_text(path) or "").splitlines()[1:]:
            fields = line.split()
            address, _, number = fields[1].partition(":")
            if fields[3] == "0A" and int(number, 16) == port:
                words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
                found.append((socket.inet_ntop(family, b"".join(words)), fields[9]))
    inodes = [inode for _, inode in found]
    owners = socket_owners(inodes, list(first or []) + all_pids()) if found else {}
    return [dict(describe(owners.get(inode)), address=address, port=port) for address, inode in found]


def nvidia_smi(query: str, until: Optional[float] = None) -> Optional[List[List[Optional[str]]]]:
    """Rows of a query; None without nvidia-smi. Fail: it does not answer in time, or says that it cannot.

    ``until`` (monotonic) is when the answer must be there; it has `SMI_TIMEOUT` at most.
    """
    if not shutil.which("nvidia-smi"):
        return None
    patience = SMI_TIMEOUT if until is None else max(0.0, min(SMI_TIMEOUT, until - time.monotonic()))
    argv = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        done = execute(argv, timeout=patience, limit=SMI_LIMIT)
    except Fail as failure:
        if failure.code != "timeout":
            raise
        late = "within %g s" % SMI_TIMEOUT if patience > SMI_TIMEOUT - 0.1 else "in time"
        raise Fail("timeout", "nvidia-smi did not answer " + late) from failure
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
    return [[None if cell.startswith("[") or cell == "N/A" else cell for cell in row] for row in rows]


def number(cell: Optional[str]) -> Optional[float]:
    try:
        value = None if cell is None else float(cell)
    except ValueError:
        return None  # "ERR!" and the like
    return value if value is not None and math.isfinite(value) else None


def whole(cell: Optional[str]) -> Optional[int]:
    """A count; None for what is none (a driver in trouble prints anything)."""
    return int(cell) if cell is not None and re.match(r"[0-9]{1,12}$", cell) else None


def gpu_list(until: Optional[float] = None) -> Optional[List[Json]]:
    rows = nvidia_smi(
        "--query-gpu=index,uuid,name,memory.total,memory.used,utilization.gpu,power.draw,power.limit", until
    )
    if rows is None:
        return None
    return [
        {
            "index": whole(row[0]),
            "uuid": row[1],
            "name": row[2],
            "memory_total": int(number(row[3]) or 0) << 20,
            "memory_used": int(number(row[4]) or 0) << 20,
            "utilization": number(row[5]),
            "power_w": number(row[6]),
            "power_limit_w": number(row[7]),
        }
        for row in rows
        if len(row) == 8 and whole(row[0]) is not None
    ]


def compute_caps(until: Optional[float] = None) -> Dict[int, Optional[str]]:
    """Compute capability ("12.0") by index; empty where the driver is too old to tell (before 510)."""
    try:
        rows = nvidia_smi("--query-gpu=index,compute_cap", until) or []
    except Fail:
        return {}
    found = {}
    for row in rows:
        index = whole(row[0]) if len(row) == 2 else None
        if index is not None:
            found[index] = row[1]
    return found


def gpu_processes(gpus: Optional[List[Json]] = None, until: Optional[float] = None) -> Optional[List[Json]]:
    """Processes that hold GPU memory; ``gpu`` is the index where ``gpus`` tells it, else the UUID."""
    rows = nvidia_smi("--query-compute-apps=gpu_uuid,pid,used_memory", until)
    if rows is None:
        return None
    index = {gpu["uuid"]: gpu["index"] for gpu in gpus or []}
    return [
        dict(
            describe(whole(row[1]) or 0),
            gpu=index.get(row[0], row[0]),
            memory=None if number(row[2]) is None else int(number(row[2]) or 0) << 20,
        )
        for row in rows
        if len(row) == 3 and whole(row[1]) is not None
    ]


def gpu_memory(pids: List[int]) -> Optional[int]:
    """Bytes of GPU memory these processes hold; None without (an answer of) nvidia-smi."""
    try:
        rows = gpu_processes()
    except Fail:
        return None
    return None if rows is None else sum(row["memory"] or 0 for row in rows if row["pid"] in pids)
