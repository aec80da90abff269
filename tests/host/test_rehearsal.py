"""Rehearsal hosts for real: what boots there, who gets in, and what survives a power cut."""

from __future__ import annotations

import subprocess

from deployer.rehearsal.hosts import RehearsalHost


def ssh(host: RehearsalHost, command: str, user: str = "root") -> str:
    """Run a command through the machine's own OpenSSH client."""
    done = subprocess.run(
        ["ssh", "-F", str(host.ssh_config), f"{user}@{host.name}", command],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_ssh_reaches_a_running_systemd(fresh_host: RehearsalHost) -> None:
    assert ssh(fresh_host, "systemctl is-system-running") == "running"
    assert ssh(fresh_host, "hostname") == fresh_host.name
