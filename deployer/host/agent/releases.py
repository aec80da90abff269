"""Operations on releases: stage, update, probe, prune. A release is a folder that never changes hands half-written."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
from typing import Any, List, Optional, Tuple

from .base import (
    RUN_DIR,
    TRANSITION,
    Call,
    Fail,
    Json,
    ask_systemd,
    checked,
    fsync_dir,
    live_path,
    read_intact,
    read_json,
    read_text,
    release_dir,
    remove_file,
    service_dir,
    systemctl,
    transition_path,
    unit_file,
    unit_name,
    write_file,
    write_json,
)
from .lease import Session
from .reading import MANIFEST, manifests, systemd_version
from .registry import operation
from .systemd import busctl_all, drop_ins, keys_of

UNIT_PROPERTIES = [
    "LoadState",
    "FragmentPath",
    "DropInPaths",
    "StartLimitIntervalUSec",
    "StartLimitBurst",
    "After",
    "Wants",
]
SERVICE_PROPERTIES = (
    ("Type", "Environment", "EnvironmentFiles", "User", "Group", "WorkingDirectory", "Slice")
    + ("Restart", "RestartUSec", "TimeoutStartUSec", "TimeoutStopUSec", "SuccessExitStatus")
    + ("KillMode", "KillSignal", "FinalKillSignal", "SendSIGKILL", "OOMPolicy", "OOMScoreAdjust")
    + ("LimitNOFILE", "LimitMEMLOCK", "LimitCORE", "IOAccounting", "NoNewPrivileges")
    + ("LogRateLimitIntervalUSec", "LogRateLimitBurst")
)

DECIDED = {
    "User",
    "Group",
    "Type",
    "KillMode",
    "KillSignal",
    "Environment",
    "EnvironmentFile",
    "PassEnvironment",
}
DECIDED |= {
    "UnsetEnvironment",
    "WorkingDirectory",
    "Restart",
    "TimeoutStartSec",
    "TimeoutStopSec",
    "RootDirectory",
}


def file_mode(value: Any) -> int:
    return int(value, 8) if isinstance(value, str) else int(value)


def account(user: Optional[str]) -> Optional[Tuple[int, int]]:
    if not user:
        return None
    try:
        entry = pwd.getpwnam(user)
    except KeyError as error:
        raise Fail("no-user", f"the host has no account {user}") from error
    return entry.pw_uid, entry.pw_gid


def make_service_dir(service: str) -> str:
    folder = os.path.join(service_dir(service), "releases")
    os.makedirs(folder, mode=0o755, exist_ok=True)
    return folder


@operation("stage", audited=True)
def stage(session: Session, args: Json, call: Call) -> Json:
    service, release = args["service"], checked(args["release"], "release")
    owner = account(args.get("user"))
    with session.holding():
        folder, final = make_service_dir(service), release_dir(service, release)
        if os.path.lexists(final):
            raise Fail("exists", f"release {release} of {service} exists already", path=final)
        temporary = os.path.join(folder, f".{release}.{secrets.token_hex(4)}.tmp")
        os.mkdir(temporary, 0o755)
        try:
            for name, file in args["files"].items():
                mode = file_mode(file.get("mode", 0o644))
                private = owner if not mode & 0o077 else None
                write_file(os.path.join(temporary, checked(name, "file")), file["text"], mode, private)
            write_json(os.path.join(temporary, "manifest.json"), dict(args["manifest"], release=release))
            os.rename(temporary, final)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        fsync_dir(folder)
        fsync_dir(os.path.dirname(folder))
    return {"path": final}


def update_manifest(service: str, release: str, patch: Json) -> Json:
    """Merge ``patch`` over a manifest's top level; to be called under the lock."""
    path = os.path.join(release_dir(service, release), "manifest.json")
    manifest = read_json(path, MANIFEST)
    if manifest is None:
        raise Fail("not-found", f"there is no release {release} of {service}")
    if patch:
        manifest.update(patch)
        write_json(path, manifest)
    return manifest


@operation("release.update", audited=True)
def release_update(session: Session, args: Json, call: Call) -> Json:
    service, release = args["service"], args["release"]
    folder = release_dir(service, release)
    with session.holding():
        manifest = update_manifest(service, release, args.get("patch") or {})
        for name, file in (args.get("files") or {}).items():
            text, mode = (
                (file, 0o644) if isinstance(file, str) else (file["text"], file_mode(file.get("mode", 0o644)))
            )
            write_file(os.path.join(folder, checked(name, "file")), text, mode)
        for name, text in (args.get("append") or {}).items():
            with open(os.path.join(folder, checked(name, "file")), "a", encoding="utf-8") as log:
                log.write(text)
                log.flush()
                os.fsync(log.fileno())
    return {"manifest": manifest}


def deciding(service: str, text: str) -> List[Json]:
    """The real unit's drop-ins that set what the unit text sets, or what else makes it run in another way."""
    decided = DECIDED.union(keys_of(text))
    found = []
    for path in drop_ins(unit_name(service)):
        keys = [key for key in keys_of(read_text(path) or "") if key in decided or key.startswith("Exec")]
        if keys:
            found.append({"path": path, "keys": keys})
    return found


@operation("probe", audited=True)
def probe(session: Session, args: Json, call: Call) -> Json:
    """Let systemd read a unit text under a name that nothing else uses, and say how it understood it."""
    real, name = unit_name(args["service"]), f"deployer-probe-{args['service']}.service"
    path = os.path.join(RUN_DIR, name)
    strict = ["--recursive-errors=no"] if (systemd_version() or 0) >= 250 else []
    with session.holding():
        os.makedirs(RUN_DIR, exist_ok=True)
        try:
            write_file(path, args["text"])
            verify = ask_systemd(["systemd-analyze", "verify", "--man=no", *strict, path], check=False)
            systemctl("daemon-reload")
            unit, service = busctl_all(name, "Unit"), busctl_all(name, "Service")
        finally:
            remove_file(path)
            systemctl("daemon-reload", check=False)
            systemctl("reset-failed", name, check=False)
    commands: List[Any] = service.get("ExecStart") or []
    load_error = unit.get("LoadError") or ["", ""]
    properties = {key: service[key] for key in SERVICE_PROPERTIES if key in service}
    properties.update({key: unit[key] for key in UNIT_PROPERTIES if key in unit})
    return {
        "verify": {
            "status": verify.returncode,
            "lines": [line.replace(name, real) for line in (verify.stderr + verify.stdout).splitlines()],
        },
        "argv": commands[0][1] if commands else [],
        "properties": properties,
        "load_error": load_error[1].replace(name, real) or load_error[0] or None,
        "drop_ins": deciding(args["service"], args["text"]),
    }


@operation("prune", audited=True)
def prune(session: Session, args: Json, call: Call) -> Json:
    """Remove the oldest releases beyond ``keep``; never the live one, the one live before it, or a transition's."""
    service, removed = args["service"], []
    with session.holding():
        known = manifests(service)
        live = (unit_file(live_path(service)) or {}).get("release")
        transition = read_intact(transition_path(service), TRANSITION) or {}
        spared = {live, transition.get("from"), transition.get("to")}
        spared.update(
            [item["release"] for item in known if item.get("was_live") and item["release"] != live][-1:]
        )
        folder = make_service_dir(service)
        for item in known[: max(0, len(known) - int(args["keep"]))]:
            if item["release"] not in spared:
                trash = os.path.join(folder, f".{item['release']}.{secrets.token_hex(4)}.tmp")
                os.rename(release_dir(service, item["release"]), trash)
                removed.append(item["release"])
        for name in os.listdir(folder):  # ours and what an interrupted stage left
            if name.startswith(".") and name.endswith(".tmp"):
                shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
        fsync_dir(folder)
    return {"removed": removed}
