"""A tiny Qwen3 checkpoint with made-up weights, for the real SGLang on a practice host.

Everything in it follows from the seed: configuration, a byte-level BPE tokenizer, and weights in several safetensors
shards, so that loading has something to count. It says words: each is followed by the next one of one long round, whose
order the seed draws. A model with random weights alone gets stuck on one token, which a benchmark rightly takes for a
broken model. Needs nothing but the standard library:

    python checkpoint.py FOLDER
"""

from __future__ import annotations

import json
import random
import struct
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Each word becomes one token, as a word at the start of a text and after a blank.
_TEXT = """
the of and to in is that for it as was with be by on not he his but at are this have from or had an they which one you
were her all she there would their we him been has when who will more no if out so said what up its about into than them
can only other new some could time these two may then do first any my now such like our over man me even most made after
also did many before must through back years where much your way well down should because each just those people how too
little state good very make world still own see men work long get here between both life being under never day same
another know while last might us great old year off come since against go came right used take three
"""
WORDS = _TEXT.split()
END = "<|im_end|>"
SPECIAL = ("<|endoftext|>", "<|im_start|>", END)
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_BLANK = "Ġ"


@dataclass(frozen=True)
class Shape:
    """How large the model is. ``shards``: number of weight files; ``context``: longest context, in tokens."""

    layers: int = 8
    hidden: int = 128
    heads: int = 4
    kv_heads: int = 2
    shards: int = 6
    context: int = 8192
    seed: int = 0

    @property
    def head_dim(self) -> int:
        """Width of an attention head."""
        return self.hidden // self.heads


def byte_alphabet() -> list[str]:
    """The characters that stand for the bytes 0 to 255 in a byte-level vocabulary, as GPT-2 has them."""
    plain = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def tokenizer() -> dict[str, Any]:
    """A tokenizer.json: special tokens, every byte, and the merges that build the words letter by letter."""
    tokens = [*SPECIAL, *sorted(byte_alphabet())]
    merges: dict[tuple[str, str], None] = {}
    for word in WORDS:
        for spelled in (word, _BLANK + word):
            built = spelled[0]
            for letter in spelled[1:]:
                merges.setdefault((built, letter))
                built += letter
    tokens += dict.fromkeys(left + right for left, right in merges)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": text, **added} for number, text in enumerate(SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [list(pair) for pair in merges],
        },
    }


def vocabulary_size(tokens: int) -> int:
    """Rows of the embedding: the vocabulary, rounded up so that it divides among ranks."""
    return -(-tokens // 128) * 128


def config(shape: Shape, vocabulary: int) -> dict[str, Any]:
    """The model's config.json."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": 2 * shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": shape.context,
        "initializer_range": 0.05,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "use_cache": True,
        "use_sliding_window": False,
        "eos_token_id": SPECIAL.index(END),
        "pad_token_id": 0,
        "torch_dtype": "bfloat16",
    }


def tensors(shape: Shape, vocabulary: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of all weights, in the order of the model."""
    hidden, inner = shape.hidden, 2 * shape.hidden
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "model.embed_tokens.weight", (vocabulary, hidden)
    for number in range(shape.layers):
        layer = f"model.layers.{number}"
        yield f"{layer}.input_layernorm.weight", (hidden,)
        yield f"{layer}.self_attn.q_proj.weight", (queries, hidden)
        yield f"{layer}.self_attn.k_proj.weight", (keys, hidden)
        yield f"{layer}.self_attn.v_proj.weight", (keys, hidden)
        yield f"{layer}.self_attn.o_proj.weight", (hidden, queries)
        yield f"{layer}.self_attn.q_norm.weight", (shape.head_dim,)
        yield f"{layer}.self_attn.k_norm.weight", (shape.head_dim,)
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)
        yield f"{layer}.mlp.gate_proj.weight", (inner, hidden)
        yield f"{layer}.mlp.up_proj.weight", (inner, hidden)
        yield f"{layer}.mlp.down_proj.weight", (hidden, inner)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocabulary, hidden)


def shards(sizes: dict[str, int], wanted: int) -> list[list[str]]:
    """Tensors by shard: consecutive, none empty, about equally large. ``sizes`` are bytes by tensor, in order."""
    names, total, done = list(sizes), sum(sizes.values()), 0
    found: list[list[str]] = [[]]
    for index, name in enumerate(names):
        due = done * wanted >= total * len(found)
        rest = len(names) - index <= wanted - len(found)
        if found[-1] and len(found) < wanted and (due or rest):
            found.append([])
        found[-1].append(name)
        done += sizes[name]
    return found


def bfloat16(values: array[float]) -> bytes:
    """Single-precision numbers as bfloat16: the upper halves of their little-endian bytes."""
    raw = values.tobytes()
    short = bytearray(len(raw) // 2)
    short[0::2], short[1::2] = raw[2::4], raw[3::4]
    return bytes(short)


class _Weights:
    """Weights by tensor. Layers change the state of a token little, so that the last one still tells which it was."""

    def __init__(self, shape: Shape, vocabulary: dict[str, int]) -> None:
        self._draw = random.Random(shape.seed)
        self._round = [vocabulary[_BLANK + word] for word in WORDS]
        self._draw.shuffle(self._round)
        self._width = shape.hidden
        self._embedding = b""

    def of(self, name: str, shape: tuple[int, ...]) -> bytes:
        """The bytes of one tensor."""
        if len(shape) == 1:  # a norm leaves its input as it is
            return bfloat16(array("f", [1.0]) * shape[0])
        if name == "lm_head.weight":
            return self._head(shape[0])
        spread = 1.0 if name == "model.embed_tokens.weight" else 0.02
        found = bfloat16(array("f", (self._draw.gauss(0.0, spread) for _ in range(shape[0] * shape[1]))))
        if name == "model.embed_tokens.weight":
            self._embedding = found
        return found

    def _head(self, rows: int) -> bytes:
        """A word is most like the one before it in the round; nothing else is ever said."""
        size = 2 * self._width
        head = bytearray(rows * size)
        for number, word in enumerate(self._round):
            before = self._round[number - 1]
            head[word * size : (word + 1) * size] = self._embedding[before * size : (before + 1) * size]
        return bytes(head)


def write_checkpoint(folder: Path, shape: Shape | None = None) -> None:
    """Write the checkpoint into ``folder``, over what is there. The same shape gives the same bytes."""
    shape = shape or Shape()
    folder.mkdir(parents=True, exist_ok=True)
    words = tokenizer()
    vocabulary = vocabulary_size(len(words["model"]["vocab"]))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": SPECIAL[0],
        "model_max_length": shape.context,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT,
    }
    special = {"eos_token_id": SPECIAL.index(END), "pad_token_id": 0}
    documents = {
        "config.json": config(shape, vocabulary),
        "tokenizer.json": words,
        "tokenizer_config.json": settings,
        "generation_config.json": special,
    }
    shapes = dict(tensors(shape, vocabulary))
    sizes = {name: 2 * (size[0] if len(size) == 1 else size[0] * size[1]) for name, size in shapes.items()}
    parts = shards(sizes, shape.shards)
    weights = _Weights(shape, words["model"]["vocab"])
    where: dict[str, str] = {}
    for number, names in enumerate(parts, start=1):
        file = f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        where |= dict.fromkeys(names, file)
        _write_shard(folder / file, {name: shapes[name] for name in names}, weights)
    documents["model.safetensors.index.json"] = {
        "metadata": {"total_size": sum(sizes.values())},
        "weight_map": where,
    }
    for file, document in documents.items():
        (folder / file).write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_shard(path: Path, shapes: dict[str, tuple[int, ...]], weights: _Weights) -> None:
    body = bytearray()
    head: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for name, shape in shapes.items():
        begin = len(body)
        body += weights.of(name, shape)
        head[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, len(body)]}
    text = json.dumps(head).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


if __name__ == "__main__":
    write_checkpoint(Path(sys.argv[1]))
