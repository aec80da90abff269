"""A console for words, on which the text of others cannot steer the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from deployer.cli.output import Unbreakable

#: Width of tables if the output is not a terminal.
PIPE_WIDTH = 150

#: Control characters and the symbols printed for them, except for newline and tab.
_PICTURES = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
}


class PlainConsole(Console):
    """A console that prints control characters in logs, file names and answers of a host as symbols."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, with symbols for control characters in the text."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(segment.text.translate(_PICTURES), segment.style)


def make_console(*, stderr: bool, colour: str = "auto") -> Console:
    """Return a console on stdout or stderr; ``colour`` is auto, always or never."""
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
