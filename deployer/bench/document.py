"""Bench documents as they are read back from a release or a file, whoever wrote them. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

#: Bytes of the largest document; that of 32 levels with 20 passes of 4096 requests each is a tenth of it.
LARGEST = 1 << 30
#: The newest version of the document that is known here; `deployer.bench.load.run` writes it.
NEWEST = 2
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def read_document(text: str) -> Any:
    """The JSON value of ``text``. ValueError, with what is wrong, where it is none.

    What no benchmark holds and no reader expects is made harmless: numbers that are none or beyond a float are null,
    halves of characters and signs that steer a terminal are U+FFFD.
    """
    try:
        return _clean(json.loads(text, parse_int=_whole, parse_float=_real, parse_constant=lambda _: None))
    except RecursionError:
        raise ValueError("it is nested more deeply than any benchmark") from None


def newer(document: Mapping[str, Any]) -> str:
    """Why a document's version cannot be read here; empty where it can. One that tells none is taken as it is."""
    schema = document.get("schema")
    if schema is None or (isinstance(schema, int) and schema <= NEWEST):
        return ""
    return f"it is of version {str(schema)[:20]}, and this deployer knows those up to {NEWEST}"


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
