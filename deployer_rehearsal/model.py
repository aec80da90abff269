"""A model folder that looks like Kimi-K2.6 and takes no space: a real config, an index, sparse shards."""

from __future__ import annotations

import json
import struct

from deployer_rehearsal.layer import Layer

MODEL = "/srv/models/Kimi-K2.6"
SHARDS = 64
SHARD_BYTES = 9_280_000_000
LAYERS = 61
CONTEXT = 262_144


def config() -> dict[str, object]:
    """Return the model's config.json, as far as anything reads it."""
    text = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "kimi_k2",
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": LAYERS,
        "first_k_dense_replace": 1,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "n_routed_experts": 384,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "max_position_embeddings": CONTEXT,
        "vocab_size": 163840,
        "torch_dtype": "bfloat16",
    }
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "text_config": text,
        "torch_dtype": "bfloat16",
    }


def write_model(layer: Layer, *, shards: int = SHARDS, shard_bytes: int = SHARD_BYTES) -> None:
    """Write the model folder. Every shard is a valid safetensors file of ``shard_bytes`` with one tensor in it."""
    layer.directory("/srv/models", opaque=True)
    layer.file(f"{MODEL}/config.json", json.dumps(config(), indent=2) + "\n")
    layer.file(f"{MODEL}/tokenizer_config.json", json.dumps({"model_max_length": CONTEXT}) + "\n")
    weights: dict[str, str] = {}
    for number in range(1, shards + 1):
        name = f"model-{number:05d}-of-{shards:06d}.safetensors"
        tensor = f"language_model.shard.{number}.weight"
        weights[tensor] = name
        head = _header(tensor, shard_bytes)
        path = layer.file(f"{MODEL}/{name}", "")
        with path.open("wb") as handle:
            handle.write(head)
            handle.truncate(shard_bytes)
    index = {"metadata": {"total_size": shards * shard_bytes}, "weight_map": weights}
    layer.file(f"{MODEL}/model.safetensors.index.json", json.dumps(index, indent=2) + "\n")


def _header(tensor: str, size: int) -> bytes:
    """Return a safetensors header of exactly 256 bytes for one tensor that fills the rest of the file."""
    length = size - 256
    entry = {tensor: {"dtype": "U8", "shape": [length], "data_offsets": [0, length]}}
    text = json.dumps(entry).encode().ljust(256 - 8)
    return struct.pack("<Q", len(text)) + text
