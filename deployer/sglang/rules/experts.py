"""Mixtures of experts: how they are distributed, and over what."""

from __future__ import annotations

from collections.abc import Iterator

from deployer.sglang.rules.base import Hit, Need, Severity, Theme
from deployer.sglang.rules.facts import Facts

THEME = Theme("experts", "Experts")

#: All-to-all backends that set ep to tp, besides deepep.
_FORCING = ("mooncake", "ascend_fuseep")


@THEME.rule(
    "deepep-needs-ep-tp",
    Severity.ERROR,
    "DeepEP distributes the experts over all ranks",
    about="""With --moe-a2a-backend deepep SGLang sets ep_size to tp_size, whatever was requested, and mentions
    it in one line of its log. A profile with another ep would not be what runs.""",
    remedy='set parallelism.ep to tp, or moe.a2a_backend to "none"',
    references=["0.5.10.post1:srt/server_args.py:2743"],
    shape=True,
)
def deepep_needs_ep_tp(facts: Facts) -> Iterator[Hit]:
    if facts.profile.moe.a2a_backend == "deepep" and facts.ep != facts.tp:
        yield Hit(f"deepep needs ep = tp = {facts.tp}; ep is {facts.ep}", ("moe", "a2a_backend"))


@THEME.rule(
    "a2a-sets-ep",
    Severity.WARNING,
    "an all-to-all backend that sets ep to tp",
    about="""mooncake and ascend_fuseep set ep_size to tp_size, as deepep does. The server then runs with
    another ep than requested, and its verification fails.""",
    remedy="set parallelism.ep to tp",
    references=["0.5.10.post1:srt/server_args.py:2743"],
)
def a2a_sets_ep(facts: Facts) -> Iterator[Hit]:
    backend = facts.profile.moe.a2a_backend
    if backend in _FORCING and facts.ep != facts.tp:
        yield Hit(f"{backend} runs with ep = {facts.tp}, not {facts.ep}", ("parallelism", "ep"))


@THEME.rule(
    "experts-divide-ep",
    Severity.ERROR,
    "experts can be divided among the expert parallel ranks",
    about="""Each of the ep ranks holds the same number of experts, redundant ones (--ep-num-redundant-experts)
    included. SGLang does not check this when it parses its arguments: weights end up in the wrong place, or
    shapes do not match in the middle of the load.""",
    remedy="choose an ep that divides the number of experts",
    references=["ktransformers issue 2002", "0.5.12.post1:srt/eplb/expert_location.py:203"],
    needs=[Need.MODEL],
)
def experts_divide_ep(facts: Facts) -> Iterator[Hit]:
    experts = facts.model.experts
    spare = max(0, facts.whole("--ep-num-redundant-experts") or 0)
    if experts and (experts + spare) % facts.ep:
        redundant = f" and {spare} redundant ones" if spare else ""
        yield Hit(
            f"{experts} experts{redundant} cannot be divided among {facts.ep} ranks", ("parallelism", "ep")
        )


@THEME.rule(
    "ep-without-experts",
    Severity.WARNING,
    "expert parallelism for a model without experts",
    about="""ep distributes the experts of a mixture. A dense model has none, and ep changes nothing.""",
    remedy="leave parallelism.ep out",
    references=["0.5.12.post1:srt/configs/model_config.py"],
    needs=[Need.MODEL],
)
def ep_without_experts(facts: Facts) -> Iterator[Hit]:
    if facts.ep > 1 and not facts.model.experts and facts.model.layers:
        yield Hit(f"ep = {facts.ep}, but config.json has no experts", ("parallelism", "ep"))


@THEME.rule(
    "moe-block",
    Severity.ERROR,
    "experts quantised in blocks are cut at block borders",
    about="""Weights quantised in blocks (fp8, weight_block_size) cannot be cut inside a block: the experts'
    intermediate size divided by tp / ep must be a multiple of the block. SGLang notices when it initialises the
    model ("For quantized MoE models, please make sure ..."), not when it parses its arguments.""",
    remedy="raise parallelism.ep (up to tp), or lower tp: an expert is cut into tp / ep parts",
    references=["0.5.12.post1:srt/model_executor/model_runner.py:1176"],
    needs=[Need.MODEL],
)
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


@THEME.rule(
    "deepep-pcie",
    Severity.WARNING,
    "DeepEP on GPUs without NVLink",
    about="""DeepEP's kernels write into the memory of other GPUs: they need peer access among all of them, in
    practice NVLink. On PCIe cards it fails in its buffer (deep_ep.cpp) or drops to a fraction of the speed.""",
    remedy='use moe.a2a_backend = "none" with parallelism.ep: experts are distributed without DeepEP',
    references=["issue 19033", "issue 31293", "issue 12320"],
    needs=[Need.GPUS],
)
def deepep_pcie(facts: Facts) -> Iterator[Hit]:
    pcie = facts.card(lambda gpu: gpu.without_nvlink)
    if (facts.profile.moe.a2a_backend or "").startswith("deepep") and pcie:
        yield Hit(f"{pcie.short} has no NVLink", ("moe", "a2a_backend"))


@THEME.rule(
    "moe-runner-ep",
    Severity.ERROR,
    "expert kernels that do not support expert parallelism",
    about="""The runner triton_kernel, and cutlass for fp8 and mxfp8, support only ep_size 1: SGLang exits with
    an assertion while it resolves its arguments.""",
    remedy="leave moe.runner_backend out, or set parallelism.ep to 1",
    references=["0.5.12.post1:srt/server_args.py:2122 and 3170"],
)
def moe_runner_ep(facts: Facts) -> Iterator[Hit]:
    runner, quantization = facts.profile.moe.runner_backend, facts.profile.quantization
    refused = runner == "triton_kernel" or (runner == "cutlass" and quantization in ("fp8", "mxfp8"))
    if refused and facts.ep > 1:
        kernels = f"{runner} with {quantization}" if runner == "cutlass" else runner
        yield Hit(f"{kernels} supports only ep = 1; ep is {facts.ep}", ("moe", "runner_backend"))
