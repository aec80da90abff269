"""Operations that only look."""

from __future__ import annotations

import contextlib
import http.client
import os
import platform
import re
import socket
import threading
import time
from typing import Any, List, Optional

from .base import (
    BOOT_ID,
    SCHEMA,
    STATE_DIR,
    TRANSITION,
    WANTS_DIR,
    Call,
    Fail,
    Json,
    Shape,
    boottime,
    candidate_path,
    checked,
    live_path,
    read_intact,
    read_json,
    read_text,
    release_dir,
    service_dir,
    systemctl,
    transition_path,
    unit_file,
    unit_name,
)
from .lease import Session, lease_view, read_lease
from .procs import environment_of, listeners, process_stat, unit_pids
from .registry import operation, own_hash
from .survey import engine_facts, gpu_facts, memory_total, model_facts
from .systemd import unit_state

MANIFEST: Shape = {"release": str, "argv": (list, type(None))}
OUTRANKING_DIRS = (  # what systemd reads before our candidate's or our live directory
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    "/run/systemd/transient",
    "/run/systemd/generator.early",
    "/etc/systemd/system",
    "/etc/systemd/system.attached",
    "/run/systemd/system.attached",
    "/run/systemd/generator",
)


def systemd_version() -> Optional[int]:
    try:
        found = re.match(r"systemd (\d+)", systemctl("--version", check=False).stdout)
    except Fail as error:
        if error.code != "missing-tool":
            raise
        return None
    return int(found.group(1)) if found else None


@operation("hello")
def hello(session: Session, args: Json, call: Call) -> Json:
    return {
        "schema": SCHEMA,
        "agent": own_hash(),
        "python": platform.python_version(),
        "uid": os.geteuid(),
        "hostname": socket.gethostname(),
        "boot_id": BOOT_ID,
        "systemd": systemd_version(),
        "booted": os.path.isdir("/run/systemd/system"),  # sd_booted(3)
        "init": (read_text("/proc/1/comm") or "").strip(),
        "now": time.time(),
        "now_boottime": boottime(),
    }


def running_of(state: Json) -> Optional[Json]:
    pid = state["MainPID"]
    fields = process_stat(pid) if pid else []
    if not fields or fields[0] == "Z":
        return None
    argv = (read_text("/proc/%d/cmdline" % pid) or "").split("\0")[:-1]
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    release = environment_of(pid).get("DEPLOYER_RELEASE")
    return {"pid": pid, "release": release, "argv": argv, "started": round(time.time() - age, 1)}


def manifests(service: str, problems: Optional[List[str]] = None) -> List[Json]:
    """The manifests of all releases, by number. One that is damaged shows as state ``corrupt``, and hides no other."""
    folder = os.path.join(service_dir(service), "releases")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    found = [
        manifest_of(folder, name, problems)
        for name in names
        if not name.startswith(".") and os.path.isdir(os.path.join(folder, name))
    ]
    return sorted(found, key=lambda item: (item["number"], item["release"]))


def manifest_of(folder: str, name: str, problems: Optional[List[str]]) -> Json:
    path, wrong = os.path.join(folder, name, "manifest.json"), []  # type: str, List[str]
    manifest = read_intact(path, MANIFEST, wrong)
    if manifest and manifest["release"] == name and isinstance(manifest.get("number") or 0, int):
        return dict(manifest, number=manifest.get("number") or 0)
    if problems is not None:
        problems.append((wrong or ["%s is damaged: it is not that of %s" % (path, name)])[0])
    number = re.match(r"[0-9]*", name)
    return {
        "release": name,
        "number": int((number.group() if number else "") or 0),
        "state": "corrupt",
        "was_live": False,
    }


def enable_link(unit: str) -> str:
    return os.path.join(WANTS_DIR, unit)


def shadows(service: str, state: Json) -> List[str]:
    paths = [os.path.join(folder, unit_name(service)) for folder in OUTRANKING_DIRS]
    found = [path for path in paths if os.path.lexists(path)]
    if os.path.islink(candidate_path(service)):
        found.append(candidate_path(service))
    return found + list(state["DropInPaths"])


def service_state(service: str, port: Optional[int], found: List[str]) -> Json:
    """One service. ``found``: what is wrong with the host as a whole."""
    unit, problems = unit_name(service), list(found)
    state, guard = unit_state(unit), unit_state("deployer-guard@%s.service" % service)
    running, pids = running_of(state), unit_pids(unit)
    recover = "deployer-recover@%s.service" % service
    return {
        "live": unit_file(live_path(service)),
        "candidate": unit_file(candidate_path(service)),
        "transition": read_intact(transition_path(service), TRANSITION, problems),
        "unit": state,
        "running": dict(running, pids=pids) if running else None,
        "releases": manifests(service, problems),
        "guard": {"active": guard["ActiveState"], "result": guard["Result"]},
        "recover_enabled": os.path.exists(enable_link(recover)),
        "enabled": os.path.lexists(enable_link(unit)),
        "listeners": listeners(port, pids) if port else [],
        "shadows": shadows(service, state),
        "problems": problems,
    }


@operation("observe")
def observe(session: Session, args: Json, call: Call) -> Json:
    problems: List[str] = []
    gpus, processes = gpu_facts(problems, args.get("patience")) if args.get("gpus") else (None, [])
    gpu_problem = problems[0] if problems else None
    lease = lease_view(read_lease(problems))
    folder = STATE_DIR if os.path.isdir(STATE_DIR) else os.path.dirname(STATE_DIR)
    space = os.statvfs(folder)
    return {
        "boot_id": BOOT_ID,
        "lease": lease,
        "services": {
            item["service"]: service_state(item["service"], item.get("port"), problems)
            for item in args.get("services") or []
        },
        "gpus": gpus,
        "gpu_processes": processes,
        "gpu_problem": gpu_problem,
        "disk_free": space.f_bavail * space.f_frsize,
        "memory_total": memory_total(),
        "engine": engine_facts(args["engine"]["python"]) if args.get("engine") else None,
        "model": model_facts(args["model"]["path"]) if args.get("model") else None,
    }


@operation("release.read")
def release_read(session: Session, args: Json, call: Call) -> Json:
    folder = release_dir(args["service"], args["release"])
    manifest = read_json(os.path.join(folder, "manifest.json"), MANIFEST)
    if manifest is None:
        raise Fail("not-found", "there is no release %s of %s" % (args["release"], args["service"]))
    names = [checked(name, "file") for name in args.get("files") or []]
    return {"manifest": manifest, "files": {name: read_text(os.path.join(folder, name)) for name in names}}


@operation("listeners")
def listeners_op(session: Session, args: Json, call: Call) -> Json:
    return {"listeners": listeners(int(args["port"]))}


def http_exchange(
    address: str,
    port: int,
    path: str,
    timeout: float,
    method: str = "GET",
    body: Any = None,
    headers: Any = None,
) -> Json:
    """One HTTP request. Raises Fail("http") with ``state``: refused, timeout or reset.

    ``timeout`` is for all of it: an answer that comes drop by drop is cut off.
    """
    begun = time.monotonic()
    connection = http.client.HTTPConnection(address, port, timeout=timeout)
    late = threading.Event()
    timer: Optional[threading.Timer] = None
    answer: Optional[http.client.HTTPResponse] = None
    try:
        connection.connect()
        sock = connection.sock

        def cut_off() -> None:
            late.set()
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(timeout, cut_off)
        timer.daemon = True
        timer.start()
        data = body.encode("utf-8") if isinstance(body, str) else None
        connection.request(method, path, data, dict(headers or {}))
        answer = connection.getresponse()
        text = answer.read(64 << 20).decode("utf-8", "replace")
        if late.is_set():
            raise socket.timeout
        pairs = {name.lower(): value for name, value in answer.getheaders()}
        return {"status": answer.status, "headers": pairs, "body": text, "seconds": time.monotonic() - begun}
    except (socket.timeout, TimeoutError) as error:
        raise Fail("http", "no answer within %g s" % timeout, state="timeout") from error
    except ConnectionRefusedError as error:
        raise Fail("http", "connection refused", state="refused") from error
    except (OSError, http.client.HTTPException) as error:
        if late.is_set():
            raise Fail("http", "no answer within %g s" % timeout, state="timeout") from error
        raise Fail("http", "connection broken: %s" % error, state="reset") from error
    finally:
        if timer:
            timer.cancel()
        if answer:
            answer.close()
        connection.close()


@operation("http")
def http_op(session: Session, args: Json, call: Call) -> Json:
    return http_exchange(
        args.get("address") or "127.0.0.1",
        int(args["port"]),
        args["path"],
        float(args.get("timeout") or 25.0),
        args.get("method") or "GET",
        args.get("body"),
        args.get("headers"),
    )
