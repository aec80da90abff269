"""What was observed of a host, as the facts that the rules judge. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from deployer.config.inventory import ServiceConfig
from deployer.records.hardware import Gpu
from deployer.records.host import HostState
from deployer.sglang.rules import Facts, GpuFacts, HostFacts, model_shape
from deployer.sglang.rules.shape import overridden


def with_host(facts: Facts, observed: HostState) -> Facts:
    """Return the facts with what was observed of the host; its config.json as the profile overrides it."""
    overrides = facts.flag("--json-model-override-args")
    return replace(facts, seen=host_facts(observed, facts.service, overrides))


def host_facts(observed: HostState, service: ServiceConfig, overrides: Any = None) -> HostFacts:
    """Return what the rules need of an observed host.

    ``overrides`` is the value of --json-model-override-args, which changes the model's config.json.
    """
    engine, model = observed.engine, observed.model
    config = model.config if model and isinstance(model.config, dict) else None
    if config is not None and overrides is not None:
        config = overridden(config, overrides)
    machine = {gpu.index: _gpu(gpu) for gpu in observed.gpus or ()}
    visible = sorted(machine) if service.gpus is None else service.gpus
    return HostFacts(
        gpus=tuple(machine[index] for index in visible if index in machine),
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
