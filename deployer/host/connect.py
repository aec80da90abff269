"""From a host of the inventory to a connected `Host`."""

from __future__ import annotations

import os
from collections.abc import Callable

from deployer.config.inventory import HostConfig
from deployer.errors import HostError
from deployer.host.channel import ChannelHost
from deployer.host.local import LocalHost
from deployer.host.protocol import Host
from deployer.host.ssh import PasswordPrompt, SSHHost

SCHEMA = 1


def connect(
    config: HostConfig,
    *,
    password_prompt: PasswordPrompt | None = None,
    waiting: Callable[[], None] = lambda: None,
) -> Host:
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
