"""The tiny checkpoint: its layout is a real one's, and it is the same every time."""

from __future__ import annotations

import json
import struct
from array import array
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from deployer_rehearsal.checkpoint import (
    SPECIAL,
    WORDS,
    Shape,
    bfloat16,
    byte_alphabet,
    config,
    shards,
    tensors,
    tokenizer,
    write_checkpoint,
)

SMALL = Shape(layers=2, hidden=8, heads=2, kv_heads=1, shards=3)


def head_of(path: Path) -> tuple[dict[str, Any], int]:
    """A safetensors file's header, and the bytes that follow it."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length]), len(raw) - 8 - length


def test_the_shards_hold_every_tensor_once(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SMALL)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert files == [f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)]
    vocabulary = json.loads((tmp_path / "config.json").read_text())["vocab_size"]
    wanted = dict(tensors(SMALL, vocabulary))
    assert set(index["weight_map"]) == set(wanted)
    total = 0
    for file in files:
        head, body = head_of(tmp_path / file)
        del head["__metadata__"]
        assert set(head) == {name for name, where in index["weight_map"].items() if where == file}
        assert all(tuple(entry["shape"]) == wanted[name] for name, entry in head.items())
        assert max(entry["data_offsets"][1] for entry in head.values()) == body
        total += body
    assert total == index["metadata"]["total_size"]


def test_the_same_shape_gives_the_same_bytes(tmp_path: Path) -> None:
    for name, shape in (("a", SMALL), ("b", SMALL), ("c", Shape(**(SMALL.__dict__ | {"seed": 1})))):
        write_checkpoint(tmp_path / name, shape)
    first, second, other = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "abc")
    assert first == second
    assert {name for name in first if first[name] != other[name]} == {
        name for name in first if name.endswith(".safetensors")
    }


def test_the_usual_model_can_be_split_among_two_ranks() -> None:
    settings = config(Shape(), 1024)
    assert settings["num_hidden_layers"] % 2 == settings["num_key_value_heads"] % 2 == 0
    assert settings["head_dim"] * settings["num_attention_heads"] == settings["hidden_size"]


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40), st.integers(1, 8))
def test_shards_are_consecutive_and_as_many_as_wanted(sizes: list[int], wanted: int) -> None:
    named = {f"t{number}": size for number, size in enumerate(sizes)}
    found = shards(named, wanted)
    assert [name for shard in found for name in shard] == list(named)
    assert all(found)
    assert len(found) == min(wanted, len(sizes))


def test_numbers_become_bfloat16() -> None:
    assert bfloat16(array("f", [1.0, -2.0, 0.0])) == b"\x80\x3f\x00\xc0\x00\x00"


def test_the_tokenizer_knows_every_byte_and_the_words() -> None:
    model = tokenizer()["model"]
    vocabulary = model["vocab"]
    assert len(set(byte_alphabet())) == 256
    assert set(byte_alphabet()) <= set(vocabulary)
    assert sorted(vocabulary.values()) == list(range(len(vocabulary)))
    assert [vocabulary[text] for text in SPECIAL] == [0, 1, 2]
    assert all("Ġ" + word in vocabulary for word in WORDS)
    assert all({left, right, left + right} <= set(vocabulary) for left, right in model["merges"])
