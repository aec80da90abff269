"""Whether two spellings of an argument's value mean the same: the requested one, and what a server shows. Pure.

A server shows its values as JSON after parsing and resolving them: a path without its final slash, a number as a
number, a rounded fraction, a list for what were words on the command line, a table completed with defaults.
"""

from __future__ import annotations

import json
import math
import posixpath
import re
from collections.abc import Mapping
from typing import Any

_NUMBER = re.compile(r"[+-]?(?:\d{1,18}(?:\.\d{0,18})?|\.\d{1,18})(?:[eE][+-]?\d{1,3})?", re.ASCII)
_HUMAN = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)([kKmMgGtT])", re.ASCII)
_PLACE = {"k": 1, "m": 2, "g": 3, "t": 4}
#: Single precision keeps 24 bits: it changes a number by no more than this share.
_SINGLE = 1e-6
#: Other names of element types.
_TYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
}


def same(requested: Any, shown: Any) -> bool:
    """Return whether the value ``shown`` is the ``requested`` one. Never raises.

    Besides equality: a switch that is off may be shown as null, ``"auto"`` matches whatever was chosen, a number is
    the same within single precision or rounded to three or more decimals, ``"128K"`` is 128 x 1024 or 1000, a path is
    the same without double or final slashes, a list is the same as its words, and a requested table is in effect if
    all of it is in the table shown.
    """
    try:
        return _same(requested, shown)
    except RecursionError:
        return False


def _same(requested: Any, shown: Any) -> bool:
    if isinstance(requested, bool) or isinstance(shown, bool):
        return isinstance(requested, bool | None) and isinstance(shown, bool | None) and bool(requested) == bool(shown)
    if isinstance(requested, str) and requested.lower() == "auto":
        return True
    if isinstance(requested, Mapping):
        return _same_table(requested, shown)
    if isinstance(shown, Mapping):
        parsed = _parsed(requested)
        return isinstance(parsed, Mapping) and _same_table(parsed, shown)
    if isinstance(requested, list | tuple) or isinstance(shown, list | tuple):
        return _same_list(_items(requested), _items(shown))
    if _number(requested) is not None and _number(shown) is not None:
        return _same_number(requested, shown)
    if isinstance(requested, str) and isinstance(shown, str):
        return _same_text(requested, shown)
    if isinstance(requested, str) and isinstance(shown, int):
        return shown in _human(requested)
    return bool(requested == shown)


def _same_table(requested: Mapping[Any, Any], shown: Any) -> bool:
    table = shown if isinstance(shown, Mapping) else _parsed(shown)
    return isinstance(table, Mapping) and all(key in table and _same(requested[key], table[key]) for key in requested)


def _same_list(requested: list[Any], shown: list[Any]) -> bool:
    return len(requested) == len(shown) and all(_same(a, b) for a, b in zip(requested, shown, strict=True))


def _items(value: Any) -> list[Any]:
    """Return the items of a list, of its JSON, or of words separated by commas or blanks; or the value as one item."""
    if isinstance(value, list | tuple):
        return list(value)
    parsed = _parsed(value)
    if isinstance(parsed, list):
        return parsed
    return re.split(r"[,\s]+", value.strip()) if isinstance(value, str) else [value]


def _number(value: Any) -> float | None:
    if isinstance(value, int | float):
        return float(value) if abs(value) < 1e300 else None
    return float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else None


def _same_number(requested: Any, shown: Any) -> bool:
    if isinstance(requested, int) and isinstance(shown, int):
        return requested == shown
    first, second = _number(requested), _number(shown)
    assert first is not None
    assert second is not None
    if first.is_integer() and second.is_integer():
        return first == second
    if math.isclose(first, second, rel_tol=_SINGLE, abs_tol=0.0):
        return True
    decimals = len(repr(second).partition(".")[2])
    return 3 <= decimals < 17 and "e" not in repr(second) and round(first, decimals) == second


def _human(text: str) -> set[int]:
    """Return the whole numbers that ``128K`` and the like may mean."""
    match = _HUMAN.fullmatch(text)
    if not match:
        return set()
    power = _PLACE[match[2].lower()]
    return {round(float(match[1]) * base**power) for base in (1000, 1024)}


def _same_text(requested: str, shown: str) -> bool:
    if requested == shown or _element_type(requested) == _element_type(shown):
        return True
    if requested.startswith("/") and shown.startswith("/"):
        return _path(requested) == _path(shown)
    if requested.rstrip("/") == shown.rstrip("/") != "":
        return True
    first, second = _parsed(requested), _parsed(shown)
    if isinstance(first, Mapping | list) and isinstance(second, Mapping | list):
        return _same(first, second)
    return False


def _path(text: str) -> str:
    # POSIX keeps exactly two slashes at the beginning; Linux gives them no meaning.
    return posixpath.normpath("/" + text.lstrip("/"))


def _element_type(text: str) -> str:
    name = text.lower().removeprefix("torch.")
    return _TYPES.get(name, name) if name in _TYPES or name in _TYPES.values() else text


def _parsed(text: Any) -> Any:
    if not isinstance(text, str) or text[:1] not in ("{", "["):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
