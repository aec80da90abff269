"""Output that cannot end a deployment: a closed terminal or pipe makes it silent, nothing else."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterable
from typing import Any, ClassVar, TextIO

#: The reader is gone (a pipe, a terminal, a connection), which is not an error.
_GONE = (errno.EPIPE, errno.ECONNRESET, errno.EIO, errno.EBADF, errno.ENXIO)
#: A write to a stream fails with one of these if nobody reads it, or the disk is full.
OUTPUT_LOST = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Unbreakable:
    """A text stream whose reader may go away in the middle of a change, or that was closed from the start (None).

    ``lost`` says why output was lost that somebody wanted (a full disk); None if none was.
    """

    lost: ClassVar[str | None] = None

    def __init__(self, stream: TextIO | None) -> None:
        self._stream: TextIO = io.StringIO() if stream is None else stream
        self.broken = stream is None

    def write(self, text: str) -> int:
        """Write, or drop the text if the reader is gone. Characters the terminal cannot show are replaced."""
        if not self.broken:
            try:
                return self._stream.write(text)
            except UnicodeEncodeError:
                encoding = self._stream.encoding or "ascii"
                return self.write(text.encode(encoding, "replace").decode(encoding))
            except (OSError, ValueError) as error:
                self.give_up(error)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if not self.broken:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self.give_up(error)

    def isatty(self) -> bool:
        return not self.broken and self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def encoding(self) -> str:
        return self._stream.encoding or "utf-8"

    def give_up(self, error: OSError | ValueError) -> None:
        """Drop all further text, because a write failed with ``error``."""
        self.broken = True
        if isinstance(error, OSError) and error.errno is not None and error.errno not in _GONE:
            Unbreakable.lost = error.strerror or str(error)
        try:  # what is still buffered would make the interpreter complain at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
        except (OSError, ValueError):
            return


def print_json(document: Any) -> None:
    """Print the one document of `--json`."""
    import json

    out = Unbreakable(sys.stdout)
    out.write(json.dumps(document, indent=2, ensure_ascii=not _is_unicode(out.encoding), default=str) + "\n")
    out.flush()


def _is_unicode(encoding: str) -> bool:
    return encoding.lower().replace("-", "").startswith("utf")
