"""The prefix of a record in SGLang's log: one parser for everything that reads a log. Pure.

``[2026-01-01 10:00:00 PP1 TP0] text``. The date may lack its year or be missing, the clock may have a fraction, old
versions print only ``[gpu_id=0]`` or the ranks, and some print a level (with a place) after the bracket. Progress bars
end in a carriage return, so a record may be glued to the bars drawn before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

_RANK = r"[A-Z_]{2,12}\d{1,5}"
_LEVEL = "(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)"
PREFIX = re.compile(
    r"\[(?:(?:(?P<day>(?:\d{4}-)?\d\d-\d\d) )?(?P<clock>\d\d:\d\d:\d\d)(?P<fraction>[.,]\d{1,6})?"
    rf"(?P<ranks>(?: {_RANK}){{0,8}})|(?P<bare>gpu_id=\d{{1,3}}|{_RANK}(?: {_RANK}){{0,7}}))\] ?"
    rf"(?:\[?{_LEVEL}\] ?|{_LEVEL}:? [\w.]{{1,40}}:\d{{1,5}}: )?",
    re.ASCII,
)
#: How a line begins that a progress bar was drawn on.
_BAR = re.compile(r"[^\[\r\n]{0,200}\d%(?:\|| Completed \|| )", re.ASCII)
#: Characters of a line in which the records after its bars are looked for.
_LOOK = 4000


@dataclass(frozen=True, slots=True)
class Record:
    """Where a prefix stands in its line, and what it says: ``rank`` is ``PP1 TP0``, empty for the main process."""

    start: int
    end: int
    day: str
    clock: str
    fraction: str
    rank: str

    @property
    def dated(self) -> bool:
        """Whether the date is complete."""
        return len(self.day) == len("2026-01-01")

    @property
    def time(self) -> float | None:
        """The record's time in seconds, as if local time were UTC; None without one. A missing year is 2000."""
        if not self.clock:
            return None
        day = self.day if self.dated else f"2000-{self.day or '01-01'}"
        whole = second(day, self.clock)
        if whole is None or not self.fraction:
            return whole
        return whole + float("0." + self.fraction[1:])


def _record(match: re.Match[str]) -> Record:
    day, clock, fraction, ranks, bare = match.groups(default="")
    return Record(match.start(), match.end(), day, clock, fraction, " ".join((ranks or bare).split()))


def records(text: str, end: int | None = None) -> Iterator[Record]:
    """Yield every record in a line: several where bars and records of several ranks are glued together."""
    for match in PREFIX.finditer(text, 0, len(text) if end is None else end):
        yield _record(match)


def record_in(text: str) -> Record | None:
    """Return the record that a line is, or the last one glued to the bars it begins with."""
    if match := PREFIX.match(text):
        return _record(match)
    return next(reversed(list(records(text, _LOOK))), None) if _BAR.match(text) else None


def message_of(text: str) -> str:
    """Return what a record says, without its prefix and the bars before it; any other line as it is."""
    record = record_in(text)
    return text[record.end :] if record else text


def rank_of(text: str) -> str:
    """Return the rank that a line names; empty for the main process and for lines that name none."""
    record = record_in(text)
    return record.rank if record else ""


@lru_cache(maxsize=4096)
def second(day: str, clock: str) -> float | None:
    """Return the seconds from 1970 to a day and a clock (2026-01-31, 10:00:00) as if in UTC; None for nonsense."""
    try:
        return datetime.fromisoformat(f"{day}T{clock}").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
