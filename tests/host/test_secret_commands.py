"""Commands that give a secret: real ones."""

from __future__ import annotations

import sys

import pytest

from deployer.config import secrets
from deployer.config.secrets import Secret
from deployer.errors import ConfigError

VALUE = "hunter2"


def test_what_it_prints_is_the_secret() -> None:
    assert Secret(command=[sys.executable, "-c", f"print('{VALUE}')"]).resolve() == VALUE


def test_no_shell_runs_the_command() -> None:
    assert Secret(command=["/bin/echo", "$HOME; id"]).resolve() == "$HOME; id"


@pytest.mark.parametrize(
    ("secret", "words"),
    [
        (Secret(command=["/no/such/program"]), ["/no/such/program", "cannot be run"]),
        (Secret(command=[sys.executable, "-c", "print('hunter2'); raise SystemExit(3)"]), ["status 3"]),
        (Secret(command=["/bin/true"]), ["is empty"]),
        (Secret(command=["/bin/echo", "a\0b"]), ["cannot be run"]),
        (Secret(command=[sys.executable, "-c", "import os; os.write(1, bytes([255]))"]), ["UTF-8"]),
        (Secret(command=[sys.executable, "-c", "print('a' * 70000)"]), ["64 KiB"]),
    ],
)
def test_a_command_that_gives_none(secret: Secret, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        secret.resolve()
    assert caught.value.remedy
    said = caught.value.message
    assert VALUE not in said
    for word in words:
        assert word in said


def test_a_command_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "COMMAND_TIMEOUT", 0.2)
    with pytest.raises(ConfigError, match="did not end"):
        Secret(command=["/bin/sleep", "20"]).resolve()
