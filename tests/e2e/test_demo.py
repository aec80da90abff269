"""The README's first command, as anybody would type it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployer_rehearsal import hosts
from tests.patience import PATIENCE, one_right

ROOT = Path(__file__).parents[2]


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The demo's practice host in a folder of this test's own."""
    folder = Path(f"/var/lib/deployer-rehearsal-test-{os.getpid()}")
    monkeypatch.setenv("DEPLOYER_REHEARSAL_DIR", str(folder))
    yield
    hosts.down()
    folder.rmdir()


@pytest.mark.usefixtures("elsewhere")
def test_make_demo_tells_the_whole_story_and_again_on_the_same_host() -> None:
    one_right(tell_the_whole_story)
    second = demo()
    assert "practice-1 is already up" in second
    assert "pp8-async is live on kimi as release 0003-pp8-async" in second


def tell_the_whole_story() -> None:
    hosts.down()
    first = demo()
    for words in (
        "tp8 is live on kimi as release 0001-tp8",
        "pp8-async is live on kimi as release 0002-pp8-async",
        "rolled back: tp8 is live on kimi again as release 0001-tp8",
        "make down",
    ):
        assert words in first
    # The story's figures, as the benchmark measures them: 26 and 578 tok/s, 34 and 248.
    found = re.findall(r"^speed +(\d+) tok/s for one, \d+ at 8, (\d+) at 32", first, re.MULTILINE)
    async_one, async_many, tp_one, tp_many = (int(number) for pair in found for number in pair)
    assert [tp_one, async_one] == pytest.approx([26, 34], abs=1)
    assert [tp_many, async_many] == pytest.approx([578, 248], rel=0.06)


def demo() -> str:
    """Run `make demo` with this environment."""
    finished = subprocess.run(
        ["make", "--no-print-directory", "demo", f"VENV={sys.prefix}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * PATIENCE,
        env={key: value for key, value in os.environ.items() if key != "MAKEFLAGS"},
    )
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-3000:]
    return finished.stdout
