"""A picture of a terminal program for the documentation: run it on a pseudo-terminal, draw the screen as SVG.

    python tools/picture.py OUTPUT.svg [--after SECONDS | --when EXPRESSION] [--lines N] -- COMMAND [ARGUMENT...]

With --after the picture is taken that long after the start, with --when as soon as a line of the screen has the
regular expression, else at the end. Needs pyte (`pip install pyte`). docs/img/apply.svg, on a practice host that has
had pp8-async live:

    python tools/picture.py docs/img/apply.svg --lines 44 --when "PP[0-9].* [1-4]/4" -- deployer apply pp8-async --yes
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

COLUMNS = 118


def run(command: list[str], lines: int, after: float | None, when: str | None) -> pyte.Screen:
    """The screen as the command leaves it, as it is after so many seconds, or when a line first has an expression.

    The command always runs to its end.
    """
    screen = pyte.Screen(COLUMNS, lines)
    stream = pyte.ByteStream(screen)
    pid, master = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execvp(command[0], command)
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, COLUMNS, 0, 0))
    began = time.monotonic()
    taken = False
    while True:
        if after is not None and not taken and time.monotonic() - began >= after:
            taken = True
        ready, _, _ = select.select([master], [], [], 0.05)
        if not ready:
            continue
        try:
            data = os.read(master, 65536)
        except OSError:
            break
        if not data:
            break
        if not taken:
            stream.feed(data)
            taken = when is not None and any(re.search(when, line) for line in screen.display)
    os.waitpid(pid, 0)
    return screen


def draw(screen: pyte.Screen, title: str) -> str:
    """The screen as SVG."""
    console = Console(width=COLUMNS, record=True, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    rows = [screen.buffer[number] for number in range(screen.lines)]
    texts = []
    for row in rows:
        text = Text()
        for column in range(COLUMNS):
            cell = row[column]
            style = Style(
                color=None if cell.fg == "default" else colour(cell.fg),
                bold=cell.bold,
            )
            text.append(cell.data, style=style)
        text.rstrip()
        texts.append(text)
    while texts and not texts[-1].plain.strip():
        texts.pop()
    for text in texts:
        console.print(text, no_wrap=True, crop=True)
    svg = console.export_svg(title=title)
    # No font from elsewhere: the reader's own monospace will do.
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def colour(name: str) -> str:
    """pyte's word for a colour as rich's."""
    names = {"brown": "yellow", "brightblack": "bright_black"}
    return names.get(name, f"#{name}" if len(name) == 6 and not name.isalpha() else name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output")
    parser.add_argument("--after", type=float)
    parser.add_argument("--when")
    parser.add_argument("--lines", type=int, default=40)
    parser.add_argument("--title", default="deployer")
    place = sys.argv.index("--")
    options, command = parser.parse_args(sys.argv[1:place]), sys.argv[place + 1 :]
    svg = draw(run(command, options.lines, options.after, options.when), options.title)
    with open(options.output, "w", encoding="utf-8") as file:
        file.write(svg)
    print(f"{options.output}: {len(svg)} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
