"""Practice hosts for real: what boots there, who gets in, and what survives a power cut."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployer.errors import HostError, UsageError
from deployer_rehearsal import container, hosts, machine, sets
from deployer_rehearsal.engine_venv import ENGINE_PYTHON
from deployer_rehearsal.hosts import RehearsalHost
from deployer_rehearsal.model import MODEL, SHARDS
from deployer_rehearsal.system import PASSWORD
from tests.patience import PATIENCE

OWN_SET = f"test-{os.getpid()}-own"


def ssh(host: RehearsalHost, command: str, user: str = "root", stdin: str = "") -> str:
    """Run a command through the machine's own OpenSSH client."""
    done = subprocess.run(
        ["ssh", "-F", str(host.ssh_config), f"{user}@{host.name}", command],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def own_set() -> Iterator[str]:
    """The name of a set that only this test uses; nothing of it is left afterwards."""
    yield OWN_SET
    hosts.down(OWN_SET)
    assert not left_of(OWN_SET)


def left_of(name: str) -> list[str]:
    """Mounts, loop devices, containers, folders and locks of a set that still exist."""
    folder = sets.set_folder(name)
    loops = machine.run(["losetup", "--noheadings", "--list", "--output", "BACK-FILE"])
    return [
        *map(str, machine.mounts_below(folder)),
        *(line for line in loops.splitlines() if f"{folder}/" in line),
        *(f"container {pid}" for pid in container.containers_of(folder / "practice-1" / "root")),
        *(str(path) for path in container.group_paths(f"{name}-practice-1") if path.exists()),
        *([str(folder)] if folder.exists() else []),
        *map(str, Path("/run/deployer-rehearsal").glob(f"set-{name}.lock")),
    ]


def test_ssh_reaches_a_running_systemd(fresh_host: RehearsalHost) -> None:
    assert ssh(fresh_host, "systemctl is-system-running") == "running"
    assert ssh(fresh_host, "hostname") == fresh_host.name
    assert ssh(fresh_host, "cat /proc/1/comm") == "systemd"
    assert (
        ssh(fresh_host, "cat /proc/sys/kernel/random/boot_id")
        != Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    )


def test_no_unit_of_the_machine_runs(fresh_host: RehearsalHost) -> None:
    listing = ssh(fresh_host, "systemctl list-units --type=service --state=running --no-legend --plain")
    running = {line.split()[0] for line in listing.splitlines()}
    ours = {"dbus.service", "rehearsal-sshd.service", "systemd-journald.service", "systemd-logind.service"}
    assert ours <= running
    assert not {name for name in running - ours if not name.startswith(("user@", "systemd-"))}
    timers = ssh(fresh_host, "systemctl list-timers --no-legend")
    assert timers == ""


def test_temporary_files_of_the_machine_are_out_of_reach(fresh_host: RehearsalHost, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("kept")
    assert ssh(fresh_host, f"test -e {mine} || echo unseen; touch /tmp/of-the-host") == "unseen"
    assert mine.read_text() == "kept"
    assert not Path("/tmp/of-the-host").exists()


def test_what_the_host_writes_is_not_on_the_machine(fresh_host: RehearsalHost) -> None:
    ssh(fresh_host, "echo x > /usr/local/lib/systemd/system/sglang-x.service; rm /etc/os-release")
    assert not Path("/usr/local/lib/systemd/system/sglang-x.service").exists()
    assert Path("/etc/os-release").exists()
    ssh(fresh_host, "cp /usr/lib/os-release /etc/os-release")


def test_three_ways_to_root(fresh_host: RehearsalHost) -> None:
    assert ssh(fresh_host, "id -u") == "0"
    assert ssh(fresh_host, "id -u; sudo -n id -u", user="operator").split() == ["7701", "0"]
    assert ssh(fresh_host, "sudo -n true || echo refused", user="careful") == "refused"
    assert ssh(fresh_host, "sudo -k -S -p '' id -u", user="careful", stdin=PASSWORD + "\n") == "0"


def test_a_stranger_is_not_let_in(fresh_host: RehearsalHost, tmp_path: Path) -> None:
    sets.make_key(tmp_path / "stranger", "stranger")
    options = [
        "-o",
        f"IdentityFile={tmp_path / 'stranger'}",
        "-o",
        "IdentitiesOnly=yes",
        "-o",
        "BatchMode=yes",
    ]
    known = ["-o", f"UserKnownHostsFile={fresh_host.ssh_config.parent / 'known_hosts'}"]
    done = subprocess.run(
        ["ssh", "-F", "/dev/null", *options, *known, "-p", "2222", f"root@{fresh_host.address}", "true"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 255
    assert "Permission denied" in done.stderr


def test_the_engine_and_the_model_are_there(fresh_host: RehearsalHost) -> None:
    question = "import importlib.metadata as m, httpx, sglang; print(m.version('sglang'))"
    for user in ("root", "operator"):
        assert ssh(fresh_host, f'{ENGINE_PYTHON} -c "{question}"', user=user) == "0.5.12.post1"
    assert ssh(fresh_host, f"ls {MODEL}/*.safetensors | wc -l") == str(SHARDS)
    blocks = int(ssh(fresh_host, f"du -sk {MODEL}").split()[0])
    assert blocks < 2048, "shards must take no space"


def test_a_power_cut_loses_what_was_not_synced(fresh_host: RehearsalHost) -> None:
    ssh(
        fresh_host,
        "mkdir -p /var/lib/deployer && cd /var/lib/deployer && echo old > pointer && sync"
        " && echo new > fresh && sync fresh && mv fresh pointer"
        " && echo never > unsynced && touch /run/volatile",
    )
    before = ssh(fresh_host, "cat /proc/sys/kernel/random/boot_id")
    hosts.powercut(fresh_host)
    assert ssh(fresh_host, "cat /proc/sys/kernel/random/boot_id") != before
    assert ssh(fresh_host, "cat /var/lib/deployer/pointer") == "old", "the folder was not synced after the rename"
    assert ssh(fresh_host, "ls /run/volatile /var/lib/deployer/unsynced 2>/dev/null || true") == ""


def test_a_power_cut_keeps_what_was_synced(fresh_host: RehearsalHost) -> None:
    ssh(
        fresh_host,
        "mkdir -p /var/lib/deployer && cd /var/lib/deployer && echo old > pointer && sync"
        " && echo new > fresh && sync fresh && mv fresh pointer && sync /var/lib/deployer",
    )
    hosts.powercut(fresh_host)
    assert ssh(fresh_host, "cat /var/lib/deployer/pointer") == "new"
    assert ssh(fresh_host, "systemctl is-system-running") == "running"


def test_an_enabled_unit_starts_after_a_reboot_and_one_in_run_is_gone(fresh_host: RehearsalHost) -> None:
    unit = "[Service]\\nExecStart=/bin/sleep infinity\\n[Install]\\nWantedBy=multi-user.target\\n"
    ssh(
        fresh_host,
        f"printf '{unit}' > /usr/local/lib/systemd/system/sglang-a.service"
        f" && printf '{unit}' > /run/systemd/system/sglang-b.service"
        " && systemctl daemon-reload && systemctl enable sglang-a 2>&1 && systemctl start sglang-b",
    )
    hosts.reboot(fresh_host)
    assert ssh(fresh_host, "systemctl is-active sglang-a; systemctl is-active sglang-b || true").split() == [
        "active",
        "inactive",
    ]
    assert ssh(fresh_host, "stat -c %a /run/sglang-standin") == "1777"
    assert len(ssh(fresh_host, "journalctl --list-boots --quiet").splitlines()) >= 2


def test_faults_are_written_where_the_engine_reads_them(fresh_host: RehearsalHost) -> None:
    hosts.fault(fresh_host.set, None, "slow", {"percent": 30})
    hosts.fault(fresh_host.set, fresh_host.name, "never-ready")
    hosts.fault(fresh_host.set, None, "slow", {"percent": 40})
    question = (
        "import pathlib; from sglang.faults import read_faults;"
        " print(read_faults(pathlib.Path('/run/sglang-standin/faults.json')))"
    )
    seen = ssh(fresh_host, f'{ENGINE_PYTHON} -c "{question}"')
    assert seen == "[{'name': 'never-ready'}, {'name': 'slow', 'percent': 40}]"
    assert hosts.fault(fresh_host.set, None, "clear") == []
    assert hosts.read_faults(fresh_host) == []
    with pytest.raises(UsageError, match="unknown fault"):
        hosts.fault(fresh_host.set, None, "melt")
    with pytest.raises(UsageError, match="no host"):
        hosts.fault(fresh_host.set, "practice-9", "slow")


def test_settings_of_the_engine_hold_until_others_are_given(fresh_host: RehearsalHost) -> None:
    question = "import sglang.settings as s; got = s.load_settings(); print(got.scale, got.speed, got.gpus, got.shards)"
    asked = f'{ENGINE_PYTHON} -c "{question}"'
    assert ssh(fresh_host, asked) == "0.25 1.0 8 64"
    for wrong in ({"speed": "abc"}, {"sped": 4}):
        with pytest.raises(UsageError, match="speed"):
            hosts.up(fresh_host.set, settings=wrong)
    assert ssh(fresh_host, asked) == "0.25 1.0 8 64"
    hosts.configure(fresh_host, speed=4)
    assert ssh(fresh_host, asked) == "1.0 4.0 8 64"
    hosts.up(fresh_host.set, settings={"scale": 0.5})
    assert ssh(fresh_host, asked) == "0.5 1.0 8 64"


def test_two_sets_at_once_and_the_others_are_left_alone(fresh_host: RehearsalHost, own_set: str) -> None:
    said: list[str] = []
    others = hosts.up(own_set, 2, engine_version="0.5.23", say=said.append)
    addresses = {host.address for host in [*others, fresh_host]}
    assert len(addresses) == 3
    assert (
        ssh(others[0], f"{ENGINE_PYTHON} -c 'import sglang.settings as s; print(s.load_settings().version)'")
        == "0.5.23"
    )
    again: list[str] = []
    assert hosts.up(own_set, 1, engine_version="0.5.23", say=again.append) == others
    assert again == [f"{host.name} is already up ({host.address})" for host in others]
    with pytest.raises(UsageError, match=r"with the stand-in for SGLang 0\.5\.23"):
        hosts.up(own_set, 1)
    before = fresh_host.pid
    hosts.powercut(others[0])
    assert ssh(others[0], "systemctl is-system-running") == "running"
    assert hosts.down(own_set)
    assert left_of(own_set) == []
    assert not hosts.down(own_set)
    assert fresh_host.pid == before
    assert ssh(fresh_host, "systemctl is-system-running") == "running"


@pytest.mark.parametrize("seconds", [0.1, 0.2, 0.35])
def test_down_works_after_up_was_killed(own_set: str, seconds: float) -> None:
    program = f"from deployer_rehearsal import hosts; hosts.up({own_set!r}, say=lambda line: print(line, flush=True))"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("practice-1: preparing")
        time.sleep(seconds - 0.1)
        child.send_signal(signal.SIGKILL)
    assert hosts.down(own_set)
    assert left_of(own_set) == []


def test_a_host_that_stopped_boots_again_from_its_disk(own_set: str) -> None:
    host = hosts.up(own_set)[0]
    ssh(host, "echo here > /etc/kept && sync")
    container.kill(host.pid)
    container.wait_gone(container.containers_of(host.folder / "root"))
    assert hosts.status(own_set)["hosts"][0]["running"] is False
    with pytest.raises(HostError, match="not running"):
        host.run(["true"])
    assert hosts.up(own_set, settings={"speed": 3}) == [host]
    assert ssh(host, "cat /etc/kept") == "here"
    assert '"speed": 3' in ssh(host, "cat /etc/sglang-standin.json")


def test_a_host_of_a_checkout_that_is_gone_boots_with_the_engine_of_this_one(own_set: str) -> None:
    host = hosts.up(own_set, settings={"speed": 3})[0]
    packages = f"/opt/sglang/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    ssh(
        host,
        f"ln -sfn /gone/sglang {packages}/sglang; echo /gone > {packages}/standin.pth; echo here > /etc/kept; sync",
    )
    container.kill(host.pid)
    container.wait_gone(container.containers_of(host.folder / "root"))
    assert hosts.up(own_set) == [host]
    assert ssh(host, f"{ENGINE_PYTHON} -c 'import sglang.launch_server, httpx; print(1)'") == "1"
    assert ssh(host, "cat /etc/kept") == "here"
    assert '"speed": 3' in ssh(host, "cat /etc/sglang-standin.json")


def test_the_memory_of_a_host_can_be_limited(fresh_host: RehearsalHost) -> None:
    allocate = ["systemd-run", "--quiet", "--wait", "python3", "-c", "len(bytearray(400 << 20))"]
    fresh_host.limit_memory(300 << 20)
    try:
        with pytest.raises(HostError):
            fresh_host.run(allocate)
    finally:
        fresh_host.limit_memory(None)
        fresh_host.run(["systemctl", "reset-failed"])
    fresh_host.run(allocate)
