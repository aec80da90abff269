"""Values and names in messages: printable, and with the nearest name that exists."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

KeyPath = tuple[str | int, ...]

_BARE = re.compile(r"[A-Za-z0-9_-]+")
#: Below these keys a value may be a secret, so it is never repeated in a message.
_PRIVATE = frozenset({"api_key", "environment", "extra_args"})


def key_path(path: KeyPath) -> str:
    """Return a place in a file as its author would write it: ``services.kimi.gpus[2]``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            word = part if _BARE.fullmatch(part) else printable(json.dumps(part, ensure_ascii=False))
            text += f".{word}" if text else word
    return text


def printable(text: str, limit: int = 200) -> str:
    """Return text without control characters or lone surrogates, cut to ``limit`` characters."""
    if len(text) > limit:
        text = text[: limit - 3] + "..."
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


_KINDS = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "a table",
}


def shown(value: object, path: KeyPath = ()) -> str:
    """Return a value for a message: with its type, or only the type if it may be a secret."""
    kind = _KINDS.get(type(value), "a date or time")
    if isinstance(value, (dict, list)) or any(part in _PRIVATE for part in path):
        return kind
    if isinstance(value, (str, bool)):
        return printable(json.dumps(value, ensure_ascii=False), 80)
    return printable(f"{value!s} ({kind})", 80)


def nearest(word: str, allowed: Iterable[str]) -> str | None:
    """Return the allowed name that is most like ``word``, or None if none is near enough."""
    import difflib

    names = list(allowed)
    matches = difflib.get_close_matches(word[:100], names, n=1, cutoff=0.6)
    if not matches:
        plain = word[:100].replace("_", "-").lower()
        return next((name for name in names if name.replace("_", "-").lower() == plain), None)
    return matches[0]


def unknown(word: str, allowed: Iterable[str], *, kind: str = "unknown key") -> str:
    """Return the sentence about a name that does not exist."""
    names = sorted(allowed)
    near = nearest(word, names)
    listed = ", ".join(names) if len(names) <= 40 else f"{', '.join(names[:40])}, ..."
    text = kind
    if near is not None:
        text += f"; did you mean {near}?"
    return f"{text} (allowed: {listed})" if names else f"{text} (nothing is allowed here)"
