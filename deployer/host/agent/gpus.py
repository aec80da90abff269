"""GPUs, and the processes on them, as nvidia-smi prints them. A driver in trouble may print anything."""

from __future__ import annotations

import math
import re
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from .base import Fail, Json
from .machine import Machine

Cell = Optional[str]


def number(cell: Cell) -> Optional[float]:
    try:
        value = None if cell is None else float(cell)
    except ValueError:
        return None  # "ERR!" and the like
    return value if value is not None and math.isfinite(value) else None


def whole(cell: Cell) -> Optional[int]:
    """A count, None if the cell does not hold one."""
    return int(cell) if cell is not None and re.match(r"[0-9]{1,12}$", cell) else None


def mebibytes(cell: Cell) -> int:
    return int(number(cell) or 0) << 20


def text(cell: Cell) -> Cell:
    return cell


def mask(cell: Cell) -> Optional[int]:
    try:
        return int(cell or "", 16)
    except ValueError:
        return None


#: Fields of ``--query-gpu``: how the protocol calls each, and how a cell is read.
FIELDS: Dict[str, Tuple[str, Callable[[Cell], Any]]] = {
    "index": ("index", whole),
    "uuid": ("uuid", text),
    "name": ("name", text),
    "compute_cap": ("compute_cap", text),
    "memory.total": ("memory_total", mebibytes),
    "memory.used": ("memory_used", mebibytes),
    "utilization.gpu": ("utilization", number),
    "power.draw": ("power_w", number),
    "power.limit": ("power_limit_w", number),
    "temperature.gpu": ("temperature_c", number),
    "clocks.sm": ("clock_mhz", number),
    "clocks.max.sm": ("clock_max_mhz", number),
    "clocks_event_reasons.active": ("throttle", mask),
    "clocks_throttle_reasons.active": ("throttle", mask),
}
LOAD = ["memory.total", "memory.used", "utilization.gpu", "power.draw", "power.limit"]
BASIC = ["index", *LOAD]
MORE = [*BASIC, "temperature.gpu", "clocks.sm", "clocks.max.sm"]
#: What `Sampler` asks for, the newest first: drivers before 535 call the last field otherwise, and old ones lack some.
QUERIES = [[*MORE, "clocks_event_reasons.active"], [*MORE, "clocks_throttle_reasons.active"], MORE, BASIC]


def query(machine: Machine, fields: List[str], until: Optional[float] = None) -> Optional[List[Json]]:
    """Return one object for each GPU, None without nvidia-smi. Raise Fail as `Machine.nvidia_smi` does."""
    rows = machine.nvidia_smi("--query-gpu=" + ",".join(fields), until)
    if rows is None:
        return None
    return [
        {FIELDS[field][0]: FIELDS[field][1](cell) for field, cell in zip(fields, row)}
        for row in rows
        if len(row) == len(fields) and whole(row[0]) is not None
    ]


def gpu_processes(
    machine: Machine, gpus: Optional[List[Json]] = None, until: Optional[float] = None
) -> Optional[List[Json]]:
    """Processes that hold GPU memory; ``gpu`` is the index if ``gpus`` has it, else the UUID."""
    rows = machine.nvidia_smi("--query-compute-apps=gpu_uuid,pid,used_memory", until)
    if rows is None:
        return None
    index = {gpu["uuid"]: gpu["index"] for gpu in gpus or []}
    return [
        dict(
            machine.describe(whole(row[1]) or 0),
            gpu=index.get(row[0], row[0]),
            memory=None if number(row[2]) is None else mebibytes(row[2]),
        )
        for row in rows
        if len(row) == 3 and whole(row[1]) is not None
    ]


def gpu_memory(machine: Machine, pids: List[int]) -> Optional[int]:
    """Bytes of GPU memory these processes hold; None if nvidia-smi is missing or does not answer."""
    try:
        rows = gpu_processes(machine)
    except Fail:
        return None
    return None if rows is None else sum(row["memory"] or 0 for row in rows if row["pid"] in pids)


def compute_caps(machine: Machine, until: Optional[float] = None) -> Dict[int, Cell]:
    """Compute capability ("12.0") by index; empty if the driver is too old to report it (before 510)."""
    try:
        gpus = query(machine, ["index", "compute_cap"], until) or []
    except Fail:
        return {}
    return {gpu["index"]: gpu["compute_cap"] for gpu in gpus}


def gpu_facts(
    machine: Machine, problems: List[str], patience: Optional[float] = None
) -> Tuple[Optional[List[Json]], List[Json]]:
    """Return the GPUs (None if they cannot be seen) and the processes on them.

    What is wrong with the driver is added to ``problems``. ``patience``: seconds for all of it.
    """
    until = None if patience is None else time.monotonic() + patience
    try:
        gpus = query(machine, ["index", "uuid", "name", *LOAD], until)
        processes = (gpu_processes(machine, gpus, until) if gpus is not None else None) or []
        caps = compute_caps(machine, until) if gpus else {}
    except Fail as failure:
        problems.append("GPUs cannot be seen: %s" % failure.message)
        return None, []
    if gpus is not None and not gpus:
        problems.append("GPUs cannot be seen: nvidia-smi lists none")
    for gpu in gpus or []:
        gpu["compute_cap"] = caps.get(gpu["index"])
    return gpus, processes


def missing(machine: Machine, wanted: List[int]) -> str:
    """Say which of these GPUs (indices) the driver does not list; empty if all are there, or none is wanted."""
    if not wanted:
        return ""
    try:
        gpus = query(machine, ["index"])
    except Fail as failure:
        return "GPUs cannot be seen: %s" % failure.message
    if gpus is None:
        return "GPUs cannot be seen: the host has no nvidia-smi"
    present = {gpu["index"] for gpu in gpus}
    absent = [str(index) for index in wanted if index not in present]
    return "nvidia-smi lists %d GPUs, without %s" % (len(present), ", ".join(absent)) if absent else ""


def await_gpus(machine: Machine, wanted: List[int], seconds: float, sleep: Callable[[float], None]) -> str:
    """Wait until these GPUs are there, at most ``seconds``; return what is missing, empty if nothing is."""
    deadline = machine.boottime() + seconds
    while True:
        lacking = missing(machine, wanted)
        if not lacking or machine.boottime() >= deadline:
            return lacking
        sleep(1.0)


class Sampler:
    """Looks at the GPUs again and again, with the newest query that this driver understands."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.queries = machine, list(QUERIES)
        self.problem: Optional[str] = None

    def look(self, until: float) -> Optional[List[Json]]:
        """The GPUs now; None if they cannot be seen. ``until`` (monotonic): when nvidia-smi is given up."""
        while self.problem is None:
            try:
                gpus = query(self.machine, self.queries[0], until)
            except Fail as failure:
                if failure.code == "timeout" or len(self.queries) == 1:
                    self.problem = failure.message
                else:
                    del self.queries[0]
                continue
            if gpus is not None and not gpus:
                self.problem = "nvidia-smi lists no GPU"
            blank = dict.fromkeys(FIELDS[field][0] for field in QUERIES[0])
            return [dict(blank, **gpu) for gpu in gpus or []] or None
        return None
