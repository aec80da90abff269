from __future__ import annotations

import contextlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.errors import ConfigError
from deployer.sglang.flags.versions import flag_table, history, known_versions, parse_version

KNOWN = ["0.4.6.post5", "0.5.2", "0.5.5", "0.5.9", "0.5.10.post1", "0.5.12.post1", "0.5.16", "0.5.23"]


def test_order() -> None:
    ordered = [
        "0.4.6", "0.4.6.post5", "0.5.0.dev1", "0.5.0a1", "0.5.0b2", "0.5.0rc1", "0.5.0rc10", "0.5.0",
        "0.5.0.post1.dev2",
        "0.5.0.post1", "0.5.0.post2", "0.5.2", "0.5.9", "0.5.10", "0.5.10.post1", "0.6", "1.0.0",
    ]  # fmt: skip
    parsed = [parse_version(text) for text in ordered]
    assert all(left < right for left, right in pairwise(parsed))


def test_equal_versions() -> None:
    for left, right in (
        ("0.5", "0.5.0"),
        ("v0.5.1", "0.5.1"),
        ("0.5.1+cu130", "0.5.1"),
        ("0.5.1-rc1", "0.5.1rc1"),
    ):
        assert parse_version(left) == parse_version(right)
        assert hash(parse_version(left)) == hash(parse_version(right))


@pytest.mark.parametrize("text", ["", "5", "latest", "0.5.x", "0.5.1 ", "0.5.1.post", "../0.5.2", "0.5.1\n", "9" * 200])
def test_no_version(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_version(text)


@given(st.text())
def test_any_text(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert parse_version(text) == parse_version(text)


def test_known_versions() -> None:
    assert [str(version) for version in known_versions()] == KNOWN
    for version in KNOWN:
        table = flag_table(version)
        assert table.note is None
        assert "--model-path" in table.by_name
    counts = [len(flag_table(version).flags) for version in KNOWN]
    assert counts == [145, 210, 273, 331, 354, 387, 460, 531]


@pytest.mark.parametrize(
    ("asked", "taken"),
    [("0.5.12", "0.5.10.post1"), ("0.5.12.post2", "0.5.12.post1"), ("0.5.17", "0.5.16"), ("0.7.0", "0.5.23")],
)
def test_nearest_before(asked: str, taken: str) -> None:
    table = flag_table(asked)
    assert str(table.version) == taken
    assert table.note is not None
    assert asked in table.note
    assert taken in table.note


def test_no_version_lists_those_that_are_known() -> None:
    for text in ("abc", ""):
        with pytest.raises(ConfigError, match="is not a valid SGLang version") as caught:
            flag_table(text)
        assert all(version in (caught.value.remedy or "") for version in KNOWN)


def test_too_old_and_unknown() -> None:
    with pytest.raises(ConfigError, match=r"older than 0\.4\.6\.post5"):
        flag_table("0.4.5")
    newest = flag_table(None)
    assert str(newest.version) == KNOWN[-1]
    assert newest.note is not None


def test_history() -> None:
    assert str(history("--pp-async-batch-depth")[0]) == "0.5.9"
    assert str(history("--cuda-graph-max-bs")[-1]) == "0.5.16"
    assert history("--no-such-flag") == ()
