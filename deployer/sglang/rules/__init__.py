"""The rules: what is known to go wrong with SGLang, as data and one small pure function each.

report = evaluate(facts)
report.findings      what was found, the gravest first
report.unasked       rules that lacked a fact, with what they lacked
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from deployer.config.inventory import HostConfig, ServiceConfig
from deployer.config.profile import Profile
from deployer.config.wording import nearest, printable
from deployer.errors import UsageError
from deployer.sglang.flags.versions import Flags, FlagTable, parse_version
from deployer.sglang.rules import (
    architecture,
    attention,
    environment,
    experts,
    graphs,
    hardware,
    measuring,
    memory,
    pipeline,
    serving,
    sizes,
    version,
)
from deployer.sglang.rules.base import Finding, Need, Rule, Severity, Theme
from deployer.sglang.rules.facts import Facts, GpuFacts, HostFacts
from deployer.sglang.rules.shape import ModelShape, model_shape

__all__ = [
    "RULES", "THEMES", "Facts", "Finding", "GpuFacts", "HostFacts", "ModelShape", "Need", "Report", "Rule",
    "Severity", "Theme", "evaluate", "find_rule", "model_shape", "shape_findings", "worst",
]  # fmt: skip

THEMES: tuple[Theme, ...] = tuple(
    module.THEME
    for module in (
        sizes, architecture, memory, pipeline, graphs, attention, experts, hardware, environment, serving, measuring,
        version,
    )
)  # fmt: skip
#: Every rule by its id, in the order of the reference.
RULES: Mapping[str, Rule] = MappingProxyType({rule.id: rule for theme in THEMES for rule in theme.rules})


#: For rules that look at the profile alone.
_NOWHERE = ServiceConfig.model_validate(
    {"name": "none", "host": "none", "model": "/none", "engine": {"python": "/none/bin/python"}}
)
_NO_HOST = HostConfig.model_validate({"name": "none"})
_NO_FLAGS = FlagTable(parse_version("0.0"), parse_version("0.0"), Flags())


@dataclass(frozen=True)
class Report:
    """What the rules say about one profile on one service."""

    findings: tuple[Finding, ...]
    unasked: Mapping[str, tuple[Need, ...]]

    def of(self, severity: Severity) -> tuple[Finding, ...]:
        """The findings of one severity."""
        return tuple(item for item in self.findings if item.severity is severity)


def shape_findings(profile: Profile) -> list[Finding]:
    """What makes a profile wrong in itself, whatever service and version it is for."""
    facts = Facts(profile, _NOWHERE, _NO_HOST, None, _NO_FLAGS)
    return [finding for rule in RULES.values() if rule.shape for finding in rule.findings(facts)]


def evaluate(facts: Facts, rules: Iterable[Rule] | None = None) -> Report:
    """Ask all rules (or those given); findings come the gravest first, then in the order of the reference."""
    findings: list[Finding] = []
    unasked: dict[str, tuple[Need, ...]] = {}
    for rule in RULES.values() if rules is None else rules:
        lacks = rule.lacks(facts)
        if lacks:
            unasked[rule.id] = tuple(sorted(lacks))
        else:
            findings += rule.findings(facts)
    findings = [item for item in findings if item.rule != "rendering" or not _said(item.message, findings)]
    return Report(tuple(sorted(findings, key=lambda item: item.severity.rank)), unasked)


def _said(problem: str, findings: Iterable[Finding]) -> bool:
    """Whether another rule tells the same: a problem of rendering begins with its place."""
    errors = (item for item in findings if item.severity is Severity.ERROR and item.rule != "rendering")
    return any(
        problem == item.text or (item.where and problem.startswith(f"{item.place}:")) for item in errors
    )


def worst(findings: Iterable[Finding]) -> Severity | None:
    """The gravest severity among findings; None where there are none."""
    return min((item.severity for item in findings), key=lambda severity: severity.rank, default=None)


def find_rule(name: str) -> Rule:
    """A rule by its id. UsageError with the nearest names when there is none."""
    if name in RULES:
        return RULES[name]
    near = nearest(name.lower(), RULES)
    raise UsageError(
        f"there is no rule {printable(name, 60)!r}" + (f"; did you mean {near}?" if near else ""),
        remedy="`deployer check --explain` lists all rules",
    )
