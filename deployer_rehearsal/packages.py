"""Which packages of a Python environment are damaged, by the records that pip keeps of them."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path


def forget_broken(venv: Path, *, changed: Collection[str] = ()) -> list[str]:
    """Remove the records of incomplete packages, which pip would trust; return their names.

    ``changed`` are files that were changed on purpose.
    """
    broken = [*half_installed(venv), *damaged(venv, changed=changed)]
    for info in dict.fromkeys(broken):
        shutil.rmtree(info)
    return sorted({_name(info) for info in broken})


def half_installed(venv: Path) -> list[Path]:
    """Return the records of packages whose installation was interrupted: pip writes INSTALLER after the files."""
    return [info for info in _records(venv) if not (info / "INSTALLER").exists()]


def damaged(venv: Path, *, changed: Collection[str] = ()) -> list[Path]:
    """Return the records of packages with a file that is missing or has changed its size since the installation."""
    return [info for info in _records(venv) if not _whole(info, changed)]


def missing(venv: Path, names: Collection[str]) -> list[str]:
    """Return those of the named packages that have no record."""
    return sorted(set(names) - {_name(info) for info in _records(venv)})


def _records(venv: Path) -> Iterator[Path]:
    return venv.glob("lib/python3*/site-packages/*.dist-info")


def _name(info: Path) -> str:
    return info.name.partition("-")[0]


def _whole(info: Path, changed: Collection[str]) -> bool:
    try:
        with (info / "RECORD").open(encoding="utf-8", newline="") as lines:
            for path, _, size in csv.reader(lines):  # without a size: the record itself, and what pip compiles
                if size and path not in changed and (info.parent / path).stat().st_size != int(size):
                    return False
    except (OSError, ValueError, csv.Error):
        return False
    return True
