"""Whatever a file says, reading it gives an inventory or profile, or ConfigError; never anything else."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.config.inventory import HostConfig, ServiceConfig, inventory_from, load_inventory
from deployer.config.problems import parse_toml
from deployer.config.profile import Profile, load_profile
from deployer.config.wording import key_path, printable, unknown
from deployer.errors import ConfigError

NAMES = sorted(
    {"hosts", "services", "defaults", "kimi", "box", "env", "file", "command", "name"}
    | set(HostConfig.model_fields)
    | set(ServiceConfig.model_fields)
    | set(Profile.model_fields)
)
leaves = st.one_of(
    st.integers(),
    st.floats(),
    st.booleans(),
    st.text(),
    st.dates(),
    st.sampled_from(["box", "pinned", "auto", "/m"]),
)
keys = st.one_of(st.sampled_from(NAMES), st.text(max_size=5))
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4))
tables = st.dictionaries(keys, values, max_size=5)


sections = st.dictionaries(st.sampled_from(["box", "kimi", "A"]), tables) | values


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("property")


@given(st.dictionaries(st.sampled_from(["hosts", "services", "defaults", "x"]), sections))
def test_tables(data: dict[str, Any]) -> None:
    with contextlib.suppress(ConfigError):
        inventory_from(data, Path("x.toml"))


@given(tables)
def test_a_service_with_anything_in_it(table: dict[str, Any]) -> None:
    service = {"host": "box", "model": "/m", "engine": {"python": "/p"}, **table}
    with contextlib.suppress(ConfigError):
        found = inventory_from({"hosts": {"box": {}}, "services": {"kimi": service}}, Path("x.toml")).service()
        assert found.name == "kimi"


@given(st.text())
def test_text(text: str) -> None:
    with contextlib.suppress(ConfigError):
        inventory_from(parse_toml(text, Path("x.toml"), "the inventory"), Path("x.toml"))


@given(st.binary())
def test_bytes(folder: Path, data: bytes) -> None:
    (folder / "x.toml").write_bytes(data)
    with contextlib.suppress(ConfigError):
        load_inventory(folder / "x.toml")
    with contextlib.suppress(ConfigError):
        load_profile("x", [folder])


@given(tables)
def test_profiles(folder: Path, table: dict[str, Any]) -> None:
    text = "\n".join(f"{json.dumps(key)} = {_toml(value)}" for key, value in table.items())
    (folder / "p.toml").write_text(text, encoding="utf-8", errors="replace")
    with contextlib.suppress(ConfigError):
        assert load_profile("p", [folder]).name == "p"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value) if isinstance(value, (bool, str)) else str(value)


def test_deep_nesting_and_large_numbers() -> None:
    for text in (
        "a = " + "[" * 5000,
        "a = " + "9" * 5000,
        "a = 1979-99-99",
        "[a]\n[a]\n",
        "\ufeff[a]",
        "a = 1e999",
    ):
        with contextlib.suppress(ConfigError):
            inventory_from(parse_toml(text, Path("x.toml"), "the inventory"), Path("x.toml"))


@given(st.lists(st.text() | st.integers(0, 9), max_size=4), st.text(), st.lists(st.text(), max_size=4))
def test_messages_are_one_printable_line(path: list[str | int], word: str, allowed: list[str]) -> None:
    for text in (key_path(tuple(path)), printable(unknown(word, allowed), 10_000), printable(word)):
        assert text.isprintable()
