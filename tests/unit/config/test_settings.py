from __future__ import annotations

import os
from pathlib import Path

import pytest

from deployer.config.settings import load_settings
from deployer.errors import ConfigError
from tests.unit.config.conftest import message


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("DEPLOYER_"):
            monkeypatch.delenv(name)


def refused(folder: Path, **flags: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(flags, folder)
    return message(caught)


def test_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each source in turn is taken away, and the next one shows."""
    (tmp_path / "deployer.toml").write_text('service = "toml"\n')
    (tmp_path / ".env").write_text("DEPLOYER_SERVICE=dotenv\n")
    monkeypatch.setenv("DEPLOYER_SERVICE", "environment")
    assert load_settings({"service": "flag"}, tmp_path).service == "flag"
    assert load_settings({"service": None}, tmp_path).service == "environment"
    monkeypatch.delenv("DEPLOYER_SERVICE")
    assert load_settings({}, tmp_path).service == "dotenv"
    (tmp_path / ".env").unlink()
    assert load_settings({}, tmp_path).service == "toml"
    (tmp_path / "deployer.toml").unlink()
    assert load_settings({}, tmp_path).service is None


def test_sources_are_merged_key_by_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deployer.toml").write_text('inventory = "i.toml"\nyes = true\ncolor = "never"\n')
    (tmp_path / ".env").write_text("export DEPLOYER_COLOR='always'\nOTHER=1\nDEPLOYER_PROFILES=p\n")
    monkeypatch.setenv("DEPLOYER_JSON", "1")
    found = load_settings({"verbose": True}, tmp_path)
    assert found.model_dump() == {
        "inventory": tmp_path / "i.toml",
        "profiles": tmp_path / "p",
        "templates": None,
        "flags": None,
        "service": None,
        "json": True,
        "yes": True,
        "verbose": True,
        "color": "always",
    }


def test_paths_of_flags_are_relative_to_the_working_directory(tmp_path: Path) -> None:
    assert load_settings({"inventory": "a/b"}, tmp_path).inventory == Path("a/b")
    assert load_settings({"inventory": Path("a/b")}, tmp_path).inventory == Path("a/b")


def test_unknown_keys(tmp_path: Path) -> None:
    (tmp_path / "deployer.toml").write_text('inventry = "x"\njson = "yes"\nservice = 3\n')
    said = refused(tmp_path)
    assert "inventry: unknown key; did you mean inventory?" in said
    assert 'json: found "yes", expected true or false' in said
    assert "service: found 3" in said
    (tmp_path / "deployer.toml").unlink()
    (tmp_path / ".env").write_text("DEPLOYER_SERVIC=x\nwhat is this\n")
    said = refused(tmp_path)
    assert "did you mean DEPLOYER_SERVICE?" in said
    assert "line 2" in said


def test_a_bad_value_names_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "color in the command line: " in refused(tmp_path, color="blue")
    (tmp_path / ".env").write_text("DEPLOYER_COLOR=blue\n")
    assert f"color in {tmp_path / '.env'}: " in refused(tmp_path)
    (tmp_path / ".env").unlink()
    (tmp_path / "deployer.toml").write_text('color = "alwys"\n')
    said = refused(tmp_path)
    assert f"color in {tmp_path / 'deployer.toml'}: " in said
    assert "did you mean always?" in said
    monkeypatch.setenv("DEPLOYER_COLOR", "red")
    assert "DEPLOYER_COLOR in the environment: " in refused(tmp_path)
    monkeypatch.delenv("DEPLOYER_COLOR")
    monkeypatch.setenv("DEPLOYER_YES", "perhaps")
    said = refused(tmp_path)
    assert "DEPLOYER_YES in the environment: " in said
    assert 'found "perhaps", expected true or false\n' in said


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "deployer.toml").write_text("service = \n")
    assert "line 1" in refused(tmp_path)
    (tmp_path / "deployer.toml").unlink()
    (tmp_path / ".env").write_bytes(b"A=\xff\n")
    assert "UTF-8" in refused(tmp_path)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("name", [".env", "deployer.toml"])
def test_pipes_are_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    assert "not a regular file" in refused(tmp_path)
