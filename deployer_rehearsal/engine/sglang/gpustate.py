"""How the engines use the host's GPUs, for ``nvidia-smi``: one file per engine in the state folder.

``gpu-<pid>-<started>.json``:
``{"processes": [{"gpu", "pid", "started", "mib"}], "utilization": percent, "power": watts}``.
``started`` is the process's start in clock ticks since boot: an entry whose process is gone (or whose number was given
to another) no longer holds memory. Engines of any user write there, so the folder is like /tmp.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

IDLE_WATTS = 76.0
FULL_WATTS = 560.0


def uuid(index: int) -> str:
    """Return a GPU's identity: the same on every call, different on every host."""
    seed = hashlib.sha256(f"{os.uname().nodename}/{index}".encode()).hexdigest()
    return f"GPU-{seed[:8]}-{seed[8:12]}-{seed[12:16]}-{seed[16:20]}-{seed[20:32]}"


def shared_folder(folder: Path) -> None:
    """Create a folder like /tmp, where every user may write their own files. Another user's folder stays as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(PermissionError):
        folder.chmod(0o1777)


def started(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it does not exist or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


class GpuState:
    """The file of one engine. Failing to write it must not end the engine."""

    def __init__(self, folder: Path, pid: int | None = None) -> None:
        number = pid or os.getpid()
        # With its start in the name: another user's file of an earlier process with that number cannot be replaced.
        self._path = folder / f"gpu-{number}-{started(number) or 0}.json"
        self._last = ""

    def write(self, holders: Mapping[int, int], mib: Sequence[float], utilization: int) -> None:
        """Record who holds what: ``holders`` maps GPU index to pid, ``mib`` is the memory of each in the same order."""
        processes = [
            {"gpu": gpu, "pid": pid, "started": started(pid), "mib": round(size)}
            for (gpu, pid), size in zip(holders.items(), mib, strict=True)
        ]
        watts = IDLE_WATTS + (FULL_WATTS - IDLE_WATTS) * utilization / 100.0
        text = json.dumps({"processes": processes, "utilization": utilization, "power": round(watts, 2)})
        if text == self._last:
            return
        fresh = self._path.with_name(self._path.name + ".new")
        try:
            if not self._path.parent.is_dir():
                shared_folder(self._path.parent)
            fresh.write_text(text, encoding="utf-8")
            fresh.chmod(0o644)
            fresh.replace(self._path)
        except OSError:
            return
        self._last = text

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


def read_states(folder: Path) -> list[dict[str, Any]]:
    """Return the states of all engines, without processes that are gone."""
    states = []
    for path in sorted(folder.glob("gpu-*.json")):
        try:
            state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            alive = [entry for entry in state["processes"] if started(int(entry["pid"])) == entry["started"]]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if alive:
            states.append({**state, "processes": alive})
    return states


def memory_held(folder: Path) -> dict[int, int]:
    """Return the MiB that live processes hold of each GPU."""
    held: dict[int, int] = {}
    for state in read_states(folder):
        for entry in state["processes"]:
            held[int(entry["gpu"])] = held.get(int(entry["gpu"]), 0) + int(entry["mib"])
    return held
