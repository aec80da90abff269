"""`deployer check`: is the configuration right, and what is known to go wrong with it?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from deployer.cli.app import App
from deployer.cli.options import common_options, pass_app
from deployer.errors import worst

if TYPE_CHECKING:
    from deployer.config.inventory import ServiceConfig
    from deployer.deploy.session import Session
    from deployer.inspect.check import CheckedProfile, HostView
    from deployer.inspect.every import Look

#: The value of --explain without a rule.
_ALL = "all"


@click.command()
@click.argument("profiles", nargs=-1, metavar="[PROFILE]...")
@click.option("--sglang", "version", metavar="VERSION", help="SGLang version to check against. Default: the host's.")
@click.option("--host", metavar="NAME", help="Ask this host too, and check its services only.")
@click.option("--on-host", is_flag=True, help="Ask the host of each service too.")
@click.option("--strict", is_flag=True, help="Treat warnings as errors, even if no profile is named.")
@click.option(
    "--explain",
    metavar="[RULE]",
    is_flag=False,
    flag_value=_ALL,
    help="Explain a rule, or list all rules.",
)
@common_options
@pass_app
def check(
    app: App,
    profiles: tuple[str, ...],
    version: str | None,
    host: str | None,
    on_host: bool,
    strict: bool,
    explain: str | None,
) -> int:
    """Check inventory, profiles, flags, templates and known problems.

    Every service is checked with every profile (or with those named). Exits with 2 if the inventory is invalid or a
    named profile has errors; without names, a profile that does not fit a service is only reported. Hosts are
    asked side by side; one that does not answer costs only the findings of its own services.

    \b
    Examples:
      deployer check
      deployer check pp8-async --sglang 0.5.23
      deployer check pp8-async --on-host --strict
      deployer check --explain graphs-off
    """
    if explain is not None:
        return explain_rules(app, explain)
    from deployer.config.profile import list_profiles
    from deployer.inspect.check import Checker
    from deployer.report.check_view import checked_view
    from deployer.report.every_view import error_text
    from deployer.sglang.flags.versions import flag_table

    flag_table(version, app.flags_folder())  # raises if the version is not valid
    wanted = [app.profile(name) for name in profiles] if profiles else list_profiles(app.profile_folders())
    checker = Checker(app.inventory, version, app.template_folders(), app.flags_folder())
    asking = bool(host or on_host)
    looks = host_views(app, app.services(host), lambda session: checker.observe(session, wanted), asking)
    checked: dict[str, list[CheckedProfile] | str] = {}
    for look in looks:
        checked[look.service.name] = (
            error_text(look.error)
            if look.error is not None
            else [checker.examine(look.service, profile, look.answer) for profile in wanted]
        )
    results = [item for items in checked.values() if not isinstance(items, str) for item in items]
    errors = [look for look in looks if look.error is not None]
    failed = any(item.errors or (strict and item.warnings) for item in results)
    document = {"ok": not failed and not errors, "checked": [item.as_json() for item in results]}
    if errors:
        document["unreached"] = [look.as_json(lambda _: {}) for look in errors]
    app.show(document, checked_view(checked, brief=not profiles, on_host=asking))
    codes = [look.error.exit_code for look in looks if look.error is not None]
    return worst([2 if failed and (profiles or strict) else 0, *codes])


def host_views(
    app: App, services: Sequence[ServiceConfig], observe: Callable[[Session], HostView | None], asking: bool
) -> list[Look[HostView | None]]:
    """Return what the services' hosts report; nothing for each without ``asking``. Raise the error of a single one."""
    from deployer.inspect.every import Look

    if not asking:
        return [Look(service) for service in services]
    if len(services) != 1:
        from deployer.cli.every import fleet

        with fleet(app, "check", services) as every:
            return every.look(observe)
    with app.session("check", services[0]) as session:
        return [Look(services[0], observe(session))]


def explain_rules(app: App, name: str) -> int:
    """Show what one rule knows, or the list of all."""
    from deployer.report.check_view import explanation_view, rule_document, rules_view
    from deployer.sglang.rules import RULES, find_rule

    if name == _ALL:
        rules = list(RULES.values())
        app.show({"rules": [rule_document(rule) for rule in rules]}, rules_view(rules))
    else:
        rule = find_rule(name)
        app.show(rule_document(rule), explanation_view(rule))
    return 0
