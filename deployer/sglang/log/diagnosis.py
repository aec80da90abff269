"""The diagnosis of a log: the launch failed and why, was stopped, or neither. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from deployer.sglang.log.endings import UnitEnd
from deployer.sglang.log.failures import STOPPED, UNKNOWN, Cause, Search, find
from deployer.sglang.log.launch import LaunchState
from deployer.sglang.log.launch_file import starts
from deployer.sglang.log.other_programs import may_be_sglang, other_program
from deployer.sglang.log.signatures import any_of, found_in, telling
from deployer.sglang.log.text import Line, without_routine

#: The signature of a log without a failure.
NONE = "none"
#: The outcome of a log that another program wrote.
NOT_SGLANG = "not-sglang"
_EVIDENCE = 4
_EARLIER = 20


class Origin(TypedDict, total=False):
    """Where a log comes from and what else is known of its launch; each key is one of `diagnose --json`."""

    source: str
    #: The part of a long log, or of a damaged file, that was not read, in words.
    left_out: str
    unread: str
    release: str
    state: str | None
    never_started: bool
    #: The failure and the timeline that the release kept.
    recorded: dict[str, Any]
    recorded_timeline: list[dict[str, Any]]
    unit: dict[str, Any]
    kernel_messages: int
    restarted: str


@dataclass(frozen=True)
class Diagnosis:
    """The verdict on the last start in a log.

    ``outcome`` is ``failed``, ``stopped``, ``no-failure`` or ``not-sglang``; ``cause`` explains the first two.
    ``timed``: whether the phases have times. ``starts`` counts the starts in the log; ``earlier`` are the signatures
    of those before the last. ``notes``: warnings that good launches print too. ``program`` is the one that wrote a log
    that is not SGLang's, if it was recognised.
    """

    outcome: str
    cause: Cause | None
    state: LaunchState
    timed: bool
    tail: tuple[Line, ...] = ()
    starts: int = 1
    earlier: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    running: bool | None = None
    origin: Origin = field(default_factory=Origin)
    program: str = ""

    @property
    def verdict(self) -> str:
        """The verdict in one line."""
        cause = self.cause
        if cause is not None and self.outcome == "failed":
            where = f"in phase {self.phase}" if self.phase else "in an unknown phase"
            where += f" on {cause.rank}" if cause.rank else ""
            if cause.signature == UNKNOWN:
                return f"failed {where}, for an unknown reason: {cause.cause}"
            return f"failed {where}: {cause.cause.removesuffix(f' ({cause.quote})')}"
        if cause is not None:
            return f"no failure: {cause.cause} (phase {self.phase})"
        if self.outcome == NOT_SGLANG:
            other = f"it looks like a log of {self.program}"
            return f"not an SGLang log: {other if self.program else 'no line of it is from a server, or an error'}"
        if self.origin.get("never_started"):
            return f"no failure: this release was never started (it is {self.origin.get('state')})"
        if not self.state.last_line:
            return "nothing to diagnose: the log has no output of SGLang"
        return f"no failure in this log: {self._progress()}"

    def _progress(self) -> str:
        """How far a launch without a failure came."""
        if self.running:
            doing = "the server is ready" if self.phase == "ready" else f"it is in phase {self.phase}"
        else:
            doing = "the server became ready" if self.phase == "ready" else f"it reached phase {self.phase}"
            ended = "the log ends there" if self.running is False else "it is still running, or the log ends there"
            doing += f"; {ended}"
        return doing + (f"; next it waits for {self.state.waiting_for}" if self.phase != "ready" else "")

    @property
    def phase(self) -> str | None:
        """Where it failed, else how far it came."""
        return self.cause.phase if self.cause is not None else self.state.phase

    def as_dict(self) -> dict[str, Any]:
        """Return the diagnosis as JSON data; the first six keys are `diagnose --json`'s contract."""
        cause = self.cause
        return {
            "signature": cause.signature if cause else NONE,
            "phase": self.phase,
            "cause": cause.cause if cause else None,
            "remedy": cause.remedy if cause else None,
            "evidence": list(cause.evidence) if cause else [line.text[:500] for line in self.tail],
            "reference": cause.reference if cause else None,
            "outcome": self.outcome,
            "verdict": self.verdict,
            "evidence_lines": list(cause.numbers) if cause else [line.number for line in self.tail],
            "rank": cause.rank if cause else "",
            "component": cause.component if cause else "",
            "search": cause.search if cause else "",
            "reached": self.state.phase,
            "timeline": self.state.timeline if self.timed else None,
            "waiting_for": self.state.waiting_for if self.outcome == "no-failure" else None,
            "notes": list(self.notes),
            "starts": self.starts,
            "earlier": list(self.earlier),
            **self.origin,
        }


def diagnose(
    lines: Sequence[Line],
    unit: UnitEnd | None = None,
    kernel: Sequence[Line] = (),
    *,
    running: bool | None = None,
    origin: Origin | None = None,
) -> Diagnosis:
    """Return the verdict on the last start in a log. Never raises.

    ``unit`` is what systemd reports, ``kernel`` the kernel's messages of that time. ``running``: whether the server is
    running now (its failures then are ones it survived); None if unknown, as with a file.
    """
    kept = without_routine(lines)
    runs = starts(kept)
    last = runs[-1]
    search = Search(last, unit, kernel)
    cause = search.answer()
    outcome = "no-failure" if cause is None else "stopped" if cause.signature == STOPPED else "failed"
    program = "" if unit or running is not None else other_program(kept)
    if program or (cause is None and running is None and not unit and may_be_sglang(kept) is False):
        cause, outcome = None, NOT_SGLANG
    return Diagnosis(
        outcome=outcome,
        cause=cause,
        state=search.start.state,
        timed=search.start.timed,
        tail=tuple([line for line in last if line.text.strip() and not line.piece][-_EVIDENCE:]),
        starts=len(runs),
        earlier=tuple(_signature(run) for run in runs[-1 - _EARLIER : -1]),
        notes=tuple(_notes(last)),
        running=running,
        origin=origin or {},
        program=program,
    )


def _signature(run: Sequence[Line]) -> str:
    cause = find(run)
    return cause.signature if cause else NONE


def _notes(lines: Sequence[Line]) -> list[str]:
    """Return the warnings in a log that are known to be harmless, each once, with the first line that has it."""
    quick, notes = any_of("warning"), dict[str, str]()
    for line in lines:
        if not telling(line.text) or not quick.search(line.text, 0, 2000):
            continue
        for one in found_in("warning"):
            if one.id not in notes and one.regex.search(line.text, 0, 2000):
                notes[one.id] = f"line {line.number}: {one.cause}; {one.remedy}"
    return list(notes.values())
