"""Memory: weights, the KV pool, and what limits the tokens in it."""

from __future__ import annotations

from collections.abc import Iterator

from deployer.sglang.rules.base import Hit, Severity, Theme
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


@THEME.rule("weights-fit")
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


@THEME.rule("kv-room")
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
        f"{per_token / 1024:.1f} KiB" + (f"; one request of the full context takes {context:,}" if context else ""),
        (),
        Severity.WARNING if limit is not None and tokens < limit else None,
    )


@THEME.rule("mem-fraction-high")
def mem_fraction_high(facts: Facts) -> Iterator[Hit]:
    fraction = facts.profile.memory.mem_fraction_static
    if fraction and fraction > 0.95:
        memory = facts.smallest_gpu
        left = f": {memory * (1 - fraction) / GIB:.1f} GiB of {memory / GIB:.1f}" if memory else ""
        yield Hit(f"{fraction} leaves {1 - fraction:.0%}{left}", _FRACTION)


@THEME.rule("mem-fraction-low")
def mem_fraction_low(facts: Facts) -> Iterator[Hit]:
    fraction = facts.profile.memory.mem_fraction_static
    if fraction and fraction < 0.5:
        yield Hit(f"{fraction} leaves {1 - fraction:.0%} of each GPU", _FRACTION)


@THEME.rule("tokens-below-context")
def tokens_below_context(facts: Facts) -> Iterator[Hit]:
    tokens, context = (
        facts.profile.limits.max_total_tokens,
        facts.profile.limits.context_length or facts.model.context,
    )
    if tokens and context and tokens < context:
        yield Hit(f"{tokens} is less than one context of {context}", ("limits", "max_total_tokens"))


@THEME.rule("running-capped-by-tokens")
def running_capped(facts: Facts) -> Iterator[Hit]:
    tokens = facts.profile.limits.max_total_tokens
    if tokens and facts.running and facts.running > tokens // 2:
        yield Hit(f"{facts.running}, but {tokens} tokens allow {tokens // 2}", ("limits", "max_running_requests"))


@THEME.rule("chunk-page-size")
def chunk_page_size(facts: Facts) -> Iterator[Hit]:
    chunk, page = facts.profile.memory.chunked_prefill_size, facts.whole("--page-size")
    decode = facts.word("--disaggregation-mode") == "decode"
    if chunk and chunk > 0 and page and page > 0 and chunk % page and not decode:
        yield Hit(f"{chunk} is not a multiple of the page size {page}", ("memory", "chunked_prefill_size"))


@THEME.rule("dp-attention-chunk")
def dp_attention_chunk(facts: Facts) -> Iterator[Hit]:
    chunk, sizes = facts.profile.memory.chunked_prefill_size, facts.profile.parallelism
    if sizes.dp_attention and sizes.dp > 1 and chunk and chunk > 0:
        text = f"{chunk} / {sizes.dp} groups = {chunk // sizes.dp} tokens a chunk"
        yield Hit(text, ("memory", "chunked_prefill_size"))


@THEME.rule("host-memory")
def host_memory(facts: Facts) -> Iterator[Hit]:
    weights, memory = facts.seen.weight_bytes, facts.seen.memory
    if weights and memory and weights > memory:
        yield Hit(f"{weights / GIB:.0f} GiB of weights, {memory / GIB:.0f} GiB of memory")
