"""Output that cannot end a deployment: a closed terminal or pipe makes it silent, nothing else."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterable
from typing import Any, ClassVar, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

#: Width of tables where the output is not a terminal.
PIPE_WIDTH = 150


#: Nobody reads any more: a pipe's other end, a terminal or a connection is gone. That is no error.
_GONE = (errno.EPIPE, errno.ECONNRESET, errno.EIO, errno.EBADF, errno.ENXIO)


class Unbreakable:
    """A text stream whose reader may go away in the middle of a change.

    ``lost`` says why output did not get where somebody wanted it (a full disk); None where none was lost.
    """

    lost: ClassVar[str | None] = None

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.broken = False

    def write(self, text: str) -> int:
        """Write, or drop what nobody can read any more. Characters the terminal cannot show are replaced."""
        if not self.broken:
            try:
                return self._stream.write(text)
            except UnicodeEncodeError:
                encoding = self._stream.encoding or "ascii"
                return self.write(text.encode(encoding, "replace").decode(encoding))
            except (OSError, ValueError) as error:
                self._give_up(error)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if not self.broken:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._give_up(error)

    def isatty(self) -> bool:
        return not self.broken and self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def encoding(self) -> str:
        return self._stream.encoding or "utf-8"

    def _give_up(self, error: OSError | ValueError) -> None:
        self.broken = True
        if isinstance(error, OSError) and error.errno is not None and error.errno not in _GONE:
            Unbreakable.lost = error.strerror or str(error)
        try:  # what is still buffered would make the interpreter complain at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
        except (OSError, ValueError):
            return


#: Control characters as pictures of them, but for what makes lines and columns.
_PICTURES = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
}


class PlainConsole(Console):
    """A console on which texts of others (a log, a file's name, an answer of a host) cannot steer the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As rich does, with control characters of texts as pictures of them."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(segment.text.translate(_PICTURES), segment.style)


def make_console(*, stderr: bool, colour: str = "auto") -> Console:
    """A console on stdout or stderr; ``colour`` is auto, always or never."""
    stream = Unbreakable(sys.stderr if stderr else sys.stdout)
    console = PlainConsole(
        file=stream,  # type: ignore[arg-type]  # all of a text stream that rich uses
        soft_wrap=True,
        highlight=False,
        no_color=True if colour == "never" else None,
        force_terminal=True if colour == "always" else None,
    )
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPE_WIDTH
    return console


def print_json(document: Any) -> None:
    """The one document of `--json`."""
    out = Unbreakable(sys.stdout)
    out.write(json.dumps(document, indent=2, ensure_ascii=not _is_unicode(out.encoding), default=str) + "\n")
    out.flush()


def _is_unicode(encoding: str) -> bool:
    return encoding.lower().replace("-", "").startswith("utf")
