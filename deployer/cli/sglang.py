"""`sglang`: what is known of its versions, and learning those of a host."""

from __future__ import annotations

import click
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from deployer.cli.common import App, common_options, pass_app
from deployer.config.inventory import ServiceConfig
from deployer.deploy.model import Json
from deployer.errors import ConfigError
from deployer.host.client import HostClient
from deployer.inspect.learn import Learned, learn, table_rows


@click.group()
def sglang() -> None:
    """What deployer knows of SGLang's versions.

    \b
    Examples:
      deployer sglang versions
      deployer sglang learn --host gpu1
    """


@sglang.command()
@common_options
@pass_app
def versions(app: App) -> int:
    """List the versions whose flags are known: those shipped with deployer, and those learned from hosts.

    \b
    Example:
      deployer sglang versions --json
    """
    rows = table_rows(app.flags_folder())
    app.show({"versions": rows}, versions_view(rows))
    return 0


@sglang.command("learn")
@click.option("--host", metavar="NAME", help="The host to ask, for each of its services' environments.")
@common_options
@pass_app
def learn_(app: App, host: str | None) -> int:
    """Read the flags of the SGLang that is installed on a host from its own parser, and keep them.

    The table goes to the folder of the setting `flags` (default: `flags` beside the inventory), and comes before the
    one that ships for the same version. Nothing on the host is changed, and no GPU is used.

    \b
    Examples:
      deployer sglang learn                 the host of the service
      deployer sglang learn --host gpu1
    """
    folder = app.flags_folder()
    assert folder is not None  # there is an inventory, else `services` has refused
    found: list[Learned] = []
    for service in services(app, host):
        client = HostClient(app.connect(app.inventory.host(service.host)))
        try:
            found.append(learn(client, service, folder))
        finally:
            client.close()
    app.show({"learned": [item.as_dict() for item in found]}, learned_view(found))
    return 0


def services(app: App, host: str | None) -> list[ServiceConfig]:
    """One service for each environment of a host; without a host the service that is meant."""
    if host is None:
        return [app.service()]
    config = app.inventory.host(host)
    there = [item for item in app.inventory.services.values() if item.host == config.name]
    if not there:
        raise ConfigError(
            f"no service runs on {host}, so no Python environment is known there",
            remedy=f'add a service with host = "{host}" to the inventory',
        )
    return list({item.engine.python: item for item in reversed(there)}.values())


def versions_view(rows: list[Json]) -> RenderableType:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name, justify in (("version", "left"), ("flags", "right"), ("choices", "left"), ("from", "left")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for row in rows:
        source = escape(f"learned: {row['path']}") if row["learned"] else "shipped"
        table.add_row(row["version"], str(row["flags"]), row["choices"], source)
    return table


def learned_view(found: list[Learned]) -> RenderableType:
    parts = []
    for item in found:
        parts.append(
            f"[green]✓[/green] {escape(item.host)}: SGLang {item.table.version}, {len(item.table.flags)} flags, "
            f"kept in {escape(str(item.path))}"
        )
        if not item.difference:
            parts.append(f"  the same as the table that ships for {item.compared}")
        for words, names in (
            ("has also", item.difference.added),
            ("has not", item.difference.removed),
            ("takes otherwise", item.difference.changed),
        ):
            if names:
                parts.append(f"  against the shipped {item.compared} it {words}: {escape(_listed(names))}")
    return Group(*parts)


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return ", ".join(names[:12]) + more
