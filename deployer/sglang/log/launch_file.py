"""A launch read from a stored log: which starts it holds, and when each phase was by the log's own times. Pure."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deployer.sglang.log.launch import PHASES, LaunchLog, LaunchState, noteworthy
from deployer.sglang.log.record import records
from deployer.sglang.log.text import Line
from deployer.sglang.log.tracebacks import HEAD

CONSEQUENCE = re.compile(
    r"Received sigquit from a child proces|SIGQUIT received\.|kill_process_tree called|^Killed$|^Terminated$|^已杀死$"
)

_SYSTEMD_START = re.compile(r"(?:Starting|Started) ")
_UNIT_END = re.compile(r"Main process exited|Failed with result")
_ARGS = re.compile(r"\bserver_args=(?:ServerArgs\(|\{)")
_ENDED = re.compile(r"Uvicorn running on|SIGTERM received|Shutting down|error: (?:argument|unrecognized|ambiguous)")
#: A clock without a year that goes back by more than this has passed New Year.
_HALF_A_YEAR = 182 * 86400.0


def starts(lines: Sequence[Line]) -> list[list[Line]]:
    """Return the server's starts in a log, in order (of a unit that was restarted, or a file that was appended to)."""
    found: list[list[Line]] = [[]]
    seen_args = ended = spoke = False
    for line in lines:
        text = line.text
        if line.source == "systemd" and _SYSTEMD_START.match(text):
            begins = spoke
        else:
            begins = seen_args and ended and (_begins(text) or text.startswith("usage: "))
        if begins:
            found.append([])
            seen_args = ended = spoke = False
        found[-1].append(line)
        if line.source == "engine" and text:
            spoke = True
            seen_args = seen_args or _begins(text)
            ended = ended or HEAD in text or bool(_ENDED.search(text) or CONSEQUENCE.search(text))
    if len(found) > 1 and not spoke and not any(_UNIT_END.search(line.text) for line in found[-1]):
        found[-2:] = [found[-2] + found[-1]]  # it has only just begun: there is nothing to diagnose but the one before
    return found


def _begins(text: str) -> bool:
    return "server_args=" in text[:220] and bool(_ARGS.search(text, 0, 200))


@dataclass(frozen=True)
class Start:
    """One start as its log shows it.

    ``state``: how far it came. ``timed``: whether the log has times; without any, all spans are zero. ``marks``: the
    position of the line with which the launch entered each phase; ``ranks``: the same for each rank, and whether its
    weights were loaded from then on.
    """

    state: LaunchState
    timed: bool
    marks: Sequence[tuple[int, str]]
    ranks: Mapping[str, Sequence[tuple[int, str, bool]]]

    def phase_before(self, position: float) -> str:
        """Return how far the launch was before a line."""
        end = bisect_left(self.marks, position, key=lambda mark: mark[0])
        return self.marks[end - 1][1] if end else PHASES[0]

    def rank_before(self, position: float, rank: str) -> tuple[str, bool]:
        """Return how far a rank was before a line, and whether its weights were loaded."""
        marks = self.ranks.get(rank, ())
        end = bisect_left(marks, position, key=lambda mark: mark[0])
        return marks[end - 1][1:] if end else (PHASES[0], False)


def read_start(lines: Sequence[Line]) -> Start:
    """Read one start. Lines after the server is ready say nothing about it and are skipped."""
    log, clock = LaunchLog(), _Clock(lines)
    marks: list[tuple[int, str]] = []
    ranks: dict[str, list[tuple[int, str, bool]]] = {}
    for position, line in enumerate(lines):
        if line.source != "engine":
            continue
        before = log.phase
        log.feed(line.text, clock.at(line))
        for name, phase, loaded in log.moved():
            ranks.setdefault(name, []).append((position, phase, loaded))
        if log.phase != before:
            marks.append((position, log.phase))
            if log.phase == PHASES[-1]:
                _end(lines[position + 1 :], log, clock)
                break
    return Start(log.state, clock.ticks, marks, ranks)


def _end(lines: Sequence[Line], log: LaunchLog, clock: _Clock) -> None:
    for line in reversed(lines):
        if line.source == "engine" and noteworthy(line.text):
            log.feed(line.text, clock.at(line))
            return


class _Clock:
    """Seconds since the start: by the times in front of the lines if most have one, else by SGLang's own."""

    def __init__(self, lines: Sequence[Line]) -> None:
        stamped = sum(line.stamp is not None for line in lines)
        self._outer = stamped * 2 > len(lines)
        first = next((line for line in lines if self._read(line) is not None), None)
        self._since_start = first is not None and self._outer and first.relative
        self._zero = 0.0 if first is None or self._since_start else self._read(first) or 0.0
        self._last = 0.0
        self.ticks = first is not None

    def at(self, line: Line) -> float:
        """Return the time of a line, or of the line before if it has none. Never goes back."""
        stamp = self._read(line)
        if stamp is not None:
            t = stamp - self._zero
            if t < self._last - _HALF_A_YEAR:
                t += 366 * 86400.0
            self._last = max(self._last, t)
        return self._last

    def _read(self, line: Line) -> float | None:
        return line.stamp if self._outer else own_stamp(line.text)


def own_stamp(text: str) -> float | None:
    """Return the time of the first dated record in a line, in seconds (SGLang writes local time without a zone)."""
    return next((record.time for record in records(text, 2000) if record.dated), None)
