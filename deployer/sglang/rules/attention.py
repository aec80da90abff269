"""Attention backends and the type of the KV cache."""

from __future__ import annotations

from collections.abc import Iterator

from deployer.sglang.rules.base import Hit, Severity, Theme
from deployer.sglang.rules.facts import Facts, GpuFacts

THEME = Theme("attention", "Attention")

_OPTIONS = ("--prefill-attention-backend", "--decode-attention-backend")


def places_of(facts: Facts, backend: str) -> list[tuple[str, ...]]:
    """Return the places that request an attention backend."""
    return [place for name, place in backends(facts) if name == backend]


def backends(facts: Facts) -> list[tuple[str, tuple[str, ...]]]:
    """Return the requested attention backends, each with its place."""
    own = facts.profile.attention.backend
    first = [(own, ("attention", "backend"))] if own else []
    return [*first, *((name, facts.at(option)) for option in _OPTIONS if (name := facts.word(option)))]


def sm(gpu: GpuFacts) -> str:
    """Return the GPU's architecture as people write it: SM120."""
    return f"SM{gpu.capability[0]}{gpu.capability[1]}" if gpu.capability else "an unknown architecture"


@THEME.rule("triton-pp")
def triton_pp(facts: Facts) -> Iterator[Hit]:
    if facts.pp > 2 and facts.since("0.5.5") and facts.before("0.5.17"):
        for place in places_of(facts, "triton"):
            yield Hit(f"triton with pp = {facts.pp} and SGLang {facts.version}", place)


@THEME.rule("mla-default-pp")
def mla_default_pp(facts: Facts) -> Iterator[Hit]:
    sm120 = facts.card(lambda gpu: gpu.major == 12)
    affected = facts.since("0.5.5") and facts.before("0.5.17")
    if facts.model.mla and sm120 and facts.pp > 2 and affected and not backends(facts):
        yield Hit(
            f"{sm120.short} is {sm(sm120)}: SGLang {facts.version} chooses triton for latent attention, and in an "
            f"unpatched wheel the stages from the third of {facts.pp} on fail with an IndexError",
            ("attention", "backend"),
        )


@THEME.rule("trtllm-mla-sm120")
def trtllm_mla(facts: Facts) -> Iterator[Hit]:
    if sm120 := facts.card(lambda gpu: gpu.major == 12):
        severity = Severity.WARNING if facts.since("0.5.24") else None
        for place in places_of(facts, "trtllm_mla"):
            yield Hit(f"trtllm_mla on {sm120.short} ({sm(sm120)})", place, severity)


@THEME.rule("fa3-hardware")
def fa3_hardware(facts: Facts) -> Iterator[Hit]:
    supported = (9,) if facts.model.mla else (8, 9)
    if gpu := facts.card(lambda gpu: gpu.major is not None and gpu.major not in supported):
        latent = " with latent attention" if gpu.major == 8 else ""
        for place in places_of(facts, "fa3"):
            yield Hit(f"fa3 on {gpu.short} ({sm(gpu)}){latent}", place)


@THEME.rule("kv-cache-fp8")
def kv_cache_fp8(facts: Facts) -> Iterator[Hit]:
    kind = facts.profile.memory.kv_cache_dtype or ""
    if kind.startswith(("fp8", "mxfp8", "fp4", "nvfp4")):
        switched = kind == "fp8_e5m2" and bool(places_of(facts, "fa3"))
        yield Hit(
            f"the KV cache is {kind}" + ("; SGLang replaces fa3 by triton" if switched else ""),
            ("memory", "kv_cache_dtype"),
            Severity.WARNING if switched else None,
        )
