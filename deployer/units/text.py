"""Reading the text of a unit file, and the command line in it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

STATE_ROOT = "/var/lib/deployer"
_RELEASE_PATH = re.compile(re.escape(STATE_ROOT) + r"/[a-z0-9][a-z0-9_-]{0,39}/releases/[^/]+(?=/|$)")


def entries(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield (section, key, value) of each assignment, as systemd splits lines: continuations joined, no comments."""
    section, pending = "", ""
    for raw in text.split("\n"):
        stripped = raw.lstrip(" \t\r")
        if stripped.startswith(("#", ";")):
            continue
        line = pending + raw
        pending = ""
        if _continues(line):
            pending = line[:-1] + " "
            continue
        line = line.strip(" \t\r")
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif "=" in line:
            key, _, value = line.partition("=")
            yield section, key.rstrip(" \t"), value.lstrip(" \t")


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def section(text: str, name: str) -> dict[str, str]:
    """Return one section. Values of a repeated key are joined by newlines."""
    values: dict[str, str] = {}
    for where, key, value in entries(text):
        if where == name:
            values[key] = f"{values[key]}\n{value}" if key in values else value
    return values


def comparable(argv: Sequence[str]) -> list[str]:
    """Return a command line without the name of its release, so that those of equal releases are equal."""
    return [_RELEASE_PATH.sub("RELEASE", word) for word in argv]
