from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from deployer.config.secrets import Secret
from deployer.errors import ConfigError
from tests.unit.config.conftest import message

VALUE = "hunter2"


def test_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", VALUE)
    (tmp_path / "key").write_text(VALUE + "\r\n")
    assert Secret(env="KEY").resolve() == VALUE
    assert Secret.model_validate({"file": "key"}, context={"folder": tmp_path}).resolve() == VALUE


def test_only_the_newline_at_the_end_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", " a b \n\n")
    assert Secret(env="KEY").resolve() == " a b \n"


def test_it_never_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", VALUE)
    for secret in (Secret(env="KEY"), Secret(command=["pass", VALUE]), Secret(file=Path(VALUE))):
        shown = f"{secret!r} {secret} {secret.model_dump()} {secret.model_dump_json()} {[secret]}"
        assert VALUE not in shown
        assert "KEY" not in shown
        assert json.loads(secret.model_dump_json()) == {secret.source: "***"}


@pytest.mark.parametrize(
    ("secret", "words"),
    [
        (Secret(env="NO_SUCH_VARIABLE_HERE"), ["NO_SUCH_VARIABLE_HERE", "not set"]),
        (Secret(file=Path("/no/such/file")), ["/no/such/file", "No such file"]),
        (Secret(file=Path("/")), ["directory"]),
    ],
)
def test_a_source_that_gives_none(secret: Secret, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        secret.resolve()
    said = message(caught)
    assert VALUE not in said
    for word in words:
        assert word in said


@pytest.mark.timeout(10)
def test_only_regular_files_hold_secrets(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ConfigError, match="not a regular file"):
            Secret(file=path).resolve()
    (tmp_path / "large").write_bytes(b"a" * 70_000)
    with pytest.raises(ConfigError, match="64 KiB"):
        Secret(file=tmp_path / "large").resolve()


def test_an_empty_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "\n")
    with pytest.raises(ConfigError, match="is empty"):
        Secret(env="KEY").resolve()
