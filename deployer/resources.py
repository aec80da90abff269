"""Where the files that ship with deployer are: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def shipped(kind: str) -> Path:
    """The folder of shipped files of one kind: ``templates`` or ``inventories``."""
    packed = _PACKAGE / "_data" / kind
    return packed if packed.is_dir() else _PACKAGE.parent / kind


def package_root() -> Path:
    """The folder that holds the ``deployer`` package (a checkout or a site-packages folder)."""
    return _PACKAGE.parent
