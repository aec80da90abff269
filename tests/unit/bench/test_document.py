"""Bench documents from anywhere: read, or refused with what is wrong."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.bench.document import read_document, read_json


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": [1, 2.5, "x", null, true]}', {"a": [1, 2.5, "x", None, True]}),
        ("[NaN, Infinity, -Infinity, 1e999]", [None] * 4),
        (f"[{'9' * 400}, -{'9' * 5000}]", [None, None]),
        ('["\\ud800", "\\u001b[31m", "a\\tb\\nc", "\\ud83d\\ude00"]', ["�", "�[31m", "a\tb\nc", "😀"]),
    ],
)
def test_what_no_benchmark_holds_is_made_harmless(text: str, found: Any) -> None:
    assert read_json(text) == found


@pytest.mark.parametrize("text", ["", "{", "nonsense", "[" * 100_000, '{"a":' * 100_000])
def test_what_is_no_document_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_document(text)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(values)
def test_whatever_is_read_can_be_written_and_reckoned_with(value: Any) -> None:
    found = read_json(json.dumps(value))
    text = json.dumps(found, ensure_ascii=False, allow_nan=False)
    assert text.encode("utf-8")
    assert read_json(text) == found
    if isinstance(found, int):
        assert math.isfinite(float(found))
