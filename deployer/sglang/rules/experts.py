"""Mixtures of experts: how they are distributed, and over what."""

from __future__ import annotations

from collections.abc import Iterator

from deployer.sglang.rules.base import Hit, Severity, Theme
from deployer.sglang.rules.facts import Facts

THEME = Theme("experts", "Experts")


@THEME.rule("a2a-sets-ep")
def a2a_sets_ep(facts: Facts) -> Iterator[Hit]:
    requested = facts.profile.parallelism.ep
    if facts.ep != requested:
        # What is requested by name is verified: the server would be refused after its whole start.
        verified = requested > 1 and "ep_size" not in facts.profile.verify.allow_changed
        severity = None if verified else Severity.ADVICE
        yield Hit(
            f"with {facts.a2a} SGLang sets ep to tp: {facts.ep}, not {requested}", ("parallelism", "ep"), severity
        )


@THEME.rule("experts-divide-ep")
def experts_divide_ep(facts: Facts) -> Iterator[Hit]:
    experts = facts.model.experts
    spare = max(0, facts.whole("--ep-num-redundant-experts") or 0)
    if experts and (experts + spare) % facts.ep:
        redundant = f" and {spare} redundant ones" if spare else ""
        yield Hit(f"{experts} experts{redundant} cannot be divided among {facts.ep} ranks", ("parallelism", "ep"))


@THEME.rule("ep-without-experts")
def ep_without_experts(facts: Facts) -> Iterator[Hit]:
    if facts.ep > 1 and not facts.model.experts and facts.model.layers:
        yield Hit(f"ep = {facts.ep}, but config.json has no experts", ("parallelism", "ep"))


@THEME.rule("moe-block")
def moe_block(facts: Facts) -> Iterator[Hit]:
    size, block = facts.model.moe_intermediate, facts.model.block_n
    if not size or not block or not facts.model.experts or facts.tp % facts.ep:
        return
    cut = facts.tp // facts.ep // max(1, facts.whole("--moe-dp-size") or 1)
    if facts.truthy("SGLANG_SHARED_EXPERT_TP1") or cut < 2:
        return
    if size % cut or (size // cut) % block:
        yield Hit(
            f"moe_intermediate_size {size} / (tp {facts.tp} / ep {facts.ep}) = {size / cut:g}, "
            f"not a multiple of the block size {block}",
            ("parallelism", "ep"),
        )


@THEME.rule("deepep-pcie")
def deepep_pcie(facts: Facts) -> Iterator[Hit]:
    pcie = facts.card(lambda gpu: gpu.without_nvlink)
    if (facts.profile.moe.a2a_backend or "").startswith("deepep") and pcie:
        yield Hit(f"{pcie.short} has no NVLink", ("moe", "a2a_backend"))


@THEME.rule("moe-runner-ep")
def moe_runner_ep(facts: Facts) -> Iterator[Hit]:
    runner, quantization = facts.profile.moe.runner_backend, facts.profile.quantization
    refused = runner == "triton_kernel" or (runner == "cutlass" and quantization in ("fp8", "mxfp8"))
    if refused and facts.ep > 1:
        kernels = f"{runner} with {quantization}" if runner == "cutlass" else runner
        yield Hit(f"{kernels} supports only ep = 1; ep is {facts.ep}", ("moe", "runner_backend"))
