"""What the host's long operations report while they run. Shapes: ``docs/architecture.md``.

``t`` is seconds since the unit's start was requested, or epoch seconds in the journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deployer.records.codec import Json, Record


@dataclass(frozen=True, slots=True)
class StopEvent(Record):
    """Progress of ``unit.stop`` and ``converge``: an action, or a stage with what is still there."""

    action: str = ""
    stage: str = ""
    inflight: int | None = None
    pids: tuple[int, ...] = ()
    port: bool = False
    gpu_memory: int = 0


@dataclass(frozen=True, slots=True)
class LogLine(Record):
    """A line of the service's journal. ``piece``: it ended with a carriage return, as progress bars do."""

    text: str = ""
    t: float | None = None
    source: str = "engine"
    piece: bool = False

    @property
    def engine(self) -> bool:
        """Whether the server itself printed it."""
        return self.source == "engine"


@dataclass(frozen=True, slots=True)
class RunLine(Record):
    """A line that a program wrote to stdout."""

    line: str = ""


@dataclass(frozen=True, slots=True)
class UnitEvent(Record):
    """The unit changed: what systemd says of it now."""

    t: float = 0.0
    active: str = ""
    sub: str = ""
    result: str = ""
    restarts: int = 0
    invocation_id: str = ""
    main_pid: int = 0
    exec_code: int = 0
    exec_status: int = 0


@dataclass(frozen=True, slots=True)
class LogEvent(Record):
    """New lines of the log."""

    t: float = 0.0
    lines: tuple[LogLine, ...] = ()


@dataclass(frozen=True, slots=True)
class HealthEvent(Record):
    """The endpoint was probed. ``state`` is an HTTP status, or ``refused``, ``timeout`` or ``reset``."""

    t: float = 0.0
    state: str = ""
    seconds: float = 0.0
    ours: bool = False


@dataclass(frozen=True, slots=True)
class ProcEvent(Record):
    """What the unit's processes hold and did: bytes, and seconds of CPU time since the start."""

    t: float = 0.0
    rss: int = 0
    read_bytes: int = 0
    cpu_seconds: float = 0.0
    gpu_memory: int | None = None


@dataclass(frozen=True, slots=True)
class FailedEvent(Record):
    """The launch failed, and this is the proof."""

    t: float = 0.0
    proof: str = "vanished"
    detail: Json = field(default_factory=dict)


WatchEvent = UnitEvent | LogEvent | HealthEvent | ProcEvent | FailedEvent
_KINDS: Mapping[str, type[WatchEvent]] = {
    "unit": UnitEvent,
    "log": LogEvent,
    "health": HealthEvent,
    "proc": ProcEvent,
    "failed": FailedEvent,
}


def watch_event(data: Mapping[str, Any]) -> WatchEvent | None:
    """Return the event of ``watch`` that ``data`` describes, None if it is of a kind that is not known here."""
    kind = _KINDS.get(str(data.get("kind")))
    return None if kind is None else kind.from_json(data)
