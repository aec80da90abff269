"""The files that ship with deployer, beside the package in a checkout, inside it in a wheel; and the user's cache."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parent


def shipped(kind: str) -> Path:
    """The folder of shipped files of one kind: ``templates`` or ``inventories``."""
    packed = _PACKAGE / "_data" / kind
    return packed if packed.is_dir() else _PACKAGE.parent / kind


def package_root() -> Path:
    """The folder that holds the ``deployer`` package (a checkout or a site-packages folder)."""
    return _PACKAGE.parent


def cache_folder(kind: str) -> Path:
    """The user's folder of what could be found out again: ``asked`` or ``ahead``. It need not exist."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "deployer" / kind


@cache
def knowledge(path: str) -> Mapping[str, dict[str, Any]]:
    """Return the tables of one of the package's TOML files by their ids, each text in one line."""
    tables = tomllib.loads((_PACKAGE / path).read_text("utf-8"))
    return {
        id: {key: " ".join(value.split()) if isinstance(value, str) else value for key, value in table.items()}
        for id, table in tables.items()
    }
