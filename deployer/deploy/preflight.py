"""Is the host fit for a profile? Pure: it judges what was observed and returns every objection, not the first."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from deployer.bench.runner import Target, choose_place
from deployer.config.inventory import HostConfig, ServiceConfig
from deployer.deploy.drift import decisive
from deployer.errors import ConfigError
from deployer.reach import collides, unit_name
from deployer.records.endpoint import Endpoint
from deployer.records.hardware import GpuProcess, Listener, UnitOwner, described
from deployer.records.host import HostState, ServiceState
from deployer.records.outcome import Objection
from deployer.records.release import Release
from deployer.sglang.flags.devices import rank_places, taken
from deployer.sglang.rules import RULES, Finding, Severity
from deployer.sglang.rules.sizes import too_few_gpus

#: Advice that a plan repeats: what becomes of a secret is to be known before it is there.
_TOLD = frozenset({"api-key-shown"})
#: Bytes in use on a GPU by no process that are still no reason to refuse (driver, display).
_IDLE_GPU_MEMORY = 2 * 1024**3
_MIN_DISK = 256 * 1024**2


def objections(
    observed: HostState,
    host: HostConfig,
    service: ServiceConfig,
    release: Release | None,
    findings: Iterable[Finding] = (),
    *,
    measured: bool = True,
) -> list[Objection]:
    """Return all reasons against starting ``release`` now, errors among the rules' ``findings`` included.

    ``release`` is None if it could not even be rendered. One that is not ``measured`` (it was proven before) needs
    nothing to be measured with.
    """
    state = observed.services[service.name]
    all_of_them = [
        *installation(observed, service),
        *_gpus(observed, host, service, state, release),
        *(_bench(observed, service, release) if measured else ()),
        *_port(service, state, observed.units),
        *overruled(service, state),
        *_lost_unit(state, release),
        *_disk(observed, host),
    ]
    raised = {item.code for item in all_of_them}
    errors = [item for item in findings if item.severity is Severity.ERROR and item.rule not in raised]
    return all_of_them + [Objection(item.rule, item.text, item.remedy) for item in errors]


def installation(observed: HostState, service: ServiceConfig) -> Iterator[Objection]:
    """Yield what the host lacks of what the service names: its Python with SGLang, its model."""
    engine, python, model = observed.engine, service.engine.python, observed.model
    correct = f"correct services.{service.name}."
    if engine is None or not engine.exists:
        text = f"there is no Python at {python} on the host"
        yield Objection("engine-missing", text, f"install SGLang there, or {correct}engine.python")
    elif engine.sglang is None:
        text = f"{python} has no SGLang installed"
        yield Objection("sglang-missing", text, f"install SGLang in that environment, or {correct}engine.python")
    if not service.model.startswith("/"):
        return  # a hub id: SGLang downloads it, which `notes` says
    if model is None or not model.exists:
        text = f"there is no model at {service.model} on the host"
        yield Objection("model-missing", text, f"put the checkpoint there, or {correct}model")
    elif model.config is None:
        text = f"{service.model} has no readable config.json"
        yield Objection("model-config-missing", text, "is it a complete checkpoint? Copy it again")


def _gpus(
    observed: HostState,
    host: HostConfig,
    service: ServiceConfig,
    state: ServiceState,
    release: Release | None,
) -> Iterator[Objection]:
    if observed.gpus is None:
        if host.gpus != 0:
            yield Objection(
                "no-gpus",
                f"nvidia-smi does not answer on {host.name}",
                "install the NVIDIA driver, or set gpus = 0 for this host in the inventory",
            )
        return
    by_index = {gpu.index: gpu for gpu in observed.gpus}
    assigned = _assigned(observed, service)
    if missing := [index for index in assigned if index not in by_index]:
        present = f"{host.name} shows {len(by_index)} ({', '.join(map(str, sorted(by_index)))})"
        yield Objection(
            "gpu-missing",
            f"{_named(missing)} not there; {present}",
            "see `nvidia-smi -L` and `dmesg | grep Xid` on the host",
        )
    needed, places = _layout(release)
    if needed > len(assigned):
        message = too_few_gpus(needed, service.name, len(assigned), host.name)
        yield Objection("too-few-gpus", message, RULES["too-few-gpus"].remedy)
    used = taken(assigned, places)
    yield from _held(observed, service, state, used)
    for index in used:
        gpu = by_index.get(index)
        held = sum(process.memory or 0 for process in observed.gpu_processes if process.gpu == index)
        if gpu and gpu.memory_used - held > _IDLE_GPU_MEMORY:
            yield Objection(
                "gpu-memory-unaccounted",
                f"GPU {index} has {(gpu.memory_used - held) / 1024**3:.1f} GiB in use by no process",
                "a process that died badly may still hold it; `nvidia-smi --gpu-reset` or a reboot frees it",
            )


def _assigned(observed: HostState, service: ServiceConfig) -> list[int]:
    """Return the GPUs that a service may use, by their indices: those of the inventory, else all."""
    return list(service.gpus) if service.gpus is not None else sorted(gpu.index for gpu in observed.gpus or ())


def needed_gpus(observed: HostState, service: ServiceConfig, release: Release) -> tuple[int, ...]:
    """Return the GPUs that a release runs on, by their indices; none on a host without any."""
    return tuple(taken(_assigned(observed, service), _layout(release)[1])) if observed.gpus else ()


def _held(
    observed: HostState, service: ServiceConfig, state: ServiceState, gpus: Collection[int]
) -> Iterator[Objection]:
    own = _own(state)
    units = _making_room(service)
    holders: dict[str | None, list[GpuProcess]] = {}
    for process in observed.gpu_processes:
        if process.gpu in gpus and process.pid not in own and process.unit not in units:
            holders.setdefault(_service_of(process.unit), []).append(process)
    for owner, processes in holders.items():
        amount = sum(process.memory or 0 for process in processes)
        numbers = sorted({process.gpu for process in processes})
        alone = len({process.pid for process in processes}) == 1
        yield Objection(
            "gpu-held",
            f"{_named(numbers)} in use: "
            f"{_described(processes, observed.units)} {'holds' if alone else 'hold'}"
            + (f" {amount / 1024**3:.1f} GiB" if amount else " memory"),
            "that is another service of deployer's: give each its own GPUs, or declare exclusive_with"
            if _deployed(owner, observed.units)
            else f"{_ending(owner, processes)}, or give the service other GPUs",
        )


def _named(gpus: Sequence[int | str]) -> str:
    """Return GPUs as the beginning of a sentence about them: ``GPUs 0, 1 are``."""
    return f"GPU {gpus[0]} is" if len(gpus) == 1 else f"GPUs {', '.join(map(str, gpus))} are"


def _making_room(service: ServiceConfig) -> set[str]:
    """Return the units that are stopped before the candidate starts."""
    return {unit_name(name) for name in (service.name, *service.exclusive_with)}


def _own(state: ServiceState) -> set[int]:
    """Return the service's processes. Its strays count as its own: the stop ends them, after consent."""
    return {*(state.running.pids if state.running else ()), *(item.pid for item in state.strays)}


def _service_of(unit: str | None) -> str | None:
    """Return the unit if stopping it ends its processes and nobody's session; else None."""
    return unit if unit and unit.endswith(".service") and not unit.startswith("user@") else None


def _deployed(unit: str | None, units: Mapping[str, UnitOwner]) -> bool:
    """Return whether a unit is another service of deployer's, whatever its name."""
    return unit is not None and unit in units and units[unit].release is not None


def _ending(unit: str | None, processes: Sequence[GpuProcess | Listener]) -> str:
    """Return the one command that ends processes for good: systemd starts some again that are only killed."""
    if unit is not None:
        return f"run `systemctl stop {shlex.quote(unit)}` on the host"
    pids = sorted({item.pid for item in processes if item.pid is not None})
    return f"run `kill {' '.join(map(str, pids))}` on the host" if pids else "stop it"


def _described(processes: Sequence[GpuProcess | Listener], units: Mapping[str, UnitOwner]) -> str:
    """Return processes in words, those of one name and unit together, and whether systemd starts the unit again."""
    alike: dict[tuple[str | None, str | None], dict[int, None]] = {}
    for item in processes:
        if item.pid is not None:
            alike.setdefault((item.comm, item.unit), {})[item.pid] = None
    texts = [
        described(pid, comm, unit, units[unit].restart if unit and unit in units else "", others=others)
        for (comm, unit), (pid, *others) in alike.items()
    ]
    if any(item.pid is None for item in processes):
        texts.append("a process that cannot be seen from here")
    return ", ".join(texts)


def _bench(observed: HostState, service: ServiceConfig, release: Release | None) -> Iterator[Objection]:
    """A benchmark that cannot be run is noticed now, not after the old server was stopped.

    Where it could run depends on the engine; if that is missing, `installation` objects.
    """
    if observed.engine is None or not observed.engine.exists:
        return
    place = str((release.requested.bench if release else {}).get("place") or service.bench.place)
    has_httpx = bool(observed.engine.httpx)
    endpoint = Endpoint(service.name, service.bind, service.port)
    try:
        choose_place(Target.of(service, endpoint), place, has_httpx=has_httpx)
    except ConfigError as error:
        yield Objection("no-benchmark", error.message, error.remedy or "set bench.place")


def _layout(release: Release | None) -> tuple[int, list[int]]:
    """Return how many GPUs a release needs, and the places of its ranks among those that it sees."""
    if release is None:
        return 0, []
    arguments = release.requested.arguments

    def number(name: str, default: int = 1) -> int:
        return int(arguments.get(name) or default)

    tp, pp = number("tp_size"), number("pp_size")
    replicas = 1 if arguments.get("enable_dp_attention") else number("dp_size")
    places = rank_places(tp=tp, pp=pp, replicas=replicas, base=number("base_gpu_id", 0), step=number("gpu_id_step"))
    return tp * pp * replicas, places


def _port(service: ServiceConfig, state: ServiceState, units: Mapping[str, UnitOwner]) -> Iterator[Objection]:
    own = _own(state)
    for listener in state.listeners:
        ours = listener.unit in _making_room(service) or listener.pid in own
        if ours or not collides(listener.address, service.bind):
            continue
        owner = _service_of(listener.unit)
        yield Objection(
            "port-taken",
            f"port {service.port} is already answered by {_described([listener], units)} on {listener.address}",
            "that is another service of deployer's: give each its own port, or declare exclusive_with"
            if _deployed(owner, units)
            else f"{_ending(owner, [listener])}, or give the service another port; "
            "SGLang would load the whole model and then hang",
        )


def restart_objections(observed: HostState, host: HostConfig, service: ServiceConfig) -> list[Objection]:
    """Return all reasons against starting the live release again. Nothing is written for it, so no room is needed."""
    live = observed.services[service.name].live_release
    against = objections(observed, host, service, live, measured=False)
    return [item for item in against if item.code != "disk-full"]


def overruled(service: ServiceConfig, state: ServiceState) -> Iterator[Objection]:
    """Yield what keeps our unit from running as it is written."""
    unit = unit_name(service.name)
    # Any other drop-in changes the unit without deciding what runs: it is reported as drift, not refused.
    for path, keys in decisive(state.drop_ins):
        yield Objection(
            "drop-in-decides",
            f"{path} sets {', '.join(keys)}, so another server would run than the one that is proven",
            f"remove it (`systemctl revert {unit}` on the host), or put what it sets into the template",
        )
    shadows = [path for path in state.shadows if not path.endswith(".conf")]
    for path in shadows:
        yield Objection(
            "unit-shadowed",
            f"{path} outranks deployer's {unit}, so the candidate would never run",
            f"move it away (a mask goes with `systemctl unmask {unit}`), then run `systemctl daemon-reload`",
        )
    if state.unit.load == "masked" and not shadows:
        yield Objection("unit-masked", f"{unit} is masked", f"run `systemctl unmask {unit}` on the host")


def _lost_unit(state: ServiceState, release: Release | None) -> Iterator[Objection]:
    lost = state.lost_live
    if lost and (release is None or release.release != lost.release):
        yield Objection(
            "live-unit-missing",
            f"{lost.release} is running and was live, but its unit file was deleted: there would be no way back",
            f"put it back first: `deployer rollback --to {lost.number}`",
        )


def _disk(observed: HostState, host: HostConfig) -> Iterator[Objection]:
    if observed.disk_free < _MIN_DISK:
        yield Objection(
            "disk-full",
            f"{host.name}: only {observed.disk_free / 1e6:.0f} MB are free in /var/lib/deployer",
            "free some space; 256 MB are needed",
        )


def notes(observed: HostState, service: ServiceConfig, findings: Iterable[Finding] = ()) -> list[str]:
    """Return what is worth knowing without being an objection, warnings among the rules' ``findings`` included."""
    hub = f"{service.model} is a hub id: SGLang will download it to the host before it loads"
    return [
        *(() if service.model.startswith("/") else (hub,)),
        *(f"{item} ({item.remedy})" for item in findings if item.severity is Severity.WARNING or item.rule in _TOLD),
    ]
