"""Reading a log file of any size: all of it, or its beginning and its end.

How a launch began and how it ended is in the two ends of a log; what a server printed for days lies between them. So a
log longer than `WHOLE` is read as its first `HEAD` and its last `TAIL` bytes, and what was left out is counted. Memory
and time are bounded, whatever the file is: gigabytes, compressed, a pipe that does not end.
"""

from __future__ import annotations

import re
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import IO

from deployer.errors import UsageError
from deployer.sglang.log.encoding import Damaged, compressed, is_wide, unpacked

#: A log of so many bytes is read whole; of a longer one so many are kept from either end.
WHOLE = 96 << 20
HEAD = 24 << 20
TAIL = WHOLE - HEAD
#: At most so many lines of either end: millions of short ones take as long as many bytes.
HEAD_LINES = 200_000
TAIL_LINES = 600_000
#: In a file longer than this the lines in the middle are not even counted.
COUNTED = 4 << 30
#: At most so many bytes are read from a stream, or unpacked from an archive: either may be endless.
ENDLESS = 8 << 30
#: Seconds that unpacking may take.
UNPACKING = 20.0
_CHUNK = 1 << 20
_END = re.compile(rb"[\r\n]")


@dataclass(frozen=True)
class Excerpt:
    """What was kept of a log, in bytes: all of it in ``head``, or both its ends.

    ``left_out`` bytes with ``lines`` line ends are between them (None: not counted). ``unread`` says why the end is
    not the log's own end; empty if it is.
    """

    head: bytes
    tail: bytes = b""
    left_out: int = 0
    lines: int | None = 0
    unread: str = ""

    @property
    def gap(self) -> str:
        """What was left out, in words; empty if nothing was."""
        if not self.left_out:
            return ""
        size = len(self.head) + self.left_out + len(self.tail)
        numbers = "" if self.lines is not None else "; lines after them are numbered as if they did not exist"
        first, last = f"{len(self.head) / 2**20:.0f}", f"{len(self.tail) / 2**20:.0f}"
        return (
            f"bytes {len(self.head):,} to {len(self.head) + self.left_out:,} of {size:,} were left out: "
            f"only the first {first} MiB and the last {last} MiB were read{numbers}"
        )


def excerpt_of(path: str) -> Excerpt:
    """Return the log in a file, compressed or not; ``-`` is standard input. Raise UsageError if it cannot be read."""
    try:
        if path == "-":
            return fewer_lines(_of_stream(sys.stdin.buffer))
        with Path(path).open("rb") as file:
            return fewer_lines(_of_file(file))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"{path} cannot be read: {why}", remedy="name a log file, or - for standard input") from error


def _of_file(file: IO[bytes]) -> Excerpt:
    if not file.seekable():
        return _of_stream(file)
    size = file.seek(0, 2)
    file.seek(0)
    if size <= COUNTED or compressed(file.read(8)):
        file.seek(0)
        return _of_stream(file)
    file.seek(0)
    head = file.read(HEAD)
    file.seek(size - TAIL)
    return _trimmed(head, file.read(TAIL), size - HEAD - TAIL, None, "")


def _of_stream(file: IO[bytes]) -> Excerpt:
    first = file.read(_CHUNK)
    chunks = chain([first], iter(lambda: file.read(_CHUNK), b""))
    if not compressed(first):
        return ends_of(_limited(chunks, "read"))
    return ends_of(_limited(unpacked(chunks), "unpacked", time.monotonic() + UNPACKING))


class _Unread(Exception):
    """Why the rest of a log is not read."""


def _limited(chunks: Iterable[bytes], done: str, deadline: float | None = None) -> Iterator[bytes]:
    left = ENDLESS
    for chunk in chunks:
        yield chunk
        left -= len(chunk)
        if left <= 0:
            raise _Unread(f"it goes on after the {ENDLESS >> 30} GiB that were {done}")
        if deadline is not None and time.monotonic() > deadline:
            raise _Unread(f"it goes on after the {(ENDLESS - left) >> 20} MiB that were {done} in {UNPACKING:g} s")


def ends_of(chunks: Iterable[bytes], *, head: int = HEAD, tail: int = TAIL) -> Excerpt:
    """Return the first ``head`` and the last ``tail`` bytes (or a chunk more), cut at ends of lines."""
    first, last = bytearray(), deque[bytes]()
    held = left_out = lines = 0
    unread = ""
    try:
        for chunk in chunks:
            room = head - len(first)
            first += chunk[:room]
            rest = chunk[room:] if room else chunk
            last.append(rest)
            held += len(rest)
            while held - len(last[0]) >= tail:
                gone = last.popleft()
                held -= len(gone)
                left_out += len(gone)
                lines += gone.count(b"\n")
    except (_Unread, Damaged) as why:
        unread = str(why)
    if not left_out:
        first += b"".join(last)
        return Excerpt(bytes(first), unread=unread)
    return _trimmed(bytes(first), b"".join(last), left_out, lines, unread)


def _trimmed(head: bytes, tail: bytes, left_out: int, lines: int | None, unread: str) -> Excerpt:
    """Return both ends without the lines that were cut."""
    if is_wide(head):  # two bytes a character: a cut line does less harm than half a character
        odd = (len(head) + left_out) % 2
        return Excerpt(head, tail[odd:], left_out + odd, lines, unread)
    kept, begins = head.rfind(b"\n") + 1 or len(head), tail.find(b"\n") + 1
    return Excerpt(
        head[:kept],
        tail[begins:],
        left_out + len(head) - kept + begins,
        None if lines is None else lines + bool(begins),
        unread,
    )


def fewer_lines(excerpt: Excerpt, *, head: int = HEAD_LINES, tail: int = TAIL_LINES) -> Excerpt:
    """Return it with at most so many lines of either end (parts of progress bars count as lines)."""
    whole = not excerpt.left_out
    first = excerpt.head
    last = first if whole else excerpt.tail
    if whole and _ends(first) <= head + tail:
        return excerpt
    align = 2 if is_wide(first) else 1
    kept, begins = _after(first, head, align), _before(last, tail, align)
    between = first[kept:begins] if whole else first[kept:] + last[:begins]
    if not between:
        return excerpt
    return replace(
        excerpt,
        head=first[:kept],
        tail=last[begins:],
        left_out=excerpt.left_out + len(between),
        lines=None if excerpt.lines is None else excerpt.lines + between.count(b"\n"),
    )


def _ends(data: bytes) -> int:
    return data.count(b"\n") + data.count(b"\r")


def _after(data: bytes, lines: int, align: int) -> int:
    """Where the first ``lines`` lines end."""
    end = next(islice(_END.finditer(data), lines - 1, None), None)
    return len(data) if end is None else -(-end.end() // align) * align


def _before(data: bytes, lines: int, align: int) -> int:
    """Where the last ``lines`` lines begin."""
    size = 1 << 20
    while size < len(data) and _ends(data[-size:]) <= lines:
        size *= 2
    begin = max(0, len(data) - size)
    surplus = _ends(data[begin:]) - lines
    if surplus <= 0:
        return 0
    end = next(islice(_END.finditer(data, begin), surplus - 1, None))
    return -(-end.end() // align) * align
