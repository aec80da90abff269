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
from deployer.text import count_of


@dataclass(frozen=True, slots=True)
class Objection(Record):
    """One reason why a host is not fit for a profile, and what to do about it."""

    code: str
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Traffic(Record):
    """The requests of a server that is to be stopped, and what becomes of them.

    ``in_flight`` is None if it does not say; ``why_not`` is why it cannot refuse new ones, empty if it can. ``drain``
    and ``stop`` are seconds.
    """

    service: str
    in_flight: int | None = None
    why_not: str = ""
    drain: float = named("drain_s", default=0.0)
    stop: float = named("stop_s", default=0.0)

    def __str__(self) -> str:
        if self.in_flight is None:
            text = f"{self.service} does not say how many requests are in flight"
        else:
            verb = "is" if self.in_flight == 1 else "are"
            text = f"{count_of(self.in_flight, 'request')} {verb} in flight on {self.service}"
        if self.why_not:
            return (
                f"{text}. It cannot refuse new ones ({self.why_not}): it is stopped as soon as it has none, after "
                f"{self.drain:g} s in any case; what then does not end within {self.stop:g} s is cut off"
            )
        if not self.drain:
            return f"{text}. They are cut off at once (drain = 0)"
        return (
            f"{text}. From its stop on it refuses new ones, and those under way have {self.drain:g} s to end; "
            "what is left then is cut off"
        )


@dataclass(frozen=True, slots=True)
class Drained(Record):
    """What became of the requests of the server that was stopped. ``refused``: no new ones came in meanwhile."""

    in_flight: int | None
    aborted: int
    refused: bool = named("refused_new", default=False)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan(Record):
    """What ``apply`` will do.

    ``action``: ``nothing`` (live, healthy and equal), ``converge`` (to be made equal to its live release, or started
    again, by ``restart``) or ``deploy``. ``differences`` are those of the host from its live release.
    ``displaces`` are the services that run on the same GPUs or port and are stopped and disabled for it.
    ``unit_only`` are keys of the unit that differ besides and need no restart; ``unit_diff`` is all of the unit's
    difference as text. ``strays`` are processes of earlier starts that are ended, too.
    ``traffic`` are the requests of each server that it stops.
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
    traffic: tuple[Traffic, ...] = ()
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
    drained: Drained | None = None
    exit_code: int = 0
    message: str = ""
    notes: tuple[str, ...] = ()
