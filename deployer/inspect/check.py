"""`check`: judge profiles against services, with what their hosts say if they are asked."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deployer.config.inventory import Inventory, ServiceConfig
from deployer.config.profile import Profile
from deployer.deploy.engine_preflight import Question, ask_host, engine_complaint
from deployer.deploy.facts import with_host
from deployer.deploy.preflight import installation
from deployer.deploy.session import Connector, Session
from deployer.errors import ConfigError
from deployer.records.codec import Json
from deployer.records.host import HostState
from deployer.sglang.rules import Facts, Finding, Severity, judge
from deployer.sglang.server.answers import Asked
from deployer.units.bundle import Bundle, build_bundle


@dataclass(frozen=True)
class HostView:
    """A host as it was observed, and what its SGLang answered about each profile, by name."""

    state: HostState | None = None
    answers: dict[str, Asked] | None = None

    def answer(self, profile: Profile) -> Asked | None:
        return (self.answers or {}).get(profile.name)


@dataclass(frozen=True)
class Check:
    """Judges profiles for the services of one inventory.

    ``version`` is the SGLang version to check against (None: the host's, else the newest known), ``learned`` the
    folder of flag tables learned from hosts.
    """

    inventory: Inventory
    version: str | None
    templates: Sequence[Path]
    learned: Path | None

    def observe(self, service: ServiceConfig, profiles: Sequence[Profile], connect: Connector) -> HostView:
        """Ask the service's host for GPUs, engine, model and memory, and its SGLang about each profile.

        SGLang is not asked about profiles that cannot be rendered, nor if another version than the host's is checked.
        """
        host = self.inventory.host(service.host)
        with Session(service, host, connect, command="check") as session:
            state = session.observe(facts=True)
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

    def examine(self, service: ServiceConfig, profile: Profile, host: HostView | None = None) -> Json:
        """Return the findings about one profile on one service, and the rules that lacked a fact."""
        state = host.state if host is not None else None
        answer = host.answer(profile) if host is not None else None
        version = self.version
        if version is None and state is not None and state.engine is not None:
            version = state.engine.sglang
        facts = Facts.of(profile, service, self.inventory.host(service.host), version, self.learned)
        report = judge(facts if state is None else with_host(facts, state))
        if not report.blocking:
            report = report.with_problems(self._unit_problems(service, profile, version))
        if answer is not None and answer.verdict == "refused":
            report = report.with_problems([engine_complaint(answer, version)])
        missing = [
            Finding(
                item.code, Severity.ERROR, "the host has what the service names", item.message, item.remedy
            )
            for item in (installation(state, service) if state is not None else ())
        ]
        errors = [*missing, *report.of(Severity.ERROR)]
        return {
            "service": service.name,
            "profile": profile.name,
            "sglang": version,
            "flags_of": str(facts.table.version),
            "changing": change_under_way(state, service),
            "asked": answer.judgement() if answer is not None else None,
            "problem": "; ".join(item.text for item in errors) or None,
            "errors": len(errors),
            "warnings": len(report.of(Severity.WARNING)),
            "findings": [item.as_dict() for item in (*missing, *report.findings)],
            "unasked": {rule: [str(need) for need in needs] for rule, needs in report.unasked.items()},
        }

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
    lease = state.lease if state is not None else None
    if lease is None or not lease.valid:
        return None
    return f"{service.host} is being changed for {lease.service} by {lease.owner}"
