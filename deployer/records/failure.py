"""Why something failed, and how long a launch took: what a release keeps and ``--json`` shows."""

from __future__ import annotations

import re
from dataclasses import dataclass

from deployer.records.codec import Record, sparse


@dataclass(frozen=True, slots=True)
class Failure(Record):
    """Why a release failed.

    ``signature`` names the kind of failure (``unknown`` if it is none of the known ones), ``phase`` the step or launch
    phase, ``evidence`` the lines of the log that prove it, ``proof`` what ended the wait for a launch.
    """

    signature: str
    cause: str
    phase: str | None = None
    remedy: str | None = None
    log_tail: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    reference: str | None = sparse(default=None)
    proof: str | None = sparse(default=None)

    @property
    def in_short(self) -> str:
        """The signature as a word or two."""
        if self.signature == "unknown":
            return "failed"
        return re.sub(r"(?<=[a-z])(?=[A-Z])|[_-]", " ", self.signature).lower()


@dataclass(frozen=True, slots=True)
class PhaseTime(Record):
    """One phase of a launch or step of an apply, and how long it took, in seconds."""

    name: str
    seconds: float = 0.0
