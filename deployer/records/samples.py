"""What the operation ``sample`` answers. Sizes are bytes, powers watts, clocks MHz, shares percent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from deployer.records.codec import Record

#: NVML's reasons for a lowered clock that are trouble (``nvml.h``, nvmlClocksEventReasons), by their bits. Idle, a
#: clock that was requested, and the power cap (0x4, which is judged separately) are none.
THROTTLES = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
POWER_CAP = 0x4


@dataclass(frozen=True, slots=True)
class GpuSample(Record):
    """One GPU at one moment. None, or no memory, if the driver does not report it."""

    index: int
    utilization: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    memory_used: int = 0
    memory_total: int = 0
    temperature_c: float | None = None
    clock_mhz: float | None = None
    clock_max_mhz: float | None = None
    throttle: int | None = None

    @property
    def throttled(self) -> list[str]:
        """Why its clock is lowered, if that is trouble."""
        return [name for bit, name in THROTTLES.items() if (self.throttle or 0) & bit]


@dataclass(frozen=True, slots=True)
class Disk(Record):
    """The space of a file system."""

    free: int
    total: int


@dataclass(frozen=True, slots=True)
class Machine(Record):
    """The machine itself. ``pages_swapped`` went to swap or came back during the samples; ``disks`` are by path."""

    memory_total: int = 0
    memory_available: int = 0
    swap_total: int = 0
    swap_free: int = 0
    load: tuple[float, ...] = ()
    cpus: int = 1
    disks: dict[str, Disk] = field(default_factory=dict)
    pages_swapped: int = 0


@dataclass(frozen=True, slots=True)
class Sample(Record):
    """The GPUs, and the established connections to the service's port, at one moment."""

    gpus: tuple[GpuSample, ...] = ()
    connections: int | None = None


@dataclass(frozen=True, slots=True)
class Sampled(Record):
    """Samples of some seconds. ``problem`` is that of nvidia-smi, if there is one."""

    now: float = 0.0
    samples: tuple[Sample, ...] = ()
    machine: Machine = field(default_factory=Machine)
    problem: str | None = None

    @property
    def gpus(self) -> dict[int, tuple[GpuSample, ...]]:
        """The samples of each GPU by its index; empty if none can be seen."""
        gpus: dict[int, tuple[GpuSample, ...]] = {}
        for gpu in (gpu for sample in self.samples for gpu in sample.gpus):
            gpus[gpu.index] = (*gpus.get(gpu.index, ()), gpu)
        return gpus

    @property
    def connections(self) -> float | None:
        """Established connections to the service's port: the median of all samples."""
        from statistics import median  # here, as in `mean`: it takes longer to load than all records

        counts = [sample.connections for sample in self.samples if sample.connections is not None]
        return float(median(counts)) if counts else None

    def mean(self, what: Callable[[GpuSample], float | None]) -> dict[int, float]:
        """Return the mean of something over the samples of each GPU, without GPUs that do not report it."""
        from statistics import fmean

        known = {
            index: [value for gpu in looks if (value := what(gpu)) is not None] for index, looks in self.gpus.items()
        }
        return {index: fmean(values) for index, values in known.items() if values}
