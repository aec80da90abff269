"""What the rules say about a profile on a service, with what was seen of its host. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from deployer.config.inventory import HostConfig, ServiceConfig
from deployer.config.profile import Profile
from deployer.records.hardware import Gpu
from deployer.records.host import HostState
from deployer.records.outcome import Objection
from deployer.sglang.flags.versions import flag_table, parse_version
from deployer.sglang.rules import Facts, Finding, GpuFacts, HostFacts, Report, Severity, evaluate, model_shape
from deployer.sglang.rules.shape import overridden


def host_facts(observed: HostState, service: ServiceConfig, overrides: Any = None) -> HostFacts:
    """What rules need of a host that was observed with all facts.

    ``overrides`` is what --json-model-override-args says about the model's config.json.
    """
    engine, model = observed.engine, observed.model
    config = model.config if model and isinstance(model.config, dict) else None
    if config is not None and overrides is not None:
        config = overridden(config, overrides)
    machine = {gpu.index: _gpu(gpu) for gpu in observed.gpus or ()}
    wanted = sorted(machine) if service.gpus is None else service.gpus
    return HostFacts(
        gpus=tuple(machine[index] for index in wanted if index in machine),
        machine=tuple(machine.values()),
        model=model_shape(config) if config is not None else None,
        weight_bytes=(model.weight_bytes or None) if model else None,
        packages=engine.packages if engine else {},
        python=engine.python_version if engine else None,
        memory=observed.memory_total,
    )


def _gpu(gpu: Gpu) -> GpuFacts:
    match = re.fullmatch(r"(\d{1,3})\.(\d{1,3})", gpu.compute_cap or "")
    return GpuFacts(gpu.name, gpu.memory_total, (int(match[1]), int(match[2])) if match else None)


def advise(
    profile: Profile,
    service: ServiceConfig,
    host: HostConfig,
    version: str | None,
    *,
    observed: HostState | None = None,
    problems: Iterable[str] = (),
    learned: Path | None = None,
) -> Report:
    """Ask all rules. ``version`` is SGLang's (None: not known), ``problems`` what kept the profile from being rendered.

    ConfigError where the version is none, or too old to be known.
    """
    facts = Facts(
        profile=profile,
        service=service,
        host=host,
        version=parse_version(version) if version is not None else None,
        table=flag_table(version, learned),
        problems=tuple(problems),
    )
    if observed is not None:
        overrides = facts.flag("--json-model-override-args")
        facts = replace(facts, seen=host_facts(observed, service, overrides))
    return evaluate(facts)


def as_objections(findings: Iterable[Finding]) -> list[Objection]:
    """Errors among findings as objections of the preflight."""
    return [
        Objection(finding.rule, finding.text, finding.remedy)
        for finding in findings
        if finding.severity is Severity.ERROR
    ]


def warnings(findings: Iterable[Finding]) -> list[str]:
    """Warnings among findings as remarks on a plan."""
    return [f"{finding} ({finding.remedy})" for finding in findings if finding.severity is Severity.WARNING]
