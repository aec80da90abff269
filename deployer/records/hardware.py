"""What a host has, as typed values: sockets, GPUs and who is on them, the engine and the model.

Sizes are bytes; a percentage is 0 to 100.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Listener:
    """A TCP socket in LISTEN. ``pid`` is None where the owner cannot be seen."""

    address: str
    port: int
    pid: int | None
    comm: str | None
    cgroup: str | None
    unit: str | None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            address=str(data["address"]),
            port=int(data["port"]),
            pid=data.get("pid"),
            comm=data.get("comm"),
            cgroup=data.get("cgroup"),
            unit=data.get("unit"),
        )


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. Memory in bytes, utilization in percent, power in watts, compute capability as ``12.0``; None where
    the driver does not say."""

    index: int
    uuid: str
    name: str
    memory_total: int
    memory_used: int
    utilization: float | None
    power_w: float | None
    power_limit_w: float | None
    compute_cap: str | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            index=int(data["index"]),
            uuid=str(data.get("uuid") or ""),
            name=str(data.get("name") or ""),
            memory_total=int(data.get("memory_total") or 0),
            memory_used=int(data.get("memory_used") or 0),
            utilization=data.get("utilization"),
            power_w=data.get("power_w"),
            power_limit_w=data.get("power_limit_w"),
            compute_cap=data.get("compute_cap"),
        )


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory on a GPU (``gpu`` is the GPU's index, or its UUID where the index is not known)."""

    gpu: int | str
    pid: int
    memory: int | None
    comm: str | None
    cgroup: str | None
    unit: str | None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            gpu=data["gpu"],
            pid=int(data["pid"]),
            memory=data.get("memory"),
            comm=data.get("comm"),
            cgroup=data.get("cgroup"),
            unit=data.get("unit"),
        )


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """The engine's Python environment. Versions are read from metadata; None where the package is not installed.

    ``fingerprint`` changes with SGLang's own files and the packages it stands on; None where SGLang cannot be found.
    """

    python: str
    exists: bool
    sglang: str | None
    httpx: str | None
    packages: dict[str, str] = field(default_factory=dict)
    """torch, transformers, the kernels and FlashInfer, where they are installed."""
    python_version: str | None = None
    fingerprint: str | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        packages = {str(name): str(version) for name, version in (data.get("packages") or {}).items()}
        python, exists = str(data["python"]), bool(data.get("exists"))
        version = data.get("python_version")
        fingerprint = data.get("fingerprint")
        return cls(python, exists, data.get("sglang"), data.get("httpx"), packages, version, fingerprint)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The model's files on the host. ``fingerprint`` changes when files do; ``config`` is ``config.json``;
    ``weight_bytes`` is the size of its safetensors, 0 where it has none."""

    path: str
    exists: bool
    bytes: int
    files: int
    fingerprint: str | None
    config: Json | None
    weight_bytes: int = 0

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            path=str(data["path"]),
            exists=bool(data.get("exists")),
            bytes=int(data.get("bytes") or 0),
            files=int(data.get("files") or 0),
            fingerprint=data.get("fingerprint"),
            config=data.get("config"),
            weight_bytes=int(data.get("weight_bytes") or 0),
        )
