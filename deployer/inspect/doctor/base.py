"""What a check of the doctor is, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from deployer.inspect.doctor.evidence import Evidence
from deployer.sglang.rules.base import Severity

#: The command that measures a change against what is live.
COMPARE = "deployer apply {profile}; deployer compare {live} {profile}"


@dataclass(frozen=True)
class Hit:
    """What a check found: the sentence with its figures, and what proves it (log lines, answers, samples).

    ``next`` and ``measure`` replace the check's own.
    """

    message: str
    evidence: tuple[str, ...] = ()
    next: str | None = None
    measure: str | None = None


@dataclass(frozen=True)
class Fine:
    """A check looked and found nothing wrong: what it saw."""

    looked: str


@dataclass(frozen=True)
class Unknown:
    """A check could not look: why."""

    why: str


Answer = Hit | Fine | Unknown


@dataclass(frozen=True)
class Finding:
    """One finding, as it is shown."""

    id: str
    severity: Severity
    title: str
    message: str
    evidence: tuple[str, ...]
    next: str
    measure: str

    def as_dict(self) -> dict[str, Any]:
        """The finding as it appears in JSON."""
        return {
            "id": self.id,
            "severity": str(self.severity),
            "title": self.title,
            "message": self.message,
            "evidence": list(self.evidence),
            "next": self.next,
            "measure": self.measure,
        }


@dataclass(frozen=True)
class Check:
    """One thing to look at. ``trips`` says when it is a finding; ``next`` is a hypothesis, ``measure`` tests it."""

    id: str
    theme: str
    severity: Severity
    title: str
    trips: str
    next: str
    measure: str
    look: Callable[[Evidence], Answer] = field(repr=False)

    def finding(self, hit: Hit, names: dict[str, str]) -> Finding:
        """The finding for a hit; ``names`` fill the placeholders of the command."""
        measure = (hit.measure if hit.measure is not None else self.measure).format_map(names)
        return Finding(
            self.id, self.severity, self.title, hit.message, hit.evidence, hit.next or self.next, measure
        )


class Theme:
    """A group of checks; ``theme.check(...)`` registers a function as one."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.checks: list[Check] = []

    def check(
        self, id: str, severity: Severity, title: str, *, trips: str, next: str, measure: str
    ) -> Callable[[Callable[[Evidence], Answer]], Callable[[Evidence], Answer]]:
        """Register the decorated function."""

        def register(look: Callable[[Evidence], Answer]) -> Callable[[Evidence], Answer]:
            self.checks.append(
                Check(
                    id,
                    self.title,
                    severity,
                    title,
                    " ".join(trips.split()),
                    " ".join(next.split()),
                    measure,
                    look,
                )
            )
            return look

        return register


def try_profile(e: Evidence, name: str | None, change: str) -> str:
    """The command that measures a change: with a profile that has it, or with one to be written."""
    if name is None:
        name = "PROFILE"
    command = f"deployer apply {name}; deployer compare {{live}} {name}"
    return (
        command
        if name != "PROFILE"
        else f"write a profile PROFILE that extends {e.profile}, with {change}; {command}"
    )
