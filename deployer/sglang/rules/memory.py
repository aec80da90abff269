"""Memory: weights, the KV pool, and what limits the tokens in it."""

from __future__ import annotations

from collections.abc import Iterator

from deployer.sglang.rules.base import Hit, Need, Severity, Theme
from deployer.sglang.rules.facts import GIB, Facts

THEME = Theme("memory", "Memory")

_FRACTION = ("memory", "mem_fraction_static")
#: A usual mem_fraction_static, for profiles without one; SGLang computes its own from sizes.
_USUAL_FRACTION = 0.88
#: Options that move weights off the GPU or change their size as they are loaded.
_MOVING = (
    "--cpu-offload-gb", "--offload-group-size", "--load-format", "--torchao-config", "--kt-weight-path",
    "--json-model-override-args", "--modelopt-quant", "--rl-quant-profile", "--ple-offload-embedding",
)  # fmt: skip
_BYTES = {"fp8": 1.0, "mxf": 1.0, "fp4": 0.5, "nvf": 0.5}


def weights_per_gpu(facts: Facts) -> float | None:
    """Return the bytes of weights on a GPU if they are divided evenly (the least possible); None if unknown."""
    moved = any(facts.flag(option) for option in _MOVING)
    if not facts.seen.weight_bytes or moved or (facts.profile.quantization and not facts.model.quantized):
        return None
    # Weights of 32 bits, and those for which config.json has no type, are loaded as 16 bits unless --dtype says 32.
    model = facts.seen.model
    wide = model is not None and not model.quantized and model.dtype in (None, "float32", "float")
    halved = wide and facts.word("--dtype") not in ("float32", "float")
    return facts.seen.weight_bytes / (facts.tp * facts.pp) / (2 if halved else 1)


def kv_bytes_per_token(facts: Facts) -> float | None:
    """Return the bytes of KV cache for a token on the GPU of the largest stage; None if unknown."""
    values = facts.model.kv_values_per_token(facts.attention_tp)
    if values is None or not facts.model.layers:
        return None
    size = _BYTES.get((facts.profile.memory.kv_cache_dtype or "")[:3], 2.0)
    return values * -(-facts.model.layers // facts.pp) * size


@THEME.rule(
    "weights-fit",
    Severity.ERROR,
    "the weights fit the GPUs",
    about="""The weights are divided among tp x pp GPUs (experts too, whatever ep is). If the even share is
    larger than a GPU, the load must end with "CUDA out of memory"; if it is larger than the share that
    mem_fraction_static leaves, SGLang loads everything and then ends with "Not enough memory. Please try to
    increase --mem-fraction-static".""",
    remedy="use more GPUs (tp x pp), a smaller or quantised checkpoint, or a larger mem_fraction_static",
    references=["0.5.12.post1:srt/model_executor/pool_configurator.py:53"],
    needs=[Need.GPUS, Need.WEIGHTS],
)
def weights_fit(facts: Facts) -> Iterator[Hit]:
    share, memory = weights_per_gpu(facts), facts.smallest_gpu
    if share is None or memory is None:
        return
    fraction = facts.profile.memory.mem_fraction_static
    text = f"at least {share / GIB:.1f} GiB of weights on each of {facts.tp * facts.pp} GPUs"
    room = f"a GPU has {memory / GIB:.1f} GiB"
    if share > memory:
        yield Hit(f"{text}; {room}")
    elif share > memory * (fraction or 0.97):
        if fraction:
            room = f"mem_fraction_static {fraction} leaves {memory * fraction / GIB:.1f} GiB"
        yield Hit(f"{text}; {room}", _FRACTION, Severity.WARNING)


@THEME.rule(
    "kv-room",
    Severity.ADVICE,
    "the room that the weights leave for the KV cache",
    about="""mem_fraction_static is the share of GPU memory for weights and KV pool together; activations and
    graphs use the rest. The room for tokens is memory x fraction - weights, on the GPU of the pipeline stage
    that has least. It is an upper bound: the real pool is smaller (`max_total_num_tokens` in the log shows
    it).""",
    remedy="for more room: a larger fraction, a KV cache in 8 bits, more GPUs, or (latent attention) pp instead of tp",
    references=["0.5.12.post1:srt/model_executor/pool_configurator.py"],
    needs=[Need.GPUS, Need.WEIGHTS, Need.MODEL],
)
def kv_room(facts: Facts) -> Iterator[Hit]:
    share, memory, per_token = weights_per_gpu(facts), facts.smallest_gpu, kv_bytes_per_token(facts)
    if share is None or memory is None or not per_token:
        return
    own, limit = facts.profile.memory.mem_fraction_static, facts.profile.limits.context_length
    fraction = own or _USUAL_FRACTION
    left = memory * fraction - share
    if left <= 0:
        return
    tokens, context = int(left / per_token), limit or facts.model.context
    yield Hit(
        f"{memory / GIB:.1f} GiB x {fraction}{'' if own else ' (a usual value; the profile sets none)'} - "
        f"{share / GIB:.1f} GiB of weights = {left / GIB:.1f} GiB a GPU: room for at most {tokens:,} tokens of "
        f"{per_token / 1024:.1f} KiB"
        + (f"; one request of the full context takes {context:,}" if context else ""),
        (),
        Severity.WARNING if limit is not None and tokens < limit else None,
    )


@THEME.rule(
    "mem-fraction-high",
    Severity.WARNING,
    "little GPU memory is left for activations and graphs",
    about="""What mem_fraction_static does not take is for the activations of a prefill chunk, CUDA graphs and
    NCCL. Above 0.95 that is often too little: out of memory during capture, or only under load. SGLang accepts
    even 1.9.""",
    remedy="stay at or below 0.94; a smaller chunk and fewer graphs need less of the rest",
    references=[
        "measured: 0.5.23 accepts 1.9",
        "measured elsewhere: Kimi K2.6 NVFP4 on 4 RTX PRO 6000 ran at 0.94",
    ],
)
def mem_fraction_high(facts: Facts) -> Iterator[Hit]:
    fraction = facts.profile.memory.mem_fraction_static
    if fraction and fraction > 0.95:
        memory = facts.smallest_gpu
        left = f": {memory * (1 - fraction) / GIB:.1f} GiB of {memory / GIB:.1f}" if memory else ""
        yield Hit(f"{fraction} leaves {1 - fraction:.0%}{left}", _FRACTION)


@THEME.rule(
    "mem-fraction-low",
    Severity.ADVICE,
    "much GPU memory is left unused",
    about="""Memory above the fraction holds neither weights nor tokens. Below one half, the server leaves most
    of the GPU idle unless something else runs there.""",
    remedy="raise memory.mem_fraction_static, or leave it to SGLang",
    references=["0.5.23:srt/arg_groups/memory_hook.py"],
)
def mem_fraction_low(facts: Facts) -> Iterator[Hit]:
    fraction = facts.profile.memory.mem_fraction_static
    if fraction and fraction < 0.5:
        yield Hit(f"{fraction} leaves {1 - fraction:.0%} of each GPU", _FRACTION)


@THEME.rule(
    "tokens-below-context",
    Severity.WARNING,
    "the KV pool is smaller than one context",
    about="""limits.max_total_tokens caps the pool. A request that needs more tokens than the pool has is
    refused, even if its length is within the context.""",
    remedy="raise limits.max_total_tokens, or lower limits.context_length",
    references=["0.5.12.post1:srt/managers/scheduler.py"],
)
def tokens_below_context(facts: Facts) -> Iterator[Hit]:
    tokens, context = (
        facts.profile.limits.max_total_tokens,
        facts.profile.limits.context_length or facts.model.context,
    )
    if tokens and context and tokens < context:
        yield Hit(f"{tokens} is less than one context of {context}", ("limits", "max_total_tokens"))


@THEME.rule(
    "running-capped-by-tokens",
    Severity.WARNING,
    "the pool is too small for the requested number of running requests",
    about="""SGLang lowers max_running_requests to half of the pool's tokens. The server then runs with another
    number than requested.""",
    remedy="raise limits.max_total_tokens, or lower limits.max_running_requests",
    references=["0.5.23:srt/mem_cache/kv_cache_configurator.py:3118"],
)
def running_capped(facts: Facts) -> Iterator[Hit]:
    tokens = facts.profile.limits.max_total_tokens
    if tokens and facts.running and facts.running > tokens // 2:
        yield Hit(
            f"{facts.running}, but {tokens} tokens allow {tokens // 2}", ("limits", "max_running_requests")
        )


@THEME.rule(
    "chunk-page-size",
    Severity.ERROR,
    "a prefill chunk is a whole number of pages",
    about="""SGLang asserts that chunked_prefill_size is a multiple of page_size when it checks its
    arguments.""",
    remedy="choose a multiple of the page size",
    references=["0.5.9:srt/server_args.py:5181", "0.5.23:srt/arg_groups/validation_hook.py:244"],
)
def chunk_page_size(facts: Facts) -> Iterator[Hit]:
    chunk, page = facts.profile.memory.chunked_prefill_size, facts.whole("--page-size")
    decode = facts.word("--disaggregation-mode") == "decode"
    if chunk and chunk > 0 and page and page > 0 and chunk % page and not decode:
        yield Hit(f"{chunk} is not a multiple of the page size {page}", ("memory", "chunked_prefill_size"))


@THEME.rule(
    "dp-attention-chunk",
    Severity.ADVICE,
    "DP attention divides the prefill chunk",
    about="""With DP attention SGLang divides chunked_prefill_size by the number of groups and multiplies
    schedule_conservativeness by 0.3, so /server_info shows other values than requested.""",
    remedy="set dp times the chunk that each group should have",
    references=["0.5.23:srt/arg_groups/parallel_hook.py"],
)
def dp_attention_chunk(facts: Facts) -> Iterator[Hit]:
    chunk, sizes = facts.profile.memory.chunked_prefill_size, facts.profile.parallelism
    if sizes.dp_attention and sizes.dp > 1 and chunk and chunk > 0:
        text = f"{chunk} / {sizes.dp} groups = {chunk // sizes.dp} tokens a chunk"
        yield Hit(text, ("memory", "chunked_prefill_size"))


@THEME.rule(
    "host-memory",
    Severity.ADVICE,
    "the weights are larger than the host's memory",
    about="""The second start is faster than the first because the kernel still has the files in memory. Weights
    larger than the host's memory are read from disk each time, and loaders that copy them first may meet the
    OOM killer.""",
    remedy="expect every start to run at the disk's speed; see MemoryMax of the unit and --weight-loader-disable-mmap",
    references=["issue 37931", "issue 15235", "PR 20287"],
    needs=[Need.MEMORY, Need.WEIGHTS],
)
def host_memory(facts: Facts) -> Iterator[Hit]:
    weights, memory = facts.seen.weight_bytes, facts.seen.memory
    if weights and memory and weights > memory:
        yield Hit(f"{weights / GIB:.0f} GiB of weights, {memory / GIB:.0f} GiB of memory")
