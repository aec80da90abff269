"""Is the host fit for a profile? Pure: judges what was observed and returns every objection, not the first."""

from __future__ import annotations

import math
from collections.abc import Iterable

from deployer.bench.runner import choose_place
from deployer.config.inventory import HostConfig, ServiceConfig
from deployer.deploy.plan import lost_live
from deployer.errors import ConfigError
from deployer.records.endpoint import collides, unit_name
from deployer.records.hardware import Gpu
from deployer.records.host import HostState, ServiceState
from deployer.records.outcome import Objection
from deployer.records.release import Release
from deployer.sglang.flags.devices import rank_places, taken
from deployer.sglang.rules import Finding, Severity
from deployer.sglang.rules.sizes import GPU_REMEDY, too_few_gpus

#: Memory in use on a GPU that nobody admits to and that is still no reason to refuse (driver, display), in bytes.
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
    found = installation(observed, service)
    found += _gpus(observed, host, service, state, release)
    found += _bench(observed, service, release) if measured else []
    found += _port(service, state)
    found += _shadows(service, state)
    lost = lost_live(state)
    if lost and (release is None or release.release != lost.release):
        found.append(
            Objection(
                "live-unit-missing",
                f"{lost.release} is running and was live, but its unit file was deleted: there would be no way back",
                f"put it back first: `deployer rollback --to {lost.number}`",
            )
        )
    if observed.disk_free < _MIN_DISK:
        found.append(
            Objection(
                "disk-full",
                f"{host.name}: only {observed.disk_free / 1e6:.0f} MB are free in /var/lib/deployer",
                "free some space; 256 MB are needed",
            )
        )
    raised = {item.code for item in found}
    errors = [item for item in findings if item.severity is Severity.ERROR and item.rule not in raised]
    return found + [Objection(item.rule, item.text, item.remedy) for item in errors]


def installation(observed: HostState, service: ServiceConfig) -> list[Objection]:
    """What the host lacks of what the service names: its Python with SGLang, its model."""
    return _engine(observed, service) + _model(observed, service)


def _engine(observed: HostState, service: ServiceConfig) -> list[Objection]:
    engine = observed.engine
    if engine is None or not engine.exists:
        return [
            Objection(
                "engine-missing",
                f"there is no Python at {service.engine.python} on the host",
                f"install SGLang there, or correct services.{service.name}.engine.python",
            )
        ]
    if engine.sglang is None:
        return [
            Objection(
                "sglang-missing",
                f"{service.engine.python} has no SGLang installed",
                f"install SGLang in that environment, or correct services.{service.name}.engine.python",
            )
        ]
    return []


def _model(observed: HostState, service: ServiceConfig) -> list[Objection]:
    model = observed.model
    if not service.model.startswith("/"):
        return []  # a hub id: SGLang downloads it, which `notes` says
    if model is None or not model.exists:
        return [
            Objection(
                "model-missing",
                f"there is no model at {service.model} on the host",
                f"put the checkpoint there, or correct services.{service.name}.model",
            )
        ]
    if model.config is None:
        return [
            Objection(
                "model-config-missing",
                f"{service.model} has no readable config.json",
                "is it a complete checkpoint? Copy it again",
            )
        ]
    return []


def _gpus(
    observed: HostState,
    host: HostConfig,
    service: ServiceConfig,
    state: ServiceState,
    release: Release | None,
) -> list[Objection]:
    if observed.gpus is None:
        return (
            [
                Objection(
                    "no-gpus",
                    f"nvidia-smi does not answer on {host.name}",
                    "install the NVIDIA driver, or say gpus = 0 for this host in the inventory",
                )
            ]
            if host.gpus != 0
            else []
        )
    by_index: dict[int, Gpu] = {gpu.index: gpu for gpu in observed.gpus}
    wanted = list(service.gpus) if service.gpus is not None else sorted(by_index)
    found = []
    missing = [index for index in wanted if index not in by_index]
    if missing:
        found.append(
            Objection(
                "gpu-missing",
                f"GPU {', '.join(map(str, missing))} is not there; {host.name} shows {len(by_index)} "
                f"({', '.join(map(str, sorted(by_index)))})",
                "see `nvidia-smi -L` and `dmesg | grep Xid` on the host",
            )
        )
    needed = _world_size(release)
    if needed > len(wanted):
        found.append(
            Objection(
                "too-few-gpus",
                too_few_gpus(needed, service.name, len(wanted), host.name),
                GPU_REMEDY,
            )
        )
    own = set(state.running.pids) if state.running else set()
    unit = unit_name(service.name)
    used = taken(wanted, _places(release))
    held: dict[int, int] = dict.fromkeys(used, 0)
    for process in observed.gpu_processes:
        if process.gpu not in held:
            continue
        held[int(process.gpu)] += process.memory or 0
        if process.pid in own or process.unit == unit:
            continue
        who = (
            f"{process.comm or 'a process'} (pid {process.pid}{', ' + process.unit if process.unit else ''})"
        )
        amount = f" {process.memory / 1024**3:.1f} GiB" if process.memory else " memory"
        found.append(
            Objection(
                "gpu-held",
                f"GPU {process.gpu} is in use: {who} holds{amount}",
                "that is another service of deployer's: give the two different GPUs"
                if (process.unit or "").startswith("sglang-")
                else f"stop it on the host (`kill {process.pid}`), or give the service other GPUs",
            )
        )
    for index in used:
        gpu = by_index.get(index)
        if gpu and gpu.memory_used - held[index] > _IDLE_GPU_MEMORY:
            found.append(
                Objection(
                    "gpu-memory-unaccounted",
                    f"GPU {index} has {(gpu.memory_used - held[index]) / 1024**3:.1f} GiB in use by no process",
                    "a process that died badly may still hold it; `nvidia-smi --gpu-reset` or a reboot frees it",
                )
            )
    return found


def _bench(observed: HostState, service: ServiceConfig, release: Release | None) -> list[Objection]:
    """A benchmark that could not be run is known now, not after the old server was stopped."""
    wanted = str((release.requested.bench if release else {}).get("place") or service.bench.place)
    has_httpx = bool(observed.engine and observed.engine.httpx)
    try:
        choose_place(service, wanted, has_httpx=has_httpx)
    except ConfigError as error:
        return [Objection("no-benchmark", error.message, error.remedy or "set bench.place")]
    return []


def _layout(release: Release) -> dict[str, int]:
    asked = release.requested.arguments
    return {
        "tp": int(asked.get("tp_size") or 1),
        "pp": int(asked.get("pp_size") or 1),
        "replicas": 1 if asked.get("enable_dp_attention") else int(asked.get("dp_size") or 1),
    }


def _world_size(release: Release | None) -> int:
    return math.prod(_layout(release).values()) if release is not None else 0


def _places(release: Release | None) -> list[int]:
    """Return the places of the release's ranks among the GPUs that it sees."""
    if release is None:
        return []
    asked = release.requested.arguments
    base, step = int(asked.get("base_gpu_id") or 0), int(asked.get("gpu_id_step") or 1)
    return rank_places(**_layout(release), base=base, step=step)


def _port(service: ServiceConfig, state: ServiceState) -> list[Objection]:
    unit = unit_name(service.name)
    own = set(state.running.pids) if state.running else set()
    found = []
    for listener in state.listeners:
        if listener.unit == unit or (listener.pid is not None and listener.pid in own):
            continue
        if not collides(listener.address, service.bind):
            continue
        who = f"{listener.comm or 'a process'} (pid {listener.pid}{', ' + listener.unit if listener.unit else ''})"
        if listener.pid is None:
            who = "a process that cannot be seen from here"
        found.append(
            Objection(
                "port-taken",
                f"port {service.port} is already answered by {who} on {listener.address}",
                "stop it, or give the service another port; SGLang would load the whole model and then hang",
            )
        )
    return found


def _shadows(service: ServiceConfig, state: ServiceState) -> list[Objection]:
    found = []
    unit = unit_name(service.name)
    for path in state.shadows:
        if path.endswith(".conf"):
            continue  # a drop-in changes the unit without replacing it: reported as drift, not refused
        found.append(
            Objection(
                "unit-shadowed",
                f"{path} outranks deployer's {unit}, so the candidate would never run",
                f"move it away (a mask goes with `systemctl unmask {unit}`), then run `systemctl daemon-reload`",
            )
        )
    if state.unit.load == "masked" and not found:
        found.append(
            Objection("unit-masked", f"{unit} is masked", f"run `systemctl unmask {unit}` on the host")
        )
    return found


def notes(observed: HostState, service: ServiceConfig) -> list[str]:
    """Things worth saying that are no objection."""
    said = []
    if not service.model.startswith("/"):
        said.append(f"{service.model} is a hub id: SGLang will download it to the host before it loads")
    state = observed.services[service.name]
    said += [f"a drop-in changes the unit: {path}" for path in state.shadows if path.endswith(".conf")]
    return said
