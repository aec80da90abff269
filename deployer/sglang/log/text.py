"""Lines of a log without what other programs put in front of them. Pure.

The same server's log comes from `journalctl` (in any of its formats, JSON included), `docker logs -t`, `docker compose
logs`, `kubectl logs --timestamps --prefix`, a node's CRI or json-file log, syslog, a CI runner, or with columns of
seconds. Here it becomes plain lines, each with its number in the file and the time that stood in front of it.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

from deployer.sglang.log.exports import unwrapped
from deployer.sglang.log.fronts import COLOUR, Front, learn, split
from deployer.sglang.log.record import PREFIX, record_in, second

#: Characters of a line in which what stands in front of it is looked for.
_FRONT = 400

_ISO = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?"  # RFC 3339 and relatives
_WHO = r"(?P<host>[\w.-]{1,80}) (?P<ident>[\w./@:-]{1,80}?)(?:\[(?P<pid>\d{1,8})\])?: ?"
_SYSLOG = r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,6})?"
_FULL = r"[A-Z][a-z]{2} \d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})? [A-Z]{2,5}"

#: What can stand in front of a line. Each takes at most one separating blank: indentation is meaningful.
_FRONTS = tuple(
    re.compile(pattern, re.ASCII)
    for pattern in (
        rf"(?P<iso>{_ISO}) (?:stdout|stderr) [FP] ",  # a node's CRI log
        rf"(?:<\d{{1,3}}>1? ?)?(?:(?P<syslog>{_SYSLOG})|(?P<full>{_FULL})|(?P<iso>{_ISO})|(?P<unix>\d{{10}}\.\d{{3,6}})"
        rf"|\[ {{0,6}}(?P<mono>\d{{1,8}}\.\d{{3,6}})\]) {_WHO}",
        r"\[ {0,6}(?P<mono>\d{1,8}\.\d{6})\] (?=\S)",  # dmesg
        r"\[(?P<syslog>[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\] ",  # dmesg -T
        rf"(?P<iso>{_ISO}) - [\w.]{{1,60}} - [A-Z]{{4,8}} - ",  # Python's logging
        rf"(?P<iso>{_ISO}) \| {{0,4}}[A-Z]{{4,8}} {{0,4}}\| [\w.:<>-]{{1,80}} \| ",  # loguru
        rf"\[?(?P<iso>{_ISO})\]?(?: (?=\[\d)| ?(?=\[rank)| (?=File \"| {{2}}|Traceback|[A-Za-z(])|$)",
        rf"[A-Z]{{4,8}} (?P<iso>{_ISO}) ",  # a cloud's log: the level first
        rf"(?P<iso>{_ISO}) {{1,2}}[A-Z]{{4,8}} [\w.]{{1,80}}: ",  # tracing's form
        r"> ?|E {3}(?=\S)|\*\*(?=[A-Z]\w{2,60}(?:Error|Exception): )",  # quoted
        r"[\u2502|] ?(?=\s{0,200}(?:File \"|Traceback|\[|[A-Z]\w{2,60}(?:Error|Exception)))",  # a frame drawn round it
        r"(?P<short>\d\d-\d\d \d\d:\d\d:\d\d\.\d{1,6}) ?",
        r"\[(?:pod|container)/[^\]\s]{1,160}\] ?",  # kubectl logs --prefix
        r"\[?[\w.-]{1,60}\]? {1,40}\| ?",  # docker compose logs
        r"[\w.-]{1,120} >> ",  # a job's log
        r"\[\d{1,4},(?P<rank>\d{1,5})\]<std(?:err|out)>: ?",  # mpirun
        r"(?P<rank>\d{1,4}): (?=\[\d{4}-| {2}File \"|Traceback|[A-Z]\w{2,60}(?:Error|Exception): )",  # srun --label
        r"\((?:[\w.:<>-]{1,80},? )?(?:rank=\d{1,5}, )?pid=(?P<ray>\d{1,8})(?:, ip=[\d.]{7,15})?\) ",  # ray
        r"\[(?P<rank>(?:rank|default)\d{1,5})\]: ?",  # torch
        r" {0,8}(?P<seconds>\d{1,8}\.\d{3}) (?P<end>[NR]) ",  # columns: seconds, how it ended
        r" {0,8}(?P<seconds>\d{1,8}\.\d{3})(?: {4}|\t| ?(?=##|EOF)|$)",  # columns: seconds
    )
)
_QUICK = re.compile(rf"{PREFIX.pattern}|INFO: {{1,8}}\S", re.ASCII)
_FRAME = re.compile(r" {2}File \"")
#: What a working server prints over and over.
ROUTINE = re.compile(
    rf"(?:{PREFIX.pattern})?(?:(?:Prefill|Decode) batch\b|(?:Receive|Finish): obj="
    r"|INFO: {1,8}[\d.:\[\]a-f]{3,60} - \"[A-Z]{3,7} [^\"]{1,400}\" [2-4]\d\d)"
)
#: Routine lines that are kept at either end of a run of them.
_KEPT = 4
_FRACTION = re.compile(r"[.,](\d{1,9})", re.ASCII)
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


@dataclass(frozen=True, slots=True)
class Line:
    """One line, or one piece of a progress bar (``piece``: a carriage return ended it).

    ``number`` counts from 1, as editors do. ``stamp`` is the time in front of the line in seconds of whatever clock
    wrote it (``relative``: since the start); None without one. ``source`` is ``engine``, ``systemd`` or ``kernel``.
    ``who`` is the process or rank that printed the line, if something in front of it says so.
    """

    number: int
    text: str
    stamp: float | None = None
    source: str = "engine"
    piece: bool = False
    relative: bool = False
    who: str = ""


def read(text: str) -> list[Line]:
    """Return the lines of a log in any format, oldest first (some viewers export newest first)."""
    lines = unwrapped(text).split("\n")
    return in_order(read_lines(lines, fronts=learn(lines)))


def read_ends(head: str, tail: str, between: int) -> list[Line]:
    """Like `read`, for the beginning and the end of a log with ``between`` line ends between them."""
    first = head.count("\n") + between + (0 if head.endswith("\n") else 1)
    one, other = unwrapped(head).split("\n"), unwrapped(tail).split("\n")
    fronts = learn([*one, *other])
    return in_order(chain(read_lines(one, fronts=fronts), read_lines(other, first + 1, fronts=fronts)))


def in_order(read: Iterable[Line]) -> list[Line]:
    """Return the lines oldest first, without the middle of long runs of routine ones."""
    lines = without_routine(read)
    stamps = [line.stamp for line in lines if line.stamp is not None]
    steps = [b - a for a, b in pairwise(stamps)]
    back = sum(step < 0 for step in steps)
    forth = sum(step > 0 for step in steps)
    falling = back >= 4 and back > 10 * forth and len(stamps) * 2 > len(lines)
    if falling or (not forth and _upside_down(lines)):
        lines.reverse()
    return lines


def _upside_down(lines: Sequence[Line]) -> bool:
    """Return whether a log stands newest first, by its tracebacks (frames above their heads) and its records' times."""
    times = [record.time for line in lines if (record := record_in(line.text)) and record.time is not None]
    steps = [b - a for a, b in pairwise(times) if a != b]
    votes = int(not any(step < 0 for step in steps)) - int(not any(step > 0 for step in steps))
    for index, line in enumerate(lines):
        if "Traceback (most recent call last):" in line.text:
            above, below = (lines[at].text if 0 <= at < len(lines) else "" for at in (index - 1, index + 1))
            votes += bool(_FRAME.match(below)) - (above.startswith("  ") and not _FRAME.match(below))
    return votes < 0


def read_lines(lines: Iterable[str], first: int = 1, fronts: Sequence[Front] = ()) -> Iterator[Line]:
    """Like `read`, for lines that are already split; ``first`` is the number of the first one.

    ``fronts`` are those that stand before the log's lines.
    """
    if fronts:
        yield from _without_fronts(lines, first, fronts)
        return
    for number, line in enumerate(lines, first):
        if line[:1] in ("[", "I") and _QUICK.match(line) and "\r" not in line and "\x1b" not in line:
            yield Line(number, line)  # as the server printed it: most lines of most logs
            continue
        if line[:1] != "{" and "\r" not in line:
            yield _plain(Line(number, line))
            continue
        for entry in _unwrapped(line.removesuffix("\r")):
            parts = entry.text.split("\r")
            for index, part in enumerate(parts):
                if part or len(parts) == 1:
                    yield _plain(replace(entry, number=number, text=part, piece=entry.piece or index < len(parts) - 1))


def _without_fronts(lines: Iterable[str], first: int, fronts: Sequence[Front]) -> Iterator[Line]:
    keyed = any(front.keyed for front in fronts)
    for number, line in enumerate(lines, first):
        text = COLOUR.sub("", line) if "\x1b" in line else line
        parts = split(fronts, text)
        if parts is None:
            if not keyed:
                yield from read_lines([line], number)
            continue
        front, body, who = parts
        outer = _plain(Line(number, f"{front}Traceback"))
        for inner in read_lines([body], number):
            stamp = outer.stamp if inner.stamp is None else inner.stamp
            source = inner.source if inner.source != "engine" else outer.source
            relative = outer.relative if inner.stamp is None else inner.relative
            yield replace(inner, stamp=stamp, source=source, relative=relative, who=inner.who or outer.who or who)


def without_routine(lines: Iterable[Line]) -> list[Line]:
    """Return the lines without the middle of each long run of what a working server prints over and over.

    A day's log would take seconds to read, and the first and last lines of a run say as much.
    """
    kept: list[Line] = []
    first: list[Line] = []
    last: deque[Line] = deque(maxlen=_KEPT)
    for line in lines:
        if not ROUTINE.match(line.text):
            kept += (*first, *last, line)
            first.clear()
            last.clear()
        elif len(first) < _KEPT:
            first.append(line)
        else:
            last.append(line)
    return [*kept, *first, *last]


def plain(text: str) -> str:
    """Return a line without colours and without what stands in front of it."""
    return _plain(Line(0, text)).text


def _plain(line: Line) -> Line:
    text = line.text
    if "\x1b" in text:
        text = COLOUR.sub("", text)
    who = line.who
    stamp, source, piece, relative = line.stamp, line.source, line.piece, line.relative
    for _ in range(4):
        if not text or PREFIX.match(text):
            break
        front = next((match for one in _FRONTS if (match := one.match(text, 0, _FRONT))), None)
        if front is None or not front.end():
            break
        parts = front.groupdict()
        text = text[front.end() :]
        if stamp is None:
            stamp, relative = _stamp(parts), bool(parts.get("seconds"))
        piece = piece or parts.get("end") == "R"
        who = who or parts.get("rank") or parts.get("ray") or ""
        ident = parts.get("ident")
        if ident:
            source = {"systemd": "systemd", "kernel": "kernel"}.get(ident, source)
    if source == "engine" and text.startswith(("NVRM: ", "oom-kill:", "Out of memory: Killed process")):
        source = "kernel"
    return Line(line.number, text, stamp, source, piece, relative, who)


def _stamp(parts: dict[str, str | None]) -> float | None:
    if text := parts.get("iso"):
        return _when(text[:10], text[11:19], _fraction(text[19:]))
    if text := parts.get("full"):
        return _when(text[4:14], text[15:23], _fraction(text[23:]))
    if text := parts.get("short"):
        return _when(f"2000-{text[:5]}", text[6:14], _fraction(text[14:]))
    if text := parts.get("syslog"):
        words = text.split()
        month, day, clock = words[-4:-1] if len(words) > 4 else words[:3]
        if len(words) > 4 or month not in _MONTHS:  # dmesg -T: Sun Nov 29 23:56:20 2026
            month, day, clock = words[1:4] if len(words) > 4 else ("Jan", "01", "00:00:00")
        number = _MONTHS.index(month) + 1 if month in _MONTHS else 1
        return _when(f"2000-{number:02}-{int(day):02}", clock[:8], _fraction(clock[8:]))
    number_text = parts.get("unix") or parts.get("mono") or parts.get("seconds")
    return float(number_text) if number_text else None


def _when(day: str, clock: str, fraction: float) -> float | None:
    whole = second(day, clock)
    return None if whole is None else whole + fraction


def _fraction(text: str) -> float:
    digits = _FRACTION.match(text)
    return float(f"0.{digits[1]}") if digits else 0.0


def _unwrapped(line: str) -> list[Line]:
    """Return the lines in a JSON line (journalctl -o json, docker's json-file, `deployer logs --json`), or the line."""
    if not line.startswith("{") or len(line) > 1 << 22 or '"' not in line[:4]:
        return [Line(0, line)]
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return [Line(0, line)]
    if not isinstance(entry, dict):
        return [Line(0, line)]
    if isinstance(entry.get("log"), str):  # docker's json-file; its time is RFC 3339
        stamp = _stamp({"iso": str(entry.get("time") or "")[:40]}) if entry.get("time") else None
        text = entry["log"]
        return [Line(0, text.removesuffix("\n"), stamp, piece=text.endswith("\r"))]
    if "MESSAGE" in entry:
        return list(_journal(entry))
    if isinstance(entry.get("text"), str) and isinstance(entry.get("t"), int | float):
        source = "systemd" if entry.get("source") == "systemd" else "engine"
        return [Line(0, entry["text"], float(entry["t"]), source, bool(entry.get("piece")))]
    return [Line(0, line)]


def _journal(entry: dict[str, Any]) -> Iterator[Line]:
    message = entry["MESSAGE"]
    if isinstance(message, list) and message and isinstance(message[0], str):
        message = message[0]
    if isinstance(message, list):
        numbers = [item for item in message if isinstance(item, int) and 0 <= item < 256]
        message = bytes(numbers).decode("utf-8", "replace")
    source = "systemd" if str(entry.get("_PID")) == "1" else "engine"
    if entry.get("_TRANSPORT") == "kernel":
        source = "kernel"
    stamp = entry.get("__REALTIME_TIMESTAMP")
    seconds = int(stamp) / 1e6 if isinstance(stamp, str) and re.fullmatch(r"\d{1,18}", stamp) else None
    for part in str(message if message is not None else "").split("\n"):
        yield Line(0, part, seconds, source)
