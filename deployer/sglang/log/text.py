"""Text of logs as they reach us: with and without what stands in front of a line. Pure.

The same server's log comes from `journalctl` (in any of its forms, JSON too), `docker logs -t`, `docker compose logs`,
`kubectl logs --timestamps --prefix`, a node's CRI or json-file log, syslog, a CI runner, or with columns of seconds.
Here it becomes lines without that, each with its number in the file and the time that stood in front of it.
"""

from __future__ import annotations

import bz2
import json
import lzma
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain, pairwise
from typing import Any

#: So much is unpacked at a time: a few bytes of an archive may hold gigabytes.
_PIECE = 1 << 20
_WIDE = (b"\xff\xfe", b"\xfe\xff")
#: What is in front of a line is looked for in so many characters.
_FRONT = 400

_ANSI = re.compile(
    r"\x1b(?:\[[0-?]{0,24}[ -/]{0,4}[@-~]|\][^\x07\x1b\r\n]{0,200}(?:\x07|\x1b\\)|[@-Z\\^_=>()][0-9A-B]?)"
)
_ISO = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?"  # RFC 3339 and relatives
_WHO = r"(?P<host>[\w.-]{1,80}) (?P<ident>[\w./@:-]{1,80}?)(?:\[(?P<pid>\d{1,8})\])?: ?"
_SYSLOG = r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,6})?"
_FULL = r"[A-Z][a-z]{2} \d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})? [A-Z]{2,5}"

#: What can stand in front of a line, by form. Each takes one separating blank and no more: indentation means something.
_PREFIXES = tuple(
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
_RANK = r"[A-Z_]{2,12}\d{1,5}"
#: Parts of a record of SGLang's own: the ranks behind its time (`` PP1 TP0``), ranks that stand alone, and the level
#: (with a place) that some versions print behind both.
RANKS = rf"(?: {_RANK}){{0,8}}"
BARE_RANKS = rf"{_RANK}(?: {_RANK}){{0,7}}"
_LEVEL = "(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)"
LEVEL = rf"(?:\[?{_LEVEL}\] ?|{_LEVEL}:? [\w.]{{1,40}}:\d{{1,5}}: )?"
#: A record of SGLang's own begins here: nothing stands in front of it.
_OWN = re.compile(rf"\[(?:\d{{4}}-\d\d-\d\d )?\d\d:\d\d:\d\d(?:[.,]\d{{1,6}})?{RANKS}\]", re.ASCII)
_OWN_START = ("[", "I")
_QUICK = re.compile(rf"{_OWN.pattern}|INFO: {{1,8}}\S", re.ASCII)
#: What a server that works prints over and over.
ROUTINE = re.compile(
    r"(?:\[[^\]]{1,80}\] ?)?(?:(?:Prefill|Decode) batch\b|(?:Receive|Finish): obj="
    r"|INFO: {1,8}[\d.:\[\]a-f]{3,60} - \"[A-Z]{3,7} [^\"]{1,400}\" [2-4]\d\d)"
)
#: So many routine lines are kept at either end of a row of them.
_KEPT = 4
_FRACTION = re.compile(r"[.,](\d{1,9})", re.ASCII)
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


@dataclass(frozen=True, slots=True)
class Line:
    """One line, or one piece of a progress bar (``piece``: a carriage return ended it).

    ``number`` counts from 1 as an editor counts. ``stamp`` is the time in front of the line in seconds, its zero
    being whatever that clock's is (``relative``: the start); None without one. ``source``: ``engine``, ``systemd`` or
    ``kernel``. ``who``: the process or rank that printed it, where something in front of the line says so.
    """

    number: int
    text: str
    stamp: float | None = None
    source: str = "engine"
    piece: bool = False
    relative: bool = False
    who: str = ""


class Damaged(Exception):
    """An archive ends too early, or holds what is none; what came before is good."""


def compressed(data: bytes) -> bool:
    """Whether what begins so is gzip, bzip2 or xz."""
    return _opener(data) is not None


def is_wide(data: bytes) -> bool:
    """Whether what begins so is UTF-16, by its mark."""
    return data.startswith(_WIDE)


def decode(data: bytes) -> str:
    """The text of a log file: gzip, bzip2 and xz are unpacked, UTF-16 is told by its mark, and what is no UTF-8 is
    taken for Windows-1252, line by line. Never raises; of a damaged archive what can be read is.
    """
    if not compressed(data):
        return text_of(data)
    pieces = []
    try:
        for piece in unpacked([data]):
            pieces.append(piece)
    except Damaged:
        pass
    return text_of(b"".join(pieces))


def text_of(data: bytes, mark: bytes = b"") -> str:
    """The text of bytes that are no archive. ``mark``: what the whole begins with, where this is a part of it."""
    if is_wide(mark):
        data = mark[:2] + data
    if is_wide(data):
        return data.decode("utf-16", "replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return "".join(_decoded(line) for line in data.splitlines(keepends=True))


def read(text: str) -> list[Line]:
    """The lines of a log of any form, the oldest first (some viewers give the newest first)."""
    return in_order(read_lines(_split(text)))


def read_ends(head: str, tail: str, between: int) -> list[Line]:
    """As `read`, for the beginning and the end of a log with ``between`` line ends between them."""
    first = head.count("\n") + between + (0 if head.endswith("\n") else 1)
    return in_order(chain(read_lines(_split(head)), read_lines(_split(tail), first + 1)))


def _split(text: str) -> Iterator[str]:
    """As ``text.split("\\n")``, one after the other."""
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield text[start:end]
        start = end + 1
    yield text[start:]


def in_order(read: Iterable[Line]) -> list[Line]:
    """The lines with the oldest first, without the middle of long rows of routine ones."""
    lines = without_routine(read)
    stamps = [line.stamp for line in lines if line.stamp is not None]
    steps = [b - a for a, b in pairwise(stamps)]
    back = sum(step < 0 for step in steps)
    if back >= 4 and back > 10 * sum(step > 0 for step in steps) and len(stamps) * 2 > len(lines):
        lines.reverse()
    return lines


def read_lines(lines: Iterable[str], first: int = 1) -> Iterator[Line]:
    """As `read`, for lines that were split at their ends already; ``first`` is the number of the first."""
    for number, line in enumerate(lines, first):
        if line[:1] in _OWN_START and _QUICK.match(line) and "\r" not in line and "\x1b" not in line:
            yield Line(number, line)  # as the server printed it: most lines of most logs
            continue
        if line[:1] != "{" and "\r" not in line:
            yield _plain(Line(number, line))
            continue
        for entry in _unwrapped(line.removesuffix("\r")):
            parts = entry.text.split("\r")
            for index, part in enumerate(parts):
                if part or len(parts) == 1:
                    yield _plain(
                        replace(entry, number=number, text=part, piece=entry.piece or index < len(parts) - 1)
                    )


def without_routine(lines: Iterable[Line]) -> list[Line]:
    """The lines without the middle of each long row of what a working server prints over and over.

    A day's log is seconds of reading; what these lines tell, the first and the last of a row tell as well.
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
    """A line without colours and without what stands in front of it."""
    return _plain(Line(0, text)).text


def _plain(line: Line) -> Line:
    text = line.text
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    who = line.who
    stamp, source, piece, relative = line.stamp, line.source, line.piece, line.relative
    for _ in range(4):
        if not text or _OWN.match(text):
            break
        found = next((match for prefix in _PREFIXES if (match := prefix.match(text, 0, _FRONT))), None)
        if found is None or not found.end():
            break
        said = found.groupdict()
        text = text[found.end() :]
        if stamp is None:
            stamp, relative = _stamp(said), bool(said.get("seconds"))
        piece = piece or said.get("end") == "R"
        who = who or said.get("rank") or said.get("ray") or ""
        ident = said.get("ident")
        if ident:
            source = {"systemd": "systemd", "kernel": "kernel"}.get(ident, source)
    if source == "engine" and text.startswith(("NVRM: ", "oom-kill:", "Out of memory: Killed process")):
        source = "kernel"
    return Line(line.number, text, stamp, source, piece, relative, who)


def _stamp(said: dict[str, str | None]) -> float | None:
    if text := said.get("iso"):
        return _when(text[:10], text[11:19], _fraction(text[19:]))
    if text := said.get("full"):
        return _when(text[4:14], text[15:23], _fraction(text[23:]))
    if text := said.get("short"):
        return _when(f"2000-{text[:5]}", text[6:14], _fraction(text[14:]))
    if text := said.get("syslog"):
        words = text.split()
        month, day, clock = words[-4:-1] if len(words) > 4 else words[:3]
        if len(words) > 4 or month not in _MONTHS:  # dmesg -T: Sun Nov 29 23:56:20 2026
            month, day, clock = words[1:4] if len(words) > 4 else ("Jan", "01", "00:00:00")
        number = _MONTHS.index(month) + 1 if month in _MONTHS else 1
        return _when(f"2000-{number:02}-{int(day):02}", clock[:8], _fraction(clock[8:]))
    number_text = said.get("unix") or said.get("mono") or said.get("seconds")
    return float(number_text) if number_text else None


@lru_cache(maxsize=4096)
def second(day: str, clock: str) -> float | None:
    """The seconds of a day and a clock (2026-01-31, 10:00:00), counted from 1970 as if in UTC; None for nonsense."""
    try:
        return datetime.fromisoformat(f"{day}T{clock}").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _when(day: str, clock: str, fraction: float) -> float | None:
    whole = second(day, clock)
    return None if whole is None else whole + fraction


def _fraction(text: str) -> float:
    digits = _FRACTION.match(text)
    return float(f"0.{digits[1]}") if digits else 0.0


def _unwrapped(line: str) -> list[Line]:
    """What a line in JSON holds (journalctl -o json, docker's json-file, `deployer logs --json`); else the line."""
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


def _decoded(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return line.decode("cp1252", "replace")


def _opener(data: bytes) -> Callable[[], Any] | None:
    openers: dict[bytes, Callable[[], Any]] = {
        b"\x1f\x8b": _Gzip,
        b"BZh": bz2.BZ2Decompressor,
        b"\xfd7zXZ\x00": lzma.LZMADecompressor,
    }
    return next((make for magic, make in openers.items() if data.startswith(magic)), None)


class _Gzip:
    """zlib's decompressor, with the manners of the other two."""

    def __init__(self) -> None:
        self._unpacker = zlib.decompressobj(wbits=31)

    def decompress(self, data: bytes, size: int) -> bytes:
        return self._unpacker.decompress(self._unpacker.unconsumed_tail + data, size)

    @property
    def needs_input(self) -> bool:
        return not self._unpacker.unconsumed_tail

    @property
    def eof(self) -> bool:
        return self._unpacker.eof

    @property
    def unused_data(self) -> bytes:
        return self._unpacker.unused_data


def unpacked(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """What an archive (or several, one after the other) holds, a piece at a time. Raises Damaged."""
    unpacker: Any = None
    rest = b""
    for chunk in chunks:
        rest += chunk
        while rest:
            if unpacker is None:
                make = _opener(rest)
                if make is None and not rest.strip(b"\0"):
                    rest = b""  # an archive is padded by tapes and the like
                    break
                if make is None:
                    if len(rest) < 6:
                        break  # the beginning of another archive may be cut
                    raise Damaged("what follows the archive is none")
                unpacker = make()
            try:
                piece = unpacker.decompress(rest, _PIECE)
                rest = b""
                if piece:
                    yield piece
                while not unpacker.eof and not unpacker.needs_input:
                    if piece := unpacker.decompress(b"", _PIECE):
                        yield piece
            except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError) as error:
                raise Damaged(f"the archive is damaged: {error}") from error
            if unpacker.eof:
                rest, unpacker = unpacker.unused_data, None
    if unpacker is not None:
        raise Damaged("the archive ends too early")
