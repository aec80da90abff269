"""What the operation `sample` answers, as typed values. Sizes are bytes, powers watts, clocks MHz, shares percent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Self

#: NVML's reasons for a lowered clock that are trouble (``nvml.h``, nvmlClocksEventReasons), by their bits. Idle, a
#: clock that was asked for, and the power cap (0x4: its own matter) are none.
THROTTLES = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
POWER_CAP = 0x4


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU at one moment; None where the driver does not tell."""

    index: int
    utilization: float | None
    power_w: float | None
    power_limit_w: float | None
    memory_used: int
    memory_total: int
    temperature_c: float | None
    clock_mhz: float | None
    clock_max_mhz: float | None
    throttle: int | None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        known: dict[str, Any] = {name: data.get(name) for name in cls.__slots__}
        return cls(**known)

    @property
    def throttled(self) -> list[str]:
        """Why its clock is lowered, where that is trouble."""
        return [name for bit, name in THROTTLES.items() if (self.throttle or 0) & bit]


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine itself. ``pages_swapped`` is what went to swap or came back while it was looked at."""

    memory_total: int
    memory_available: int
    swap_total: int
    swap_free: int
    load: tuple[float, ...]
    cpus: int
    disks: dict[str, tuple[int, int]]
    """Path -> free, total."""
    pages_swapped: int

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            memory_total=int(data.get("memory_total") or 0),
            memory_available=int(data.get("memory_available") or 0),
            swap_total=int(data.get("swap_total") or 0),
            swap_free=int(data.get("swap_free") or 0),
            load=tuple(float(value) for value in data.get("load") or ()),
            cpus=int(data.get("cpus") or 1),
            disks={
                str(path): (int(space["free"]), int(space["total"]))
                for path, space in (data.get("disks") or {}).items()
            },
            pages_swapped=int(data.get("pages_swapped") or 0),
        )


@dataclass(frozen=True, slots=True)
class Sampled:
    """Some seconds of looking. ``gpus`` has the samples of each GPU by its index; empty where none can be seen."""

    now: float
    count: int
    gpus: dict[int, tuple[GpuSample, ...]]
    connections: float | None
    """Established connections to the service's port: the median of all looks."""
    machine: Machine
    problem: str | None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        samples = data.get("samples") or ()
        gpus: dict[int, tuple[GpuSample, ...]] = {}
        for item in samples:
            for gpu in map(GpuSample.from_json, item.get("gpus") or ()):
                gpus[gpu.index] = (*gpus.get(gpu.index, ()), gpu)
        counted = [item["connections"] for item in samples if item.get("connections") is not None]
        return cls(
            now=float(data.get("now") or 0.0),
            count=len(samples),
            gpus=gpus,
            connections=float(median(counted)) if counted else None,
            machine=Machine.from_json(data.get("machine") or {}),
            problem=data.get("problem"),
        )

    def mean(self, what: Callable[[GpuSample], float | None]) -> dict[int, float]:
        """The mean of something over the samples of each GPU; without those that do not tell."""
        told = {
            index: [value for gpu in looks if (value := what(gpu)) is not None]
            for index, looks in self.gpus.items()
        }
        return {index: fmean(values) for index, values in told.items() if values}
