"""What differs: between two releases, and between a host and its live release."""

from __future__ import annotations

from dataclasses import dataclass

from deployer.records.codec import Record


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
class Difference(Record):
    """One way in which a host is not equal to its live release.

    ``converges``: `converge` makes it equal, with a ``restart`` if one is needed; otherwise ``remedy`` is what to do.
    """

    kind: str
    text: str
    converges: bool = False
    restart: bool = False
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.text}: {self.remedy}" if self.remedy else self.text
