"""The fake host's operations that look, and those on the lease: the rules of the real ones, on data in memory."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

from deployer.errors import AgentError
from deployer.host.fake_world import FakeService, FakeWorld, manifest_argv, manifest_of, release_of
from deployer.records.codec import Json

if TYPE_CHECKING:
    from deployer.host.fake import FakeHost


def hello(host: FakeHost, args: Json) -> Json:
    now = time.monotonic()
    facts = {
        "schema": 1,
        "agent": "fake",
        "python": "3.11.0",
        "uid": 0,
        "hostname": host.name,
        "systemd": 252,
    }
    return {**facts, "boot_id": host.world.boot_id, "now": time.time(), "now_boottime": now}


def unit_state(world: FakeWorld, state: FakeService) -> Json:
    world.settle(state)
    active = "active" if state.running else "failed" if state.failed else "inactive"
    return {
        "ActiveState": active,
        "SubState": {"active": "running", "failed": "failed"}.get(active, "dead"),
        "Result": "exit-code" if active == "failed" else "success",
        "NRestarts": 0,
        "InvocationID": state.invocation_id,
        "MainPID": 1 if state.running else 0,
        "ExecMainStatus": 1 if active == "failed" else 0,
        "ExecMainCode": 1 if active == "failed" else 0,
        "LoadState": "loaded" if state.live or state.candidate else "not-found",
        "UnitFileState": "enabled" if state.enabled else "disabled",
        "FragmentPath": "/run" if state.candidate else "/usr/local/lib" if state.live else "",
        "DropInPaths": [],
        "Restart": "no",
        "NeedDaemonReload": False,
    }


def service_state(world: FakeWorld, name: str, port: int) -> Json:
    state = world.service(name)
    unit = unit_state(world, state)
    manifests = sorted(
        (item["manifest"] for item in state.releases.values()), key=lambda item: item.get("number") or 0
    )
    running = None
    if state.running:
        argv = list(world.engine(state.running).argv) or manifest_argv(state, state.running)
        running = {"pid": 1, "release": state.running, "argv": argv, "started": time.time(), "pids": [1]}
    unit_name = f"sglang-{name}.service"
    listener = {
        "address": "127.0.0.1",
        "port": port,
        "pid": 1,
        "comm": "python",
        "cgroup": "",
        "unit": unit_name,
    }

    def file(text: str | None, folder: str) -> Json | None:
        return (
            None
            if text is None
            else {"release": release_of(text), "text": text, "path": f"{folder}/{unit_name}"}
        )

    return {
        "live": file(state.live, "/usr/local/lib/systemd/system"),
        "candidate": file(state.candidate, "/run/systemd/system"),
        "transition": state.transition,
        "unit": unit,
        "running": running,
        "releases": manifests,
        "guard": {"active": "active" if state.transition else "inactive", "result": "success"},
        "recover_enabled": state.enabled,
        "enabled": state.enabled,
        "listeners": [listener] if world.ready(state) else [],
        "shadows": [],
        "problems": [],
    }


def observe(host: FakeHost, args: Json) -> Json:
    world = host.world
    wanted = args.get("services") or []
    return {
        "boot_id": world.boot_id,
        "lease": view(world),
        "services": {item["service"]: service_state(world, item["service"], item["port"]) for item in wanted},
        "gpus": None,
        "gpu_processes": [],
        "disk_free": 1 << 40,
        "memory_total": 1 << 40,
        "engine": None,
        "model": None,
        **world.observed,
    }


def release_read(host: FakeHost, args: Json) -> Json:
    state = host.world.service(args["service"])
    manifest = manifest_of(state, args["release"])
    files = state.releases[args["release"]]["files"]
    return {"manifest": manifest, "files": {name: files.get(name) for name in args.get("files") or []}}


def answering(world: FakeWorld) -> FakeService | None:
    for state in world.services.values():
        world.settle(state)
    return next((state for state in world.services.values() if world.ready(state)), None)


def listeners(host: FakeHost, args: Json) -> Json:
    world, port = host.world, int(args["port"])
    found = [service_state(world, name, port)["listeners"] for name in world.services]
    return {"listeners": [item for items in found for item in items]}


def http(host: FakeHost, args: Json) -> Json:
    state = answering(host.world)
    if state is None:
        raise AgentError("http", "connection refused", detail={"state": "refused"})
    answers = {"/health": (200, ""), **host.world.engine(state.running).http}
    status, body = answers.get(args["path"].partition("?")[0], (404, ""))
    return {"status": status, "headers": {}, "body": body, "seconds": 0.001}


def sample(host: FakeHost, args: Json) -> Json:
    machine: Json = {
        "memory_total": 1 << 37,
        "memory_available": 1 << 36,
        "swap_total": 0,
        "swap_free": 0,
        "load": [1.0, 1.0, 1.0],
        "cpus": 16,
        "disks": {"/": {"free": 1 << 40, "total": 1 << 41}},
        "uptime": 1000.0,
        "pages_swapped": 0,
    }
    looks = [{"t": 0.0, "gpus": None, "connections": 0 if args.get("port") else None}]
    answer: Json = {"now": time.time(), "samples": looks, "machine": machine, "problem": None}
    return {**answer, **host.world.sampled}


# --- lease ------------------------------------------------------------------------------------------------------


def view(world: FakeWorld) -> Json | None:
    """The lease without its token."""
    if world.lease is None:
        return None
    left = world.lease["expires_boottime"] - time.monotonic()
    valid = world.lease["state"] == "held" and world.lease["boot_id"] == world.boot_id and left > 0
    shown = {name: value for name, value in world.lease.items() if name != "token"}
    return {**shown, "expires_in": left, "valid": valid}


def acquire(host: FakeHost, args: Json) -> Json:
    world, deadline = host.world, time.monotonic() + float(args.get("wait") or 0.0)
    while True:
        with world.lock:
            shown, reclaim, lease = view(world), args.get("reclaim"), world.lease
            if reclaim and (
                lease is None or (lease["generation"], lease["token"]) != tuple(reclaim.values())
            ):
                raise AgentError("lease-lost", "the lease was taken over", detail={"lease": shown})
            free = shown is None or not shown["valid"] or shown["generation"] == host.generation
            if reclaim or free:
                return grant(host, args)
        if time.monotonic() >= deadline:
            raise AgentError("lease-held", "held by another", detail={"lease": shown})
        time.sleep(0.01)


def grant(host: FakeHost, args: Json) -> Json:
    world, ttl = host.world, float(args["ttl"])
    host.generation = (world.lease["generation"] if world.lease else 0) + 1
    world.lease = {
        "generation": host.generation,
        "token": secrets.token_hex(8),
        "owner": args["owner"],
        "service": args.get("service"),
        "reason": args.get("reason") or "",
        "ttl": ttl,
        "acquired": time.time(),
        "boot_id": world.boot_id,
        "expires_boottime": time.monotonic() + ttl,
        "state": "held",
    }
    return {"generation": host.generation, "token": world.lease["token"], "expires_in": ttl}


def renew(host: FakeHost, args: Json) -> Json:
    lease = host.own(expired_too=True)
    lease["expires_boottime"] = time.monotonic() + lease["ttl"]
    return {"expires_in": lease["ttl"]}


def finish(host: FakeHost, state: str) -> None:
    with host.world.lock:
        lease = host.world.lease
        if lease and lease["generation"] == host.generation and lease["state"] == "held":
            lease.update(state=state, expires_boottime=min(lease["expires_boottime"], time.monotonic()))
        host.generation = None


def release(host: FakeHost, args: Json) -> Json:
    finish(host, "released")
    return {}
