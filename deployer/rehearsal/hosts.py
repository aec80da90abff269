"""Rehearsal hosts: real systemd, sshd and journal on the operator's own machine, to practise deploying on.

    hosts = up("default", hosts=1)          boot them (or find them booted)
    fault("default", "practice-1", "never-ready")
    powercut(hosts[0])                      lose what was not synced, boot again
    down("default")                         nothing of the set is left

All functions need root on a Linux machine (PreflightRefused otherwise) and tell their progress through ``say``.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deployer.errors import HostError, UsageError
from deployer.rehearsal import machine, sets
from deployer.rehearsal.engine.sglang.faults import NAMES
from deployer.rehearsal.engine_venv import (
    DEFAULT_VERSION,
    VERSIONS,
    needed_from_machine,
    write_engine,
)
from deployer.rehearsal.inventory import write_inventory, write_ssh_files
from deployer.rehearsal.layer import Layer
from deployer.rehearsal.model import SHARDS, write_model
from deployer.rehearsal.sets import DEFAULT_SET, HostRecord, SetRecord
from deployer.rehearsal.system import LOGINS, SSH_PORT, write_system

IMAGE_BYTES = 16 << 30
BOOT_SECONDS = 60.0
GPUS = 8
FAULTS = tuple(sorted(NAMES))
FAULTS_FILE = "/run/sglang-standin/faults.json"
SETTINGS_FILE = "/etc/sglang-standin.json"
Say = Callable[[str], None]


@dataclass(frozen=True)
class RehearsalHost:
    """One practice host. ``folder`` is its part of the set's state folder (disk image, mounts, console log)."""

    name: str
    address: str
    port: int
    set: str
    folder: Path

    @property
    def pid(self) -> int:
        """The host's PID 1 as the machine numbers it, now. HostError when the host is not running."""
        for container in machine.containers_of(self.folder / "root"):
            init = machine.init_of(container)
            if init is not None:
                return init
        raise HostError(
            f"rehearsal host {self.name} of set {self.set} is not running",
            remedy="run `deployer rehearse up`",
        )

    @property
    def running(self) -> bool:
        """Whether it has a PID 1."""
        return any(machine.init_of(pid) is not None for pid in machine.containers_of(self.folder / "root"))

    @property
    def ssh_config(self) -> Path:
        """An OpenSSH client configuration in which the host's name is enough."""
        return self.folder.parent / "ssh_config"

    @property
    def inventory(self) -> Path:
        """The set's inventory."""
        return self.folder.parent / "inventory.toml"

    @property
    def host_config(self) -> dict[str, Any]:
        """How to reach it as root: fields of an inventory's host."""
        return self.login("root")

    def login(self, user: str) -> dict[str, Any]:
        """How to reach it as ``root``, ``operator`` (sudo without a password) or ``careful`` (sudo with one)."""
        keys = self.folder.parent
        return {
            "name": self.name,
            "address": self.address,
            "port": self.port,
            "user": user,
            "identity_file": keys / "client_key",
            "known_hosts": keys / "known_hosts",
            "host_keys": "strict",
            "gpus": GPUS,
        }

    def run(self, argv: Sequence[str], *, stdin: str | None = None, timeout: float = 60.0) -> str:
        """Run a program on the host as root, beside SSH; returns its output. HostError when it fails."""
        return machine.enter(self.pid, argv, stdin=stdin, timeout=timeout)


def _silent(_: str) -> None:
    return


def up(
    set_name: str = DEFAULT_SET,
    hosts: int = 1,
    *,
    engine_version: str = DEFAULT_VERSION,
    settings: Mapping[str, object] | None = None,
    say: Say = _silent,
) -> list[RehearsalHost]:
    """Boot a set of hosts, or find it booted; returns them in order, ready for SSH.

    A set that is already up stays as it is; one with fewer hosts than asked for gets more; a host that stopped boots
    again from its disk. ``settings`` are for the stand-in engine, see `configure`. UsageError for a version it cannot
    speak or another version than the set has, HostError when something does not boot.
    """
    if engine_version not in VERSIONS:
        raise UsageError(
            f"the stand-in engine cannot speak like SGLang {engine_version}",
            remedy=f"choose one of {', '.join(VERSIONS)}",
        )
    if not 1 <= hosts <= sets.MOST_HOSTS:
        raise UsageError(f"a set has 1 to {sets.MOST_HOSTS} hosts, not {hosts}")
    machine.require_fit()
    folder = sets.set_folder(set_name)
    with sets.lock_set(set_name):
        record = sets.load_set(set_name)
        if record and record.engine_version != engine_version:
            raise UsageError(
                f"set {set_name} is there already, with SGLang {record.engine_version}",
                remedy="run `deployer rehearse down` first",
            )
        record = record or SetRecord(set_name, folder, engine_version)
        count = max(hosts, len(record.hosts))
        folder.mkdir(parents=True, exist_ok=True)
        addresses = sets.take_addresses(set_name, folder, count)
        for number, address in enumerate(addresses, start=1):
            name = f"practice-{number}"
            known = record.hosts.get(name) or HostRecord(name, address)
            record = replace(record, hosts=record.hosts | {name: known})
        record.save()
        ready = [_host(record, name) for name in record.hosts]
        started = {host.name: time.monotonic() for host in ready if not host.running}
        write_ssh_files(folder, ready, LOGINS)
        write_inventory(folder / "inventory.toml", ready)
        for host in ready:
            if host.name not in started:
                say(f"{host.name} is up already ({host.address})")
                if settings:
                    configure(host, **settings)
                continue
            image = host.folder / "disk.img"
            if not (host.folder / "complete").exists():
                say(f"{host.name}: preparing its disk and files")
                _prepare(host, engine_version, dict(settings or {}))
            say(f"{host.name}: booting from {image}")
            _boot(host)
        for host in ready:
            if host.name in started:
                _await_boot(host)
                say(
                    f"{host.name} is up at {host.address}:{host.port} ({time.monotonic() - started[host.name]:.1f} s)"
                )
        return ready


def engine_settings(version: str, settings: Mapping[str, object]) -> dict[str, object]:
    """The content of /etc/sglang-standin.json; what the keys mean, the stand-in's `settings` module tells."""
    return {"version": version, "gpus": GPUS, "shards": SHARDS, **settings}


def _host(record: SetRecord, name: str) -> RehearsalHost:
    return RehearsalHost(name, record.hosts[name].address, SSH_PORT, record.name, record.folder / name)


def _prepare(host: RehearsalHost, version: str, settings: dict[str, object]) -> None:
    """Make the host's disk with all its files; `complete` is written last."""
    _unmount(host)
    host.folder.mkdir(exist_ok=True)
    image = host.folder / "disk.img"
    machine.make_image(image, IMAGE_BYTES)
    image.chmod(0o600)
    machine.mount_image(image, host.folder / "disk")
    try:
        upper = host.folder / "disk/upper"
        upper.mkdir()
        (host.folder / "disk/work").mkdir()
        layer = Layer(upper)
        keys = host.folder.parent
        write_system(
            layer,
            name=host.name,
            address=host.address,
            host_key=(keys / f"{host.name}_host_key").read_text(),
            client_key=(keys / "client_key.pub").read_text(),
            hidden=[sets.DEFAULT_FOLDER, host.folder.parent],
        )
        write_engine(layer, version=version, settings=engine_settings(version, settings))
        write_model(layer)
    finally:
        machine.unmount_below(host.folder)
    (host.folder / "complete").write_text("")


def _boot(host: RehearsalHost) -> None:
    """Mount the host's disk and start its container; does not wait."""
    root = host.folder / "root"
    _stop(host)
    machine.mount_image(host.folder / "disk.img", host.folder / "disk")
    machine.mount_overlay(Path("/"), host.folder / "disk/upper", host.folder / "disk/work", root)
    name = f"{host.set}-{host.name}"
    machine.start_container(root, name, host.name, needed_from_machine(), host.folder / "console.log")


def _await_boot(host: RehearsalHost) -> None:
    """Wait until SSH answers and every unit of the boot has started."""
    deadline = time.monotonic() + BOOT_SECONDS
    while not (host.running and machine.ssh_answers(host.address, host.port)):
        gone = not machine.containers_of(host.folder / "root")
        if time.monotonic() > deadline or (gone and time.monotonic() > deadline - BOOT_SECONDS + 3):
            raise HostError(
                f"rehearsal host {host.name} did not boot: {_console_tail(host) or 'its console is silent'}",
                remedy=f"read {host.folder / 'console.log'}, then run `deployer rehearse down`",
            )
        time.sleep(0.05)
    state = host.run(["sh", "-c", "systemctl is-system-running --wait || true"], timeout=BOOT_SECONDS).strip()
    if state != "running":
        failed = host.run(["systemctl", "--failed", "--no-legend", "--plain"]).strip()
        raise HostError(
            f"rehearsal host {host.name} booted, but its state is `{state}`: {failed or 'no unit failed'}",
            remedy="run `deployer rehearse down`, then `deployer rehearse up` again",
        )


def _console_tail(host: RehearsalHost) -> str:
    try:
        lines = (host.folder / "console.log").read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return " | ".join(line.strip() for line in lines[-5:])


def _stop(host: RehearsalHost) -> None:
    """End the host's processes at once and unmount its disk. Works from any half-way state."""
    _kill(host)
    _unmount(host)


def _kill(host: RehearsalHost) -> None:
    containers = machine.containers_of(host.folder / "root")
    inits = [init for init in map(machine.init_of, containers) if init is not None]
    for pid in inits:
        machine.kill(pid)
    machine.wait_gone(inits)
    # systemd-nspawn ends by itself after its PID 1; one that has none (yet) is ended here.
    with contextlib.suppress(HostError):
        machine.wait_gone(containers, patience=5.0 if inits else 0.0)
    for pid in machine.containers_of(host.folder / "root"):
        machine.kill(pid)
    machine.wait_gone(containers)


def _unmount(host: RehearsalHost) -> None:
    machine.unmount_below(host.folder)
    if (host.folder / "disk.img").exists():
        machine.detach_loops(host.folder / "disk.img")
    machine.remove_control_groups(f"{host.set}-{host.name}")


def down(set_name: str = DEFAULT_SET, *, say: Say = _silent) -> bool:
    """End a set and remove everything of it; True if there was one. Works after a failed or killed `up` too."""
    machine.require_root()
    folder = sets.set_folder(set_name)
    with sets.lock_set(set_name):
        if not folder.is_dir():
            return False
        for path in sorted(folder.glob("practice-*/")):
            host = RehearsalHost(path.name, "", SSH_PORT, set_name, path)
            _stop(host)
            say(f"{host.name} is down")
        left = machine.mounts_below(folder)
        if left:
            raise HostError(f"{left[0]} is still mounted; nothing of {folder} was removed")
        shutil.rmtree(folder)
        sets.give_addresses_back(folder)
        return True


def find(set_name: str = DEFAULT_SET) -> list[RehearsalHost]:
    """The hosts of a set, running or not; [] when there is no such set."""
    record = sets.load_set(set_name)
    return [_host(record, name) for name in record.hosts] if record else []


def status(set_name: str = DEFAULT_SET) -> dict[str, Any]:
    """What there is of a set, as data: version, and each host with its address, whether it runs, and its faults."""
    record = sets.load_set(set_name)
    shown = []
    for host in find(set_name):
        running = host.running
        shown.append(
            {
                "host": host.name,
                "address": host.address,
                "port": host.port,
                "running": running,
                "pid": host.pid if running else None,
                "ssh": running and machine.ssh_answers(host.address, host.port),
                "faults": read_faults(host) if running else [],
            }
        )
    return {
        "set": set_name,
        "folder": str(sets.set_folder(set_name)),
        "engine_version": record.engine_version if record else None,
        "inventory": str(sets.set_folder(set_name) / "inventory.toml") if record else None,
        "ssh_config": str(sets.set_folder(set_name) / "ssh_config") if record else None,
        "hosts": shown,
    }


def powercut(host: RehearsalHost, *, say: Say = _silent) -> RehearsalHost:
    """Cut the host's power and boot it again. What it had not synced to its disk is lost."""
    machine.require_root()
    with sets.lock_set(host.set):
        init = host.pid
        machine.kill(init)
        machine.cut_power(host.folder / "disk")
        say(f"{host.name}: power is off")
        _boot(host)
        _await_boot(host)
        say(f"{host.name} is up again")
    return host


def reboot(host: RehearsalHost, *, say: Say = _silent) -> RehearsalHost:
    """Reboot the host in order: units are stopped and everything is synced."""
    machine.require_root()
    with sets.lock_set(host.set):
        init = host.pid
        host.run(["systemctl", "--no-block", "reboot"])
        deadline = time.monotonic() + BOOT_SECONDS
        while machine.process_started(init) is not None:
            if time.monotonic() > deadline:
                raise HostError(f"rehearsal host {host.name} does not shut down")
            time.sleep(0.05)
        say(f"{host.name} has shut down")
        if not machine.containers_of(host.folder / "root"):
            _boot(host)
        _await_boot(host)
        say(f"{host.name} is up again")
    return host


def fault(
    set_name: str, host_name: str | None, name: str, options: Mapping[str, object] | None = None
) -> list[dict[str, Any]]:
    """Make the stand-in engine of a host fail in one more way; returns the faults now in force.

    ``clear`` removes all faults. A fault given again has its new options. Without ``host_name`` it is the set's first
    host. What the faults and their options are, the stand-in's `faults` module tells.
    """
    machine.require_root()
    hosts = {host.name: host for host in find(set_name)}
    if not hosts:
        raise UsageError(
            f"there is no set {set_name} of rehearsal hosts", remedy="run `deployer rehearse up`"
        )
    if host_name is not None and host_name not in hosts:
        raise UsageError(
            f"set {set_name} has no host {host_name}", remedy=f"choose one of {', '.join(hosts)}"
        )
    if name != "clear" and name not in FAULTS:
        raise UsageError(f"there is no fault {name}", remedy=f"choose one of {', '.join((*FAULTS, 'clear'))}")
    host = hosts[host_name] if host_name else next(iter(hosts.values()))
    kept = [entry for entry in read_faults(host) if entry.get("name") != name]
    faults = [] if name == "clear" else [*kept, {"name": name, **(options or {})}]
    if name == "clear":
        _path(host, FAULTS_FILE + ".taken").unlink(missing_ok=True)
    _write_json(_path(host, FAULTS_FILE), {"faults": faults})
    return faults


def read_faults(host: RehearsalHost) -> list[dict[str, Any]]:
    """The faults in force on a running host, each with its name and options."""
    try:
        faults: list[dict[str, Any]] = json.loads(_path(host, FAULTS_FILE).read_text())["faults"]
    except (FileNotFoundError, ValueError, KeyError):
        return []
    return faults


def configure(host: RehearsalHost, **settings: object) -> None:
    """Set the stand-in engine of a running host to these settings and otherwise its defaults, from its next start on."""
    path = _path(host, SETTINGS_FILE)
    _write_json(path, engine_settings(json.loads(path.read_text())["version"], settings))


def _path(host: RehearsalHost, path: str) -> Path:
    """A file of the running host, as the machine sees it (/run included)."""
    return Path(f"/proc/{host.pid}/root{path}")


def _write_json(path: Path, data: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(data, indent=2) + "\n")
    fresh.replace(path)


__all__ = [
    "FAULTS",
    "RehearsalHost",
    "configure",
    "down",
    "fault",
    "find",
    "powercut",
    "reboot",
    "status",
    "up",
]
