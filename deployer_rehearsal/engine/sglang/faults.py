"""Failures on request, so that a rehearsal meets the same trouble as production.

The fault file (/run/sglang-standin/faults.json) is a JSON object, read at the start and whenever a fault of the serving
server could act::

    {"faults": [{"name": "crash-in-load", "when_argv_contains": "--pp-size"},
                {"name": "slow", "percent": 30, "once": true}]}

| name | options | what happens |
|---|---|---|
| crash-in-load | at (share of the shards, 0.5), rank, exception | a scheduler raises; the server kills itself |
| oom-in-load | at, rank | CUDA out of memory while loading |
| oom-in-capture | rank | CUDA out of memory while capturing graphs |
| crash-after-capture | rank, exception | a scheduler raises just before the HTTP server would start |
| crash-while-serving | at (n-th generation, 1), rank, exception | a scheduler dies; the server kills itself |
| hang-in-load | at | loading goes silent and stays alive |
| hang-in-dist | | the same before loading |
| never-ready | | the port opens, /health stays 503 for ever |
| hang-at-request | at (n-th generation, 1) | generation stops; /health turns 503 after 20 s |
| slow | percent (50), at (n-th generation, 0) | every step takes that much longer |
| http-error | status (500), at (n-th generation, 1), every (1: all, 10: one in ten) | generations are refused |
| broken-stream | how, tokens (after so many, 3), at, every | a streamed answer breaks; how: see below |
| bad-counters | how, endpoint (metrics or loads; both) | the counters are useless; how: see below |
| wrong-argument | argument, value | /server_info and the engine have another value than requested |
| port-never-released | | after a stop a child of the same control group, deaf to SIGTERM, keeps the port |
| memory-never-released | | the same child keeps GPU memory instead |
| garbage-output | text (one token to repeat; "" gives empty output) | answers are useless, everything else is fine |
| ignore-sigterm | | only SIGKILL ends it |
| graphs-lost | | captures graphs but never replays them (``cuda graph: False``) |

How a stream breaks: ``reset`` (of the connection), ``close`` (in the middle), ``stall`` (nothing more comes),
``garbage`` (an invalid event), ``page`` (a page of HTML with status 200 instead of the answer).
How counters do: ``missing`` (404), ``garbage``, ``hang`` (no answer), or every number is ``nan``, ``negative``,
``huge`` or ``infinite``.

Options of every fault:

* ``when_argv_contains``: text, or a list of texts; acts only if the arguments, joined by blanks, hold one of them.
* ``unless_argv_contains``: the opposite.
* ``once``: true; acts in one start only. The start that takes it adds a line to ``faults.json.taken`` beside the file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NAMES = frozenset(
    {
        "crash-in-load",
        "oom-in-load",
        "oom-in-capture",
        "crash-after-capture",
        "crash-while-serving",
        "hang-in-load",
        "hang-in-dist",
        "never-ready",
        "hang-at-request",
        "slow",
        "http-error",
        "broken-stream",
        "bad-counters",
        "wrong-argument",
        "port-never-released",
        "memory-never-released",
        "garbage-output",
        "ignore-sigterm",
        "graphs-lost",
    }
)

#: Those that act while a server starts.
START = frozenset(
    {
        "crash-in-load",
        "oom-in-load",
        "oom-in-capture",
        "crash-after-capture",
        "hang-in-load",
        "hang-in-dist",
        "never-ready",
        "wrong-argument",
    }
)


@dataclasses.dataclass(frozen=True)
class Fault:
    """One fault that applies to this start, with its options."""

    name: str
    options: dict[str, Any]


class Faults:
    """The faults that apply to one start; none if the file is missing or unreadable."""

    def __init__(self, path: Path, argv: Sequence[str]) -> None:
        self._path = path
        self._line = " ".join(argv)
        self._stamp: tuple[int, int, int] | None = None
        self._taken: set[str] = set()
        self._active: dict[str, Fault] = {}
        self._starting = True
        self._load()
        self._starting = False

    def get(self, name: str) -> Fault | None:
        """Return the fault of that name if it applies now; the file is read again."""
        if self._stamp != self._current_stamp():
            self._load()
        return self._active.get(name)

    def names(self) -> list[str]:
        return sorted(self._active)

    def _current_stamp(self) -> tuple[int, int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _load(self) -> None:
        self._stamp = self._current_stamp()
        self._active = {}
        for entry in read_faults(self._path):
            if not applies(entry, self._line):
                continue
            if entry.get("once"):
                # A server that runs already leaves to the next start what can only happen in one.
                late = not self._starting and entry["name"] in START and not self._has(entry)
                if late or not self._take(entry):
                    continue
            self._active[entry["name"]] = Fault(entry["name"], entry)

    def _has(self, entry: dict[str, Any]) -> bool:
        return json.dumps(entry, sort_keys=True) in self._taken

    def _take(self, entry: dict[str, Any]) -> bool:
        """Claim a fault that acts once; return False if an earlier start has claimed it."""
        key = json.dumps(entry, sort_keys=True)
        if key in self._taken:
            return True
        record = self._path.with_name(self._path.name + ".taken")
        try:
            earlier = record.read_text(encoding="utf-8").splitlines()
        except OSError:
            earlier = []
        if key in earlier:
            return False
        self._taken.add(key)
        # Another user's record cannot always be added to; the fault acts all the same.
        with contextlib.suppress(OSError):
            # Opened without O_CREAT first: in a folder for all, the kernel refuses that on another user's file.
            flags = os.O_WRONLY | os.O_APPEND | (0 if record.exists() else os.O_CREAT)
            with os.fdopen(os.open(record, flags, 0o666), "w", encoding="utf-8") as stream:
                stream.write(key + "\n")
        return True


def read_faults(path: Path) -> list[dict[str, Any]]:
    """Return the entries of a fault file with a known name."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    entries = data.get("faults", []) if isinstance(data, dict) else []
    return [entry for entry in entries if isinstance(entry, dict) and entry.get("name") in NAMES]


def applies(entry: dict[str, Any], line: str) -> bool:
    """Whether an entry's conditions hold for a command line."""
    wanted = _texts(entry.get("when_argv_contains"))
    unwanted = _texts(entry.get("unless_argv_contains"))
    return (not wanted or any(text in line for text in wanted)) and not any(text in line for text in unwanted)


def _texts(value: Any) -> list[str]:
    if value is None:
        return []
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]
