"""Logs inside another document: JSON and CSV exports, escaped text, HTML. Pure.

An export is a table of entries. Which of its columns holds the log is not known by name: it is the one in which the
server's lines stand.
"""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from deployer.sglang.log.record import PREFIX

_SIGN = re.compile(
    rf"{PREFIX.pattern}|Traceback \(most|File \"|\w(?:Error|Exception): |INFO: {{5}}|CUDA error|NCCL|\.py: error: "
)
_QUOTE = re.compile(r"&(?:quot|#34|#x22|#x27|#39|apos);")
_ISO = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d")
_HEADER = re.compile(r"\"?[\w@. /-]{1,60}\"?(?:[,;\t]\"?[\w@. /-]{1,60}\"?){1,60}\r?\Z")
_ESCAPES = re.compile(r"\\(r\\n|[nrt\"'\\])")
_PLAIN = {"n": "\n", "r\\n": "\n", "r": "\r", "t": "\t"}
#: Entries of an export that are looked at to find the column of the log.
_SAMPLE = 400
_DEPTH = 6
#: A document that is longer is not parsed as a whole.
_LONGEST = 64 << 20
#: Keys of the JSON lines that have a reader of their own, because they say more than the text.
_KNOWN = ('"MESSAGE"', '"log":', '"source":')


def unwrapped(text: str) -> str:
    """Return a log without the document around it: plain lines, each with the entry's time in front if it has one."""
    if len(text) > _LONGEST:
        return text
    if _QUOTE.search(text) and not re.search(r'File "', text):
        text = html.unescape(text)
    entries = _entries(text)
    if entries:
        text = "\n".join(entries)
    return text if text.startswith("{") else _unescaped(text)


def _unescaped(text: str) -> str:
    """Return the text with line ends where they were written as two characters."""
    if "\\n" not in text:
        return text
    few = text.count("\\n") > 2 * text.strip().count("\n")
    if not few and "(most recent call last):\\n" not in text:
        return text
    return "\n".join(_split(line) if few or line.count("\\n") > 2 else line for line in text.split("\n"))


def _split(line: str) -> str:
    if "\\n" not in line:
        return line
    return _ESCAPES.sub(lambda match: _PLAIN.get(match[1], match[1]), line.strip().removeprefix('"').removesuffix('"'))


def _entries(text: str) -> list[str]:
    start = text.lstrip("\ufeff \r\n\t")[:4000]
    if start[:1] in "[{" and re.match(r"[\[{]\s*[\[{\"\]]", start):
        rows = list(_json(text))
    elif _HEADER.match(start.split("\n", 1)[0]):
        rows = list(_csv(text))
    else:
        return []
    return list(_column(rows))


def _json(text: str) -> Iterator[dict[str, str]]:
    """Yield the leaves of each entry: of a whole document, or of one a line."""
    first = text.lstrip("\ufeff \r\n\t").split("\n", 1)[0]
    if any(key in first for key in _KNOWN) and first.rstrip().endswith("}"):
        return
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        for line in text.split("\n"):
            try:
                yield dict(_leaves(json.loads(line)))
            except (ValueError, RecursionError):
                yield {"": line}
        return
    for entry in _longest_list(document, 0):
        yield dict(_leaves(entry))


def _longest_list(value: Any, depth: int) -> list[Any]:
    """Return the entries of a document: all lists of objects, or of pairs, one after the other."""
    if isinstance(value, dict) and depth < _DEPTH:
        return [entry for item in value.values() for entry in _longest_list(item, depth + 1)] or [value][: depth == 0]
    if not isinstance(value, list):
        return []
    inner = [entry for item in value if isinstance(item, dict) for entry in _longest_list(item, depth + 1)]
    if len(inner) > len(value):
        return inner
    return value


def _leaves(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif depth < _DEPTH and isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}", depth + 1)
    elif depth < _DEPTH and isinstance(value, list):
        for index, item in enumerate(value[:8]):
            yield from _leaves(item, f"{path}.{index}", depth + 1)


def _csv(text: str) -> Iterator[dict[str, str]]:
    first = text.split("\n", 1)[0]
    delimiter = max(",;\t", key=first.count)
    try:
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter):
            yield {str(index): cell for index, cell in enumerate(row)}
    except csv.Error:
        return


def _column(rows: Sequence[dict[str, str]]) -> Iterable[str]:
    """Yield the texts of the column in which the log stands; nothing if none has it."""
    signs: dict[str, int] = {}
    for row in [*rows[:_SAMPLE], *rows[-_SAMPLE:]]:
        for path, value in row.items():
            signs[path] = signs.get(path, 0) + bool(_SIGN.search(value, 0, 2000))
    path = max(signs, key=lambda name: signs[name], default="")
    if not path or not signs[path]:
        return
    for row in rows:
        if path not in row:
            continue
        when = next((item for name, item in row.items() if name != path and _ISO.match(item)), None)
        for line in row[path].removesuffix("\n").split("\n"):
            yield f"{when[:40]} stdout F {line}" if when and len(when) <= 40 else line
