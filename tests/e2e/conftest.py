"""A site to run whole commands on: a fresh practice host, a quick engine, an inventory with a small benchmark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from deployer.rehearsal import hosts
from deployer.rehearsal.host import RehearsalHost
from deployer.rehearsal.standin import configure, fault

#: Duration of a stand-in's start against the usual 8 s.
SCALE = 0.2

BENCH = "levels = [2, 4]\noutput_tokens = 8\nprompt_tokens = 16\n"


@dataclass
class Site:
    """An operator's folder with an inventory, and the host that it means."""

    host: RehearsalHost
    folder: Path
    children: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def inventory(self) -> Path:
        return self.folder / "inventory.toml"

    def write_inventory(self, *, grace: float = 4, lease: float = 5, more: str = "", gate: str = "") -> None:
        """The practice host and the service `kimi`; deadlines in seconds."""
        login = self.host.host_config
        self.inventory.write_text(
            f"""
[hosts.{self.host.name}]
address = "{login["address"]}"
port = {login["port"]}
user = "root"
identity_file = "{login["identity_file"]}"
known_hosts = "{login["known_hosts"]}"
gpus = 8

[services.kimi]
host = "{self.host.name}"
model = "/srv/models/Kimi-K2.6"
served_model_name = "kimi"
bind = "{self.host.address}"
port = 30000
{more}

[services.kimi.engine]
python = "/opt/sglang/bin/python"

[services.kimi.deadlines]
start = 60
grace = {grace}
lease = {lease}
drain = 2
stop = 5

[services.kimi.bench]
{BENCH}
[services.kimi.gate]
{gate}
"""
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Begin a command and do not wait for it."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("DEPLOYER_")}
        child = subprocess.Popen(
            [sys.executable, "-m", "deployer", *words, "-i", str(self.inventory)],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.children.append(child)
        return child

    def run(self, *words: str, expect: int = 0, timeout: float = 120) -> str:
        """Run a command, check its exit code, and return what it printed to stdout."""
        return finished(self.start(*words), expect=expect, timeout=timeout)

    def json(self, *words: str, expect: int = 0, timeout: float = 120) -> Any:
        """Run a command with --json and return its document."""
        return json.loads(self.run(*words, "--json", expect=expect, timeout=timeout))

    def status(self, expect: int = 0) -> Any:
        """The host's part of the status document."""
        return self.json("status", expect=expect)["hosts"][0]

    def live(self) -> str | None:
        """The live release by the host's own file, without deployer's help."""
        path = "/usr/local/lib/systemd/system/sglang-kimi.service"
        text = self.host.run(["sh", "-c", f"cat {path} 2>/dev/null || true"])
        return next((line[8:] for line in text.splitlines() if line.startswith("Release=")), None)

    def invocation(self) -> str:
        """The InvocationID of the unit as systemd tells it."""
        return self.host.run(["systemctl", "show", "-P", "InvocationID", "sglang-kimi.service"]).strip()

    def fault(self, name: str, **options: object) -> None:
        """Make the engine fail in this way from now on."""
        fault(self.host.set, self.host.name, name, options)

    def until(self, condition: Callable[[], bool], seconds: float = 30) -> None:
        """Wait for something on the host."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "what was waited for did not happen"
            time.sleep(0.1)

    def step(self) -> str | None:
        """The step of the transition on the host."""
        path = "/var/lib/deployer/kimi/transition.json"
        text = self.host.run(["sh", "-c", f"cat {path} 2>/dev/null || true"])
        return str(json.loads(text)["step"]) if text else None


def finished(child: subprocess.Popen[str], *, expect: int, timeout: float = 120) -> str:
    """Wait for a command and check how it ended."""
    output, errors = child.communicate(timeout=timeout)
    assert child.returncode == expect, f"exit {child.returncode}, expected {expect}\n{output}\n{errors}"
    return output


@pytest.fixture
def site(fresh_host: RehearsalHost, tmp_path: Path) -> Iterator[Site]:
    """A fresh site. Whatever a test leaves running on this side ends with it."""
    configure(fresh_host, scale=SCALE, speed=4.0)
    made = Site(fresh_host, tmp_path)
    made.write_inventory()
    yield made
    for child in made.children:
        if child.poll() is None:
            child.send_signal(signal.SIGKILL)
        child.communicate()


@pytest.fixture
def live_site(site: Site) -> Site:
    """A site on which `tp2` is live as release 0001-tp2."""
    site.run("apply", "tp2")
    return site


__all__ = ["Site", "finished", "hosts", "live_site", "site"]
