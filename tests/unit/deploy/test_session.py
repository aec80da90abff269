"""The API key of a release is the one it was staged with."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.reach import config_key


@given(st.text(min_size=1))
def test_the_key_of_a_release_is_read_back(key: str) -> None:
    assert config_key(f"api-key: {json.dumps(key)}\n") == key


@pytest.mark.parametrize("text", ["", "other: 1\n", "\n\n"])
def test_there_may_be_none(text: str) -> None:
    assert config_key(text) is None
