"""Symptoms of GPUs and machine."""

from __future__ import annotations

import re
from collections.abc import Callable

from deployer.inspect.doctor.evidence import Evidence
from deployer.inspect.doctor.symptom import Absent, Answer, Present, Theme, Unclear, present_if, span
from deployer.reach import unit_name
from deployer.records.hardware import GpuProcess
from deployer.records.samples import POWER_CAP, GpuSample
from deployer.text import count_of

THEME = Theme("GPUs and machine")

GIB = 1024**3
#: Mean utilisation, in percent, below which GPUs wait while requests run.
WAITING = 60.0
#: Points of utilisation between the busiest and the idlest GPU.
UNEVEN = 30.0
#: Share of a GPU's memory by which the fullest and the emptiest may differ.
UNEVEN_MEMORY = 0.1
#: Share of the power limit that counts as reaching it.
AT_LIMIT = 0.97
LITTLE_MEMORY = 0.05
LITTLE_DISK = 5 * GIB
SWAPPED = 100
_NOT_SAMPLED = Unclear("the machine was not sampled")


@THEME.symptom("gpus-unseen")
def gpus_unseen(e: Evidence) -> Answer:
    if problems := _problems(e):
        looks = max(map(len, e.sampled.gpus.values()), default=0)
        before = [f"before that it answered {count_of(looks, 'time')}"] if looks else []
        return Present(problems[0], tuple(dict.fromkeys([*problems, *before])))
    if e.observed.gpus is None:
        return Unclear("the host has no nvidia-smi, or did not answer in time")
    return Absent(f"it names {count_of(len(e.observed.gpus), 'GPU')}")


@THEME.symptom("gpu-waits", limit=WAITING)
def gpu_waits(e: Evidence) -> Answer:
    if not (use := _mean(e, lambda gpu: gpu.utilization)):
        return _unseen(e)
    mean = sum(use.values()) / len(use)
    text = f"{mean:.0f} % on average over {count_of(len(use), 'GPU')}{_while_idle(e)}"
    return present_if(e.busy and mean < WAITING, text, _by_gpu("utilisation", use, "%"))


@THEME.symptom("gpu-uneven", limit=UNEVEN)
def gpu_uneven(e: Evidence) -> Answer:
    if not (use := _mean(e, lambda gpu: gpu.utilization)):
        return _unseen(e)
    spread = max(use.values()) - min(use.values())
    text = f"{span(use)} %{_while_idle(e)}"
    return present_if(e.busy and spread >= UNEVEN, text, _by_gpu("utilisation", use, "%"))


@THEME.symptom("gpu-memory-uneven", limit=100 * UNEVEN_MEMORY)
def gpu_memory_uneven(e: Evidence) -> Answer:
    used = _mean(e, lambda gpu: gpu.memory_used / GIB if gpu.memory_total else None)
    if not used:
        return _unseen(e)
    total = max(gpu.memory_total for looks in _own(e).values() for gpu in looks) / GIB
    spread = max(used.values()) - min(used.values())
    text = f"{span(used)} of {total:.0f} GiB in use"
    return present_if(spread >= UNEVEN_MEMORY * total, text, _by_gpu("memory", used, "GiB"))


@THEME.symptom("power-limit", limit=100 * AT_LIMIT)
def power_limit(e: Evidence) -> Answer:
    power, limit = _mean(e, lambda gpu: gpu.power_w), _mean(e, lambda gpu: gpu.power_limit_w)
    if not power:
        return _unseen(e)
    capped = {index for index, looks in _own(e).items() if any((gpu.throttle or 0) & POWER_CAP for gpu in looks)}
    reached = {index for index in power if limit.get(index) and power[index] >= AT_LIMIT * limit[index]}
    text = f"{span(power)} W" + (f" of {max(limit.values()):.0f}" if limit else "")
    if not capped and not reached:
        return Absent(text)
    evidence = [_by_gpu("power", power, "W")]
    if capped:
        evidence.append(f"the driver lowers the clock because of the power cap: GPU {sorted(capped)}")
    return Present(f"GPU {sorted(capped | reached)}: {text}", tuple(evidence))


@THEME.symptom("clock-throttled")
def clock_throttled(e: Evidence) -> Answer:
    looks = _own(e)
    samples = [gpu for own in looks.values() for gpu in own]
    if not samples:
        return _unseen(e)
    if all(gpu.throttle is None for gpu in samples):
        return Unclear("this driver does not report why clocks are lowered")
    reasons = {index: sorted({name for gpu in own for name in gpu.throttled}) for index, own in looks.items()}
    throttled = [index for index, names in reasons.items() if names]
    if throttled:
        evidence = (f"GPU {index}: {', '.join(reasons[index])}" for index in throttled)
        return Present(f"GPU {throttled}", tuple(evidence))
    heat = [gpu.temperature_c for gpu in samples if gpu.temperature_c is not None]
    return Absent(f"no trouble reported; {f'up to {max(heat):.0f} °C' if heat else 'temperatures are unknown'}")


@THEME.symptom("gpu-shared")
def gpu_shared(e: Evidence) -> Answer:
    if not e.observed.gpus:
        return _unseen(e)
    own, pids = e.own_gpus, e.state.running.pids if e.state.running else ()
    others = [
        process
        for process in e.observed.gpu_processes
        if process.gpu in own and process.pid not in pids and process.unit != unit_name(e.service)
    ]
    if not others:
        return Absent(f"only the service's processes are on GPUs {', '.join(map(str, sorted(own)))}")
    evidence = tuple(
        f"GPU {process.gpu}: {_name(e, process)} (pid {process.pid}, {process.unit or 'no unit'})"
        + (f" holds {process.memory / GIB:.1f} GiB" if process.memory else "")
        for process in others
    )
    names = sorted({f"{_name(e, process)} of this host" for process in others if _sister(e, process)})
    if strangers := sum(not _sister(e, process) for process in others):
        names.append(f"{strangers} other {'process' if strangers == 1 else 'processes'}")
        return Present(" and ".join(names), evidence)
    return Present(
        " and ".join(names),
        evidence,
        next="give the two services different GPUs: `gpus` of each in the inventory",
        measure="correct the inventory; deployer apply {live}; deployer doctor",
    )


def _sister(e: Evidence, process: GpuProcess) -> str | None:
    """Return the service of deployer that a process belongs to, None if it belongs to none."""
    owner = e.observed.units.get(process.unit or "")
    match = re.fullmatch(r"sglang-(.+)\.service", process.unit or "")
    return match[1] if match and owner and owner.release else None


def _name(e: Evidence, process: GpuProcess) -> str:
    sister = _sister(e, process)
    return f"the service {sister}" if sister else process.comm or "a process"


@THEME.symptom("memory-low", limit=100 * LITTLE_MEMORY)
def memory_low(e: Evidence) -> Answer:
    machine = e.sampled.machine
    if not machine.memory_total:
        return _NOT_SAMPLED
    text = f"{machine.memory_available / GIB:.0f} of {machine.memory_total / GIB:.0f} GiB available"
    return present_if(machine.memory_available < LITTLE_MEMORY * machine.memory_total, text)


@THEME.symptom("swapping", limit=SWAPPED)
def swapping(e: Evidence) -> Answer:
    machine = e.sampled.machine
    if not machine.memory_total:
        return _NOT_SAMPLED
    used, total = (machine.swap_total - machine.swap_free) / GIB, machine.swap_total / GIB
    text = f"{machine.pages_swapped} pages moved; {used:.1f} of {total:.1f} GiB of swap in use"
    return present_if(machine.pages_swapped > SWAPPED, text)


@THEME.symptom("disk-low", limit=LITTLE_DISK / GIB)
def disk_low(e: Evidence) -> Answer:
    if not (disks := e.sampled.machine.disks):
        return _NOT_SAMPLED
    texts = {path: f"{path}: {disk.free / GIB:.0f} of {disk.total / GIB:.0f} GiB free" for path, disk in disks.items()}
    low = [texts[path] for path, disk in disks.items() if disk.free < LITTLE_DISK]
    return Present("; ".join(low), tuple(low)) if low else Absent("; ".join(texts.values()))


@THEME.symptom("processors-busy")
def processors_busy(e: Evidence) -> Answer:
    if not (load := e.sampled.machine.load):
        return _NOT_SAMPLED
    cpus = e.sampled.machine.cpus
    return present_if(load[0] > cpus, f"load {load[0]:.1f} on {cpus} processors")


def _own(e: Evidence) -> dict[int, tuple[GpuSample, ...]]:
    own = e.own_gpus
    return {index: looks for index, looks in e.sampled.gpus.items() if index in own}


def _mean(e: Evidence, what: Callable[[GpuSample], float | None]) -> dict[int, float]:
    own = e.own_gpus
    return {index: value for index, value in e.sampled.mean(what).items() if index in own}


def _problems(e: Evidence) -> list[str]:
    """Return what is wrong with nvidia-smi."""
    problems = (e.observed.gpu_problem, e.sampled.problem)
    return [text.removeprefix("GPUs cannot be seen: ") for text in problems if text]


def _unseen(e: Evidence) -> Unclear:
    return Unclear((_problems(e) or ["the GPUs cannot be seen"])[-1])


def _while_idle(e: Evidence) -> str:
    return "" if e.busy else "; no requests run"


def _by_gpu(what: str, values: dict[int, float], unit: str) -> str:
    shares = (f"{index}: {value:.0f} {unit}" for index, value in sorted(values.items()))
    return f"{what} by GPU: {', '.join(shares)}"
