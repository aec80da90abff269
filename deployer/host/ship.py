"""Carry a program of deployer's to another machine: some of its modules as a zipapp.

The files of the agent's operation ``run`` are text, so a zipapp travels inside a small script that writes it beside
itself and runs it.
"""

from __future__ import annotations

import base64
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import deployer

_ROOT = Path(deployer.__file__).parents[1]
_MAIN = """\
import sys

from {package}.__main__ import main

sys.exit(main())
"""
_SCRIPT = '''\
"""A program of deployer: writes its zipapp beside this file and runs it."""
import base64
import os
import runpy
import sys

path = os.path.splitext(os.path.abspath(__file__))[0] + ".pyz"
with open(path, "wb") as file:
    file.write(base64.b64decode("{archive}"))
sys.argv[0] = path
runpy.run_path(path, run_name="__main__")
'''
#: The same modules give the same bytes, whenever they are packed.
_WRITTEN = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Program:
    """A program that can be sent: the name of its file, and the text of it, which any Python runs."""

    file: str
    text: str


def pack(package: str, *modules: str) -> Program:
    """Return the program that runs ``main`` of ``package.__main__``; ``modules`` is what else it imports."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted({*_file(package).parent.glob("*.py"), *_parents(package), *map(_file, modules)}):
            _add(archive, str(path.relative_to(_ROOT)), path.read_text(encoding="utf-8"))
        _add(archive, "__main__.py", _MAIN.format(package=package))
    text = _SCRIPT.format(archive=base64.b64encode(buffer.getvalue()).decode())
    return Program(package.rpartition(".")[2] + ".py", text)


def _add(archive: zipfile.ZipFile, name: str, text: str) -> None:
    archive.writestr(zipfile.ZipInfo(name, _WRITTEN), text, zipfile.ZIP_DEFLATED)


def _file(module: str) -> Path:
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


def _parents(package: str) -> Iterator[Path]:
    """The ``__init__.py`` of each package that ``package`` is in."""
    while package := package.rpartition(".")[0]:
        yield _file(package)
