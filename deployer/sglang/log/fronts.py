"""What stands in front of every line of a log, learned from the log itself. Pure.

Some places in a log are known to begin a line as the server prints it: a record's bracket, the head of a traceback, a
frame. What stands before them, on most of the lines that have one, was added by somebody else: kubectl, stern, srun, a
pager, a quotation. The words of it that change from line to line are generalised, and what then matches is taken off.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

COLOUR = re.compile(
    r"\x1b(?:\[[0-?]{0,24}[ -/]{0,4}[@-~]|\][^\x07\x1b\r\n]{0,200}(?:\x07|\x1b\\)|[@-Z\\^_=>()][0-9A-B]?)"
)
#: How the server's own lines begin.
_ANCHOR = re.compile(
    r"\[(?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d[^\]\n]{0,60}\] |\[gpu_id=\d+\] | {2}File \"[^\"\n]{1,400}\", line \d"
    r"|Traceback \(most recent call last\):|INFO: {5}\S|server_args=ServerArgs\("
    r"|usage: \S+ \[-h\]|[\w-]{1,40}\.py: error: |(?:CUDA|HIP) error[: (]|terminate called after"
)
#: Text of a record of the server itself: an anchor behind it is no beginning of a line.
_OWN = re.compile(r"\[(?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d[^\]\n]{0,60}\] |\d%\||Scheduler hit an exception|in \S+$")
_TOKEN = re.compile(r"[^\W_][^\s|:\[\](){}<>\"'=,;/]*|[ \t]+|.")
#: Lines at either end of a log from which its front is learned, characters of a line in which it is looked for.
_LINES = 4000
_LOOK = 400
_KEY = re.compile(r"\s*[A-Za-z_]\w{0,40}=\Z")


@dataclass(frozen=True)
class Front:
    """The front of a log's lines.

    ``who`` are the groups that name a process. ``keyed``: it is the name of a field, so lines without it are other
    fields. ``quoted``: the text behind it is in quotes.
    """

    regex: re.Pattern[str]
    who: tuple[int, ...] = ()
    keyed: bool = False
    quoted: bool = False

    def split(self, text: str) -> tuple[str, str, str] | None:
        """Return a line's front, its text and who printed it; None if it does not begin with this front."""
        match = self.regex.match(text)
        if match is None:
            return None
        body = text[match.end() :]
        if self.quoted:
            body = body.removesuffix('"').replace('\\"', '"')
        return match[0], body, " ".join(match[group] or "" for group in self.who)


def learn(lines: Sequence[str]) -> tuple[Front, ...]:
    """Return the fronts of a log's lines, the most frequent first; none if nothing stands before them."""
    some = lines if len(lines) <= 2 * _LINES else [*lines[:_LINES], *lines[-_LINES:]]
    shapes: dict[tuple[str, ...], list[list[str]]] = {}
    bare = total = 0
    for raw in some:
        line = COLOUR.sub("", raw) if "\x1b" in raw else raw
        anchor = _ANCHOR.search(line, 0, _LOOK)
        if anchor is None or line.startswith('{"'):
            continue
        before = line[: anchor.start()]
        total += 1
        if not before or _OWN.search(before):
            bare += 1
            continue
        tokens = _TOKEN.findall(before)
        shapes.setdefault(tuple(map(_kind, tokens)), []).append(tokens)
    if not shapes or bare * 2 >= total:
        return ()
    printed = [COLOUR.sub("", line) for line in some if line.strip()]
    found = []
    for rows in sorted(shapes.values(), key=len, reverse=True)[:8]:
        front = _front(rows)
        if len(rows) >= (2 if front.keyed else 3) or sum(
            front.regex.match(line) is not None for line in printed
        ) * 2 > len(printed):
            found.append(front)
    return tuple(found)


def _kind(token: str) -> str:
    if token[0] in " \t":
        return "\t" if "\t" in token else " "
    return "w" if token[0].isalnum() else token


def _front(rows: Sequence[Sequence[str]]) -> Front:
    """Return the front whose constant words are those that all ``rows`` share."""
    parts: list[str] = []
    who: list[int] = []
    columns = list(zip(*rows, strict=True))
    groups = 0
    lone = sum(column[0][0].isalnum() for column in columns) == 1
    for position, column in enumerate(columns):
        values = Counter(column)
        last = position == len(columns) - 1
        if column[0][0] in " \t":
            blank = re.escape(column[0]) if len(values) == 1 and (last or position == 0) else r"[ \t]+"
            if last and position and column[0].strip() == "" and len(values) > 1:
                blank = re.escape(min(values, key=len))
            parts.append(
                f"(?:{blank}|$)" if last and position else blank if position or len(values) == 1 else r"[ \t]*"
            )
        elif len(values) == 1 and (last or not any(char.isdigit() for char in column[0])):
            parts.append(re.escape(column[0]))
        elif column[0][0].isalnum():
            groups += 1
            parts.append(r"([^\s|:\[\](){}<>\"'=,;/]+)")
            numbers = all(value.isdigit() for value in values)
            if (not numbers and not column[0][0].isdigit()) or (lone and numbers and 2 * len(values) <= len(column)):
                who.append(groups)
        else:
            parts.append(re.escape(column[0]))
    text = "".join(rows[0])
    return Front(re.compile("".join(parts)), tuple(who), bool(_KEY.match(text)), text.endswith('="'))


def split(fronts: Iterable[Front], text: str) -> tuple[str, str, str] | None:
    """Return a line's front, its text and who printed it, by the first front that it has; None if it has none."""
    return next((parts for front in fronts if (parts := front.split(text)) is not None), None)
