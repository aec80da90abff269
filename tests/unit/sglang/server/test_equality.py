from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from deployer.sglang.server.equality import same

SCALARS = st.none() | st.booleans() | st.integers(-(2**50), 2**50) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    SCALARS | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
WORDS = st.from_regex(r"[a-z][a-z0-9_.]{0,12}", fullmatch=True)
NAMES = st.lists(st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True), min_size=1, max_size=5)


@pytest.mark.parametrize(
    ("asked", "shown", "equal"),
    [
        (True, True, True),
        (True, False, False),
        (False, None, True),
        (None, False, True),
        (1, True, False),
        (0, False, False),
        ("auto", "fp8_e4m3", True),
        ("auto", None, True),
        ("fp8", "auto", False),
        (8, "8", True),
        (8, 8.0, True),
        (8, 9, False),
        (2**53, 2**53 + 1, False),
        ("0.50", 0.5, True),
        (0.9, 0.90000001, True),
        (0.9, 0.901, False),
        (0.7108, 0.711, True),
        (0.7118, 0.711, False),
        (0.85, 0.9, False),
        (0.0001, 0.0, False),
        ("128K", 131072, True),
        ("128k", 128000, True),
        ("1.5M", 1500000, True),
        ("128K", 128, False),
        ("/models/kimi/", "/models/kimi", True),
        ("/models//kimi/./", "/models/kimi", True),
        ("//models/kimi", "/models/kimi", True),
        ("/models/kimi", "/models/kimi2", False),
        ("org/model/", "org/model", True),
        ("bf16", "bfloat16", True),
        ("half", "torch.float16", True),
        ("bf16", "float16", False),
        ("fp8_e5m2", "fp8_e4m3", False),
        (["a"], "a", True),
        ("a", ["a"], True),
        ([1, 2, 4], "1 2 4", True),
        ("1,2,4", [1, 2, 4], True),
        ([1, 2], [2, 1], False),
        (["1", 2], (1, 2), True),
        ("[1, 2]", [1, 2], True),
        ('{"a": 1}', {"a": 1, "b": 2}, True),
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}, True),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, False),
        ({"a": 1}, {}, False),
        ('{"a":1,"b":2}', '{ "b": 2, "a": 1 }', True),
        ('{"a":1}', '{"a":2}', False),
        ("{broken", "{broken", True),
        ("{broken", {"a": 1}, False),
        ("", None, False),
        ("/", "", False),
    ],
)
def test_same(asked: Any, shown: Any, equal: bool) -> None:
    assert same(asked, shown) is equal


@given(VALUES)
def test_a_value_is_the_same_after_its_way_through_json(value: Any) -> None:
    assert same(value, json.loads(json.dumps(value)))


@given(VALUES, VALUES)
def test_whatever_is_compared_there_is_an_answer(asked: Any, shown: Any) -> None:
    assert same(asked, shown) in (True, False)


@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=4), st.integers(0, 8))
def test_json_text_means_its_table(table: dict[str, Any], indent: int) -> None:
    assert same(json.dumps(table, indent=indent), table)
    assert same(table, json.dumps(table, separators=(",", ":")))


@given(st.dictionaries(WORDS, st.integers(), min_size=1, max_size=4), st.dictionaries(WORDS, st.integers()))
def test_a_table_may_be_filled_up_but_not_changed(asked: dict[str, int], defaults: dict[str, int]) -> None:
    assert same(asked, {**defaults, **asked})
    changed = next(iter(asked))
    assert not same(asked, {**defaults, **asked, changed: asked[changed] + 1})


@given(st.integers(-(2**50), 2**50), st.integers(-(2**50), 2**50))
def test_whole_numbers_are_the_same_only_if_equal(asked: int, shown: int) -> None:
    assert same(asked, shown) is same(str(asked), shown) is same(asked, str(shown)) is (asked == shown)


@given(st.floats(1e-3, 1e6))
def test_single_precision_changes_nothing_and_a_percent_does(value: float) -> None:
    (single,) = struct.unpack("f", struct.pack("f", value))
    assert same(value, single)
    assert not same(value, value * 1.01 + 0.001)


@given(st.floats(0.01, 0.99))
def test_a_fraction_rounded_to_three_decimals_is_the_same(value: float) -> None:
    rounded = round(value, 3)
    assume(len(repr(rounded)) >= 5)
    assert same(value, rounded)


@given(NAMES, st.lists(st.sampled_from(["/", "/./", "//"]), min_size=6, max_size=6))
def test_how_a_path_is_written_does_not_matter(names: list[str], slashes: list[str]) -> None:
    messy = "".join(slash + name for slash, name in zip(slashes, names, strict=False)) + slashes[-1]
    assert same(messy, "/" + "/".join(names))
    assert not same(messy, "/" + "/".join([*names, "x"]))


@given(st.lists(WORDS, min_size=2, max_size=5), st.sampled_from([" ", ",", ", "]))
def test_a_list_is_the_same_as_its_words(words: list[str], between: str) -> None:
    assume("auto" not in words)
    assert same(words, between.join(words))
    assert same(between.join(words), words)
    assert not same(words, words[1:])


@given(WORDS, WORDS)
def test_other_words_are_other_values(asked: str, shown: str) -> None:
    known = {"auto", "half", "float", "bf16", "fp16", "fp32", "bfloat16", "float16", "float32"}
    assume(not known & {asked, shown} and not asked.startswith("torch.") and not shown.startswith("torch."))
    assert same(asked, shown) is (asked == shown)
