"""Whether two writings of an argument's value mean the same: what was asked for, and what a server shows. Pure.

A server shows its values as JSON after parsing and resolving them: a path without its last slash, a number as a
number, a quantised fraction, a list where the command line had words, a table filled up with defaults.
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
#: Single precision keeps 24 bits: a number that passed through it is off by no more than this share.
_SINGLE = 1e-6
#: Names of one element type.
_TYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
}


def same(asked: Any, shown: Any) -> bool:
    """Whether the value ``shown`` is what was ``asked``. Never raises.

    Beside equality: a switch that is off may be shown as null, ``"auto"`` is met by whatever was chosen, a number is
    the same within single precision or rounded to three or more decimals, ``"128K"`` is 128 x 1024 or 1000, a path is
    the same without doubled or final slashes, a list is the same as its words, and a table that was asked for is in
    force if all of it is in the table shown.
    """
    try:
        return _same(asked, shown)
    except RecursionError:
        return False


def _same(asked: Any, shown: Any) -> bool:
    if isinstance(asked, bool) or isinstance(shown, bool):
        return (
            isinstance(asked, bool | None) and isinstance(shown, bool | None) and bool(asked) == bool(shown)
        )
    if isinstance(asked, str) and asked.lower() == "auto":
        return True
    if isinstance(asked, Mapping):
        return _same_table(asked, shown)
    if isinstance(shown, Mapping):
        parsed = _parsed(asked)
        return isinstance(parsed, Mapping) and _same_table(parsed, shown)
    if isinstance(asked, list | tuple) or isinstance(shown, list | tuple):
        return _same_list(_items(asked), _items(shown))
    if _number(asked) is not None and _number(shown) is not None:
        return _same_number(asked, shown)
    if isinstance(asked, str) and isinstance(shown, str):
        return _same_text(asked, shown)
    if isinstance(asked, str) and isinstance(shown, int):
        return shown in _human(asked)
    return bool(asked == shown)


def _same_table(asked: Mapping[Any, Any], shown: Any) -> bool:
    table = shown if isinstance(shown, Mapping) else _parsed(shown)
    return isinstance(table, Mapping) and all(key in table and _same(asked[key], table[key]) for key in asked)


def _same_list(asked: list[Any], shown: list[Any]) -> bool:
    return len(asked) == len(shown) and all(_same(a, b) for a, b in zip(asked, shown, strict=True))


def _items(value: Any) -> list[Any]:
    """The items of a list, of its JSON, or of words divided by commas or blanks; one value is a list of one."""
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


def _same_number(asked: Any, shown: Any) -> bool:
    if isinstance(asked, int) and isinstance(shown, int):
        return asked == shown
    first, second = _number(asked), _number(shown)
    assert first is not None
    assert second is not None
    if first.is_integer() and second.is_integer():
        return first == second
    if math.isclose(first, second, rel_tol=_SINGLE, abs_tol=0.0):
        return True
    decimals = len(repr(second).partition(".")[2])
    return 3 <= decimals < 17 and "e" not in repr(second) and round(first, decimals) == second


def _human(text: str) -> set[int]:
    """The whole numbers that ``128K`` and the like may mean."""
    found = _HUMAN.fullmatch(text)
    if not found:
        return set()
    power = _PLACE[found[2].lower()]
    return {round(float(found[1]) * base**power) for base in (1000, 1024)}


def _same_text(asked: str, shown: str) -> bool:
    if asked == shown or _element_type(asked) == _element_type(shown):
        return True
    if asked.startswith("/") and shown.startswith("/"):
        return _path(asked) == _path(shown)
    if asked.rstrip("/") == shown.rstrip("/") != "":
        return True
    first, second = _parsed(asked), _parsed(shown)
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
