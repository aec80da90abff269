"""What a schedule is made of: a change, a candidate's fault, a blow and its moment. A seed and a number decide all."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any

#: What is changed, and how often of ten.
CHANGES = {"apply": 6, "rollback": 2, "converge": 2}
#: Faults of the candidate; None: it is sound.
FAULTS = (None, None, None, "crash-in-load", "hang-in-load", "crash-while-serving", "garbage-output")
#: Steps at whose beginning the blow falls; a number is a moment in seconds after the command began instead.
STEPS = ("stop", "switch", "wait", "verify", "bench", "promote", "finish", "restore")
BLOWS = (
    "operator killed",
    "Ctrl-C",
    "Ctrl-C twice",
    "operator stopped past its lease",
    "power cut",
    "connection broken",
    "agent killed",
    "guard killed",
    "operator and guard killed",
    "second operator",
    "admin stops the service",
    "admin disables the service",
    "admin masks the guard",
    "systemd re-executed",
    "sshd killed",
    "isolated to another target and back",
    "disk full",
    "disk read-only for a while",
    "power cut, recovery killed again and again",
)
#: Blows after which the admin's own deed remains, until somebody says `converge`.
ADMIN = tuple(blow for blow in BLOWS if blow.startswith("admin"))


@dataclass(frozen=True)
class Schedule:
    """One disturbed change. ``at`` is a step of the transition, or seconds after the command began."""

    number: int
    change: str
    fault: str | None
    blow: str
    at: str | float
    neighbour: bool = False
    """Whether another service runs beside it, which must not be touched."""

    def __str__(self) -> str:
        moment = self.at if isinstance(self.at, str) else f"{self.at:.1f} s"
        words = f"{self.change}{f' ({self.fault})' if self.fault else ''}{', beside mini' * self.neighbour}"
        return f"{self.number}: {words}, {self.blow} at {moment}"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def schedule(seed: int, number: int) -> Schedule:
    """Return the schedule of this number; blows take turns, all else is drawn."""
    drawn = random.Random(f"{seed}-{number}")
    change = drawn.choices(list(CHANGES), list(CHANGES.values()))[0]
    fault = drawn.choice(FAULTS) if change == "apply" else None
    steps = STEPS if fault else STEPS[:-1]
    at: str | float = round(drawn.uniform(0.2, 9.0), 1) if change == "converge" or drawn.random() < 0.4 else ""
    return Schedule(number, change, fault, BLOWS[number % len(BLOWS)], at or drawn.choice(steps), drawn.random() < 0.2)
