"""The environment variables that each known version of SGLang reads, as its sources name them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from deployer.sglang.flags.versions import Version, parse_version

_DATA = Path(__file__).resolve().parents[1] / "data" / "variables.json"
#: Since this version ``SGL_NAME`` is read as ``SGLANG_NAME`` (srt/environ.py: _convert_SGL_to_SGLANG).
_RENAMING = "0.5.5"


@cache
def _document() -> Any:
    return json.loads(_DATA.read_text(encoding="utf-8"))


@cache
def spans() -> Mapping[str, tuple[Version, Version]]:
    """Return each variable with the first and the last known version that reads it."""
    return {
        name: (parse_version(span["first"]), parse_version(span["last"]))
        for span in _document()["spans"]
        for name in span["names"]
    }


@cache
def known_versions() -> tuple[Version, ...]:
    """Return the versions whose sources were read, ascending."""
    return tuple(parse_version(text) for text in _document()["versions"])


@cache
def variables(version: Version | None) -> frozenset[str]:
    """Return the variables that a version may read: between two known versions, those of both; without one, of all."""
    if version is None:
        return frozenset(spans())
    known = known_versions()
    before = max((item for item in known if item <= version), default=known[0])
    after = min((item for item in known if item >= version), default=known[-1])
    return frozenset(name for name, (first, last) in spans().items() if first <= after and last >= before)


def read_as(name: str, version: Version | None) -> str:
    """Return the name under which SGLang looks a variable up."""
    renamed = version is None or version >= parse_version(_RENAMING)
    if renamed and name.startswith("SGL_") and name not in variables(version):
        return "SGLANG_" + name.removeprefix("SGL_")
    return name
