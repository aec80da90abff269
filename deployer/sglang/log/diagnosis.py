"""What a log tells of a launch: failed and why, stopped, or neither. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deployer.sglang.log.failures import STOPPED, UNKNOWN, Failure, Search, find
from deployer.sglang.log.launch import LaunchState
from deployer.sglang.log.launch_file import starts
from deployer.sglang.log.signatures import any_of, found_in, telling
from deployer.sglang.log.strangers import ours, stranger
from deployer.sglang.log.text import Line, without_routine

#: The signature of a log without a failure.
NONE = "none"
#: The outcome of a log that another program wrote.
NOT_SGLANG = "not-sglang"
_NOTHING = "nothing in it is a server's, nor an error"
_EVIDENCE = 4
_EARLIER = 20


@dataclass(frozen=True)
class Diagnosis:
    """The verdict on the last start in a log.

    ``outcome`` is ``failed``, ``stopped``, ``no-failure`` or ``not-sglang``. ``failure`` tells more about the first
    two. ``timed``: whether the phases have times. ``start`` of ``starts`` starts in the log was looked at; ``earlier``
    says in a word what became of those before. ``notes``: warnings that good launches print too. ``stranger``: whose
    log it is where it is not SGLang's, if that is known.
    """

    outcome: str
    failure: Failure | None
    state: LaunchState
    timed: bool
    tail: tuple[Line, ...] = ()
    starts: int = 1
    earlier: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    running: bool | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    stranger: str = ""

    @property
    def verdict(self) -> str:
        """One line."""
        where = f"in phase {self.phase}" if self.phase else "in an unknown phase"
        if self.failure is not None and self.outcome == "failed":
            whose = f" on {self.failure.rank}" if self.failure.rank else ""
            if self.failure.signature == UNKNOWN:
                return f"failed {where}{whose}, for a reason that is not known here: {self.failure.cause}"
            return f"failed {where}{whose}: {self.failure.cause.removesuffix(f' ({self.failure.said})')}"
        if self.failure is not None:
            return f"no failure: {self.failure.cause} (phase {self.phase})"
        if self.outcome == NOT_SGLANG:
            return (
                f"not an SGLang log: {f'it looks like one of {self.stranger}' if self.stranger else _NOTHING}"
            )
        if self.extra.get("never_started"):
            return f"no failure: this release was never started (it is {self.extra.get('state')})"
        if not self.state.last_line:
            return "no failure in this log: it holds nothing of SGLang's"
        if self.running:
            doing = "it serves" if self.phase == "ready" else f"it is in phase {self.phase}"
        elif self.running is None:
            doing = "it reached readiness" if self.phase == "ready" else f"it reached phase {self.phase}"
            doing += ", still running or the log ends there"
        else:
            doing = f"it reached phase {self.phase} and ends there"
        waiting = f"; then it waits for {self.state.waiting_for}" if self.phase != "ready" else ""
        return f"no failure in this log: {doing}{waiting}"

    @property
    def phase(self) -> str | None:
        """Where it failed, else how far it came."""
        return self.failure.phase if self.failure is not None else self.state.phase

    def as_dict(self) -> dict[str, Any]:
        """All of it as data; the first six keys are `diagnose --json`'s contract."""
        failure = self.failure
        return {
            "signature": failure.signature if failure else NONE,
            "phase": self.phase,
            "cause": failure.cause if failure else None,
            "remedy": failure.remedy if failure else None,
            "evidence": list(failure.evidence) if failure else [line.text[:500] for line in self.tail],
            "reference": failure.reference if failure else None,
            "outcome": self.outcome,
            "verdict": self.verdict,
            "evidence_lines": list(failure.numbers) if failure else [line.number for line in self.tail],
            "rank": failure.rank if failure else "",
            "reached": self.state.phase,
            "timeline": self.state.timeline if self.timed else None,
            "waiting_for": self.state.waiting_for if self.outcome == "no-failure" else None,
            "notes": list(self.notes),
            "starts": self.starts,
            "earlier": list(self.earlier),
            **self.extra,
        }


def diagnose(
    lines: Sequence[Line],
    unit: Mapping[str, Any] | None = None,
    kernel: Sequence[Line] = (),
    *,
    running: bool | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Diagnosis:
    """The verdict on the last start that the log holds. Never raises.

    ``unit`` is systemd's word, ``kernel`` the kernel's messages of that time. ``running``: whether the server is known
    to run now (its failures then are those it survived); None: not known, as with a file.
    """
    kept = without_routine(lines)
    runs = starts(kept)
    here = runs[-1]
    search = Search(here, unit, kernel)
    failure = search.answer()
    outcome = "no-failure" if failure is None else "stopped" if failure.signature == STOPPED else "failed"
    whose = "" if unit or running is not None else stranger(kept)
    if whose or (failure is None and running is None and not unit and ours(kept) is False):
        failure, outcome = None, NOT_SGLANG
    return Diagnosis(
        outcome=outcome,
        failure=failure,
        state=search.start.state,
        timed=search.start.timed,
        tail=tuple([line for line in here if line.text.strip() and not line.piece][-_EVIDENCE:]),
        starts=len(runs),
        earlier=tuple(_word(run) for run in runs[-1 - _EARLIER : -1]),
        notes=tuple(_notes(here)),
        running=running,
        extra=dict(extra or {}),
        stranger=whose,
    )


def _word(run: Sequence[Line]) -> str:
    failure = find(run)
    return failure.signature if failure else NONE


def _notes(lines: Sequence[Line]) -> list[str]:
    """The warnings in a log that are known to be harmless, each once, with the first line that has it."""
    quick, notes = any_of("warning"), dict[str, str]()
    for line in lines:
        if not telling(line.text) or not quick.search(line.text, 0, 2000):
            continue
        for one in found_in("warning"):
            if one.id not in notes and one.regex.search(line.text, 0, 2000):
                notes[one.id] = f"line {line.number}: {one.cause}; {one.remedy}"
    return list(notes.values())
