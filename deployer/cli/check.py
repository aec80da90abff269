"""`check`: is the configuration right? Asks no host."""

from __future__ import annotations

from pathlib import Path

import click
from rich.markup import escape
from rich.table import Table

from deployer.cli.common import App, common_options, pass_app
from deployer.config.inventory import ServiceConfig
from deployer.config.profile import Profile, list_profiles
from deployer.errors import ConfigError
from deployer.sglang.versions import flag_table
from deployer.units.bundle import build_bundle
from deployer.units.render import template_folders

Json = dict[str, str | None]


@click.command()
@click.argument("profiles", nargs=-1, metavar="[PROFILE]...")
@click.option(
    "--sglang", "version", metavar="VERSION", help="Check against the flags of this SGLang version."
)
@common_options
@pass_app
def check(app: App, profiles: tuple[str, ...], version: str | None) -> int:
    """Check inventory, profiles, flags and templates together, without asking a host.

    Every service is rendered with every profile (or with those named). Exits with 2 when the inventory or a named
    profile is wrong; a profile that merely does not fit a service is only reported where none is named.

    \b
    Examples:
      deployer check
      deployer check pp8-async --sglang 0.5.23
    """
    flag_table(version, app.flags_folder())  # a version that is none is an error of its own
    wanted = [app.profile(name) for name in profiles] if profiles else list_profiles(app.profile_folders())
    templates = template_folders(app.settings.templates)
    found = [
        examine(app, service, profile, version, templates)
        for service in app.inventory.services.values()
        for profile in wanted
    ]
    wrong = [item for item in found if item["problem"]]
    app.show({"ok": not wrong, "checked": found}, view(found))
    return 2 if profiles and wrong else 0


def examine(
    app: App, service: ServiceConfig, profile: Profile, version: str | None, templates: list[Path]
) -> Json:
    """One profile on one service: the problem with it, if there is one. Secrets are not asked for."""
    problem = None
    try:
        build_bundle(
            service,
            app.inventory.host(service.host),
            profile,
            version,
            f"0001-{profile.name}",
            templates=templates,
            learned=app.flags_folder(),
            resolve=lambda secret: "not-asked-for",
        )
    except ConfigError as error:
        problem = error.message
    return {"service": service.name, "profile": profile.name, "problem": problem}


def view(found: list[Json]) -> Table:
    """What was checked, a line each."""
    table = Table(box=None, padding=(0, 2), show_header=False)
    for item in found:
        mark = "[red]✗[/red]" if item["problem"] else "[green]✓[/green]"
        table.add_row(mark, str(item["service"]), str(item["profile"]), escape(item["problem"] or ""))
    return table
