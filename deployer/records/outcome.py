"""What a change to a host is made of and comes to: plan, objections, outcome. Their JSON is in docs/cli.md."""

from __future__ import annotations

from dataclasses import dataclass

from deployer.records.bench import BenchRun
from deployer.records.codec import Record, named, unwritten
from deployer.records.drift import Change, Difference
from deployer.records.effect import InEffect
from deployer.records.failure import Failure, PhaseTime
from deployer.records.hardware import Process
from deployer.records.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Objection(Record):
    """One reason why a host is not fit for a profile, and what to do about it."""

    code: str
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Plan(Record):
    """What ``apply`` will do.

    ``action``: ``nothing`` (live, healthy and equal), ``converge`` (to be made equal to its live release, or started
    again, by ``restart``) or ``deploy``. ``differences`` are those of the host from its live release.
    ``displaces`` are the services that run on the same GPUs or port and are stopped and disabled for it.
    ``unit_only`` are keys of the unit that differ besides and need no restart; ``unit_diff`` is all of the unit's
    difference as text. ``strays`` are processes of earlier starts that are ended, too.
    ``downtime`` is in seconds, from this service's earlier starts; None if there were none.
    """

    service: str
    profile: str
    action: str
    live: str | None
    release: str
    host: str = ""
    restart: bool = True
    changes: tuple[Change, ...] = ()
    differences: tuple[Difference, ...] = ()
    displaces: tuple[str, ...] = ()
    unit_only: tuple[Change, ...] = unwritten(default=())
    unit_diff: str = ""
    strays: tuple[Process, ...] = ()
    interrupts: bool = named("interrupts_live", default=False)
    downtime: float | None = named("expected_downtime_s", default=None)
    downtime_basis: str = ""

    @property
    def place(self) -> str:
        """Which service it is about, and on which host."""
        return f"{self.service} on {self.host}" if self.host else self.service

    @property
    def stopped(self) -> str:
        """What it stops, in words: the services that have to make room, else what runs of its own."""
        return " and ".join(self.displaces) or self.live or "what runs now"

    @property
    def restart_reasons(self) -> tuple[str, ...]:
        """The differences for which what runs has to be started again, although it serves."""
        return tuple(item.text for item in self.differences if item.restart)

    @property
    def equal(self) -> bool:
        """Whether nothing would change, and nothing on the host differs from the live release."""
        return self.action == "nothing" and not self.differences


@dataclass(frozen=True, slots=True)
class SavedPlan(Record):
    """A plan to be applied later, with what it was made from (``basis``: what, and as it was then)."""

    host: str
    created: float
    plan: Plan
    basis: dict[str, str]


@dataclass(frozen=True, slots=True)
class Outcome(Record):
    """What an ``apply``, ``rollback``, ``resume`` or ``converge`` came to."""

    outcome: str
    service: str
    profile: str | None = None
    release: str | None = None
    previous: str | None = None
    phases: tuple[PhaseTime, ...] = ()
    bench: BenchRun | None = None
    verdict: Verdict | None = None
    in_effect: InEffect | None = None
    failure: Failure | None = None
    exit_code: int = 0
    message: str = ""
    notes: tuple[str, ...] = ()
