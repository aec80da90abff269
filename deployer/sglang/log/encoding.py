"""From the bytes of a log file to its text: archives (gzip, bzip2, xz) and encodings. Pure."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

#: Bytes that are unpacked at a time: a few bytes of an archive may hold gigabytes.
_PIECE = 1 << 20
_WIDE = (b"\xff\xfe", b"\xfe\xff")


class Damaged(Exception):
    """An archive ends too early or has something else behind it; what came before is good."""


def is_wide(start: bytes) -> bool:
    """Return whether a file that begins so is UTF-16: by its byte order mark, or by every second byte being zero."""
    return start.startswith(_WIDE) or _unmarked(start) is not None


def _unmarked(start: bytes) -> str | None:
    """Return the encoding of UTF-16 without a mark, whose text is mostly ASCII; None if it is something else."""
    sample = start[:400]
    pairs = len(sample) // 2
    if pairs < 2:
        return None
    zeros = sample[: 2 * pairs : 2].count(0), sample[1 : 2 * pairs : 2].count(0)
    if zeros[1] * 10 > 9 * pairs and zeros[0] * 10 < pairs:
        return "utf-16-le"
    return "utf-16-be" if zeros[0] * 10 > 9 * pairs and zeros[1] * 10 < pairs else None


def text_of(data: bytes, mark: bytes = b"") -> str:
    """Return bytes (no archive) as text. ``mark``: the file's first bytes, where ``data`` is a later part of it.

    UTF-16 is recognised by its mark; a line that is not valid UTF-8 is taken for Windows-1252.
    """
    if mark.startswith(_WIDE):
        data = mark[:2] + data
    if data.startswith(_WIDE):
        return data.decode("utf-16", "replace")
    if unmarked := _unmarked(mark if len(mark) > 2 else data):
        return data.decode(unmarked, "replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return "".join(_decoded(line) for line in data.splitlines(keepends=True))


def _decoded(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return line.decode("cp1252", "replace")


class _Unpacker(Protocol):
    def decompress(self, data: bytes, max_length: int = -1, /) -> bytes: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...


class _Gzip:
    """zlib's decompressor with the interface of the other two."""

    def __init__(self) -> None:
        self._unpacker = zlib.decompressobj(wbits=31)

    def decompress(self, data: bytes, max_length: int = -1, /) -> bytes:
        return self._unpacker.decompress(self._unpacker.unconsumed_tail + data, max_length)

    @property
    def needs_input(self) -> bool:
        return not self._unpacker.unconsumed_tail

    @property
    def eof(self) -> bool:
        return self._unpacker.eof

    @property
    def unused_data(self) -> bytes:
        return self._unpacker.unused_data


_UNPACKERS: dict[bytes, Callable[[], _Unpacker]] = {
    b"\x1f\x8b": _Gzip,
    b"BZh": bz2.BZ2Decompressor,
    b"\xfd7zXZ\x00": lzma.LZMADecompressor,
}


def _unpacker_for(data: bytes) -> Callable[[], _Unpacker] | None:
    return next((make for magic, make in _UNPACKERS.items() if data.startswith(magic)), None)


def compressed(start: bytes) -> bool:
    """Return whether a file that begins so is gzip, bzip2 or xz."""
    return _unpacker_for(start) is not None


def unpacked(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the content of an archive (or of several in a row) piece by piece. Raise Damaged."""
    unpacker: _Unpacker | None = None
    rest = b""
    for chunk in chunks:
        rest += chunk
        while rest:
            if unpacker is None:
                make = _unpacker_for(rest)
                if make is None and not rest.strip(b"\0"):
                    rest = b""  # padding
                    break
                if make is None:
                    if len(rest) < 6:
                        break  # perhaps the beginning of another archive
                    raise Damaged("the archive is followed by something else")
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
