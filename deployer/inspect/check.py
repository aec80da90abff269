"""`check`: judge profiles against services, with what their hosts report if they are connected."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deployer.config.inventory import Inventory, ServiceConfig
from deployer.config.profile import Profile
from deployer.deploy.engine_preflight import Question, ask_host, engine_complaint
from deployer.deploy.facts import with_host
from deployer.deploy.preflight import installation
from deployer.deploy.session import Session
from deployer.errors import ConfigError
from deployer.records.host import HostState
from deployer.sglang.rules import Facts, Finding, Need, Severity, judge
from deployer.sglang.server.answers import Asked
from deployer.units.bundle import Bundle, build_bundle


@dataclass(frozen=True)
class HostView:
    """A host as it was observed, and what its SGLang answered about each profile, by name."""

    state: HostState | None = None
    answers: Mapping[str, Asked] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckedProfile:
    """The findings about one profile on one service, the most serious first, and the rules that lacked a fact.

    ``flags_of`` is the SGLang version whose flag table was used, ``answer`` what the host's SGLang said of the
    command line, ``changing`` who was changing the host meanwhile.
    """

    service: str
    profile: str
    version: str | None
    flags_of: str
    findings: tuple[Finding, ...]
    unasked: Mapping[str, Sequence[Need]]
    answer: Asked | None = None
    changing: str | None = None

    def of(self, severity: Severity) -> tuple[Finding, ...]:
        """Return the findings of one severity."""
        return tuple(item for item in self.findings if item.severity is severity)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that make it impossible."""
        return self.of(Severity.ERROR)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that are known to go wrong or to cost much."""
        return self.of(Severity.WARNING)

    def as_json(self) -> dict[str, Any]:
        """Return its part of the document of ``check --json`` (docs/cli.md)."""
        return {
            "service": self.service,
            "profile": self.profile,
            "sglang": self.version,
            "flags_of": self.flags_of,
            "changing": self.changing,
            "asked": self.answer.judgement() if self.answer is not None else None,
            "problem": "; ".join(item.text for item in self.errors) or None,
            "errors": len(self.errors),
            "warnings": len(self.warnings),
            "findings": [item.as_dict() for item in self.findings],
            "unasked": {rule: [str(need) for need in needs] for rule, needs in self.unasked.items()},
        }


@dataclass(frozen=True)
class Checker:
    """Judges profiles for the services of one inventory.

    ``version`` is the SGLang version to check against (None: the host's, else the newest known), ``learned`` the
    folder of flag tables learned from hosts.
    """

    inventory: Inventory
    version: str | None
    templates: Sequence[Path]
    learned: Path | None

    def observe(self, session: Session, profiles: Sequence[Profile]) -> HostView:
        """Ask the service's host for GPUs, engine, model and memory, and its SGLang about each profile.

        SGLang is not asked about profiles that cannot be rendered, nor if another version than the host's is checked.
        """
        service, state = session.service, session.observe(facts=True)
        installed = state.engine.sglang if state.engine else None
        if installed is None or self.version not in (None, installed):
            return HostView(state)
        questions: dict[str, Question] = {}
        for profile in profiles:
            with contextlib.suppress(ConfigError):
                bundle = self._render(service, profile, installed)
                questions[profile.name] = Question(bundle.argv, bundle.environment)
        answers = ask_host(session.client, service, state, list(questions.values()))
        return HostView(state, dict(zip(questions, answers, strict=True)))

    def examine(self, service: ServiceConfig, profile: Profile, host: HostView | None = None) -> CheckedProfile:
        """Return the findings about one profile on one service, and the rules that lacked a fact."""
        state, answer = (host.state, host.answers.get(profile.name)) if host is not None else (None, None)
        version = self.version or (state.engine.sglang if state is not None and state.engine is not None else None)
        facts = Facts.of(profile, service, self.inventory.host(service.host), version, self.learned)
        report = judge(facts if state is None else with_host(facts, state))
        if not report.blocking:
            report = report.with_problems(self._unit_problems(service, profile, version))
        if answer is not None and answer.verdict == "refused":
            report = report.with_problems([engine_complaint(answer, version)])
        missing = [
            Finding(item.code, Severity.ERROR, "the host has what the service names", item.message, item.remedy)
            for item in (installation(state, service) if state is not None else ())
        ]
        return CheckedProfile(
            service=service.name,
            profile=profile.name,
            version=version,
            flags_of=str(facts.table.version),
            findings=(*missing, *report.findings),
            unasked=report.skipped,
            answer=answer,
            changing=change_under_way(state, service),
        )

    def _render(self, service: ServiceConfig, profile: Profile, version: str | None) -> Bundle:
        """Render the profile without resolving secrets."""
        return build_bundle(
            service,
            self.inventory.host(service.host),
            profile,
            version,
            f"0001-{profile.name}",
            templates=self.templates,
            learned=self.learned,
            resolve=lambda secret: "not-asked-for",
        )

    def _unit_problems(self, service: ServiceConfig, profile: Profile, version: str | None) -> list[str]:
        """Return what only rendering the unit can find: in its template, and in its size."""
        try:
            self._render(service, profile, version)
        except ConfigError as error:
            return list(error.detail.get("problems") or [error.message])
        return []


def change_under_way(state: HostState | None, service: ServiceConfig) -> str | None:
    """Return who is changing the host, as what was observed of it may then be temporary. None if nobody is."""
    lease = state.held_lease if state is not None else None
    return None if lease is None else f"{service.host} is being changed for {lease.service} by {lease.owner}"
