"""Paragraphs of Markdown, wrapped for people who read the source."""

from __future__ import annotations

import re
import textwrap

WIDTH = 100
#: A line that began with one of these would be a list item, a heading or a quotation.
_NOT_FIRST = re.compile(r" (?=(?:[-+*#>=]+|\d+[.)]) )")


def paragraph(text: str) -> str:
    """Return one paragraph in lines of at most `WIDTH` characters; links and code stay whole."""
    glued = _NOT_FIRST.sub("\x01", " ".join(text.split()))
    lines = textwrap.wrap(glued, WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\x01", " ")
