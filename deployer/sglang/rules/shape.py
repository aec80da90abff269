"""A model's sizes, from its config.json. Names differ from family to family; a size that is not there is None."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ModelShape:
    """What of a model decides how it can be spread. ``mla``: latent attention, whose KV cache is not split."""

    architecture: str | None = None
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    hidden: int | None = None
    experts: int | None = None
    moe_intermediate: int | None = None
    block_n: int | None = None
    context: int | None = None
    kv_lora_rank: int | None = None
    rope_dim: int | None = None
    own_code: bool = False
    quantized: bool = False
    #: How its weights are said to be stored, as in config.json: ``bfloat16``.
    dtype: str | None = None

    @property
    def mla(self) -> bool:
        return self.kv_lora_rank is not None

    def kv_values_per_token(self, tp: int) -> int | None:
        """Numbers that the KV cache holds for one token in one layer on one GPU; None where the config does not say.

        Latent attention keeps one compressed vector on every GPU; else heads are split, one at least on each.
        """
        if self.kv_lora_rank is not None:
            return self.kv_lora_rank + (self.rope_dim or 0)
        width = self.head_dim
        if width is None and self.hidden and self.heads:
            width = self.hidden // self.heads
        kv_heads = self.kv_heads or self.heads
        if width is None or kv_heads is None:
            return None
        return 2 * width * max(1, kv_heads // tp)


def model_shape(config: Mapping[str, Any]) -> ModelShape:
    """Read a config.json. A model that sees or hears has its language model's sizes under ``text_config``."""
    language = _table(config.get("text_config") or config.get("llm_config"))
    text = {**config, **language}
    dtype = text.get("dtype") or text.get("torch_dtype")
    architectures = config.get("architectures") or text.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else None
    quantization = _table(config.get("quantization_config") or text.get("quantization_config"))
    block = quantization.get("weight_block_size")
    return ModelShape(
        architecture=first if isinstance(first, str) else None,
        layers=_size(text, "num_hidden_layers", "n_layers", "num_layers"),
        heads=_size(text, "num_attention_heads", "n_head"),
        kv_heads=_size(text, "num_key_value_heads", "num_kv_heads"),
        head_dim=_size(text, "head_dim"),
        hidden=_size(text, "hidden_size"),
        experts=_size(text, "n_routed_experts", "num_local_experts", "num_experts"),
        moe_intermediate=_size(text, "moe_intermediate_size"),
        block_n=_whole(block[0]) if isinstance(block, list) and block else None,
        context=_context(language) or _context(text),
        kv_lora_rank=_size(text, "kv_lora_rank"),
        rope_dim=_size(text, "qk_rope_head_dim"),
        own_code=bool(_table(config.get("auto_map"))),
        quantized=bool(quantization),
        dtype=dtype.removeprefix("torch.") if isinstance(dtype, str) else None,
    )


def overridden(config: Mapping[str, Any], overrides: Any) -> dict[str, Any] | None:
    """A config.json as --json-model-override-args changes it: key by key, tables merged.

    None where the overrides are no table (0.5.23:srt/utils/hf_transformers/config.py:404).
    """
    if isinstance(overrides, str):
        try:
            overrides = json.loads(overrides)
        except (ValueError, RecursionError):
            return None
    if not isinstance(overrides, Mapping):
        return None
    changed = dict(config)
    for key, value in overrides.items():
        merged = isinstance(value, Mapping) and isinstance(changed.get(key), Mapping)
        changed[key] = {**changed[key], **value} if merged else value
    return changed


def _table(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _whole(value: Any) -> int | None:
    fits = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return int(value) if fits else None


def _size(text: Mapping[str, Any], *names: str) -> int | None:
    return next((found for name in names if (found := _whole(text.get(name))) is not None), None)


def _context(text: Mapping[str, Any]) -> int | None:
    """The longest context, as SGLang derives it: scaled only where the scaling does not name the original length."""
    length = _size(
        text,
        "max_sequence_length",
        "seq_length",
        "max_seq_len",
        "model_max_length",
        "max_position_embeddings",
    )
    scaling = _table(
        text.get("rope_scaling") or text.get("rope_parameters")
    )  # the newer name: transformers 5
    factor = scaling.get("factor")
    plain = "original_max_position_embeddings" in scaling or scaling.get("rope_type") == "llama3"
    if length is None or plain or isinstance(factor, bool) or not isinstance(factor, (int, float)):
        return length
    return int(length * factor) if 1 <= factor <= 1e6 else length


def layer_split(layers: int, stages: int) -> list[int]:
    """Layers of each stage; what does not divide goes to the last ones (0.5.12.post1:srt/distributed/utils.py)."""
    share, rest = divmod(layers, stages)
    return [share + (1 if stage >= stages - rest else 0) for stage in range(stages)]
