"""Practice hosts: real systemd, sshd and journal on the operator's own machine, to practise deploying on.

    hosts = up("default", hosts=1)          boot them (or find them booted)
    fault("default", "practice-1", "never-ready")
    powercut(hosts[0])                      lose what was not synced, boot again
    down("default")                         nothing of the set is left

All functions need root on a Linux machine (else PreflightRefused) and report progress through ``say``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from deployer.errors import HostError, UsageError
from deployer_rehearsal import container, machine, sets
from deployer_rehearsal.checks import check_settings
from deployer_rehearsal.engine_venv import (
    DEFAULT_VERSION,
    VERSIONS,
    needed_from_machine,
    renew_engine,
    write_engine,
)
from deployer_rehearsal.host import RehearsalHost, find, host_of
from deployer_rehearsal.inventory import write_inventory, write_ssh_files
from deployer_rehearsal.layer import Layer
from deployer_rehearsal.model import write_model
from deployer_rehearsal.real_engine import PYTHON, real_engine_binds, write_real_engine
from deployer_rehearsal.sets import DEFAULT_SET, HostRecord, SetRecord
from deployer_rehearsal.sglang_env import VERSION as SGLANG_VERSION
from deployer_rehearsal.sglang_env import describe, ensure, environment, require_memory
from deployer_rehearsal.sglang_env import ready as prepared
from deployer_rehearsal.standin import FAULTS, configure, engine_settings, fault, read_faults
from deployer_rehearsal.system import LOGINS, SSH_PORT, write_system

IMAGE_BYTES = 16 << 30
BOOT_SECONDS = 120.0
Say = Callable[[str], None]


def _silent(_: str) -> None:
    return


def up(
    set_name: str = DEFAULT_SET,
    hosts: int = 1,
    *,
    engine: str = "standin",
    engine_version: str | None = None,
    settings: Mapping[str, object] | None = None,
    say: Say = _silent,
) -> list[RehearsalHost]:
    """Boot a set of hosts, or find it booted; return them in order, ready for SSH.

    A set that is up stays as it is; one with fewer hosts than requested gets more; a host that stopped boots again
    from its disk. ``engine`` is ``standin`` or ``sglang``: the real one on the CPU, prepared first if necessary.
    ``settings`` are for the stand-in engine, see `configure`. Raise UsageError for an invalid setting, or for another
    engine or version than the set has; PreflightRefused if the machine is not fit; HostError if something cannot be
    prepared or does not boot.
    """
    engine_version = _version(engine, engine_version, settings or {})
    if not 1 <= hosts <= sets.MOST_HOSTS:
        raise UsageError(f"a set has 1 to {sets.MOST_HOSTS} hosts, not {hosts}")
    machine.require_fit()
    folder = sets.set_folder(set_name)
    sets.require_set(folder)
    if engine == "sglang":
        if not any(host.running for host in find(set_name)):
            require_memory(hosts)
        ensure(say)
    with sets.lock_set(set_name):
        record = _recorded(set_name, folder, hosts, engine, engine_version)
        if engine == "sglang" and not prepared(environment()):
            raise HostError(
                "the prepared SGLang was removed meanwhile", remedy="run the same command again to prepare it"
            )
        ready = [host_of(record, name) for name in record.hosts]
        started = {host.name: time.monotonic() for host in ready if not host.running}
        if engine == "sglang" and started:
            require_memory(len(started))
        write_ssh_files(folder, ready, LOGINS)
        write_inventory(folder / "inventory.toml", ready)
        for host in ready:
            if host.name not in started:
                say(f"{host.name} is already up ({host.address})")
                if settings:
                    configure(host, **settings)
                continue
            if not (host.folder / "complete").exists():
                say(f"{host.name}: preparing its disk and files")
                _prepare(host, engine_version, dict(settings or {}))
            say(f"{host.name}: booting from {host.folder / 'disk.img'}")
            _boot(host)
        for host in ready:
            if host.name in started:
                _await_boot(host)
                if settings:
                    configure(host, **settings)
                seconds = time.monotonic() - started[host.name]
                say(f"{host.name} is up at {host.address}:{host.port} ({seconds:.1f} s)")
        return ready


def _recorded(set_name: str, folder: Path, hosts: int, engine: str, version: str) -> SetRecord:
    """Return the saved record of a set with so many hosts or more. Raise UsageError if it has another engine."""
    record = sets.load_set(set_name) or SetRecord(set_name, folder, version, engine=engine)
    if (record.engine, record.engine_version) != (engine, version):
        kind = "the stand-in for " if record.engine == "standin" else "the real "
        raise UsageError(
            f"set {set_name} already exists, with {kind}SGLang {record.engine_version}",
            remedy=f"run `deployer rehearse down --name {set_name}` first",
        )
    folder.mkdir(parents=True, exist_ok=True)
    addresses = sets.take_addresses(set_name, folder, max(hosts, len(record.hosts)))
    names = [f"practice-{number}" for number in range(1, len(addresses) + 1)]
    fresh = {name: HostRecord(name, address) for name, address in zip(names, addresses, strict=True)}
    record = replace(record, hosts=fresh | record.hosts)
    record.save()
    return record


def _version(engine: str, version: str | None, settings: Mapping[str, object]) -> str:
    """Return an engine's SGLang version, by default the usual one. Raise UsageError for what it does not accept."""
    if engine == "standin":
        if version is not None and version not in VERSIONS:
            raise UsageError(
                f"the stand-in engine cannot speak like SGLang {version}",
                remedy=f"choose one of {', '.join(VERSIONS)}",
            )
        check_settings(settings)
        return version or DEFAULT_VERSION
    if engine != "sglang":
        raise UsageError(f"unknown engine {engine}", remedy="choose standin or sglang")
    if settings:
        raise UsageError(f"{', '.join(settings)}: only the stand-in engine has settings", remedy="omit --set")
    if version not in (None, SGLANG_VERSION):
        raise UsageError(
            f"the real engine is SGLang {SGLANG_VERSION}, not {version}",
            remedy=f"omit --sglang, or give --sglang {SGLANG_VERSION}",
        )
    return SGLANG_VERSION


def _prepare(host: RehearsalHost, version: str, settings: dict[str, object]) -> None:
    """Create the host's disk with all its files; write `complete` last."""
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
            hidden=[sets.DEFAULT_FOLDER, host.folder.parent, sets.engines_folder()],
            python="/opt/sglang/bin/python3" if host.engine == "standin" else PYTHON,
        )
        if host.engine == "sglang":
            write_real_engine(layer)
        else:
            write_engine(layer, version=version, settings=engine_settings(version, settings))
            write_model(layer)
    finally:
        machine.unmount_below(host.folder)
    (host.folder / "complete").write_text("")


def _boot(host: RehearsalHost) -> None:
    """Mount the host's disk and start its container, without waiting."""
    root = host.folder / "root"
    _stop(host)
    machine.mount_image(host.folder / "disk.img", host.folder / "disk")
    if host.engine == "standin":
        renew_engine(Layer(host.folder / "disk/upper"))
    machine.mount_overlay(Path("/"), host.folder / "disk/upper", host.folder / "disk/work", root)
    name = f"{host.set}-{host.name}"
    container.start(root, name, host.name, _binds(host.engine), host.folder / "console.log")


def _binds(engine: str) -> list[tuple[Path, str]]:
    """Return the folders of the machine that hosts with an engine see, and where."""
    if engine == "sglang":
        return real_engine_binds()
    return [(path, str(path)) for path in needed_from_machine()]


def _await_boot(host: RehearsalHost) -> None:
    """Wait until SSH answers and every unit of the boot has started. Raise HostError if one fails."""
    deadline = time.monotonic() + BOOT_SECONDS
    while not (host.running and machine.ssh_answers(host.address, host.port)):
        gone = not container.containers_of(host.folder / "root")
        if time.monotonic() > deadline or (gone and time.monotonic() > deadline - BOOT_SECONDS + 3):
            raise HostError(
                f"practice host {host.name} did not boot: {_console_tail(host) or 'its console is silent'}",
                remedy=f"read {host.folder / 'console.log'}, then run `deployer rehearse down`",
            )
        time.sleep(0.05)
    state = host.run(["sh", "-c", "systemctl is-system-running --wait || true"], timeout=BOOT_SECONDS).strip()
    if state != "running":
        failed = host.run(["systemctl", "--failed", "--no-legend", "--plain"]).strip()
        raise HostError(
            f"practice host {host.name} booted, but its state is `{state}`: {failed or 'no unit failed'}",
            remedy="run `deployer rehearse down`, then `deployer rehearse up` again",
        )


def _console_tail(host: RehearsalHost) -> str:
    try:
        lines = (host.folder / "console.log").read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return " | ".join(line.strip() for line in lines[-5:])


def _stop(host: RehearsalHost) -> None:
    """Kill the host's processes and unmount its disk, whatever state a killed command left it in."""
    _kill(host)
    _unmount(host)


def _kill(host: RehearsalHost) -> None:
    containers = container.containers_of(host.folder / "root")
    inits = [init for init in map(container.init_of, containers) if init is not None]
    for pid in inits:
        container.kill(pid)
    container.wait_gone(inits)
    # systemd-nspawn ends by itself after its PID 1; one that has none (yet) is killed here.
    with contextlib.suppress(HostError):
        container.wait_gone(containers, patience=5.0 if inits else 0.0)
    for pid in container.containers_of(host.folder / "root"):
        container.kill(pid)
    container.wait_gone(containers)


def _unmount(host: RehearsalHost) -> None:
    machine.unmount_below(host.folder)
    if (host.folder / "disk.img").exists():
        machine.detach_loops(host.folder / "disk.img")
    container.remove_control_groups(f"{host.set}-{host.name}")


def down(set_name: str = DEFAULT_SET, *, say: Say = _silent) -> bool:
    """Remove a set with everything that belongs to it; return whether it existed. Works after a killed `up`, too."""
    machine.require_root()
    folder = sets.set_folder(set_name)
    with sets.lock_set(set_name):
        if not folder.is_dir():
            return False
        sets.require_set(folder)
        for path in sorted(folder.glob("practice-*/")):
            host = RehearsalHost(path.name, "", SSH_PORT, set_name, path)
            _stop(host)
            say(f"{host.name} is down")
        left = machine.mounts_below(folder)
        if left:
            raise HostError(f"{left[0]} is still mounted; nothing of {folder} was removed")
        sets.remove_set(folder)
        sets.give_addresses_back(folder)
        return True


def status(set_name: str = DEFAULT_SET) -> dict[str, Any]:
    """Return a set as data: its engine, and each host with its address, whether it runs, and its faults."""
    record = sets.load_set(set_name)
    folder = sets.set_folder(set_name)
    shown = []
    for host in find(set_name):
        init = host.init
        shown.append(
            {
                "host": host.name,
                "address": host.address,
                "port": host.port,
                "running": init is not None,
                "pid": init,
                "ssh": init is not None and machine.ssh_answers(host.address, host.port),
                "faults": read_faults(host),
            }
        )
    return {
        "set": set_name,
        "folder": str(folder),
        "engine": record.engine if record else None,
        "engine_version": record.engine_version if record else None,
        "inventory": str(folder / "inventory.toml") if record else None,
        "ssh_config": str(folder / "ssh_config") if record else None,
        "hosts": shown,
        "sets": sets.all_sets(),
        "prepared": describe(),
    }


def sets_with(engine: str) -> list[str]:
    """Return the names of the sets with an engine, running or not."""
    records = [sets.load_set(name) for name in sets.all_sets()]
    return [record.name for record in records if record and record.engine == engine]


def powercut(host: RehearsalHost, *, say: Say = _silent) -> RehearsalHost:
    """Cut the host's power and boot it again: what it had not synced to its disk is lost."""
    machine.require_root()
    with sets.lock_set(host.set):
        init = host.pid
        container.kill(init)
        machine.cut_power(host.folder / "disk")
        say(f"{host.name}: power is off")
        _boot(host)
        _await_boot(host)
        say(f"{host.name} is up again")
    return host


def reboot(host: RehearsalHost, *, say: Say = _silent) -> RehearsalHost:
    """Reboot the host in an orderly way: units are stopped and everything is synced."""
    machine.require_root()
    with sets.lock_set(host.set):
        init = host.pid
        host.run(["systemctl", "--no-block", "reboot"])
        deadline = time.monotonic() + BOOT_SECONDS
        while container.process_started(init) is not None:
            if time.monotonic() > deadline:
                raise HostError(f"practice host {host.name} does not shut down")
            time.sleep(0.05)
        say(f"{host.name} has shut down")
        # systemd-nspawn either ends now or boots again by itself; on a busy machine it takes its time to do so.
        while container.containers_of(host.folder / "root") and not host.running:
            if time.monotonic() > deadline:
                raise HostError(f"practice host {host.name} has shut down, but systemd-nspawn does not end")
            time.sleep(0.05)
        if not host.running:
            _boot(host)
        _await_boot(host)
        say(f"{host.name} is up again")
    return host


__all__ = [
    "FAULTS",
    "RehearsalHost",
    "configure",
    "down",
    "fault",
    "find",
    "powercut",
    "read_faults",
    "reboot",
    "status",
    "up",
]
