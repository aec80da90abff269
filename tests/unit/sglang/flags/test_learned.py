"""Flag tables that a site learned from its hosts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deployer.errors import ConfigError
from deployer.sglang.flags.versions import SCHEMA, flag_table, history, known_tables, known_versions
from deployer.sglang.profile_list import profile_listing
from tests.unit.sglang.flags.builders import launch_arguments, profile, service
from tests.unit.sglang.flags.test_versions import KNOWN


def learn(folder: Path, version: str, *names: str, **more: Any) -> Path:
    """A learned table with a --model-path and further flags of text."""
    wanted = ("--model-path", "--host", "--port", "--tp-size", *names)
    kinds = {"--port": "int", "--tp-size": "int"}
    flags = [{"names": [name], "dest": name[2:].replace("-", "_"), "type": kinds.get(name, "str")} for name in wanted]
    path = folder / f"args-{version}.json"
    path.write_text(json.dumps({"schema": SCHEMA, "version": version, "flags": flags, **more}))
    return path


def test_the_exact_version_comes_first(tmp_path: Path) -> None:
    path = learn(tmp_path, "0.5.12.post1", "--brand-new")
    table = flag_table("0.5.12.post1", tmp_path)
    assert (table.learned, table.note, table.strict) == (path, None, True)
    assert flag_table("0.5.12.post1").learned is None
    argv = launch_arguments(profile(extra_args={"brand-new": "x"}), service(), "0.5.12.post1", tmp_path).argv
    assert argv[-2:] == ["--brand-new", "x"]
    with pytest.raises(ConfigError, match=r"0\.5\.12\.post1 has no --log-level"):
        launch_arguments(profile(extra_args={"log-level": "x"}), service(), "0.5.12.post1", tmp_path)


def test_a_new_version_is_known_exactly_and_a_neighbour_of_others(tmp_path: Path) -> None:
    learn(tmp_path, "0.5.14", "--brand-new")
    assert flag_table("0.5.14", tmp_path).note is None
    later = flag_table("0.5.15", tmp_path)
    assert "those of 0.5.14 were used" in (later.note or "")
    assert not later.strict
    assert [str(version) for version in known_versions(tmp_path)] == [*KNOWN[:6], "0.5.14", *KNOWN[6:]]
    assert [str(version) for version in history("--brand-new", tmp_path)] == ["0.5.14"]
    said = profile_listing([], "0.5.15", tmp_path)
    assert said == []


def test_a_table_that_changes_is_read_again(tmp_path: Path) -> None:
    learn(tmp_path, "0.5.14")
    assert "--brand-new" not in flag_table("0.5.14", tmp_path).by_name
    learn(tmp_path, "0.5.14", "--brand-new")
    assert "--brand-new" in flag_table("0.5.14", tmp_path).by_name


def test_no_folder_is_no_tables(tmp_path: Path) -> None:
    assert [str(table.version) for table in known_tables(tmp_path / "none")] == KNOWN
    (tmp_path / "notes.txt").write_text("x")
    assert not any(table.learned for table in known_tables(tmp_path))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        "[" * 100_000,
        json.dumps({"schema": 99, "version": "0.5.14", "flags": []}),
        json.dumps({"schema": SCHEMA, "version": "0.5.13", "flags": []}),
        json.dumps({"schema": SCHEMA, "version": "zero", "flags": []}),
        json.dumps({"schema": SCHEMA, "version": "0.5.14", "flags": []}),
        json.dumps({"schema": SCHEMA, "version": "0.5.14", "flags": [{"names": ["x"], "dest": "x"}]}),
        json.dumps({"schema": SCHEMA, "version": "0.5.14", "flags": [{"names": 1, "dest": "x"}]}),
        json.dumps({"schema": SCHEMA, "version": "0.5.14", "flags": [{"names": ["--model-path"]}]}),
    ],
    ids=range(13),
)
def test_damaged_tables(tmp_path: Path, text: str) -> None:
    (tmp_path / "args-0.5.14.json").write_text(text)
    with pytest.raises(ConfigError) as caught:
        flag_table("0.5.14", tmp_path)
    assert "args-0.5.14.json is damaged" in caught.value.message
    assert "learn" in (caught.value.remedy or "")


def test_a_file_with_a_wrong_name(tmp_path: Path) -> None:
    (tmp_path / "args-new.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"args-new\.json is not named after a version"):
        flag_table("0.5.14", tmp_path)


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "flags").write_text("")
    with pytest.raises(ConfigError, match="cannot be read"):
        flag_table("0.5.14", tmp_path / "flags")
