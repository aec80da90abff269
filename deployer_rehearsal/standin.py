"""Settings and faults of the stand-in engine on a practice host."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deployer.errors import HostError, UsageError
from deployer_rehearsal import machine
from deployer_rehearsal.checks import check_fault, check_settings
from deployer_rehearsal.engine.sglang.faults import NAMES
from deployer_rehearsal.engine.sglang.gpustate import shared_folder
from deployer_rehearsal.host import GPUS, RehearsalHost, find
from deployer_rehearsal.model import SHARDS

FAULTS = tuple(sorted(NAMES))
FAULTS_FILE = "/run/sglang-standin/faults.json"
SETTINGS_FILE = "/etc/sglang-standin.json"


def fault(
    set_name: str, host_name: str | None, name: str, options: Mapping[str, object] | None = None
) -> list[dict[str, Any]]:
    """Make the stand-in engine of a host fail in one more way; return the faults now in force.

    ``clear`` removes all faults. A fault given again gets the new options. Without ``host_name`` the set's first host
    is meant. The stand-in's `faults` module lists the faults and their options; raise UsageError for any other.
    """
    machine.require_root()
    if name != "clear" and name not in FAULTS:
        raise UsageError(f"unknown fault {name}", remedy=f"choose one of {', '.join((*FAULTS, 'clear'))}")
    if name != "clear":
        check_fault(name, options or {})
    elif options:
        raise UsageError("`fault clear` takes no options", remedy="omit --set")
    hosts = {host.name: host for host in find(set_name)}
    if not hosts:
        raise UsageError(f"there are no practice hosts in set {set_name}", remedy="run `deployer rehearse up`")
    if host_name is not None and host_name not in hosts:
        raise UsageError(f"set {set_name} has no host {host_name}", remedy=f"choose one of {', '.join(hosts)}")
    host = hosts[host_name] if host_name else next(iter(hosts.values()))
    _require_standin(host)
    kept = [entry for entry in read_faults(host) if entry.get("name") != name]
    faults = [] if name == "clear" else [*kept, {"name": name, **(options or {})}]
    if name == "clear":
        _path(host, FAULTS_FILE + ".taken").unlink(missing_ok=True)
    shared_folder(_path(host, FAULTS_FILE).parent)
    taken = _path(host, FAULTS_FILE + ".taken")
    taken.touch()
    taken.chmod(0o666)  # engines run as any user
    _write_json(_path(host, FAULTS_FILE), {"faults": faults})
    return faults


def read_faults(host: RehearsalHost) -> list[dict[str, Any]]:
    """Return the faults in force on a host, each with its name and options; none if it is not running."""
    try:
        faults: list[dict[str, Any]] = json.loads(_path(host, FAULTS_FILE).read_text())["faults"]
    except (HostError, OSError, ValueError, KeyError):  # not running, or none
        return []
    return faults


def configure(host: RehearsalHost, **settings: object) -> None:
    """Give the stand-in engine of a running host these settings, otherwise its defaults, from its next start on.

    Raise UsageError for an unknown setting or an invalid value, without changing anything.
    """
    _require_standin(host)
    check_settings(settings)
    shared_folder(_path(host, FAULTS_FILE).parent)
    path = _path(host, SETTINGS_FILE)
    _write_json(path, engine_settings(json.loads(path.read_text())["version"], settings))


def _require_standin(host: RehearsalHost) -> None:
    if host.engine != "standin":
        raise UsageError(
            f"{host.name} of set {host.set} runs the real SGLang, which takes no settings or faults",
            remedy="use a set with the stand-in engine: `deployer rehearse up`",
        )


def _path(host: RehearsalHost, path: str) -> Path:
    """Return a file of the running host as the machine sees it, /run included."""
    return Path(f"/proc/{host.pid}/root{path}")


def _write_json(path: Path, data: object) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(data, indent=2) + "\n")
    fresh.chmod(0o644)
    fresh.replace(path)


def engine_settings(version: str, settings: Mapping[str, object]) -> dict[str, object]:
    """Return the content of the settings file; the stand-in's `settings` module explains the keys."""
    return {"version": version, "gpus": GPUS, "shards": SHARDS, **settings}
