"""What a host has, as typed values: sockets, GPUs and who is on them, the engine and the model.

Sizes are bytes; a percentage is 0 to 100.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from deployer.records.codec import Json, Record


@dataclass(frozen=True, slots=True)
class Process(Record):
    """A process with its control group, and the unit that this belongs to."""

    pid: int
    comm: str | None = None
    cgroup: str | None = None
    unit: str | None = None

    def __str__(self) -> str:
        return described(self.pid, self.comm, self.unit)


@dataclass(frozen=True, slots=True)
class UnitOwner(Record):
    """A unit that a process belongs to: its ``Restart=``, and its release if it is a service of deployer's."""

    restart: str = ""
    release: str | None = None


def described(pid: int, comm: str | None, unit: str | None, restart: str = "", *, others: Sequence[int] = ()) -> str:
    """Return a process (with ``others``, all of its kind) in words, with its unit and whether that starts it again."""
    policy = f", Restart={restart}" if restart else ""
    what = f"{len(others) + 1} x {comm or 'process'}" if others else comm or "a process"
    pids = f"pids {', '.join(map(str, (pid, *others)))}" if others else f"pid {pid}"
    return f"{what} ({pids}{f', {unit}{policy}' if unit else ''})"


@dataclass(frozen=True, slots=True)
class Listener(Record):
    """A TCP socket in LISTEN. ``pid`` is None if the owner cannot be seen."""

    address: str
    port: int
    pid: int | None = None
    comm: str | None = None
    cgroup: str | None = None
    unit: str | None = None


@dataclass(frozen=True, slots=True)
class Gpu(Record):
    """One GPU. Memory in bytes, utilization in percent, power in watts, compute capability as ``12.0``; None if the
    driver does not report it."""

    index: int
    uuid: str = ""
    name: str = ""
    memory_total: int = 0
    memory_used: int = 0
    utilization: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    compute_cap: str | None = None


@dataclass(frozen=True, slots=True)
class GpuProcess(Record):
    """A process that holds memory on a GPU (``gpu`` is the GPU's index, or its UUID if the index is not known)."""

    gpu: int | str
    pid: int
    memory: int | None = None
    comm: str | None = None
    cgroup: str | None = None
    unit: str | None = None


@dataclass(frozen=True, slots=True)
class EngineFacts(Record):
    """The engine's Python environment. Versions are read from metadata; None if the package is not installed.

    ``fingerprint`` changes with SGLang's own files and the packages it stands on; None if SGLang cannot be found.
    ``written`` also changes with a file that is written anew with the same size and time.
    """

    python: str
    exists: bool = False
    sglang: str | None = None
    httpx: str | None = None
    packages: dict[str, str] = field(default_factory=dict)
    """torch, transformers, the kernels and FlashInfer, where they are installed."""
    python_version: str | None = None
    fingerprint: str | None = None
    written: str | None = None
    changed: tuple[str, ...] = ()
    """Some of SGLang's files that were written since the live release was promoted."""
    changed_files: int = 0


@dataclass(frozen=True, slots=True)
class ModelFacts(Record):
    """The model's files on the host. ``fingerprint`` changes when files do; ``config`` is ``config.json``;
    ``weight_bytes`` is the size of its safetensors, 0 if it has none."""

    path: str
    exists: bool = False
    bytes: int = 0
    files: int = 0
    fingerprint: str | None = None
    config: Json | None = None
    weight_bytes: int = 0
