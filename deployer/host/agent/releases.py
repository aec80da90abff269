"""Operations on releases: stage, update, probe, prune. A release is a folder that never changes hands half-written."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
from typing import Any, List, Optional, Tuple

from .base import Call, Fail, Json, checked, operation
from .files import append, fsync_dir, read_text, remove_file
from .lease import Session
from .service import Service, keys_of

#: What `probe` reports of how systemd understood the unit.
UNIT_PROPERTIES = "LoadState FragmentPath DropInPaths StartLimitIntervalUSec StartLimitBurst After Wants"
SERVICE_PROPERTIES = (
    "Type Environment EnvironmentFiles User Group WorkingDirectory Slice "
    "Restart RestartUSec TimeoutStartUSec TimeoutStopUSec SuccessExitStatus "
    "KillMode KillSignal FinalKillSignal SendSIGKILL OOMPolicy OOMScoreAdjust "
    "LimitNOFILE LimitMEMLOCK LimitCORE IOAccounting NoNewPrivileges "
    "LogRateLimitIntervalUSec LogRateLimitBurst"
)
#: Settings that make a unit run in another way, whether or not our text sets them. So do all that begin with Exec.
DECIDED = (
    "User Group Type KillMode KillSignal Environment EnvironmentFile PassEnvironment UnsetEnvironment "
    "WorkingDirectory Restart TimeoutStartSec TimeoutStopSec RootDirectory"
)


def file_mode(file: Json) -> int:
    value = file.get("mode", 0o644)
    return int(value, 8) if isinstance(value, str) else int(value)


def account(user: Optional[str]) -> Optional[Tuple[int, int]]:
    if not user:
        return None
    try:
        entry = pwd.getpwnam(user)
    except KeyError as error:
        raise Fail("no-user", f"the host has no account {user}") from error
    return entry.pw_uid, entry.pw_gid


def make_folders(service: Service) -> None:
    os.makedirs(service.releases, mode=0o755, exist_ok=True)


def trash_path(service: Service, release: str) -> str:
    """A folder that is not a release, beside the releases; `prune` removes those that were left behind."""
    return os.path.join(service.releases, f".{release}.{secrets.token_hex(4)}.tmp")


@operation("stage", audited=True)
def stage(session: Session, args: Json, call: Call) -> Json:
    service, release = Service(session.machine, args["service"]), args["release"]
    final, owner = service.release_dir(release), account(args.get("user"))
    with session.holding():
        make_folders(service)
        if os.path.lexists(final):
            raise Fail("exists", f"{service.name} already has a release {release}", path=final)
        temporary = trash_path(service, release)
        os.mkdir(temporary, 0o755)
        try:
            for name, file in args["files"].items():
                path, mode = os.path.join(temporary, checked(name, "file")), file_mode(file)
                session.machine.write_file(path, file["text"], mode, None if mode & 0o077 else owner)
            manifest = dict(args["manifest"], release=release)
            session.machine.write_json(os.path.join(temporary, "manifest.json"), manifest)
            os.rename(temporary, final)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        fsync_dir(service.releases)
        fsync_dir(service.folder)
    return {"path": final}


def update_manifest(service: Service, release: str, patch: Json) -> Json:
    """Merge ``patch`` over a manifest's top level; to be called under the lock."""
    manifest = service.manifest(release)
    if patch:
        manifest.update(patch)
        service.machine.write_json(service.manifest_path(release), manifest)
    return manifest


@operation("release.update", audited=True)
def release_update(session: Session, args: Json, call: Call) -> Json:
    service, release = Service(session.machine, args["service"]), args["release"]
    folder = service.release_dir(release)
    with session.holding():
        manifest = update_manifest(service, release, args.get("patch") or {})
        for name, file in (args.get("files") or {}).items():
            whole = {"text": file} if isinstance(file, str) else file
            path = os.path.join(folder, checked(name, "file"))
            session.machine.write_file(path, whole["text"], file_mode(whole))
        for name, text in (args.get("append") or {}).items():
            append(os.path.join(folder, checked(name, "file")), text)
    return {"manifest": manifest}


def deciding(service: Service, text: str) -> List[Json]:
    """The real unit's drop-ins that set what the unit text sets, or what else makes it run in another way."""
    decided = {*DECIDED.split(), *keys_of(text)}
    drop_ins = []
    for path in service.machine.drop_ins(service.unit):
        keys = [key for key in keys_of(read_text(path) or "") if key in decided or key.startswith("Exec")]
        if keys:
            drop_ins.append({"path": path, "keys": keys})
    return drop_ins


@operation("probe", audited=True)
def probe(session: Session, args: Json, call: Call) -> Json:
    """Let systemd read a unit text under a name that nothing else uses, and report how it understood it."""
    machine, service = session.machine, Service(session.machine, args["service"])
    name = f"deployer-probe-{service.name}.service"
    path = os.path.join(machine.run_dir, name)
    with session.holding():
        os.makedirs(machine.run_dir, exist_ok=True)
        try:
            machine.write_file(path, args["text"])
            verify = machine.verify(path)
            machine.systemctl("daemon-reload")
            of_unit, of_service = machine.properties(name, "Unit"), machine.properties(name, "Service")
        finally:
            remove_file(path)
            machine.systemctl("daemon-reload", check=False)
            machine.systemctl("reset-failed", name, check=False)
    commands: List[Any] = of_service.get("ExecStart") or []
    load_error = of_unit.get("LoadError") or ["", ""]
    properties = {key: of_service[key] for key in SERVICE_PROPERTIES.split() if key in of_service}
    properties.update({key: of_unit[key] for key in UNIT_PROPERTIES.split() if key in of_unit})
    lines = (verify.stderr + verify.stdout).splitlines()
    return {
        "verify": {
            "status": verify.returncode,
            "lines": [line.replace(name, service.unit) for line in lines],
        },
        "argv": commands[0][1] if commands else [],
        "properties": properties,
        "load_error": load_error[1].replace(name, service.unit) or load_error[0] or None,
        "drop_ins": deciding(service, args["text"]),
    }


@operation("prune", audited=True)
def prune(session: Session, args: Json, call: Call) -> Json:
    """Remove the oldest releases beyond ``keep``; never the live one, the one live before it, or a transition's."""
    service, removed = Service(session.machine, args["service"]), []
    with session.holding():
        make_folders(service)
        manifests, live = service.manifests(), service.live_release()
        transition = service.transition() or {}
        before = [item["release"] for item in manifests if item.get("was_live") and item["release"] != live]
        spared = {live, transition.get("from"), transition.get("to"), *before[-1:]}
        for item in manifests[: max(0, len(manifests) - int(args["keep"]))]:
            if item["release"] not in spared:
                os.rename(service.release_dir(item["release"]), trash_path(service, item["release"]))
                removed.append(item["release"])
        for name in os.listdir(service.releases):  # ours, and what an interrupted stage left
            if name.startswith(".") and name.endswith(".tmp"):
                shutil.rmtree(os.path.join(service.releases, name), ignore_errors=True)
        fsync_dir(service.releases)
    return {"removed": removed}
