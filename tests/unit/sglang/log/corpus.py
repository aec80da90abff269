"""Failing launches as they were posted in public threads, with what they are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent / "corpus"


@dataclass(frozen=True)
class Case:
    """One excerpt. ``phase`` is ``any`` where the excerpt does not tell."""

    source: str
    signature: str
    phase: str
    text: str


def cases(name: str) -> list[Case]:
    """The excerpts of one file."""
    found = []
    for section in (_FOLDER / f"{name}.txt").read_text("utf-8").split("\n=== ")[1:]:
        source, expected, text = section.split("\n", 2)
        signature, phase = expected.removeprefix("expect: ").split()
        found.append(Case(source, signature, phase, text))
    return found
