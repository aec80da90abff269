"""Memory: weights, the KV pool, and what limits the tokens in it."""

from __future__ import annotations

from collections.abc import Iterator

from deployer.sglang.rules.base import Hit, Need, Severity, Theme
from deployer.sglang.rules.facts import GIB, Facts

THEME = Theme("memory", "Memory")

#: A share of GPU memory for rules of thumb where the profile names none; SGLang computes its own from sizes.
_FRACTION = 0.88
#: Options that move weights off the GPU or change their size while they are loaded.
_MOVING = (
    "--cpu-offload-gb", "--offload-group-size", "--load-format", "--torchao-config", "--kt-weight-path",
    "--json-model-override-args", "--modelopt-quant", "--rl-quant-profile", "--ple-offload-embedding",
)  # fmt: skip
_BYTES = {"fp8": 1.0, "mxf": 1.0, "fp4": 0.5, "nvf": 0.5}


def weights_per_gpu(facts: Facts) -> float | None:
    """Bytes of weights on a GPU if they are divided evenly, the least possible; None where that is not known."""
    moved = any(facts.flag(option) for option in _MOVING)
    if not facts.seen.weight_bytes or moved or (facts.profile.quantization and not facts.model.quantized):
        return None
    # Weights of 32 bits are loaded as 16 unless told otherwise; so are those of which config.json says nothing.
    model = facts.seen.model
    wide = model is not None and not model.quantized and model.dtype in (None, "float32", "float")
    halved = wide and facts.word("--dtype") not in ("float32", "float")
    return facts.seen.weight_bytes / (facts.tp * facts.pp) / (2 if halved else 1)


def kv_bytes_per_token(facts: Facts) -> float | None:
    """Bytes of KV cache for a token on the GPU of the largest stage."""
    values = facts.model.kv_values_per_token(facts.attention_tp)
    if values is None or not facts.model.layers:
        return None
    size = _BYTES.get((facts.profile.memory.kv_cache_dtype or "")[:3], 2.0)
    return values * -(-facts.model.layers // facts.pp) * size


@THEME.rule(
    "weights-fit",
    Severity.ERROR,
    "the weights fit the GPUs",
    about="""The weights are divided among tp x pp GPUs (experts too, however ep is chosen). Where the even
    share is larger than a GPU the load must end with "CUDA out of memory"; where it is larger than the share
    that mem_fraction_static leaves, SGLang loads everything and then ends with "Not enough memory. Please try
    to increase --mem-fraction-static".""",
    remedy="use more GPUs (tp x pp), a smaller or quantised checkpoint, or a larger mem_fraction_static",
    references=["0.5.12.post1:srt/model_executor/pool_configurator.py:53"],
    needs=[Need.GPUS, Need.WEIGHTS],
)
def weights_fit(facts: Facts) -> Iterator[Hit]:
    share, memory = weights_per_gpu(facts), facts.smallest_gpu
    if share is None or memory is None:
        return
    fraction = facts.profile.memory.mem_fraction_static
    text = f"{share / GIB:.1f} GiB of weights on each of {facts.tp * facts.pp} GPUs"
    if share > memory:
        yield Hit(f"{text}, at least, and a GPU has {memory / GIB:.1f} GiB")
    elif share > memory * (fraction or 0.97):
        limit = (
            f"mem_fraction_static {fraction} leaves {memory * fraction / GIB:.1f} GiB"
            if fraction
            else (f"a GPU has {memory / GIB:.1f} GiB")
        )
        yield Hit(f"{text}, at least, and {limit}", ("memory", "mem_fraction_static"), Severity.WARNING)


@THEME.rule(
    "kv-room",
    Severity.ADVICE,
    "what the weights leave for the KV cache",
    about="""mem_fraction_static is the share of GPU memory for weights and KV pool together; activations and
    graphs live in the rest. So what is left for tokens is memory x fraction - weights, on the GPU of the
    pipeline stage that has least. It is a bound: the real pool is smaller (`max_total_num_tokens` in the log
    tells it).""",
    remedy="more room: a higher fraction, a KV cache in 8 bits, more GPUs, or pp instead of tp for latent attention",
    references=["0.5.12.post1:srt/model_executor/pool_configurator.py"],
    needs=[Need.GPUS, Need.WEIGHTS, Need.MODEL],
)
def kv_room(facts: Facts) -> Iterator[Hit]:
    share, memory, per_token = weights_per_gpu(facts), facts.smallest_gpu, kv_bytes_per_token(facts)
    if share is None or memory is None or not per_token:
        return
    fraction = facts.profile.memory.mem_fraction_static or _FRACTION
    left = memory * fraction - share
    if left <= 0:
        return
    tokens = int(left / per_token)
    asked = "" if facts.profile.memory.mem_fraction_static else " (a usual value; none is asked for)"
    wanted = facts.profile.limits.context_length or facts.model.context
    short = facts.profile.limits.context_length is not None and tokens < (wanted or 0)
    yield Hit(
        f"{memory / GIB:.1f} GiB x {fraction}{asked} - {share / GIB:.1f} GiB of weights = {left / GIB:.1f} GiB a GPU: "
        f"room for {tokens:,} tokens at most, at {per_token / 1024:.1f} KiB each"
        + (f"; one request of the full context takes {wanted:,}" if wanted else ""),
        (),
        Severity.WARNING if short else None,
    )


@THEME.rule(
    "mem-fraction-high",
    Severity.WARNING,
    "little GPU memory is left for activations and graphs",
    about="""What mem_fraction_static does not take is for activations of the prefill chunk, CUDA graphs and
    NCCL. Above 0.95 that is often too little: out of memory in capture, or only under load. SGLang accepts even
    1.9.""",
    remedy="stay at or below 0.94; a smaller chunk and fewer graphs need less beside it",
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
        yield Hit(f"{fraction} leaves {1 - fraction:.0%}{left}", ("memory", "mem_fraction_static"))


@THEME.rule(
    "mem-fraction-low",
    Severity.ADVICE,
    "much GPU memory is left unused",
    about="""Memory above the fraction is neither for weights nor for tokens. Below a half, the server leaves
    most of the GPU idle unless something else lives there.""",
    remedy="raise memory.mem_fraction_static, or leave it to SGLang",
    references=["0.5.23:srt/arg_groups/memory_hook.py"],
)
def mem_fraction_low(facts: Facts) -> Iterator[Hit]:
    fraction = facts.profile.memory.mem_fraction_static
    if fraction and fraction < 0.5:
        yield Hit(f"{fraction} leaves {1 - fraction:.0%} of each GPU", ("memory", "mem_fraction_static"))


@THEME.rule(
    "tokens-below-context",
    Severity.WARNING,
    "the KV pool is smaller than one context",
    about="""limits.max_total_tokens caps the pool. A request that needs more tokens than the pool has is
    refused, although its length is within the context.""",
    remedy="raise limits.max_total_tokens, or lower limits.context_length",
    references=["0.5.12.post1:srt/managers/scheduler.py"],
)
def tokens_below_context(facts: Facts) -> Iterator[Hit]:
    limits = facts.profile.limits
    context = limits.context_length or facts.model.context
    if limits.max_total_tokens and context and limits.max_total_tokens < context:
        yield Hit(
            f"found {limits.max_total_tokens}, but one context is {context}", ("limits", "max_total_tokens")
        )


@THEME.rule(
    "running-capped-by-tokens",
    Severity.WARNING,
    "fewer requests run than asked for, because the pool is small",
    about="""SGLang lowers max_running_requests to half of the pool's tokens. The server then runs with another
    number than was asked.""",
    remedy="raise limits.max_total_tokens, or lower limits.max_running_requests",
    references=["0.5.23:srt/mem_cache/kv_cache_configurator.py:3118"],
)
def running_capped(facts: Facts) -> Iterator[Hit]:
    tokens = facts.profile.limits.max_total_tokens
    if tokens and facts.running and facts.running > tokens // 2:
        yield Hit(
            f"found {facts.running}, but {tokens} tokens allow {tokens // 2}",
            ("limits", "max_running_requests"),
        )


@THEME.rule(
    "chunk-page-size",
    Severity.ERROR,
    "a prefill chunk is a whole number of pages",
    about="""SGLang asserts that chunked_prefill_size is a multiple of page_size, when it checks its arguments.""",
    remedy="choose a multiple of the page size",
    references=["0.5.9:srt/server_args.py:5181", "0.5.23:srt/arg_groups/validation_hook.py:244"],
)
def chunk_page_size(facts: Facts) -> Iterator[Hit]:
    chunk, page = facts.profile.memory.chunked_prefill_size, facts.whole("--page-size")
    decode = facts.word("--disaggregation-mode") == "decode"
    if chunk and chunk > 0 and page and page > 0 and chunk % page and not decode:
        yield Hit(f"found {chunk}, no multiple of the page size {page}", ("memory", "chunked_prefill_size"))


@THEME.rule(
    "dp-attention-chunk",
    Severity.ADVICE,
    "DP attention divides the prefill chunk",
    about="""With DP attention SGLang divides chunked_prefill_size by the number of groups and multiplies
    schedule_conservativeness by 0.3, so /server_info shows other values than were asked.""",
    remedy="give dp times the chunk that a group shall have",
    references=["0.5.23:srt/arg_groups/parallel_hook.py"],
)
def dp_attention_chunk(facts: Facts) -> Iterator[Hit]:
    chunk, sizes = facts.profile.memory.chunked_prefill_size, facts.profile.parallelism
    if sizes.dp_attention and sizes.dp > 1 and chunk and chunk > 0:
        yield Hit(
            f"{chunk} / {sizes.dp} groups = {chunk // sizes.dp} tokens a chunk",
            ("memory", "chunked_prefill_size"),
        )


@THEME.rule(
    "host-memory",
    Severity.ADVICE,
    "the weights are larger than the host's memory",
    about="""The second start is quicker than the first because the kernel still has the files in memory.
    Weights larger than the host's memory come from the disk each time, and loaders that copy them first may
    meet the OOM killer.""",
    remedy="count on the disk's speed for every start; see MemoryMax of the unit and --weight-loader-disable-mmap",
    references=["issue 37931", "issue 15235", "PR 20287"],
    needs=[Need.MEMORY, Need.WEIGHTS],
)
def host_memory(facts: Facts) -> Iterator[Hit]:
    weights, memory = facts.seen.weight_bytes, facts.seen.memory
    if weights and memory and weights > memory:
        yield Hit(f"{weights / GIB:.0f} GiB of weights, {memory / GIB:.0f} GiB of memory")
