"""`check`: is the configuration right, and what is known to go wrong with it? Asks a host only where told to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from deployer.cli.common import App, common_options, pass_app
from deployer.config.files import template_folders
from deployer.config.inventory import ServiceConfig
from deployer.config.profile import Profile, list_profiles
from deployer.deploy.advice import advise
from deployer.deploy.engine_preflight import Question, ask_host, engine_complaint
from deployer.deploy.preflight import installation
from deployer.deploy.session import Session
from deployer.errors import ConfigError, UsageError
from deployer.records.host import HostState
from deployer.report.findings import checked_view, explanation_view, rule_document, rules_view
from deployer.sglang.flags.arguments import launch_arguments
from deployer.sglang.flags.versions import flag_table
from deployer.sglang.rules import RULES, Finding, Severity, find_rule
from deployer.sglang.server.answers import Asked
from deployer.units.bundle import Bundle, build_bundle

Json = dict[str, Any]

#: What --explain means without an id.
_ALL = "all"


@click.command()
@click.argument("profiles", nargs=-1, metavar="[PROFILE]...")
@click.option(
    "--sglang",
    "version",
    metavar="VERSION",
    help="Check against this version of SGLang. Default: the host's.",
)
@click.option("--host", "host", metavar="NAME", help="Ask this host too; only its services are checked.")
@click.option("--on-host", is_flag=True, help="Ask each service's own host too.")
@click.option("--strict", is_flag=True, help="Warnings count as errors, also where no profile is named.")
@click.option(
    "--explain",
    metavar="[RULE]",
    is_flag=False,
    flag_value=_ALL,
    help="Tell what a rule knows; without an id list all rules.",
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
    """Check inventory, profiles, flags and templates together, and ask the rules about what is known to go wrong.

    Every service is checked with every profile (or with those named). Exits with 2 when the inventory is wrong or a
    named profile has errors; a profile that merely does not fit a service is only reported where none is named.

    \b
    Examples:
      deployer check
      deployer check pp8-async --sglang 0.5.23
      deployer check pp8-async --on-host --strict
      deployer check --explain graphs-off
    """
    if explain is not None:
        return tell(app, explain)
    flag_table(version, app.flags_folder())  # a version that is none is an error of its own
    wanted = [app.profile(name) for name in profiles] if profiles else list_profiles(app.profile_folders())
    templates = template_folders(app.settings.templates)
    found = []
    for service in services(app, host):
        observed: HostState | None = None
        asked: dict[str, Asked] = {}
        if host or on_host:
            observed, asked = look(app, service, wanted, version, templates)
        found += [
            examine(app, service, profile, version, templates, observed, asked.get(profile.name))
            for profile in wanted
        ]
    wrong = [item for item in found if item["errors"] or (strict and item["warnings"])]
    view = checked_view(found, brief=not profiles, on_host=bool(host or on_host))
    app.show({"ok": not wrong, "checked": found}, view)
    return 2 if wrong and (profiles or strict) else 0


def tell(app: App, explain: str) -> int:
    """One rule's story, or the list of all."""
    if explain == _ALL:
        rules = list(RULES.values())
        app.show({"rules": [rule_document(rule) for rule in rules]}, rules_view(rules))
    else:
        rule = find_rule(explain)
        app.show(rule_document(rule), explanation_view(rule))
    return 0


def services(app: App, host: str | None) -> Iterator[ServiceConfig]:
    """The services to check: the one that is named, else all, or those on a host that is named."""
    inventory = app.inventory
    named = [app.service()] if app.settings.service else list(inventory.services.values())
    if host is None:
        yield from named
        return
    inventory.host(host)
    there = [service for service in named if service.host == host]
    if not there:
        raise UsageError(
            f"no service to check is on host {host}",
            remedy="; ".join(f"{service.name} is on {service.host}" for service in named),
        )
    yield from there


def look(
    app: App, service: ServiceConfig, wanted: list[Profile], version: str | None, templates: list[Path]
) -> tuple[HostState, dict[str, Asked]]:
    """What the service's host says about GPUs, engine, model and memory, and what its SGLang says about each profile.

    SGLang is not asked about profiles that cannot be rendered, nor where another version than the host's is meant.
    """
    host = app.inventory.host(service.host)
    with Session(service, host, app.connect, command="check") as session:
        observed = session.observe(facts=True)
        there = observed.engine.sglang if observed.engine else None
        if there is None or version not in (None, there):
            return observed, {}
        questions: dict[str, Question] = {}
        for profile in wanted:
            with contextlib.suppress(ConfigError):
                bundle = preview(app, service, profile, there, templates)
                questions[profile.name] = Question(bundle.argv, bundle.environment)
        answers = ask_host(session.client, service, observed, list(questions.values()))
    return observed, dict(zip(questions, answers, strict=True))


def preview(
    app: App, service: ServiceConfig, profile: Profile, version: str | None, templates: list[Path]
) -> Bundle:
    """The profile as it would be rendered; secrets are not asked for."""
    return build_bundle(
        service,
        app.inventory.host(service.host),
        profile,
        version,
        f"0001-{profile.name}",
        templates=templates,
        learned=app.flags_folder(),
        resolve=lambda secret: "not-asked-for",
    )


def examine(
    app: App,
    service: ServiceConfig,
    profile: Profile,
    version: str | None,
    templates: list[Path],
    observed: HostState | None,
    asked: Asked | None = None,
) -> Json:
    """One profile on one service: findings, rules that lacked a fact, and what the host's SGLang says."""
    if version is None and observed is not None and observed.engine is not None:
        version = observed.engine.sglang
    problems = rendering_problems(app, service, profile, version, templates)
    if asked is not None and asked.verdict == "refused":
        problems.append(engine_complaint(asked, version))
    table = flag_table(version, app.flags_folder())
    report = advise(
        profile,
        service,
        app.inventory.host(service.host),
        version,
        observed=observed,
        problems=problems,
        learned=app.flags_folder(),
    )
    lacking = [
        Finding(item.code, Severity.ERROR, "the host has what the service names", item.message, item.remedy)
        for item in (installation(observed, service) if observed is not None else ())
    ]
    errors = [*lacking, *report.of(Severity.ERROR)]
    return {
        "service": service.name,
        "profile": profile.name,
        "sglang": version,
        "flags_of": str(table.version),
        "changing": being_changed(observed, service),
        "asked": asked.judgement() if asked is not None else None,
        "problem": "; ".join(item.text for item in errors) or None,
        "errors": len(errors),
        "warnings": len(report.of(Severity.WARNING)),
        "findings": [item.as_dict() for item in (*lacking, *report.findings)],
        "unasked": {rule: [str(need) for need in needs] for rule, needs in report.unasked.items()},
    }


def being_changed(observed: HostState | None, service: ServiceConfig) -> str | None:
    """Who changes the host at this moment, which may make what was seen of it a thing of that moment."""
    lease = observed.lease if observed is not None else None
    if lease is None or not lease.valid:
        return None
    return f"{service.host} is being changed for {lease.service} by {lease.owner}"


def rendering_problems(
    app: App, service: ServiceConfig, profile: Profile, version: str | None, templates: list[Path]
) -> list[str]:
    """What keeps the profile from being rendered for the service."""
    problems: list[str] = []
    try:
        preview(app, service, profile, version, templates)
    except ConfigError as error:
        problems += error.detail.get("problems") or [error.message]
        try:
            launch_arguments(profile, service, version, app.flags_folder())
        except ConfigError as more:
            problems += more.detail.get("problems") or [more.message]
    return list(dict.fromkeys(problems))
