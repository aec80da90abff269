"""Bench documents as they are read back from a release or a file, whoever wrote them. Pure."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from deployer.records.bench import BenchRun

#: Bytes of the largest document; that of 32 levels with 20 passes of 4096 requests each is a tenth of it.
LARGEST = 1 << 30
#: The newest version of the document that can be read; `deployer.bench.load.run` writes it.
NEWEST = 2
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def read_document(text: str) -> BenchRun:
    """Return the benchmark in ``text``. Raise ValueError, with the reason, if there is none."""
    return BenchRun.from_json(read_json(text))


def read_json(text: str) -> Any:
    """Return the JSON value of ``text``. Raise ValueError, with the reason, if it is not valid.

    What no reader expects is made harmless: numbers that are not finite or too large for a float become null, halves
    of characters and control characters U+FFFD.
    """
    try:
        return _clean(json.loads(text, parse_int=_whole, parse_float=_real, parse_constant=lambda _: None))
    except RecursionError:
        raise ValueError("it is nested more deeply than any benchmark") from None


def newer(bench: BenchRun) -> str:
    """Return why a document's version cannot be read here; empty if it can, or if it has none."""
    schema = bench.schema
    if schema is None and "schema" in bench.extra:
        schema = bench.extra["schema"]
    if schema is None or (isinstance(schema, int) and schema <= NEWEST):
        return ""
    return f"it is of version {str(schema)[:20]}, and this deployer reads those up to {NEWEST}"


def _whole(digits: str) -> int | None:
    return int(digits) if len(digits) < 20 else None


def _real(digits: str) -> float | None:
    value = float(digits)
    return value if math.isfinite(value) else None


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return _UNPRINTABLE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return value
