"""`deployer sglang`: the SGLang versions whose flags are known, and learning those of a host."""

from __future__ import annotations

import click

from deployer.cli.app import App
from deployer.cli.options import common_options, pass_app


@click.group()
def sglang() -> None:
    """Show or learn the flags of SGLang versions.

    \b
    Examples:
      deployer sglang versions
      deployer sglang learn --host gpu1
    """


@sglang.command()
@common_options
@pass_app
def versions(app: App) -> int:
    """List the versions whose flags are known: shipped or learned.

    \b
    Example:
      deployer sglang versions --json
    """
    from deployer.inspect.learn import tables
    from deployer.report.flags_view import versions_view

    known = tables(app.flags_folder())
    app.show({"versions": [table.as_json() for table in known]}, versions_view(known))
    return 0


@sglang.command()
@click.option("--host", metavar="NAME", help="Learn from every SGLang environment of this host.")
@common_options
@pass_app
def learn(app: App, host: str | None) -> int:
    """Read the flags of a host's SGLang from its own parser.

    The table is written to the folder of the setting `flags` (default: `flags` beside the inventory) and takes
    precedence over the one shipped for the same version. Nothing on the host is changed, and no GPU is used.

    \b
    Examples:
      deployer sglang learn                 the host of the service
      deployer sglang learn --host gpu1
    """
    from deployer.host.client import HostClient
    from deployer.inspect.learn import learn as learn_flags
    from deployer.report.flags_view import learned_view

    services = [app.service()] if host is None else app.services(host)
    folder = app.flags_folder()
    assert folder is not None  # without an inventory the line above has raised
    tables = []
    for service in {item.engine.python: item for item in reversed(services)}.values():
        client = HostClient(app.connect(app.inventory.host(service.host)))
        try:
            tables.append(learn_flags(client, service, folder))
        finally:
            client.close()
    app.show({"learned": [table.as_json() for table in tables]}, learned_view(tables))
    return 0
