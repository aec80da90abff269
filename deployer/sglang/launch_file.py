"""A launch read from a log that was kept: which starts it holds, when each phase was by the log's own times. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from deployer.sglang.evidence import CONSEQUENCE
from deployer.sglang.launch import LaunchLog, LaunchState
from deployer.sglang.logtext import RANKS, Line
from deployer.sglang.tracebacks import HEAD

_SYSTEMD_START = re.compile(r"(?:Starting|Started) |\S+\.service: Scheduled restart job")
_ARGS = re.compile(r"\bserver_args=(?:ServerArgs\(|\{)")
_ENDED = re.compile(
    r"Uvicorn running on|SIGTERM received|Shutting down|error: (?:argument|unrecognized|ambiguous)"
)
_STAMP = re.compile(
    rf"\[(?P<day>\d{{4}}-\d\d-\d\d) (?P<clock>\d\d:\d\d:\d\d)(?P<part>[.,]\d{{1,6}})?{RANKS}\]",
    re.ASCII,
)
#: A clock without a year that goes back by more than this has passed a New Year.
_HALF_A_YEAR = 182 * 86400.0


def starts(lines: Sequence[Line]) -> list[list[Line]]:
    """The starts of the server that a log holds, in order (a unit that was restarted, a file that was appended to)."""
    found: list[list[Line]] = [[]]
    seen_args = ended = spoke = False
    for line in lines:
        text = line.text
        if line.source == "systemd" and _SYSTEMD_START.match(text):
            begins = spoke
        else:
            begins = seen_args and ended and (bool(_ARGS.search(text, 0, 200)) or text.startswith("usage: "))
        if begins:
            found.append([])
            seen_args = ended = spoke = False
        found[-1].append(line)
        if line.source == "engine" and text:
            spoke = True
            seen_args = seen_args or bool(_ARGS.search(text, 0, 200))
            ended = ended or HEAD in text or bool(_ENDED.search(text) or CONSEQUENCE.search(text))
    return found


def read_start(lines: Sequence[Line]) -> tuple[LaunchState, bool]:
    """How far one start came, and whether its spans are times (false: the log has none, all spans are zero)."""
    log, clock = LaunchLog(), _Clock(lines)
    for line in lines:
        if line.source == "engine":
            log.feed(line.text, clock.at(line))
    return log.state, clock.ticks


class _Clock:
    """Seconds since the start, from what stands in front of most lines, else from SGLang's own records; never mixed."""

    def __init__(self, lines: Sequence[Line]) -> None:
        stamped = sum(line.stamp is not None for line in lines)
        self._outer = stamped * 2 > len(lines)
        first = next((line for line in lines if self._read(line) is not None), None)
        self._since_start = first is not None and self._outer and first.relative
        self._zero = 0.0 if first is None or self._since_start else self._read(first) or 0.0
        self._last = 0.0
        self.ticks = first is not None

    def at(self, line: Line) -> float:
        """The time of a line; where it has none, that of the line before. Never goes back."""
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
    """The time of the first record in a line, in seconds (SGLang writes local time, whose zone is not known)."""
    found = _STAMP.search(text, 0, 2000)
    if found is None:
        return None
    try:
        second = datetime.fromisoformat(f"{found['day']}T{found['clock']}").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
    return second + float("0" + found["part"].replace(",", ".")) if found["part"] else second
