"""`diagnose`: why a launch failed, from a file or from the host."""

from __future__ import annotations

import click
from rich.console import Group
from rich.text import Text

from deployer.cli.common import App, common_options, pass_app
from deployer.errors import UsageError
from deployer.inspect import diagnose as diagnose_
from deployer.report.diagnosis_view import diagnosis_view
from deployer.sglang.log.diagnosis import Diagnosis


@click.command()
@click.argument("file", required=False, metavar="[FILE | -]")
@click.option(
    "--release",
    type=int,
    metavar="N",
    help="Release N's last start, from the host's journal or what was kept.",
)
@click.option("--host", metavar="NAME", help="The run under way, or the last one, of each service on a host.")
@common_options
@pass_app
def diagnose(app: App, file: str | None, release: int | None, host: str | None) -> int:
    """Say why a launch failed: phase, first cause, remedy, the lines that prove it.

    FILE is any SGLang log, of this tool's or not: as the server printed it, or from journalctl, docker logs, kubectl
    logs or a syslog file; gzip, bzip2 and xz are unpacked, - is standard input. Of a log longer than 96 MiB the first
    24 and the last 72 are read, and that is said. Without FILE the service's run under
    way is looked at, or its last one: its journal, its unit and the kernel's messages.

    A log without a failure is said to be one, and how far it came; what is not recognised is called unknown.

    \b
    Exits with 0 whatever it finds, with 2 where FILE cannot be read.

    \b
    Examples:
      deployer diagnose server.log.gz
      journalctl -u sglang-kimi -b | deployer diagnose -
      deployer diagnose --release 7
      deployer diagnose --host gpu1
      deployer diagnose --json | jq -r .signature
    """
    given = {"FILE": file, "--release": release, "--host": host}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise UsageError(f"{' and '.join(named)} are different logs", remedy="leave all but one out")
    if host is not None:
        return of_host(app, host)
    if file is not None:
        found = diagnose_.of_file(file)
    else:
        with app.session("diagnose") as session:
            found = (
                diagnose_.of_service(session) if release is None else diagnose_.of_release(session, release)
            )
    app.show(found.as_dict(), diagnosis_view(found))
    return 0


def of_host(app: App, name: str) -> int:
    """Show the diagnosis of each service on a host: one as without ``--host``, several by their names."""
    host = app.inventory.host(name)
    there = [service for service in app.inventory.services.values() if service.host == host.name]
    if app.settings.service is not None:
        there = [service for service in there if service.name == app.settings.service]
    if not there:
        raise UsageError(
            f"no service to diagnose is on host {host.name}",
            remedy="name a host of the service in the inventory",
        )
    found: dict[str, Diagnosis] = {}
    for service in there:
        with app.session("diagnose", service) as session:
            found[service.name] = diagnose_.of_service(session)
    if len(found) == 1:
        only = next(iter(found.values()))
        app.show(only.as_dict(), diagnosis_view(only))
    else:
        views = [Group(Text(title, style="bold"), diagnosis_view(item)) for title, item in found.items()]
        app.show({"services": {title: item.as_dict() for title, item in found.items()}}, Group(*views))
    return 0
