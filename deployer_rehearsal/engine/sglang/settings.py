"""Settings of the stand-in: /etc/sglang-standin.json, overridden by the environment.

| key | environment | meaning |
|---|---|---|
| version | SGLANG_STANDIN_VERSION | which SGLang it speaks like, where no ``sglang-*.dist-info`` says so |
| scale | SGLANG_STANDIN_SCALE | multiplies the durations of start-up and stop (1.0: a K2.6-like start takes 8 s) |
| speed | SGLANG_STANDIN_SPEED | divides every decode step and prefill (1.0: as measured) |
| gpus | SGLANG_STANDIN_GPUS | number of GPUs of the host (8) |
| gpu_memory_mib | | memory of each (97887) |
| strict_memory | | true: weights that do not fit are out of memory, as they would be; false: they always fit |
| shards | | number of weight files where the model folder holds none |
| size | | multiplies decode steps with the model's size; else layers / 61 |
| noise | SGLANG_STANDIN_NOISE | relative noise of a step |
| start_noise | SGLANG_STANDIN_START_NOISE | relative noise of a whole start |
| seed | SGLANG_STANDIN_SEED | seed of both (0: a new one each start) |
| | CUDA_VISIBLE_DEVICES | which of the host's GPUs the engine sees, and in which order (all) |
| | SGLANG_STANDIN_CONFIG | another path of the settings file |
| | SGLANG_STANDIN_FAULTS | another path of the fault file (/run/sglang-standin/faults.json) |
| | SGLANG_STANDIN_STATE | another folder for the GPU state (/run/sglang-standin) |
| | SGLANG_STANDIN_ARGS | another folder for the flag tables |
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .gpustate import uuid

CONFIG_PATH = "/etc/sglang-standin.json"
STATE_FOLDER = "/run/sglang-standin"
DEFAULT_VERSION = "0.5.12.post1"


@dataclasses.dataclass(frozen=True)
class Settings:
    """See the module's table."""

    version: str
    scale: float
    speed: float
    gpus: int
    visible: tuple[int, ...]
    gpu_memory_mib: int
    strict_memory: bool
    shards: int
    size: float | None
    noise: float
    start_noise: float
    seed: int
    state_folder: Path
    fault_path: Path
    args_folder: Path

    @property
    def modern(self) -> bool:
        """Whether the version speaks the dialect of 0.5.16 and later."""
        numbers = [int(part) for part in self.version.split(".")[:3] if part.isdigit()]
        return numbers >= [0, 5, 16]


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings file, if there is one, and the environment."""
    env = os.environ if environ is None else environ
    path = Path(env.get("SGLANG_STANDIN_CONFIG") or CONFIG_PATH)
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        data = {}

    def value(name: str, default: Any) -> Any:
        return env.get(f"SGLANG_STANDIN_{name.upper()}") or data.get(name, default)

    state = Path(env.get("SGLANG_STANDIN_STATE") or STATE_FOLDER)
    size = data.get("size")
    gpus = int(value("gpus", 8))
    return Settings(
        version=_installed_version() or str(value("version", DEFAULT_VERSION)),
        scale=float(value("scale", 1.0)),
        speed=float(value("speed", 1.0)),
        gpus=gpus,
        visible=visible_gpus(env.get("CUDA_VISIBLE_DEVICES"), gpus),
        gpu_memory_mib=int(value("gpu_memory_mib", 97887)),
        strict_memory=bool(data.get("strict_memory", False)),
        shards=int(value("shards", 61)),
        size=None if size is None else float(size),
        noise=float(value("noise", 0.0)),
        start_noise=float(value("start_noise", 0.0)),
        seed=int(value("seed", 0)) or random.SystemRandom().randrange(1, 2**31),
        state_folder=state,
        fault_path=Path(env.get("SGLANG_STANDIN_FAULTS") or state / "faults.json"),
        args_folder=Path(env.get("SGLANG_STANDIN_ARGS") or _shipped_tables()),
    )


def visible_gpus(text: str | None, gpus: int) -> tuple[int, ...]:
    """Return the host's GPUs that CUDA shows for a CUDA_VISIBLE_DEVICES of ``text`` (None: not set), in its order.

    As CUDA reads it: indices, or beginnings of UUIDs; the first entry that names no GPU hides itself and all after it,
    and a GPU that is named twice hides all.
    """
    if text is None:
        return tuple(range(gpus))
    found: list[int] = []
    for entry in map(str.strip, text.split(",")):
        if entry.isascii() and entry.isdigit():
            matches = [int(entry)] if int(entry) < gpus else []
        else:
            matches = [gpu for gpu in range(gpus) if entry.startswith("GPU-") and uuid(gpu).startswith(entry)]
        if len(matches) != 1:
            break
        found += matches
    return tuple(found) if len(set(found)) == len(found) else ()


def _installed_version() -> str | None:
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return None


def _shipped_tables() -> Path:
    """Return the folder of the flag tables that ship with deployer, in ``deployer/sglang/data``."""
    return Path(__file__).resolve().parents[3] / "deployer" / "sglang" / "data"
