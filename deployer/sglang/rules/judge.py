"""All rules, and the one judgement of a profile on a service by them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from deployer.config.inventory import HostConfig, ServiceConfig
from deployer.config.problems import Problem, complain
from deployer.config.profile import Profile
from deployer.config.wording import nearest, printable
from deployer.errors import UsageError
from deployer.sglang.flags.arguments import LaunchArguments
from deployer.sglang.flags.versions import Flags, FlagTable, parse_version
from deployer.sglang.rules import (
    architecture,
    attention,
    environment,
    experts,
    graphs,
    hardware,
    kind,
    measuring,
    memory,
    pipeline,
    serving,
    sizes,
    speculative,
    version,
)
from deployer.sglang.rules.base import Finding, Need, Rule, Severity, Theme
from deployer.sglang.rules.facts import Facts

THEMES: tuple[Theme, ...] = tuple(
    module.THEME
    for module in (
        sizes, architecture, memory, pipeline, graphs, attention, experts, speculative, hardware, environment, kind,
        serving, measuring, version,
    )
)  # fmt: skip
#: Every rule by its id, in the order of the reference.
RULES: Mapping[str, Rule] = MappingProxyType({rule.id: rule for theme in THEMES for rule in theme.rules})
_RENDERING = RULES["rendering"]

#: A service, a host and a version for rules that look only at the profile.
_ANY_SERVICE = ServiceConfig.model_validate(
    {"name": "any", "host": "any", "model": "/any", "engine": {"python": "/any/bin/python"}}
)
_ANY_HOST = HostConfig.model_validate({"name": "any"})
_NO_FLAGS = FlagTable(parse_version("0.0"), parse_version("0.0"), Flags())


@dataclass(frozen=True)
class Report:
    """The judgement: findings, the most serious first, and the rules that lacked a fact with what they lacked."""

    findings: tuple[Finding, ...]
    skipped: Mapping[str, tuple[Need, ...]]

    def of(self, severity: Severity) -> tuple[Finding, ...]:
        """Return the findings of one severity."""
        return tuple(item for item in self.findings if item.severity is severity)

    @property
    def blocking(self) -> tuple[Finding, ...]:
        """The errors that make rendering impossible or pointless."""
        return tuple(item for item in self.of(Severity.ERROR) if RULES[item.rule].blocks)

    def with_problems(self, problems: Iterable[str]) -> Report:
        """Return the report with problems that only rendering the unit, or SGLang itself, could find."""
        added = [_RENDERING.finding(problem) for problem in problems]
        return replace(self, findings=_ranked([*self.findings, *added]))


def judge(facts: Facts, rules: Iterable[Rule] | None = None) -> Report:
    """Apply all rules (or those given); findings of one severity are in the order of the reference."""
    findings: list[Finding] = []
    skipped: dict[str, tuple[Need, ...]] = {}
    for rule in RULES.values() if rules is None else rules:
        if lacks := rule.lacks(facts):
            skipped[rule.id] = tuple(sorted(lacks))
        else:
            findings += rule.findings(facts)
    return Report(_ranked(_one_error_a_place(findings)), skipped)


def _one_error_a_place(findings: list[Finding]) -> list[Finding]:
    """Drop problems of rendering at places for which a more specific rule has an error."""
    others = {item.where for item in findings if item.severity is Severity.ERROR and item.rule != _RENDERING.id}
    return [item for item in findings if item.rule != _RENDERING.id or not item.where or item.where not in others]


def _ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda item: item.severity.rank))


def launch_arguments(facts: Facts) -> LaunchArguments:
    """Return the command line. Raise ConfigError with every error that makes it impossible or pointless."""
    errors = judge(facts, [rule for rule in RULES.values() if rule.blocks]).blocking
    if not errors:
        return facts.rendering
    remedies = list(dict.fromkeys(item.remedy for item in errors))
    remedy = remedies[0] if len(remedies) == 1 else _RENDERING.remedy
    if facts.table.note and any(item.rule == _RENDERING.id for item in errors):
        remedy += "; its flags are not known exactly: `deployer sglang learn` reads them from the host"
    where = f"profile {facts.profile.name} for service {facts.service.name}"
    raise complain(where, [Problem(item.where, item.message) for item in errors], remedy=remedy)


def shape_problems(profile: Profile) -> list[Problem]:
    """Return what is wrong with a profile regardless of service and version."""
    facts = Facts(profile, _ANY_SERVICE, _ANY_HOST, None, _NO_FLAGS)
    report = judge(facts, [rule for rule in RULES.values() if rule.shape])
    return [Problem(item.where, item.message) for item in report.findings]


def find_rule(name: str) -> Rule:
    """Return a rule by its id. Raise UsageError with the nearest id if there is none."""
    if name in RULES:
        return RULES[name]
    near = nearest(name.lower(), RULES)
    raise UsageError(
        f"there is no rule {printable(name, 60)!r}" + (f"; did you mean {near}?" if near else ""),
        remedy="`deployer check --explain` lists all rules",
    )
