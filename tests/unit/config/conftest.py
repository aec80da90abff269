"""Files for the tests of configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from deployer.errors import ConfigError

Write = Callable[[str], Path]

GOOD = """
[hosts.box]
gpus = 8
[services.kimi]
host = "box"
model = "/models/kimi"
[services.kimi.engine]
python = "/opt/sglang/bin/python"
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write an inventory and return its path."""

    def writer(text: str) -> Path:
        path = tmp_path / "site.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return writer


def message(caught: pytest.ExceptionInfo[ConfigError]) -> str:
    """The message, after checking that it has the exit code and a remedy."""
    assert caught.value.exit_code == 2
    assert caught.value.remedy
    return caught.value.message
