"""Attention backends and the type of the KV cache."""

from __future__ import annotations

from collections.abc import Iterator

from deployer.sglang.rules.base import Hit, Need, Severity, Theme
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


@THEME.rule(
    "triton-pp",
    Severity.WARNING,
    "the triton attention backend in a pipeline",
    about="""triton_backend.py reads the value buffer of layer 0, which later stages do not have: IndexError:
    list index out of range, after the weights are loaded. The index is negative and wraps around in the second
    stage, so the error appears from the third stage on. The wheels 0.5.5, 0.5.9, 0.5.10.post1, 0.5.12.post1 and
    0.5.16 have it; it was fixed in July 2026 and is gone in 0.5.23.""",
    remedy='use attention.backend = "flashinfer", SGLang 0.5.23 or later, or a wheel that has the fix',
    references=[
        "issue 30335",
        "PR 30340",
        "PR 13837",
        "0.5.12.post1:srt/layers/attention/triton_backend.py:139",
    ],
    needs=[Need.VERSION],
)
def triton_pp(facts: Facts) -> Iterator[Hit]:
    if facts.pp > 2 and facts.since("0.5.5") and facts.before("0.5.17"):
        for place in places_of(facts, "triton"):
            yield Hit(f"triton with pp = {facts.pp} and SGLang {facts.version}", place)


@THEME.rule(
    "mla-default-pp",
    Severity.WARNING,
    "the default attention backend of a latent-attention model on SM120 in a pipeline",
    about="""Without --attention-backend, a model with latent attention (DeepSeek, Kimi) on RTX PRO 6000 and
    other SM120 cards gets triton, which fails in the stages from the third on (see triton-pp). Read in the
    wheels up to 0.5.16, not run there: a patched wheel, or a backported fix, works.""",
    remedy='set attention.backend = "flashinfer", or use SGLang 0.5.23 or later',
    references=["0.5.12.post1:srt/server_args.py:2631", "issue 30335", "PR 30340"],
    needs=[Need.VERSION, Need.GPUS, Need.MODEL],
)
def mla_default_pp(facts: Facts) -> Iterator[Hit]:
    sm120 = facts.card(lambda gpu: gpu.major == 12)
    affected = facts.since("0.5.5") and facts.before("0.5.17")
    if facts.model.mla and sm120 and facts.pp > 2 and affected and not backends(facts):
        yield Hit(
            f"{sm120.short} is {sm(sm120)}: SGLang {facts.version} chooses triton for latent attention, and in an "
            f"unpatched wheel the stages from the third of {facts.pp} on fail with an IndexError",
            ("attention", "backend"),
        )


@THEME.rule(
    "trtllm-mla-sm120",
    Severity.ERROR,
    "trtllm_mla on SM120",
    about="""The kernels behind trtllm_mla are built only for SM100 and SM103. On SM120 (RTX PRO 6000, RTX 50)
    SGLang's own check lets it pass ("Blackwell"), and the first capture fails with "TllmGenFmhaRunner ...
    Unsupported architecture". Seen up to 0.5.23.""",
    remedy='set attention.backend to "triton" or "flashinfer"',
    references=["issue 24633", "issue 40558", "flashinfer issue 3263"],
    needs=[Need.GPUS],
)
def trtllm_mla(facts: Facts) -> Iterator[Hit]:
    if sm120 := facts.card(lambda gpu: gpu.major == 12):
        severity = Severity.WARNING if facts.since("0.5.24") else None
        for place in places_of(facts, "trtllm_mla"):
            yield Hit(f"trtllm_mla on {sm120.short} ({sm(sm120)})", place, severity)


@THEME.rule(
    "fa3-hardware",
    Severity.ERROR,
    "fa3 on GPUs that FlashAttention 3 does not support",
    about="""FlashAttention 3 runs on SM80 to SM90, and for latent attention only on SM90. SGLang asserts it
    when it creates the backend ("FlashAttention v3 Backend requires SM>=80 and SM<=90"), after the weights are
    loaded.""",
    remedy='set attention.backend = "flashinfer" or "triton", or leave it to SGLang',
    references=["0.5.12.post1:srt/layers/attention/attention_registry.py:152"],
    needs=[Need.GPUS],
)
def fa3_hardware(facts: Facts) -> Iterator[Hit]:
    supported = (9,) if facts.model.mla else (8, 9)
    if gpu := facts.card(lambda gpu: gpu.major is not None and gpu.major not in supported):
        latent = " with latent attention" if gpu.major == 8 else ""
        for place in places_of(facts, "fa3"):
            yield Hit(f"fa3 on {gpu.short} ({sm(gpu)}){latent}", place)


@THEME.rule(
    "kv-cache-fp8",
    Severity.ADVICE,
    "a KV cache in 8 bits",
    about="""It doubles the number of tokens that fit. Checkpoints without calibrated scales (k_scale, v_scale)
    use a scale of 1.0 with a warning, which costs accuracy in long reasoning; SGLang's own recipes dropped the
    flag for such models. With fa3, fp8_e5m2 silently switches the backend to triton.""",
    remedy="compare answers with those of an unquantised cache; prefer fp8_e4m3",
    references=["sgl-cookbook PR 237", "0.5.12.post1:srt/server_args.py"],
)
def kv_cache_fp8(facts: Facts) -> Iterator[Hit]:
    kind = facts.profile.memory.kv_cache_dtype or ""
    if kind.startswith(("fp8", "mxfp8", "fp4", "nvfp4")):
        switched = kind == "fp8_e5m2" and bool(places_of(facts, "fa3"))
        yield Hit(
            f"the KV cache is {kind}" + ("; SGLang replaces fa3 by triton" if switched else ""),
            ("memory", "kv_cache_dtype"),
            Severity.WARNING if switched else None,
        )
