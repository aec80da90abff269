"""A model's sizes, from its config.json. Names differ from family to family; a missing size is None."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ModelShape:
    """The sizes that decide how a model can be distributed. ``mla``: latent attention, whose KV cache is not split."""

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
    #: The type of its weights by config.json: ``bfloat16``.
    dtype: str | None = None

    @property
    def mla(self) -> bool:
        return self.kv_lora_rank is not None

    def kv_values_per_token(self, tp: int) -> int | None:
        """Return how many numbers the KV cache holds for one token in one layer on one GPU; None if unknown.

        Latent attention keeps one compressed vector on every GPU; otherwise heads are split, at least one on each.
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
    """Return the sizes in a config.json. Multimodal models have those of their language model under ``text_config``."""
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
    """Return a config.json as --json-model-override-args changes it: key by key, tables merged.

    None if the overrides are not a table (0.5.23:srt/utils/hf_transformers/config.py:404).
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
    return next((size for name in names if (size := _whole(text.get(name))) is not None), None)


_CONTEXTS = (
    "max_sequence_length",
    "seq_length",
    "max_seq_len",
    "model_max_length",
    "max_position_embeddings",
)


def _context(text: Mapping[str, Any]) -> int | None:
    """Return the longest context as SGLang derives it: scaled only if the scaling does not name the original length."""
    length = _size(text, *_CONTEXTS)
    scaling = _table(text.get("rope_scaling") or text.get("rope_parameters"))  # the newer name: transformers 5
    factor = scaling.get("factor")
    plain = "original_max_position_embeddings" in scaling or scaling.get("rope_type") == "llama3"
    if length is None or plain or isinstance(factor, bool) or not isinstance(factor, (int, float)):
        return length
    return int(length * factor) if 1 <= factor <= 1e6 else length


def layer_split(layers: int, stages: int) -> list[int]:
    """Return the layers of each stage; the remainder goes to the last ones (0.5.12.post1:srt/distributed/utils.py)."""
    share, rest = divmod(layers, stages)
    return [share + (1 if stage >= stages - rest else 0) for stage in range(stages)]
