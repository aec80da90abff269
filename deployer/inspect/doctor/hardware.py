"""Checks of GPUs and machine."""

from __future__ import annotations

from collections.abc import Callable

from deployer.inspect.doctor.base import Answer, Fine, Hit, Theme, Unknown
from deployer.inspect.doctor.evidence import Evidence
from deployer.records.hardware import GpuProcess
from deployer.records.samples import POWER_CAP, GpuSample
from deployer.sglang.rules.base import Severity

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


@THEME.check(
    "gpus-unseen",
    Severity.WARNING,
    "nvidia-smi does not answer",
    trips="nvidia-smi says nothing within 5 s, fails, prints without end, or names no GPU",
    next="a driver in trouble can keep nvidia-smi for ever, and requests as well; without persistence mode every "
    "question wakes the driver up first",
    measure="on the host: time nvidia-smi; dmesg | grep -i -e xid -e nvrm",
)
def gpus_unseen(e: Evidence) -> Answer:
    told = [e.observed.gpu_problem, e.sampled.problem if e.sampled else None]
    problems = [text.removeprefix("GPUs cannot be seen: ") for text in told if text]
    if problems:
        looks = max(map(len, e.sampled.gpus.values()), default=0) if e.sampled else 0
        seen = [f"before that it answered {looks} times"] if looks else []
        return Hit(problems[0], tuple(dict.fromkeys([*problems, *seen])))
    if e.observed.gpus is None:
        return Unknown("the host has no nvidia-smi, or did not answer in time")
    return Fine(f"it names {len(e.observed.gpus)} GPUs")


@THEME.check(
    "gpu-waits",
    Severity.ADVICE,
    "GPUs wait while requests run",
    trips=f"requests run, and the mean utilisation of the service's GPUs is below {WAITING:g} %",
    next="the GPUs are not the limit: launching (graphs), a pipeline with nothing in flight, the network "
    "between the GPUs or "
    "the processors may be; try what the other findings name, one at a time",
    measure="deployer doctor --seconds 20",
)
def gpu_waits(e: Evidence) -> Answer:
    use = _mean(e, lambda gpu: gpu.utilization)
    if not use:
        return Unknown(_unseen(e))
    mean = sum(use.values()) / len(use)
    text = f"{mean:.0f} % on average over {len(use)} GPUs"
    if not e.busy:
        return Fine(f"{text}; no requests run")
    return Hit(text, (_shown("utilisation", use, "%"),)) if mean < WAITING else Fine(text)


@THEME.check(
    "gpu-uneven",
    Severity.ADVICE,
    "GPUs are not equally busy",
    trips=f"requests run, and the utilisation of two GPUs of the service differs by {UNEVEN:g} points or more",
    next="under a pipeline the stages may be uneven: SGLANG_PP_LAYER_PARTITION divides the layers "
    "otherwise; under expert "
    "parallelism some experts may be more popular",
    measure="set [environment] SGLANG_PP_LAYER_PARTITION in a profile PROFILE; deployer apply PROFILE; "
    "deployer compare {live} PROFILE",
)
def gpu_uneven(e: Evidence) -> Answer:
    use = _mean(e, lambda gpu: gpu.utilization)
    if not use:
        return Unknown(_unseen(e))
    spread = max(use.values()) - min(use.values())
    text = f"{min(use.values()):.0f} to {max(use.values()):.0f} %"
    if not e.busy:
        return Fine(f"{text}; no requests run")
    return Hit(text, (_shown("utilisation", use, "%"),)) if spread >= UNEVEN else Fine(text)


@THEME.check(
    "gpu-memory-uneven",
    Severity.ADVICE,
    "GPUs are not equally full",
    trips=f"the memory in use on two GPUs of the service differs by {100 * UNEVEN_MEMORY:.0f} % of a GPU or more",
    next="the fullest GPU limits the KV pool of all: under a pipeline another SGLANG_PP_LAYER_PARTITION may leave "
    "more for it; somebody else may hold memory of one GPU",
    measure="set [environment] SGLANG_PP_LAYER_PARTITION in a profile PROFILE; deployer apply PROFILE; "
    "deployer compare {live} PROFILE",
)
def gpu_memory_uneven(e: Evidence) -> Answer:
    used = _mean(e, lambda gpu: gpu.memory_used / GIB if gpu.memory_total else None)
    if not used:
        return Unknown(_unseen(e))
    total = max(gpu.memory_total for looks in _own(e).values() for gpu in looks) / GIB
    text = f"{min(used.values()):.0f} to {max(used.values()):.0f} of {total:.0f} GiB in use"
    uneven = max(used.values()) - min(used.values()) >= UNEVEN_MEMORY * total
    return Hit(text, (_shown("memory", used, "GiB"),)) if uneven else Fine(text)


@THEME.check(
    "power-limit",
    Severity.ADVICE,
    "GPUs reach their power limit",
    trips=f"a GPU draws {100 * AT_LIMIT:.0f} % of its limit on average, or the driver says that the "
    f"limit lowers its clock",
    next="a higher limit may be allowed (nvidia-smi -pl); more throughput than the power allows cannot "
    "come from arguments",
    measure="deployer doctor --seconds 20",
)
def power_limit(e: Evidence) -> Answer:
    power, limit = _mean(e, lambda gpu: gpu.power_w), _mean(e, lambda gpu: gpu.power_limit_w)
    if not power:
        return Unknown(_unseen(e))
    capped = [
        index for index, looks in _own(e).items() if any((gpu.throttle or 0) & POWER_CAP for gpu in looks)
    ]
    reached = [index for index in power if limit.get(index) and power[index] >= AT_LIMIT * limit[index]]
    text = f"{min(power.values()):.0f} to {max(power.values()):.0f} W" + (
        f" of {max(limit.values()):.0f}" if limit else ""
    )
    if not capped and not reached:
        return Fine(text)
    evidence = [_shown("power", power, "W")]
    evidence += (
        [f"the driver names the power cap as the reason of a lower clock: GPU {capped}"] if capped else []
    )
    return Hit(f"GPU {sorted({*capped, *reached})}: {text}", tuple(evidence))


@THEME.check(
    "clock-throttled",
    Severity.WARNING,
    "a GPU's clock is lowered",
    trips="the driver names heat, a power brake or a hardware slowdown as the reason of a lower clock",
    next="cooling or power supply: a throttled GPU slows the whole group down",
    measure="nvidia-smi -q -d PERFORMANCE,TEMPERATURE on the host; deployer doctor --seconds 20",
)
def clock_throttled(e: Evidence) -> Answer:
    looks = _own(e)
    if not looks:
        return Unknown(_unseen(e))
    if all(gpu.throttle is None for samples in looks.values() for gpu in samples):
        return Unknown("this driver does not tell why clocks are lowered")
    why = {
        index: sorted({name for gpu in samples for name in gpu.throttled}) for index, samples in looks.items()
    }
    found = {index: names for index, names in why.items() if names}
    heat = [
        gpu.temperature_c for samples in looks.values() for gpu in samples if gpu.temperature_c is not None
    ]
    text = f"up to {max(heat):.0f} °C" if heat else "temperatures are not told"
    if found:
        return Hit(
            f"GPU {sorted(found)}",
            tuple(f"GPU {index}: {', '.join(names)}" for index, names in found.items()),
        )
    return Fine(f"no trouble named; {text}")


@THEME.check(
    "gpu-shared",
    Severity.WARNING,
    "somebody else holds memory of the service's GPUs",
    trips="a process outside the service's unit holds memory of a GPU that the service uses",
    next="find out whose it is: it takes time and memory from the service",
    measure="deployer doctor",
)
def gpu_shared(e: Evidence) -> Answer:
    if not e.observed.gpus:
        return Unknown(_unseen(e))
    own, pids = e.own_gpus, set(e.state.running.pids) if e.state.running else set()
    unit = f"sglang-{e.service}.service"
    others = [
        item
        for item in e.observed.gpu_processes
        if item.gpu in own and item.pid not in pids and item.unit != unit
    ]
    if not others:
        return Fine(f"only the service's processes are on GPU {sorted(own)}")
    sisters = sorted({name for item in others if (name := _sister(item))})
    strangers = [item for item in others if not _sister(item)]
    evidence = [
        f"GPU {item.gpu}: "
        + (f"the service {name}" if (name := _sister(item)) else item.comm or "a process")
        + f" (pid {item.pid}, {item.unit or 'no unit'})"
        + (f" holds {item.memory / GIB:.1f} GiB" if item.memory else "")
        for item in others
    ]
    said = [f"the service {name} of this host" for name in sisters]
    said += [f"{len(strangers)} other processes"] if strangers else []
    return Hit(
        " and ".join(said),
        tuple(evidence),
        next=None if strangers else "give the two services different GPUs: `gpus` of each in the inventory",
        measure=None if strangers else "correct the inventory; deployer apply {live}; deployer doctor",
    )


def _sister(item: GpuProcess) -> str | None:
    """The service of deployer's that a process belongs to."""
    unit = item.unit or ""
    return (
        unit[len("sglang-") : -len(".service")]
        if unit.startswith("sglang-") and unit.endswith(".service")
        else None
    )


@THEME.check(
    "memory-low",
    Severity.WARNING,
    "the machine is short of memory",
    trips=f"less than {100 * LITTLE_MEMORY:.0f} % of the machine's memory is available",
    next="the kernel may kill the server: see what takes the memory",
    measure="deployer doctor",
)
def memory_low(e: Evidence) -> Answer:
    if e.sampled is None or not e.sampled.machine.memory_total:
        return Unknown("the machine was not looked at")
    machine = e.sampled.machine
    text = f"{machine.memory_available / GIB:.0f} of {machine.memory_total / GIB:.0f} GiB available"
    low = machine.memory_available < LITTLE_MEMORY * machine.memory_total
    return Hit(text, (text,)) if low else Fine(text)


@THEME.check(
    "swapping",
    Severity.WARNING,
    "the machine swaps",
    trips=f"more than {SWAPPED} pages went to swap or came back while it was looked at",
    next="a scheduler whose memory is on disk stands still: free memory, or turn swap off",
    measure="deployer doctor --seconds 20",
)
def swapping(e: Evidence) -> Answer:
    if e.sampled is None:
        return Unknown("the machine was not looked at")
    machine = e.sampled.machine
    used = machine.swap_total - machine.swap_free
    text = f"{machine.pages_swapped} pages moved; {used / GIB:.1f} of {machine.swap_total / GIB:.1f} GiB of swap in use"
    return Hit(text, (text,)) if machine.pages_swapped > SWAPPED else Fine(text)


@THEME.check(
    "disk-low",
    Severity.WARNING,
    "a disk is nearly full",
    trips=f"less than {LITTLE_DISK / GIB:.0f} GiB are free on / or where deployer keeps its releases",
    next="make room: without it no new release can be staged, and the journal may lose lines",
    measure="deployer doctor",
)
def disk_low(e: Evidence) -> Answer:
    if e.sampled is None or not e.sampled.machine.disks:
        return Unknown("the machine was not looked at")
    shown = {
        path: f"{path}: {free / GIB:.0f} of {total / GIB:.0f} GiB free"
        for path, (free, total) in e.sampled.machine.disks.items()
    }
    low = [shown[path] for path, (free, _) in e.sampled.machine.disks.items() if free < LITTLE_DISK]
    return Hit("; ".join(low), tuple(low)) if low else Fine("; ".join(shown.values()))


@THEME.check(
    "processors-busy",
    Severity.ADVICE,
    "the processors are busy",
    trips="the load of the last minute is above the number of processors",
    next="each rank's scheduler needs a processor of its own: see what else runs, and give the service room",
    measure="deployer doctor --seconds 20",
)
def processors_busy(e: Evidence) -> Answer:
    if e.sampled is None or not e.sampled.machine.load:
        return Unknown("the machine was not looked at")
    load, cpus = e.sampled.machine.load[0], e.sampled.machine.cpus
    text = f"load {load:.1f} on {cpus} processors"
    return Hit(text, (text,)) if load > cpus else Fine(text)


def _own(e: Evidence) -> dict[int, tuple[GpuSample, ...]]:
    own = e.own_gpus
    return {index: looks for index, looks in (e.sampled.gpus if e.sampled else {}).items() if index in own}


def _mean(e: Evidence, what: Callable[[GpuSample], float | None]) -> dict[int, float]:
    own = e.own_gpus
    means = e.sampled.mean(what) if e.sampled else {}
    return {index: value for index, value in means.items() if index in own}


def _unseen(e: Evidence) -> str:
    why = (e.sampled.problem if e.sampled else None) or e.observed.gpu_problem
    return why.removeprefix("GPUs cannot be seen: ") if why else "the GPUs cannot be seen"


def _shown(what: str, values: dict[int, float], unit: str) -> str:
    return f"{what} by GPU: " + ", ".join(
        f"{index}: {value:.0f} {unit}" for index, value in sorted(values.items())
    )
