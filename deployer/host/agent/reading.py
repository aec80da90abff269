"""Operations that only look."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import platform
import re
import shutil
import socket
import stat
import threading
import time
from typing import Any, List, Optional, Set, Tuple

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
    execute,
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
from .procs import compute_caps, environment_of, gpu_list, gpu_processes, listeners, process_stat, unit_pids
from .registry import operation, own_hash
from .systemd import unit_state

#: Distributions of the engine's environment whose versions decide whether it runs.
PACKAGES = ("sglang", "httpx", "torch", "transformers", "sglang-kernel", "sgl-kernel", "flashinfer-python")
#: A config.json above this, in bytes, is none.
CONFIG_LIMIT = 16 << 20
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


ENGINE_FACTS = """
import hashlib, json, os, platform, sys
from importlib import metadata, util
versions, found = {}, {}
for name in %r:
    try: versions[name] = metadata.version(name)
    except Exception: pass
try:
    digest = hashlib.sha256(repr((sys.version, sys.prefix, sorted(versions.items()))).encode())
    for top in util.find_spec('sglang').submodule_search_locations:
        for folder, folders, names in os.walk(top):
            folders.sort()
            for name in sorted(name for name in names if name.endswith('.py')):
                info = os.stat(os.path.join(folder, name))
                mark = (os.path.relpath(folder, top), name, info.st_size, info.st_mtime_ns)
                digest.update(repr(mark).encode())
    found['fingerprint'] = digest.hexdigest()[:16]
except Exception: pass
print(json.dumps(dict(found, packages=versions, python_version=platform.python_version())))
"""


def last_object(text: str) -> Json:
    """The JSON object in the last line that holds one: whatever an environment prints around it. Empty: none."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            with contextlib.suppress(ValueError, RecursionError):
                return dict(json.loads(line))
    return {}


def engine_facts(python: str) -> Json:
    """Versions by metadata, without an import; ``fingerprint`` changes with SGLang's files and what it stands on."""
    path = shutil.which(python)
    facts: Json = {"python": python, "exists": bool(path), "sglang": None, "httpx": None, "fingerprint": None}
    facts.update(packages={}, python_version=None)
    if path:
        try:
            done = execute([path, "-I", "-c", ENGINE_FACTS % (PACKAGES,)], timeout=60, check=False)
        except Fail as failure:
            if failure.code != "missing-tool":
                raise
            return dict(facts, exists=False)  # no program, or one for another processor
        facts.update(last_object(done.stdout))
        if not isinstance(facts["packages"], dict):
            facts["packages"] = {}
        facts.update((name, facts["packages"].pop(name, None)) for name in ("sglang", "httpx"))
    return facts


def first_time(folder: str, seen: Set[Tuple[int, int]]) -> bool:
    """Whether a folder was not walked yet: links may lead back to where they are."""
    try:
        info = os.stat(folder)
    except OSError:
        return False
    new = (info.st_dev, info.st_ino) not in seen
    seen.add((info.st_dev, info.st_ino))
    return new


def model_facts(path: str) -> Json:
    """Size and fingerprint of a model: names, sizes and times of its files, and the text of its small JSON files."""
    digest, total, count = hashlib.sha256(), 0, 0
    weights = 0
    exists = os.path.isdir(path)
    seen: Set[Tuple[int, int]] = set()
    first_time(path, seen)
    for folder, folders, names in os.walk(path, followlinks=True):
        folders[:] = sorted(
            name for name in folders if name[0] != "." and first_time(os.path.join(folder, name), seen)
        )
        for name in sorted(names):
            full = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                info = os.stat(full)
                if not stat.S_ISREG(info.st_mode):
                    continue  # to read a pipe is to wait for somebody
                small = name.endswith(".json") and info.st_size < 1 << 20
                mark = read_text(full) if small else int(info.st_mtime)
                digest.update(
                    ("%s\0%d\0%s\0" % (os.path.relpath(full, path), info.st_size, mark)).encode("utf-8")
                )
                total, count = total + info.st_size, count + 1
                if folder == path and name.endswith(".safetensors") and not name.startswith("consolidated"):
                    weights += info.st_size  # `consolidated` is the same weights once more
    config, own = None, os.path.join(path, "config.json")
    with contextlib.suppress(OSError, ValueError, RecursionError):
        info = os.stat(own)
        if stat.S_ISREG(info.st_mode) and info.st_size <= CONFIG_LIMIT:
            config = json.loads(read_text(own) or "null")
    fingerprint = digest.hexdigest()[:16] if exists else None
    return {
        "path": path,
        "exists": exists,
        "bytes": total,
        "files": count,
        "weight_bytes": weights,
        "fingerprint": fingerprint,
        "config": config,
    }


def memory_total() -> Optional[int]:
    """The host's memory in bytes, as the kernel says."""
    found = re.search(r"^MemTotal:\s+(\d+) kB", read_text("/proc/meminfo") or "", re.M)
    return int(found.group(1)) << 10 if found else None


def gpu_facts(
    problems: List[str], patience: Optional[float] = None
) -> Tuple[Optional[List[Json]], List[Json]]:
    """GPUs (None where they cannot be seen) and the processes on them. A driver that does not answer is a problem.

    ``patience``: seconds for all of it.
    """
    until = None if patience is None else time.monotonic() + patience
    try:
        gpus = gpu_list(until)
        processes = (gpu_processes(gpus, until) if gpus is not None else None) or []
        caps = compute_caps(until) if gpus else {}
    except Fail as failure:
        problems.append("GPUs cannot be seen: %s" % failure.message)
        return None, []
    if gpus is not None and not gpus:
        problems.append("GPUs cannot be seen: nvidia-smi names none")
    for gpu in gpus or []:
        gpu["compute_cap"] = caps.get(gpu["index"])
    return gpus, processes


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
