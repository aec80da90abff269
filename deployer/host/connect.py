"""From a destination to a connected host."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from deployer.errors import HostError
from deployer.host.channel import ChannelHost
from deployer.host.local import LocalHost
from deployer.records.destination import Destination

if TYPE_CHECKING:
    from deployer.host.ssh import PasswordPrompt

SCHEMA = 1


def connect(
    config: Destination,
    *,
    password_prompt: PasswordPrompt | None = None,
    waiting: Callable[[], None] = lambda: None,
) -> ChannelHost:
    """Connect, start the agent as root and greet it.

    ``password_prompt`` is called if sudo wants a password, ``waiting`` as soon as only the host is at work. Raise
    HostUnreachable, HostKeyRejected, AuthenticationFailed, or HostError if no agent can run.
    """
    host: ChannelHost
    if config.transport == "local":
        prefix = ["sudo", "-n", "--"] if os.geteuid() != 0 and config.sudo == "auto" else []
        waiting()
        host = LocalHost(config.name, python=config.python, prefix=prefix)
    else:
        load_ssh()
        from deployer.host.ssh import SSHHost

        host = SSHHost(config, password_prompt=password_prompt, waiting=waiting)
    hello = host.hello()
    if hello["schema"] != SCHEMA:
        host.close()
        raise HostError(f"{config.name}: the agent speaks schema {hello['schema']}, not {SCHEMA}")
    if not hello.get("booted", True):
        host.close()
        raise HostError(
            f"{config.name}: the host does not run systemd (its first process is {hello.get('init') or 'unknown'}), "
            "and deployer serves SGLang as a systemd unit",
            remedy="use a host that was booted with systemd; to practise on this machine: `deployer rehearse up`",
        )
    return host


def load_ssh() -> None:
    """Import the libraries of SSH: paramiko and Fabric."""
    with without_mock():
        import_module("deployer.host.ssh")


@contextmanager
def without_mock() -> Iterator[None]:
    """Within, `unittest.mock` is empty if nobody loaded it before.

    Fabric's invoke imports it, and with it asyncio, for a class that only its users' tests need: 50 ms of every start.
    """
    empty = {name: ModuleType(name) for name in ("unittest", "unittest.mock") if name not in sys.modules}
    for module in empty.values():
        module.Mock = None  # type: ignore[attr-defined]
    sys.modules.update(empty)
    try:
        yield
    finally:
        for name, module in empty.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
