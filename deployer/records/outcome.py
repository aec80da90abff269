"""What a change to a host is made of and comes to: plan, objections, outcome. Their JSON is in docs/cli.md."""

from __future__ import annotations

from dataclasses import dataclass

from deployer.records.bench import BenchRun
from deployer.records.codec import Json, Record, named, unwritten
from deployer.records.effect import InEffect
from deployer.records.failure import Failure, PhaseTime
from deployer.records.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Objection(Record):
    """One reason why a host is not fit for a profile, and what to do about it."""

    code: str
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Change(Record):
    """One thing that differs. ``before`` or ``after`` is None if it appears or goes."""

    kind: str
    name: str
    before: str | None
    after: str | None
    restart: bool = True

    def __str__(self) -> str:
        if self.before is None:
            return f"+ {self.name} {self.after}".rstrip()
        if self.after is None:
            return f"- {self.name} {self.before}".rstrip()
        return f"~ {self.name} {self.before} -> {self.after}"


@dataclass(frozen=True, slots=True)
class Plan(Record):
    """What ``apply`` will do.

    ``action``: ``nothing`` (live, healthy and equal), ``converge`` (equal, but not running as it should) or ``deploy``.
    ``unit_only`` are keys of the unit that differ besides and need no restart; ``unit_diff`` is all of the unit's
    difference as text. ``downtime`` is in seconds, from this service's earlier starts; None if there were none.
    """

    service: str
    profile: str
    action: str
    live: str | None
    release: str
    changes: tuple[Change, ...] = ()
    unit_only: tuple[Change, ...] = unwritten(default=())
    unit_diff: str = ""
    interrupts: bool = named("interrupts_live", default=False)
    downtime: float | None = named("expected_downtime_s", default=None)
    downtime_basis: str = ""

    @property
    def restart(self) -> bool:
        """Whether the engine is started anew."""
        return self.action != "nothing"

    def as_json(self) -> Json:
        """Return the plan as JSON, with ``restart``."""
        return Record.as_json(self) | {"restart": self.restart}


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
