#!/usr/bin/env python3
"""A stand-in for ``nvidia-smi`` on a practice host: the GPUs of /etc/sglang-standin.json, used as the engines record.

Answers ``--query-gpu=``, ``--query-compute-apps=`` (with ``--format=csv[,noheader][,nounits]``, optionally ``-i``),
``-L``, ``--version`` and the plain table. Unknown fields and options are refused as by the real one, with
status 2.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

if __package__:
    from .sglang import gpustate
else:  # run as a program: this folder is first on sys.path
    gpustate = importlib.import_module("sglang.gpustate")
uuid = gpustate.uuid

NAME = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"
DRIVER = "580.95.05"
CUDA = "13.0"
RESERVED_MIB = 4


def gpus(config: dict[str, Any], states: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the GPUs with their use."""
    result = []
    total = int(config.get("gpu_memory_mib", 97887))
    count = int(config.get("gpus", 8))
    for index in range(count):
        mine = [state for state in states if any(entry["gpu"] == index for entry in state["processes"])]
        apps = [entry for state in mine for entry in state["processes"] if entry["gpu"] == index]
        used = min(total, RESERVED_MIB + sum(int(entry["mib"]) for entry in apps))
        result.append(
            {
                "index": index,
                "count": count,
                "used": used,
                "total": total,
                "apps": apps,
                "utilization": max((int(state["utilization"]) for state in mine), default=0),
                "power": max((float(state["power"]) for state in mine), default=18.0 + index % 3),
            }
        )
    return result


Field = tuple[str, Callable[[dict[str, Any]], str]]
GPU_FIELDS: dict[str, Field] = {
    "index": ("", lambda gpu: str(gpu["index"])),
    "count": ("", lambda gpu: str(gpu["count"])),
    "uuid": ("", lambda gpu: uuid(gpu["index"])),
    "gpu_uuid": ("", lambda gpu: uuid(gpu["index"])),
    "name": ("", lambda gpu: NAME),
    "gpu_name": ("", lambda gpu: NAME),
    "driver_version": ("", lambda gpu: DRIVER),
    "pci.bus_id": ("", lambda gpu: f"00000000:{0x11 + 0x10 * gpu['index']:02X}:00.0"),
    "compute_cap": ("", lambda gpu: "12.0"),
    "persistence_mode": ("", lambda gpu: "Enabled"),
    "memory.total": (" MiB", lambda gpu: str(gpu["total"])),
    "memory.used": (" MiB", lambda gpu: str(gpu["used"])),
    "memory.free": (" MiB", lambda gpu: str(gpu["total"] - gpu["used"])),
    "utilization.gpu": (" %", lambda gpu: str(gpu["utilization"])),
    "temperature.gpu": ("", lambda gpu: str(31 + int(gpu["power"] / 14))),
    "power.draw": (" W", lambda gpu: f"{gpu['power']:.2f}"),
    "clocks.sm": (" MHz", lambda gpu: str(2400 if gpu["utilization"] else 180)),
    "clocks.max.sm": (" MHz", lambda gpu: "3090"),
    "clocks_event_reasons.active": ("", lambda gpu: f"0x{0 if gpu['utilization'] else 1:016x}"),
    "power.limit": (" W", lambda gpu: "600.00"),
}
APP_FIELDS: dict[str, Field] = {
    "gpu_uuid": ("", lambda app: uuid(app["gpu"])),
    "gpu_name": ("", lambda app: NAME),
    "pid": ("", lambda app: str(app["pid"])),
    "process_name": ("", lambda app: _process_name(int(app["pid"]))),
    "name": ("", lambda app: _process_name(int(app["pid"]))),
    "used_memory": (" MiB", lambda app: str(app["mib"])),
    "used_gpu_memory": (" MiB", lambda app: str(app["mib"])),
}


def _process_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return "[Not Found]"


class Refused(Exception):
    """An error: its text for standard output, and the exit status."""

    def __init__(self, text: str, status: int = 2) -> None:
        super().__init__(text)
        self.status = status


def query(names: str, fields: dict[str, Field], rows: list[dict[str, Any]], form: list[str]) -> list[str]:
    """Return the CSV lines of a query."""
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    for name in chosen:
        if name not in fields:
            raise Refused(f'Field "{name}" is not a valid field to query.\n')
    if form[:1] != ["csv"] or set(form) - {"csv", "noheader", "nounits"}:
        raise Refused("\"--format=\" switch is missing or its value is not recognized. Run 'nvidia-smi -h'.\n")
    bare = "nounits" in form
    lines = []
    if "noheader" not in form:
        lines.append(", ".join(name + (f" [{fields[name][0].strip()}]" if fields[name][0] else "") for name in chosen))
    for row in rows:
        lines.append(", ".join(fields[name][1](row) + ("" if bare else fields[name][0]) for name in chosen))
    return lines


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the plain overview, shortened."""
    lines = [
        time.strftime("%a %b %e %H:%M:%S %Y"),
        f"| NVIDIA-SMI {DRIVER}   Driver Version: {DRIVER}   CUDA Version: {CUDA} |",
    ]
    for gpu in rows:
        lines.append(
            f"| {gpu['index']:3d}  {NAME[:34]:34} | {gpu['power']:4.0f}W / 600W | "
            f"{gpu['used']:6d}MiB / {gpu['total']:6d}MiB | {gpu['utilization']:3d}% |"
        )
    lines.append("| Processes:  GPU  PID  Process name  GPU Memory |")
    apps = [app for gpu in rows for app in gpu["apps"]]
    for app in apps:
        lines.append(f"| {app['gpu']:3d} {app['pid']:8d}  {_process_name(app['pid']):20} {app['mib']:6d}MiB |")
    return lines if apps else [*lines, "|  No running processes found |"]


_OPTIONS = {"--query-gpu", "--query-compute-apps", "--format", "-i", "--id", "-L", "--list-gpus", "--version"}


def answer(arguments: Sequence[str], config: dict[str, Any], states: list[dict[str, Any]]) -> list[str]:
    """Return what ``nvidia-smi`` with these arguments prints. Raise Refused for unknown ones."""
    rows = gpus(config, states)
    options: dict[str, str] = {}
    words = list(arguments)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name in ("-i", "--id") and not equals:
            value = words.pop(0) if words else ""
        if name not in _OPTIONS:
            raise Refused(f"Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\n{word}\n")
        options[name] = value
    chosen = options.get("-i", options.get("--id"))
    if chosen is not None:
        wanted = set(chosen.split(","))
        rows = [gpu for gpu in rows if str(gpu["index"]) in wanted or uuid(gpu["index"]) in wanted]
        if not rows:
            raise Refused("No devices were found\n", 6)
    form = options.get("--format", "").split(",")
    if "--version" in options:
        return [
            f"NVIDIA-SMI version  : {DRIVER}",
            f"NVML version        : {DRIVER.rpartition('.')[0]}",
            f"DRIVER version      : {DRIVER}",
            f"CUDA Version        : {CUDA}",
        ]
    if "-L" in options or "--list-gpus" in options:
        return [f"GPU {gpu['index']}: {NAME} (UUID: {uuid(gpu['index'])})" for gpu in rows]
    if "--query-gpu" in options:
        return query(options["--query-gpu"], GPU_FIELDS, rows, form)
    if "--query-compute-apps" in options:
        return query(options["--query-compute-apps"], APP_FIELDS, [app for gpu in rows for app in gpu["apps"]], form)
    return table(rows)


def main() -> int:
    """Read settings and state, print the answer, and return the exit status."""
    try:
        path = Path(os.environ.get("SGLANG_STANDIN_CONFIG") or "/etc/sglang-standin.json")
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        config = {}
    folder = Path(os.environ.get("SGLANG_STANDIN_STATE") or "/run/sglang-standin")
    try:
        lines = answer(sys.argv[1:], config, gpustate.read_states(folder))
    except Refused as refusal:
        sys.stdout.write(str(refusal))
        return refusal.status
    sys.stdout.write("".join(line + "\n" for line in lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
