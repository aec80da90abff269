"""Operations that only look: observe, release.read, listeners, sample."""

from __future__ import annotations

import os
import time
from typing import Iterable, List, Optional

from deployer.reach import unit_name

from .base import Call, Json, checked, operation
from .files import read_text
from .gpus import Sampler, gpu_facts
from .lease import Session, lease_view, read_hold, read_lease
from .machine import SMI_TIMEOUT, Machine
from .service import Service, unit_file
from .strays import strays
from .survey import engine_facts, model_facts

LONGEST = 60.0  # seconds that one `sample` takes at most


def service_state(service: Service, port: int, problems: List[str]) -> Json:
    """``problems``: those of the host as a whole."""
    machine, problems = service.machine, list(problems)
    state, guard = service.state(), machine.unit_state(service.guard_unit)
    running, pids, manifests = service.running(state), service.pids(), service.manifests(problems)
    if running:
        manifest = next((item for item in manifests if item["release"] == running["release"]), None)
        running = dict(running, pids=pids, **(service.variables(running["pid"], manifest) if manifest else {}))
    return {
        "live": service.live_file(),
        "candidate": unit_file(service.candidate_path),
        "transition": service.transition(problems),
        "unit": state,
        "running": running,
        "releases": manifests,
        "guard": {"active": guard["ActiveState"], "result": guard["Result"], "last": service.last_deed(problems)},
        "boot": service.last_boot(problems),
        "recover_enabled": os.path.exists(service.recover_link),
        "assess_enabled": os.path.exists(service.assess_link),
        "enabled": service.is_enabled(),
        "listeners": machine.listeners(port, pids) if port else [],
        "strays": strays(service, port),
        "shadows": service.shadows(state),
        "drop_ins": service.drop_ins(state),
        "problems": problems,
    }


def proven(services: Iterable[Json]) -> Optional[float]:
    """When the live release of the services was promoted (the first of them); None without one."""
    releases = [item for state in services if state["live"] for item in state["releases"]]
    live = {state["live"]["release"] for state in services if state["live"]}
    times = [item.get("promoted") for item in releases if item["release"] in live]
    return min((float(at) for at in times if isinstance(at, (int, float))), default=None)


def disk(path: str) -> Json:
    space = os.statvfs(path)
    return {"free": space.f_bavail * space.f_frsize, "total": space.f_blocks * space.f_frsize}


def owners(machine: Machine, processes: Iterable[Json], ours: Iterable[str]) -> Json:
    """Whose processes these are: of each unit but ``ours`` its restart policy, and its release if it is deployer's."""
    units = {item["unit"] for item in processes if (item["unit"] or "").endswith(".service")} - {*ours}
    states = {unit: machine.unit_state(unit) for unit in sorted(units)}
    return {
        unit: {"restart": state["Restart"], "release": (unit_file(state["FragmentPath"]) or {}).get("release")}
        for unit, state in states.items()
    }


@operation("observe")
def observe(session: Session, args: Json, call: Call) -> Json:
    machine = session.machine
    problems: List[str] = []
    gpus, processes = gpu_facts(machine, problems, args.get("patience")) if args.get("gpus") else (None, [])
    gpu_problem = problems[0] if problems else None
    lease = lease_view(machine, read_lease(machine, problems))
    folder, engine = machine.state_dir, args.get("engine")
    services = {
        item["service"]: service_state(Service(machine, item["service"]), item.get("port") or 0, problems)
        for item in args.get("services") or []
    }
    seen = [*processes, *(item for state in services.values() for item in state["listeners"])]
    return {
        "boot_id": machine.boot_id,
        "units": owners(machine, seen, [unit_name(name) for name in services]),
        "lease": lease,
        "hold": read_hold(machine, problems),
        "services": services,
        "gpus": gpus,
        "gpu_processes": processes,
        "gpu_problem": gpu_problem,
        "disk_free": disk(folder if os.path.isdir(folder) else os.path.dirname(folder))["free"],
        "memory_total": machine.memory_total(),
        "engine": engine_facts(machine, engine["python"], proven(services.values())) if engine else None,
        "model": model_facts(args["model"]["path"]) if args.get("model") else None,
    }


@operation("release.read")
def release_read(session: Session, args: Json, call: Call) -> Json:
    service = Service(session.machine, args["service"])
    manifest, folder = service.manifest(args["release"]), service.release_dir(args["release"])
    names = [checked(name, "file") for name in args.get("files") or []]
    return {"manifest": manifest, "files": {name: read_text(os.path.join(folder, name)) for name in names}}


@operation("listeners")
def listeners(session: Session, args: Json, call: Call) -> Json:
    return {"listeners": session.machine.listeners(int(args["port"]))}


@operation("sample")
def sample(session: Session, args: Json, call: Call) -> Json:
    """Look at GPUs, connections and the machine for some seconds, again and again, without touching any."""
    machine, seconds = session.machine, min(LONGEST, max(0.0, float(args.get("seconds") or 0.0)))
    interval, port = max(0.2, float(args.get("interval") or 1.0)), int(args.get("port") or 0)
    gpus, samples = Sampler(machine), []
    pages, begun = machine.pages_swapped(), time.monotonic()
    ends, until = begun + seconds, begun + max(SMI_TIMEOUT, seconds + 1.0)
    while True:
        looked = time.monotonic()
        clients = machine.connections(port, args.get("address") or "::") if port else None
        samples.append({"t": round(looked - begun, 3), "gpus": gpus.look(until), "connections": clients})
        took, left = time.monotonic() - looked, ends - time.monotonic()
        if left <= 0:
            break
        call.sleep(min(interval, left))
        if took > 1.0 and time.monotonic() + took > until:
            call.sleep(max(0.0, ends - time.monotonic()))
            break  # a driver this slow would not answer in time
    folder = machine.state_dir if os.path.isdir(machine.state_dir) else "/var"
    disks = {path: disk(path) for path in ("/", folder)}
    vitals = dict(machine.vitals(), disks=disks, uptime=machine.boottime())
    return {
        "now": time.time(),
        "samples": samples,
        "machine": dict(vitals, pages_swapped=machine.pages_swapped() - pages),
        "problem": gpus.problem,
    }
