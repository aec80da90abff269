"""What is known of the engine's environment and of the model before anything runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from deployer.host.agent import survey
from deployer.host.agent.base import Fail
from tests.fakes.machine import FakeMachine


def test_weights_are_counted_once(tmp_path: Path) -> None:
    (tmp_path / "original").mkdir()
    for name, size in (
        ("model-1.safetensors", 10),
        ("model-2.safetensors", 20),
        ("consolidated.safetensors", 30),
        ("original/model.safetensors", 30),
        ("config.json", 2),
    ):
        (tmp_path / name).write_text("{}" if size == 2 else "x" * size)
    facts = survey.model_facts(str(tmp_path))
    assert (facts["weight_bytes"], facts["bytes"], facts["files"]) == (30, 92, 5)


def test_a_model_of_links_and_pipes_is_looked_at_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 4}')
    for name in ("back", "again"):
        (tmp_path / name).symlink_to(tmp_path)
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    os.mkfifo(tmp_path / "pipe.json")
    facts = survey.model_facts(str(tmp_path))
    assert (facts["files"], facts["config"]) == (1, {"num_hidden_layers": 4})


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "\x00", " " * ((16 << 20) + 1) + "{}"])
def test_a_config_that_cannot_be_read_is_not_known(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    assert survey.model_facts(str(tmp_path))["config"] is None


def test_a_config_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    assert survey.model_facts(str(tmp_path))["config"] is None


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ('{"a": 1}\nbye\n', {"a": 1}),
        ('{"a": 1}\n0\n{"b":\n', {"a": 1}),
        ("0\n", {}),
        ('{"a":' * 100_000 + "\n", {}),
        ("", {}),
    ],
)
def test_the_last_object_an_environment_prints(text: str, last: dict[str, int]) -> None:
    assert survey.last_object(text) == last


def test_a_python_that_cannot_be_run_is_not_an_engine() -> None:
    class Broken(FakeMachine):
        def execute(self, *args: Any, **options: Any) -> Any:
            raise Fail("missing-tool", "it cannot be run: Exec format error")

    facts = survey.engine_facts(Broken(), sys.executable)
    assert (facts["exists"], facts["sglang"], facts["packages"]) == (False, None, {})
