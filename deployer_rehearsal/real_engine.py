"""The real SGLang on a practice host: where the host sees the prepared environment and the tiny checkpoint."""

from __future__ import annotations

from pathlib import Path

from deployer_rehearsal.layer import Layer
from deployer_rehearsal.sglang_env import VERSION, Environment, environment

VENV = f"/opt/sglang-{VERSION}"
PYTHON = f"{VENV}/bin/python"
MODEL = "/models/tiny-qwen3"

Bind = tuple[Path, str]
"""A folder of the machine, and where the host sees it (read-only)."""


def write_real_engine(layer: Layer) -> None:
    """Create the folders where the environment and the checkpoint appear, and open the way to the interpreter."""
    layer.directory("/models", opaque=True)
    for path in (VENV, MODEL):
        layer.directory(path, opaque=True)
    for folder in base_folders(environment()):
        layer.way_to(folder)


def real_engine_binds() -> list[Bind]:
    """Return the folders of the machine that a host with the real engine needs, and where it sees them."""
    where = environment()
    return [(where.venv, VENV), (where.model, MODEL), *((path, str(path)) for path in base_folders(where))]


def base_folders(where: Environment) -> list[Path]:
    """Return the folder of the environment's Python, unless it is below /usr, which every host sees."""
    interpreter = where.python.resolve()
    base = interpreter.parent.parent
    return [] if Path("/usr") in interpreter.parents else [base]
