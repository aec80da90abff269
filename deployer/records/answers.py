"""What the other operations answer, typed. Shapes: ``docs/architecture.md``.

Times are epoch seconds unless a name ends in ``_boottime``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from deployer.records.codec import Json, Record, unwritten
from deployer.text import count_of


@dataclass(frozen=True, slots=True)
class Hello(Record):
    """Who answers: the agent and the machine it runs on."""

    schema: int
    agent: str
    python: str
    uid: int
    hostname: str
    boot_id: str
    systemd: int | None
    now: float
    now_boottime: float


@dataclass(frozen=True, slots=True)
class LeaseGrant(Record):
    """What ``lease.acquire`` answers. ``token`` proves ownership when it is reclaimed."""

    generation: int
    token: str
    expires_in: float


@dataclass(frozen=True, slots=True)
class HttpAnswer(Record):
    """One HTTP exchange made on the host itself."""

    status: int
    headers: dict[str, str]
    body: str
    seconds: float


@dataclass(frozen=True, slots=True)
class DropIn(Record):
    """A drop-in of the real unit, and the keys that it sets (of `ProbeReport`: those that deployer decides)."""

    path: str
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class VerifyReport(Record):
    """What ``systemd-analyze verify`` printed, and its exit status."""

    status: int
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProbeReport(Record):
    """How systemd understands a unit text: what verify says and what is read back over D-Bus."""

    verify: VerifyReport
    argv: tuple[str, ...] = ()
    properties: Json = field(default_factory=dict)
    load_error: str | None = None
    drop_ins: tuple[DropIn, ...] = ()


@dataclass(frozen=True, slots=True)
class Stopped(Record):
    """What ``unit.stop`` answers. ``inflight`` is None if the server does not report it.

    ``aborted`` of them were cut off; ``refused``: no new ones came in meanwhile.
    """

    seconds: float
    inflight: int | None = None
    killed: bool = False
    aborted: int = 0
    refused: bool = False

    def __str__(self) -> str:
        text = f"stopped in {self.seconds:.1f} s"
        if self.inflight:
            # Under a pipeline SGLang counts only the micro-batch whose turn it is; connections are exact.
            text += f", {'' if self.refused else 'at least '}{count_of(self.inflight, 'request')} in flight: "
            text += f"{self.aborted} cut off" if self.aborted else "all finished"
            text += ", new ones were refused" if self.refused else ""
        return text + (" (SIGKILL was needed)" if self.killed else "")


@dataclass(frozen=True, slots=True)
class MadeRoom(Record):
    """What ``unit.exclude`` answers: the services that were stopped or disabled."""

    stopped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Started(Record):
    """What ``unit.start`` answers: what ``watch`` needs to follow this start and no other.

    ``attach``: it runs already, and time counts from the beginning of the watch.
    """

    invocation_id: str
    cursor: str = ""
    started_boottime: float | None = None
    attach: bool = unwritten(default=False)


@dataclass(frozen=True, slots=True)
class Returned(Record):
    """A service that ``converge`` brought back, because what it had been stopped for was undone."""

    service: str
    started: bool = False
    invocation_id: str | None = None
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Converged(Record):
    """What ``converge`` answers. ``serving``: /health answered 200 from a process of the unit."""

    live: str | None = None
    actions: tuple[str, ...] = ()
    started: bool = False
    invocation_id: str | None = None
    cursor: str | None = None
    serving: bool = False
    started_boottime: float | None = None
    returned: tuple[Returned, ...] = ()


@dataclass(frozen=True, slots=True)
class HooksKept(Record):
    """What ``hooks.set`` answers. ``problem``: why the host cannot write its metrics."""

    changed: bool = False
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Metric(Record):
    """One of a service's metrics, as ``metrics`` answers them."""

    name: str
    labels: dict[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Ran(Record):
    """What ``run`` answers: the program's exit status and the end of its stderr."""

    status: int
    stderr: str = ""


@dataclass(frozen=True, slots=True)
class Proof(Record):
    """What ``watch`` answers: the first proof that a launch failed, and what belongs to it."""

    proof: str = "vanished"
    detail: Json = field(default_factory=dict)
