"""Facts for the rules: a profile, a service, a host, and what was seen of it, each with one thing changed at a time."""

from __future__ import annotations

from typing import Any

from deployer.config.inventory import HostConfig, ServiceConfig
from deployer.config.problems import merge_tables
from deployer.config.profile import Profile
from deployer.sglang.rules import Facts, GpuFacts, HostFacts, ModelShape

GIB = 1024**3
RTX = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"
H200 = "NVIDIA H200"

#: Kimi K2.6, as far as its config.json decides anything.
KIMI = ModelShape(
    architecture="KimiK25ForConditionalGeneration",
    layers=61,
    heads=64,
    kv_heads=64,
    hidden=7168,
    experts=384,
    moe_intermediate=2048,
    context=262_144,
    kv_lora_rank=512,
    rope_dim=64,
    dtype="bfloat16",
)
#: A dense model with grouped-query attention.
DENSE = ModelShape(
    architecture="Qwen3ForCausalLM",
    layers=32,
    heads=32,
    kv_heads=8,
    head_dim=128,
    hidden=4096,
    context=32_768,
    dtype="bfloat16",
)


def gpus(count: int = 8, name: str = RTX, gib: float = 96) -> tuple[GpuFacts, ...]:
    """GPUs of one kind."""
    return tuple(GpuFacts(name, int(gib * GIB)) for _ in range(count))


def facts(
    *,
    profile: dict[str, Any] | None = None,
    service: dict[str, Any] | None = None,
    host: dict[str, Any] | None = None,
    version: str | None = "0.5.12.post1",
    **seen: Any,
) -> Facts:
    """Facts about a profile on eight GPUs; tables are merged over a service that no rule objects to."""
    table = {
        "name": "kimi",
        "host": "box",
        "model": "/models/kimi",
        "engine": {"python": "/opt/sglang/bin/python"},
        "extra_args": {"enable-metrics": True},
        "bench": {"levels": [8]},
    }
    return Facts.of(
        Profile.model_validate({"name": "p", **(profile or {})}),
        ServiceConfig.model_validate(merge_tables(table, service or {})),
        HostConfig.model_validate({"name": "box", "gpus": 8, **(host or {})}),
        version,
        seen=HostFacts(**seen),
    )


def pp(stages: int = 8, **tables: Any) -> dict[str, Any]:
    """A pipeline profile."""
    return {"parallelism": {"pp": stages}, **tables}


def tp(ranks: int = 8, **tables: Any) -> dict[str, Any]:
    """A tensor parallel profile."""
    return {"parallelism": {"tp": ranks}, **tables}


def extra(**flags: Any) -> dict[str, Any]:
    """Flags of a service, with _ for -."""
    return {"extra_args": {name.replace("_", "-"): value for name, value in flags.items()}}


def env(**variables: str) -> dict[str, Any]:
    """Variables of a service."""
    return {"environment": variables}
