"""The mock server as a process of its own: in one process with the client each would delay the other."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import PATIENCE


@pytest.fixture(scope="session")
def mock_server() -> Iterator[str]:
    """The base URL of a running mock server."""
    script = Path(__file__).with_name("mock_server.py")
    process = subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    process.stdin.close()
    process.wait(timeout=PATIENCE)
    process.stdout.close()
