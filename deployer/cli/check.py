"""`deployer check`: is the configuration right, and what is known to go wrong with it?"""

from __future__ import annotations

import click

from deployer.cli.app import App
from deployer.cli.options import common_options, pass_app

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
    named profile has errors; without names, a profile that does not fit a service is only reported.

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
    from deployer.sglang.flags.versions import flag_table

    flag_table(version, app.flags_folder())  # raises if the version is not valid
    wanted = [app.profile(name) for name in profiles] if profiles else list_profiles(app.profile_folders())
    checker = Checker(app.inventory, version, app.template_folders(), app.flags_folder())
    asking = bool(host or on_host)
    results = []
    for service in app.services(host):
        view = checker.observe(service, wanted, app.connect) if asking else None
        results += [checker.examine(service, profile, view) for profile in wanted]
    failed = any(item.errors or (strict and item.warnings) for item in results)
    document = {"ok": not failed, "checked": [item.as_json() for item in results]}
    app.show(document, checked_view(results, brief=not profiles, on_host=asking))
    return 2 if failed and (profiles or strict) else 0


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
