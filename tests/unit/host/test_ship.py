"""Carrying a program: what is packed, and that it runs alone."""

from __future__ import annotations

import base64
import io
import re
import zipfile
from pathlib import Path

import deployer
from deployer.bench.runner import load_client
from deployer.host import ship

LOAD = Path(deployer.__file__).parent / "bench" / "load"


def names(program: ship.Program) -> set[str]:
    """The files in a program's zipapp."""
    archive = re.search(r'b64decode\("(.*)"\)', program.text)
    assert archive is not None
    return set(zipfile.ZipFile(io.BytesIO(base64.b64decode(archive[1]))).namelist())


def test_the_load_client_is_its_package_and_metrics() -> None:
    packages = ("deployer", "deployer/bench")
    modules = {f"deployer/bench/load/{path.name}" for path in LOAD.glob("*.py")}
    expected = {*(f"{name}/__init__.py" for name in packages), *modules, "deployer/metrics.py", "__main__.py"}
    assert names(load_client()) == expected


def test_the_same_modules_give_the_same_program() -> None:
    assert ship.pack("deployer.bench.load") == ship.pack("deployer.bench.load")
