"""What a rule is, what it finds, and how it is registered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from deployer.config.wording import KeyPath, key_path, printable
from deployer.resources import knowledge
from deployer.sglang.rules.facts import Facts

#: What every rule knows, by its id.
KNOWLEDGE = "sglang/data/rules.toml"


class Severity(StrEnum):
    """How serious a finding is."""

    ERROR = "error"
    """It cannot work: SGLang refuses it, or arithmetic does."""
    WARNING = "warning"
    """It is known to go wrong, or to be expensive, in cases like this one."""
    ADVICE = "advice"
    """Worth knowing; measurements may differ between machines."""

    @property
    def rank(self) -> int:
        """0 for the most serious."""
        return list(Severity).index(self)


class Need(StrEnum):
    """A fact that the configuration alone does not have, by its name in messages."""

    VERSION = "SGLang's version"
    GPUS = "the GPUs"
    MODEL = "the model's config.json"
    WEIGHTS = "the size of the model's weights"
    PACKAGES = "the packages of the engine's environment"
    MEMORY = "the host's memory"


@dataclass(frozen=True)
class Hit:
    """What a rule's function yields: the evidence with its figures, and the place in the profile or the inventory.

    ``severity`` and ``remedy`` override the rule's own.
    """

    message: str
    where: KeyPath = ()
    severity: Severity | None = None
    remedy: str | None = None


@dataclass(frozen=True)
class Finding:
    """One thing that a rule found."""

    rule: str
    severity: Severity
    title: str
    message: str
    remedy: str
    where: KeyPath = ()
    references: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The place as its author writes it (``parallelism.ep``); empty if there is no single one."""
        return key_path(self.where)

    @property
    def text(self) -> str:
        """Place and evidence in one sentence."""
        return f"{self.place}: {self.message}" if self.where else self.message

    def __str__(self) -> str:
        return f"{self.severity} {self.rule}: {self.text}"

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as it appears in JSON documents."""
        return {
            "rule": self.rule,
            "severity": str(self.severity),
            "title": self.title,
            "where": self.place or None,
            "message": self.message,
            "remedy": self.remedy,
            "references": list(self.references),
        }


Check = Callable[[Facts], Iterable[Hit]]


@dataclass(frozen=True)
class Rule:
    """A fact about SGLang, and the function that decides whether it matters here.

    ``severity`` is the highest it can have. ``about`` explains: what happens, in which versions, with which figures.
    ``references`` are upstream issues and pull requests by number, places in published wheels (``version:path:line``
    below ``sglang/``), or measurements. ``shape`` marks what is wrong with a profile regardless of service and version.
    ``blocks``: its errors make rendering impossible, or pointless.
    """

    id: str
    theme: str
    severity: Severity
    title: str
    about: str
    remedy: str
    references: tuple[str, ...]
    needs: frozenset[Need]
    shape: bool
    blocks: bool
    check: Check = field(repr=False)

    def findings(self, facts: Facts) -> list[Finding]:
        """Return what it finds; nothing if it lacks a fact."""
        return [] if self.lacks(facts) else [self._finding(hit) for hit in self.check(facts)]

    def finding(self, message: str, where: KeyPath = ()) -> Finding:
        """Return a finding of this rule that its function could not make."""
        return self._finding(Hit(message, where))

    def _finding(self, hit: Hit) -> Finding:
        return Finding(
            self.id,
            hit.severity or self.severity,
            self.title,
            printable(hit.message, 2000),  # it quotes names and values from files
            hit.remedy or self.remedy,
            hit.where,
            self.references,
        )

    def lacks(self, facts: Facts) -> frozenset[Need]:
        """Return the facts that it needs and that are unknown."""
        return frozenset(need for need in self.needs if not has(facts, need))


def has(facts: Facts, need: Need) -> bool:
    """Return whether a fact is known."""
    seen = facts.seen
    facts_known: Mapping[Need, bool] = {
        Need.VERSION: facts.version is not None,
        Need.GPUS: bool(seen.gpus),
        Need.MODEL: seen.model is not None,
        Need.WEIGHTS: bool(seen.weight_bytes),
        Need.PACKAGES: bool(seen.packages),
        Need.MEMORY: bool(seen.memory),
    }
    return facts_known[need]


class Theme:
    """A group of rules; ``@THEME.rule(id)`` registers a function as the rule of that id."""

    def __init__(self, name: str, title: str) -> None:
        self.name = name
        self.title = title
        self.rules: list[Rule] = []

    def rule(self, id: str) -> Callable[[Check], Check]:
        """Register the decorated function."""
        known = knowledge(KNOWLEDGE)[id]

        def register(check: Check) -> Check:
            rule = Rule(
                id=id,
                theme=self.name,
                severity=Severity(known["severity"]),
                title=known["title"],
                about=known["about"],
                remedy=known["remedy"],
                references=tuple(known["references"]),
                needs=frozenset(Need[name.upper()] for name in known.get("needs", ())),
                shape=known.get("shape", False),
                blocks=known.get("shape", False) or known.get("blocks", False),
                check=check,
            )
            self.rules.append(rule)
            return check

        return register
