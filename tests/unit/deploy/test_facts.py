"""What was observed of a host as facts for the rules; their errors as objections; shipped profiles and inventories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deployer.config.inventory import HostConfig, ServiceConfig, load_inventory
from deployer.config.profile import Profile, load_profile, profile_folders, profile_names
from deployer.deploy.facts import host_facts, with_host
from deployer.deploy.preflight import notes, objections
from deployer.records.hardware import EngineFacts, Gpu, ModelFacts
from deployer.records.host import HostState
from deployer.resources import shipped
from deployer.sglang.rules import Facts, Severity, judge
from deployer_rehearsal.model import SHARD_BYTES, SHARDS, config
from tests.unit.deploy.builders import GIB, host_state, release, service_state

INVENTORIES = [shipped("inventories") / name for name in ("example.toml", "rehearsal.toml")]
PROFILES = profile_names(profile_folders())
CARD = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"


def practice_host(**changes: Any) -> HostState:
    """What a practice host answers: eight cards, a model folder like Kimi K2.6."""
    weights = SHARDS * SHARD_BYTES
    fields: dict[str, Any] = {
        "gpus": tuple(Gpu(n, f"u{n}", CARD, 97_887 << 20, 0, 0.0, 60.0, 600.0, "12.0") for n in range(8)),
        "engine": EngineFacts("/opt/sglang/bin/python", True, "0.5.12.post1", "0.28.1", {}, "3.11.2"),
        "model": ModelFacts("/srv/models/Kimi-K2.6", True, weights, SHARDS + 3, "f", config(), weights),
        "memory_total": 24 * GIB,
    }
    return host_state(service_state(), **(fields | changes))


def profile(name: str) -> Profile:
    return load_profile(name, profile_folders())


def observed_facts(profile: Profile, service: ServiceConfig, host: HostConfig, observed: HostState) -> Facts:
    version = observed.engine.sglang if observed.engine else None
    return with_host(Facts.of(profile, service, host, version), observed)


@pytest.mark.parametrize("inventory", INVENTORIES, ids=lambda path: path.stem)
@pytest.mark.parametrize("name", PROFILES)
def test_shipped_profiles_have_no_errors(inventory: Path, name: str) -> None:
    site = load_inventory(inventory)
    service = site.service()
    for version in (None, "0.5.12.post1", "0.5.23"):
        report = judge(Facts.of(profile(name), service, site.host(service.host), version))
        assert report.of(Severity.ERROR) == ()
        assert {"weights-fit", "heads-divide-tp"} <= set(report.skipped)


@pytest.mark.parametrize("name", PROFILES)
def test_on_the_practice_host_only_what_is_too_small_has_errors(name: str) -> None:
    site = load_inventory(INVENTORIES[1])
    report = judge(observed_facts(profile(name), site.service(), site.host("practice-1"), practice_host()))
    small = profile(name).gpus < 8
    assert [item.rule for item in report.of(Severity.ERROR)] == (["weights-fit"] if small else [])
    assert set(report.skipped) <= {"package-pins", "python-version"}


def test_facts_of_a_host() -> None:
    site = load_inventory(INVENTORIES[1])
    service = site.service().model_copy(update={"gpus": [0, 1]})
    seen = host_facts(practice_host(), service)
    assert len(seen.gpus) == 2
    assert seen.gpus[0].capability == (12, 0)
    assert seen.model is not None
    assert (seen.model.layers, seen.model.experts) == (61, 384)
    assert seen.weight_bytes == SHARDS * SHARD_BYTES
    assert seen.python == "3.11.2"
    assert seen.memory == 24 * GIB


def test_a_host_that_shows_nothing_has_no_facts() -> None:
    site = load_inventory(INVENTORIES[1])
    bare = host_facts(practice_host(gpus=None, engine=None, model=None, memory_total=None), site.service())
    assert (bare.gpus, bare.model, bare.weight_bytes, bare.memory) == ((), None, None, None)


@pytest.mark.parametrize("cap", [None, "", "x", "12", "12.0.1"])
def test_a_capability_that_is_none_comes_from_the_name(cap: str | None) -> None:
    site = load_inventory(INVENTORIES[1])
    card = Gpu(0, "u", CARD, 1, 0, None, None, None, cap)
    [gpu] = host_facts(practice_host(gpus=(card,)), site.service()).gpus
    assert gpu.capability == (12, 0)


def test_errors_become_objections_and_warnings_remarks() -> None:
    site = load_inventory(INVENTORIES[1])
    host, service = site.host("practice-1"), site.service()
    findings = judge(observed_facts(profile("pp2"), service, host, practice_host())).findings
    [objection] = objections(practice_host(), host, service, release(requested={"pp_size": 2}), findings)
    assert objection.code == "weights-fit"
    assert "GiB of weights on each of 2 GPUs" in objection.message
    pipeline = judge(observed_facts(profile("pp8"), service, host, practice_host())).findings
    said = notes(practice_host(), service, pipeline)
    assert any(text.startswith("warning graphs-off: cuda_graph.enabled") for text in said)
    assert any("mla-default-pp" in text for text in said)


def test_an_objection_is_raised_once() -> None:
    site = load_inventory(INVENTORIES[1])
    host = site.host("practice-1").model_copy(update={"gpus": None})
    service = site.service().model_copy(update={"gpus": None})
    few = practice_host(gpus=(practice_host().gpus or ())[:4])
    findings = judge(observed_facts(profile("tp8"), service, host, few)).findings
    codes = [item.code for item in objections(few, host, service, release(), findings)]
    assert codes.count("too-few-gpus") == 1
