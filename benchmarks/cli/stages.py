"""Where the time of one `status` goes: python -m benchmarks.cli.stages INVENTORY prints seconds by stage, as JSON.

Nothing is loaded before its stage, so each import is part of the stage that needs it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def stages(inventory: Path) -> dict[str, float]:
    """Run the stages one after the other. (`status` itself does some side by side.)"""
    seconds: dict[str, float] = {}

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        seconds[name] = time.perf_counter() - begun

    with stage("imports: command line (click)"):
        import deployer.cli.main
    with stage("imports: configuration (pydantic)"):
        from deployer.config.inventory import load_inventory
        from deployer.config.settings import load_settings
    with stage("configuration is read"):
        load_settings({})
        site = load_inventory(inventory)
    with stage("imports: SSH (paramiko, fabric)"):
        from deployer.host.channel import ChannelHost
        from deployer.host.connect import without_mock

        with without_mock():
            from deployer.host import ssh
    service = site.service()
    config = site.host(service.host).destination
    with stage("SSH connection and login"):
        connection = ssh.open_connection(config)
    with stage("SSH session, Python on the host"):
        pipe, first = ssh.become_root(connection, config, None)
    with stage("agent is sent and compiled, first answer"):
        host = ChannelHost(config.name, pipe, first)
        host.hello()
    with stage("imports: records, client, views (rich)"):
        import deployer.inspect.status
        import deployer.report.service_view  # noqa: F401
        from deployer.host.client import HostClient
    with stage("host is observed"):
        client = HostClient(host)
        client.observe({service.name: service.port}, engine=service.engine.python, model=service.model, gpus=True)
    client.close()
    connection.close()
    return seconds


if __name__ == "__main__":
    print(json.dumps(stages(Path(sys.argv[1]))))
