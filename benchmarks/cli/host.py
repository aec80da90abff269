"""The practice host that all tools work on, with one service live."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

DEPLOYER = str(Path(sys.executable).with_name("deployer"))
SET, PROFILE, SERVICE = "bench-cli", "tp8", "kimi"
UNIT = f"sglang-{SERVICE}.service"


@dataclass(frozen=True)
class PracticeHost:
    """A host with `PROFILE` live: how it is reached, and where its server listens."""

    inventory: Path
    ssh_config: Path
    name: str
    address: str
    ssh_port: int
    port: int = 30000

    @property
    def folder(self) -> Path:
        """The folder of the set: its keys and known hosts."""
        return self.ssh_config.parent

    @property
    def health(self) -> str:
        """The URL of the server's health."""
        return f"http://{self.address}:{self.port}/health"

    @property
    def ssh(self) -> list[str]:
        """The command of a login, to be followed by what runs there."""
        return ["ssh", "-F", str(self.ssh_config), self.name]

    def read(self, path: str) -> str:
        """Return the text of a file of the host."""
        return subprocess.run([*self.ssh, "cat", path], check=True, capture_output=True, text=True).stdout

    def unit_path(self) -> str:
        """Return where the service's unit file is."""
        return self._first(f"systemctl show --value -p FragmentPath {UNIT}")

    def manifest_path(self) -> str:
        """Return where the manifest of the live release is."""
        return self._first(f"ls -1 /var/lib/deployer/{SERVICE}/releases/*/manifest.json")

    def _first(self, command: str) -> str:
        done = subprocess.run([*self.ssh, command], check=True, capture_output=True, text=True)
        return done.stdout.split()[0]


@contextmanager
def practice_host() -> Iterator[PracticeHost]:
    """Boot a practice host, make `PROFILE` live on it, and remove it at the end."""
    up = [DEPLOYER, "rehearse", "up", "--name", SET, "--set", "scale=0.25", "--json"]
    document = json.loads(subprocess.run(up, check=True, stdout=subprocess.PIPE, text=True).stdout)
    try:
        inventory = Path(document["inventory"])
        apply = [DEPLOYER, "-i", str(inventory), "apply", PROFILE, "--yes"]
        subprocess.run(apply, check=True, stdout=sys.stderr)
        [host] = document["hosts"]
        port = re.search(r"^port\s*=\s*(\d{5})", inventory.read_text(), re.M)
        assert port is not None, "the inventory names the service's port"
        yield PracticeHost(
            inventory,
            Path(document["ssh_config"]),
            host["host"],
            host["address"],
            host["port"],
            int(port[1]),
        )
    finally:
        subprocess.run([DEPLOYER, "rehearse", "down", "--name", SET], check=True, stdout=sys.stderr)
