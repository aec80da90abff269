"""What a symptom is, and what looking for one can answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from deployer.config.profile import Profile
from deployer.inspect.doctor.evidence import Evidence
from deployer.resources import knowledge
from deployer.sglang.rules.base import Severity

#: What every symptom knows, by its id.
KNOWLEDGE = "inspect/doctor/symptoms.toml"


@dataclass(frozen=True)
class Present:
    """The symptom is there: the sentence with its figures, and what proves it (log lines, answers, samples).

    ``next`` and ``measure`` replace the symptom's own.
    """

    message: str
    evidence: tuple[str, ...] = ()
    next: str | None = None
    measure: str | None = None


@dataclass(frozen=True)
class Absent:
    """It is not there: what was seen instead."""

    looked: str


@dataclass(frozen=True)
class Unclear:
    """It could not be looked for: why."""

    why: str


Answer = Present | Absent | Unclear
Look = Callable[[Evidence], Answer]


def present_if(present: bool, text: str, *evidence: str) -> Answer:
    """Return `Present` or `Absent`, with the same text; it is its own evidence unless there is other."""
    return Present(text, evidence or (text,)) if present else Absent(text)


def span(by_gpu: Mapping[int, float]) -> str:
    """Return the lowest and the highest value in words."""
    return f"{min(by_gpu.values()):.0f} to {max(by_gpu.values()):.0f}"


@dataclass(frozen=True)
class Symptom:
    """One thing to look for. ``trips`` says when it is present; ``next`` is a hypothesis, ``measure`` tests it.

    ``stopped``: it is looked for when no process of the service runs, too.
    """

    id: str
    severity: Severity
    title: str
    trips: str
    next: str
    measure: str
    look: Look = field(repr=False)
    stopped: bool = False


class Theme:
    """A group of symptoms; ``@THEME.symptom(id)`` registers a function that looks for the symptom of that id."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.symptoms: list[Symptom] = []

    def symptom(self, id: str, limit: float = 0) -> Callable[[Look], Look]:
        """Register the decorated function; ``limit`` is the figure in the text of when it trips."""
        facts = dict(knowledge(KNOWLEDGE)[id])
        facts |= {"severity": Severity(facts["severity"]), "trips": facts["trips"].format(limit=limit)}

        def register(look: Look) -> Look:
            self.symptoms.append(Symptom(id=id, look=look, **facts))
            return look

        return register


def try_profile(e: Evidence, change: str, fits: Callable[[Profile], object] = lambda _: False) -> str:
    """Return the command that measures a change: with a profile that ``fits``, or with one still to be written."""
    name = e.other_profile(fits)
    command = "deployer apply {0}; deployer compare {{live}} {0}".format(name or "PROFILE")
    return command if name else f"write a profile PROFILE that extends {e.profile}, with {change}; {command}"
