"""systemd and its journal: a unit's state and properties, and the lines it logged."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
from typing import Dict, Iterator, List, Optional

from .base import Call, Fail, Json, ask_systemd, execute, systemctl

SYNC_PATIENCE = 5.0  # seconds for journald to take what waits in its sockets
NUMBERS = ("NRestarts", "MainPID", "ExecMainStatus", "ExecMainCode")
STAMPS = ("ActiveEnterTimestamp", "InactiveEnterTimestamp", "StateChangeTimestamp")
TEXTS = [
    "ActiveState",
    "SubState",
    "Result",
    "InvocationID",
    "LoadState",
    "UnitFileState",
    "FragmentPath",
    "Restart",
]


def unit_state(unit: str) -> Json:
    names = list(NUMBERS + STAMPS) + TEXTS + ["DropInPaths", "NeedDaemonReload", "InactiveExitTimestamp"]
    wanted = ",".join(name + "Monotonic" if name.endswith("Timestamp") else name for name in names)
    shown = systemctl("show", "-p", wanted, "--", unit).stdout
    raw = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    state: Json = {name: raw.get(name, "") for name in TEXTS}
    state.update({name: int(raw.get(name) or 0) for name in NUMBERS})
    offset = time.time() - time.monotonic()
    for name in (*STAMPS, "InactiveExitTimestamp"):
        micros = int(raw.get(name + "Monotonic") or 0)
        state[name] = round(micros / 1e6 + offset, 2) if micros else None
    state["DropInPaths"] = raw.get("DropInPaths", "").split()
    state["NeedDaemonReload"] = raw.get("NeedDaemonReload") == "yes"
    return state


def drop_ins(unit: str) -> List[str]:
    """The drop-ins that systemd would merge into a unit of this name, whether or not the unit exists."""
    folders = systemctl("show", "-p", "UnitPath", "--value", check=False).stdout.split()
    stem, _, kind = unit.rpartition(".")
    names = [unit] + [stem[: at + 1] + "." + kind for at in range(len(stem) - 2, 0, -1) if stem[at] == "-"]
    found: Dict[str, str] = {}  # by file name: the first one wins
    for name in [*names, kind]:
        for folder in folders:
            below = os.path.join(folder, name + ".d")
            for file in os.listdir(below) if os.path.isdir(below) else []:
                if file.endswith(".conf"):
                    found.setdefault(file, os.path.join(below, file))
    return [found[file] for file in sorted(found) if os.path.realpath(found[file]) != "/dev/null"]


def keys_of(text: str) -> List[str]:
    """The settings that a unit file or drop-in makes, in order, each once."""
    joined = re.sub(
        r"\\\r?\n", " ", "\n".join(line for line in text.splitlines() if line.lstrip()[:1] not in ("#", ";"))
    )
    found = re.findall(r"^[ \t]*([A-Za-z][A-Za-z0-9-]*)[ \t]*=", joined, re.M)
    return list(dict.fromkeys(found))


def is_up(state: Json) -> bool:
    """Running or starting, and not between two automatic restarts."""
    up = state["ActiveState"] in ("active", "activating", "reloading", "refreshing")
    return up and not state["SubState"].startswith("auto-restart")


def is_down(state: Json) -> bool:
    return state["ActiveState"] in ("inactive", "failed")


def busctl_all(unit: str, interface: str) -> Json:
    """All properties of one interface of a unit, exactly as systemd holds them."""
    escaped = "".join(c if c.isascii() and c.isalnum() else "_%02x" % ord(c) for c in unit)
    path = "/org/freedesktop/systemd1/unit/" + escaped
    call = ["org.freedesktop.DBus.Properties", "GetAll", "s", "org.freedesktop.systemd1." + interface]
    done = ask_systemd(["busctl", "--json=short", "call", "org.freedesktop.systemd1", path, *call])
    return {name: value["data"] for name, value in json.loads(done.stdout)["data"][0].items()}


def journal_sync() -> None:
    """Return once journald has taken all lines that anybody wrote before this call (journalctl(1), ``--sync``).

    They wait in its sockets while the machine is busy. Raises Fail after SYNC_PATIENCE, and where journald does not
    answer.
    """
    execute(["journalctl", "--sync"], timeout=SYNC_PATIENCE)


def journal_cursor() -> str:
    """Where the journal ends now, all included that was written so far; empty for an empty journal."""
    with contextlib.suppress(Fail):
        journal_sync()  # else last words of the old server would come after it
    lines = execute(["journalctl", "-q", "-n", "1", "-o", "json"], check=False).stdout.splitlines()
    with contextlib.suppress(ValueError, KeyError):
        return str(json.loads(lines[-1])["__CURSOR"]) if lines else ""
    return ""


def entry_time(entry: Json) -> int:
    """When journald took an entry, in microseconds since the epoch; 0 where it does not say."""
    return int(entry.get("__REALTIME_TIMESTAMP") or 0)


def journal_lines(entry: Json) -> Iterator[Json]:
    """The lines of one journal entry: text, source, and whether a carriage return ended it (a progress bar)."""
    message = entry.get("MESSAGE")
    if isinstance(message, list) and message and not isinstance(message[0], int):
        message = message[0]  # a field that was given more than once
    if isinstance(message, list):
        message = bytes(message).decode("utf-8", "replace")
    source = "systemd" if entry.get("_PID") == "1" else "engine"
    if entry.get("_TRANSPORT") == "kernel":
        source = "kernel"
    stamp = entry_time(entry) / 1e6
    parts = re.split(r"(\r\n|[\r\n])", message or "")
    for text, end in zip(parts[::2], [*parts[1::2], ""]):
        if text:
            yield {"t": stamp, "text": text, "source": source, "piece": end == "\r"}


def journal_argv(unit: str, options: List[str], matches: Optional[List[str]] = None) -> List[str]:
    """How the journal is asked for what a unit said, and what systemd said of it."""
    default = ["_SYSTEMD_UNIT=" + unit, "+", "UNIT=" + unit, "_PID=1"]
    return ["journalctl", "-q", "-o", "json", "--all"] + options + (matches or default)


def journal_entries(
    call: Call, unit: str, options: List[str], matches: Optional[List[str]] = None
) -> Iterator[Json]:
    child = call.spawn(
        journal_argv(unit, options, matches),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert child.stdout is not None
    with child.stdout:
        for line in child.stdout:
            with contextlib.suppress(ValueError):
                yield json.loads(line)
    child.wait()


def journal_end(unit: str) -> int:
    """When the newest line of a unit was written (microseconds since the epoch). Raises Fail as journal_sync does."""
    journal_sync()
    lines = execute(journal_argv(unit, ["--lines=1"]), timeout=SYNC_PATIENCE).stdout.splitlines()
    return entry_time(json.loads(lines[-1])) if lines else 0
