"""A site to run whole commands on: a fresh practice host, a quick engine, an inventory with a small benchmark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from deployer_rehearsal.host import RehearsalHost
from deployer_rehearsal.standin import configure, fault
from tests.conftest import wipe
from tests.patience import PATIENCE, until

#: Duration of a stand-in's start against the usual 8 s.
SCALE = 0.1

#: Memory of a GPU, so large that the small profiles hold the practice model too.
GPU_MIB = 800_000

BENCH = """\
levels = [2, 4]
output_tokens = 8
prompt_tokens = 16
repeats = 1
discard = false
requests_at_least = 0
"""


@dataclass
class Site:
    """An operator's folder with an inventory, and the host that it means."""

    host: RehearsalHost
    folder: Path
    children: list[subprocess.Popen[str]] = field(default_factory=list)
    service: str = "kimi"

    @property
    def unit(self) -> str:
        """The service's unit."""
        return f"sglang-{self.service}.service"

    @property
    def inventory(self) -> Path:
        return self.folder / "inventory.toml"

    def write_inventory(
        self,
        *,
        grace: float = 4,
        lease: float = 20,
        more: str = "",
        gate: str = "",
        relative_gate: str = 'baseline = "none"',
    ) -> None:
        """The practice host and the service `kimi`; deadlines in seconds.

        Nothing is held against earlier starts, unless a test is about that: how fast the stand-in is depends on what
        else the machine does.
        """
        self.inventory.write_text(
            self.tables(8, "/srv/models/Kimi-K2.6", "/opt/sglang/bin/python", more)
            + f"""
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
[services.kimi.relative_gate]
{relative_gate}
"""
        )

    def tables(self, gpus: int, model: str, python: str, more: str) -> str:
        """The host, and what every service has: model, address and program; ``more`` is for the service's own table."""
        login = self.host.host_config
        return f"""
[hosts.{self.host.name}]
address = "{login["address"]}"
port = {login["port"]}
user = "root"
identity_file = "{login["identity_file"]}"
known_hosts = "{login["known_hosts"]}"
gpus = {gpus}

[services.{self.service}]
host = "{self.host.name}"
model = "{model}"
served_model_name = "{self.service}"
bind = "{self.host.address}"
port = 30000
{more}

[services.{self.service}.engine]
python = "{python}"
"""

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

    def run(self, *words: str, expect: int = 0, timeout: float = PATIENCE) -> str:
        """Run a command, check its exit code, and return what it printed to stdout."""
        return finished(self.start(*words), expect=expect, timeout=timeout)

    def exit_code(self, *words: str) -> int:
        """Run a command for its exit code alone."""
        child = self.start(*words)
        child.communicate(timeout=PATIENCE)
        return child.returncode

    def json(self, *words: str, expect: int = 0, timeout: float = PATIENCE) -> Any:
        """Run a command with --json and return its document."""
        return json.loads(self.run(*words, "--json", expect=expect, timeout=timeout))

    def status(self, expect: int = 0) -> Any:
        """The host's part of the status document."""
        return self.json("status", expect=expect)["hosts"][0]

    def live(self) -> str | None:
        """The live release by the host's own file, without deployer's help."""
        path = f"/usr/local/lib/systemd/system/{self.unit}"
        text = self.host.run(["sh", "-c", f"cat {path} 2>/dev/null || true"])
        return next((line[8:] for line in text.splitlines() if line.startswith("Release=")), None)

    def invocation(self) -> str:
        """The InvocationID of the unit as systemd tells it."""
        return self.host.run(["systemctl", "show", "-P", "InvocationID", self.unit]).strip()

    def fault(self, name: str, **options: object) -> None:
        """Make the engine fail in this way from now on."""
        fault(self.host.set, self.host.name, name, options)

    def healthy(self) -> bool:
        """Whether the server answers /health."""
        try:
            return httpx.get(f"http://{self.host.address}:30000/health", timeout=5, verify=False).is_success
        except httpx.HTTPError:
            return False

    def step(self) -> str | None:
        """The step of the transition on the host."""
        path = f"/var/lib/deployer/{self.service}/transition.json"
        text = self.host.run(["sh", "-c", f"cat {path} 2>/dev/null || true"])
        return str(json.loads(text)["step"]) if text else None


def finished(child: subprocess.Popen[str], *, expect: int, timeout: float = PATIENCE) -> str:
    """Wait for a command and check how it ended."""
    output, errors = child.communicate(timeout=timeout)
    assert child.returncode == expect, f"exit {child.returncode}, expected {expect}\n{output}\n{errors}"
    return output


def site_on(host: RehearsalHost, folder: Path) -> Site:
    """A site for a host as it is wiped now, with a quick engine."""
    wipe(host)
    configure(host, scale=SCALE, speed=4.0, gpu_memory_mib=GPU_MIB)
    made = Site(host, folder)
    made.write_inventory()
    return made


@pytest.fixture
def site(rehearsal_host: RehearsalHost, tmp_path: Path) -> Iterator[Site]:
    """A fresh site."""
    made = site_on(rehearsal_host, tmp_path)
    yield made
    end_children(made)


def end_children(site: Site) -> None:
    """Whatever a test leaves running on this side ends with it."""
    for child in site.children:
        if child.poll() is None:
            child.send_signal(signal.SIGKILL)
            child.communicate()


# Whether a host is just as `apply tp2` on a fresh one leaves it; later releases are forgotten.
_STILL_LIVE = r"""
grep -qx Release=0001-tp2 /usr/local/lib/systemd/system/sglang-kimi.service || exit 0
test ! -e /run/systemd/system/sglang-kimi.service || exit 0
test ! -e /var/lib/deployer/kimi/transition.json || exit 0
pid=$(systemctl show -P MainPID sglang-kimi.service)
grep -qzx DEPLOYER_RELEASE=0001-tp2 "/proc/$pid/environ" || exit 0
test "$(systemctl is-enabled sglang-kimi.service)" = enabled || exit 0
cd /var/lib/deployer/kimi/releases
for release in *; do test "$release" = 0001-tp2 || rm -rf "$release"; done
rm -rf /run/sglang-standin/faults.json*
echo yes
"""

# All that `apply tp2` leaves on a fresh host; and the same put back on one that was wiped.
_KEEP = """
cd /
tar -cf /root/new.tar var/lib/deployer usr/local/lib/systemd/system/*-* etc/systemd/system/*.wants/*kimi*
sync /root/new.tar  # so that a power cut leaves all of it or none
mv /root/new.tar /root/live.tar
"""
_PUT_BACK = """
set -e
test -e /root/live.tar || exit 0
tar -C / -xf /root/live.tar
sync -f /var/lib/deployer  # as deployer itself leaves it: a power cut may come
systemctl daemon-reload
systemctl start sglang-kimi.service
echo yes
"""


def apply_first(made: Site) -> None:
    """`tp2` live as the first release of a wiped host: applied where it never was, else put back as that left it."""
    if made.host.run(["sh", "-c", _PUT_BACK]).strip() == "yes":
        until(made.healthy)
        return
    made.run("apply", "tp2")
    made.host.run(["sh", "-c", _KEEP])


@pytest.fixture
def live_site(rehearsal_host: RehearsalHost, tmp_path: Path) -> Iterator[Site]:
    """A site on which `tp2` is live as release 0001-tp2, the only one; taken over from the test before if it is so."""
    made = Site(rehearsal_host, tmp_path)
    made.write_inventory()
    if rehearsal_host.run(["sh", "-c", _STILL_LIVE]).strip() != "yes":
        made = site_on(rehearsal_host, tmp_path)
        apply_first(made)
    yield made
    end_children(made)
