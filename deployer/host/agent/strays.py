"""Strays: processes of a service that stand outside its unit's control group, and hold a GPU or the port there.

A stop of the unit does not reach them. They are known by their pid and start, as they were seen in the unit: what was
never seen there is not ours, whatever it calls itself. The record is in memory, as processes do not outlive a boot.
"""

from __future__ import annotations

import contextlib
import os
from typing import Dict, List, Optional

from .base import Fail, Json
from .files import Shape, read_intact
from .gpus import gpu_processes
from .service import Service

RECORD: Shape = {"processes": dict}


def record_path(service: Service) -> str:
    return os.path.join(service.machine.volatile_dir, "processes-%s.json" % service.name)


def recorded(service: Service) -> Dict[int, int]:
    """The processes that were once seen in the unit and still live, with their starts."""
    record = read_intact(record_path(service), RECORD) or {"processes": {}}
    starts = {int(pid): start for pid, start in record["processes"].items() if pid.isdecimal()}
    return {pid: start for pid, start in starts.items() if service.machine.birth(pid) == start}


def remember(service: Service, pids: Optional[List[int]] = None) -> None:
    """Record the processes of the unit as ours (``pids``, if they were just looked up)."""
    before = recorded(service)
    births = {pid: service.machine.birth(pid) for pid in (service.pids() if pids is None else pids)}
    now = {**before, **{pid: start for pid, start in births.items() if start is not None}}
    if now != before:
        path = record_path(service)
        with contextlib.suppress(OSError):  # what was not recorded is not ended, which is the safe side
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
            service.machine.write_json(path, {"processes": {str(pid): start for pid, start in now.items()}}, 0o600)


def strays(service: Service, port: int) -> List[Json]:
    """The service's processes outside its unit that hold GPU memory, or ``port`` (0: none)."""
    machine, outside = service.machine, set(recorded(service)) - set(service.pids())
    if not outside:
        return []
    held = machine.listeners(port, sorted(outside)) if port else []
    with contextlib.suppress(Fail):  # the driver does not answer
        held = held + (gpu_processes(machine) or [])
    return [machine.describe(pid) for pid in sorted(outside & {item["pid"] for item in held})]
