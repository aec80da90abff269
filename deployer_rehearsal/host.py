"""One practice host: where it is, how to log in, and whether it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployer.errors import HostError
from deployer_rehearsal import container, sets
from deployer_rehearsal.sets import DEFAULT_SET, SetRecord
from deployer_rehearsal.system import SSH_PORT

GPUS = 8
"""GPUs that the stand-in engine has; the real one runs on the CPU."""


@dataclass(frozen=True)
class RehearsalHost:
    """One practice host. ``folder`` is its part of the set's state folder (disk image, mounts, console log)."""

    name: str
    address: str
    port: int
    set: str
    folder: Path
    engine: str = "standin"

    @property
    def init(self) -> int | None:
        """The host's PID 1 as the machine numbers it; None if the host is not running."""
        inits = map(container.init_of, container.containers_of(self.folder / "root"))
        return next((init for init in inits if init is not None), None)

    @property
    def pid(self) -> int:
        """The same of a host that must be running; raise HostError otherwise."""
        if (init := self.init) is not None:
            return init
        raise HostError(
            f"practice host {self.name} of set {self.set} is not running",
            remedy="run `deployer rehearse up`",
        )

    @property
    def running(self) -> bool:
        """Whether it has a PID 1."""
        return self.init is not None

    @property
    def ssh_config(self) -> Path:
        """An OpenSSH client configuration that knows the host by its name."""
        return self.folder.parent / "ssh_config"

    @property
    def inventory(self) -> Path:
        """The set's inventory."""
        return self.folder.parent / "inventory.toml"

    @property
    def host_config(self) -> dict[str, Any]:
        """How to log in as root: fields of an inventory's host."""
        return self.login("root")

    def login(self, user: str) -> dict[str, Any]:
        """Return how to log in as ``root``, ``operator`` (sudo without a password) or ``careful`` (sudo with one)."""
        keys = self.folder.parent
        return {
            "name": self.name,
            "address": self.address,
            "port": self.port,
            "user": user,
            "identity_file": keys / "client_key",
            "known_hosts": keys / "known_hosts",
            "host_keys": "strict",
            "gpus": GPUS if self.engine == "standin" else 0,
        }

    def limit_memory(self, limit: int | None) -> None:
        """Limit the memory of all the host's processes together, in bytes; None removes the limit."""
        container.limit_memory(self.pid, limit)

    def run(self, argv: Sequence[str], *, stdin: str | None = None, timeout: float = 60.0) -> str:
        """Run a program on the host as root, beside SSH; return its output. Raise HostError if it fails."""
        return container.enter(self.pid, argv, stdin=stdin, timeout=timeout)


def host_of(record: SetRecord, name: str) -> RehearsalHost:
    """Return a host of a set by its name."""
    return RehearsalHost(name, record.hosts[name].address, SSH_PORT, record.name, record.folder / name, record.engine)


def find(set_name: str = DEFAULT_SET) -> list[RehearsalHost]:
    """Return the hosts of a set, running or not; [] if there is no such set."""
    record = sets.load_set(set_name)
    return [host_of(record, name) for name in record.hosts] if record else []
