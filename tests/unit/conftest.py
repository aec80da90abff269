"""The rules of the unit layer: a test takes milliseconds, and asks nothing of the machine but memory and files.

Programs, sockets and pauses belong in tests/host (tests/README.md). Both rules are held here, so that the whole layer
stays a matter of seconds: what a test does is seen by an audit hook, what it takes by the processor's time, which does
not count waiting for a busy machine.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, SupportsIndex

import pytest
from hypothesis import strategies as st

#: Most that a test may take of the processor, in seconds of an ordinary one. Almost all take less than a hundredth.
CPU_LIMIT = 2.0
#: What an ordinary processor takes for `_slowness`'s loop, in seconds.
_ORDINARY = 0.06
#: Longest pause of a test, in seconds (one that only lets another thread run).
PAUSE_LIMIT = 0.01
#: What `make fuzz` tries takes as long as it takes.
_FUZZ = os.environ.get("HYPOTHESIS_PROFILE", "quick") != "quick"
#: Beside more workers than processors the figures tell of the machine, not of the test: `make unit` is what judges.
_CROWDED = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 2
_FOLDER = Path(__file__).parent
_FOREIGN = {
    "subprocess.Popen": "starts a program",
    "os.posix_spawn": "starts a program",
    "os.fork": "starts a process",
    "socket.connect": "opens a connection",
    "socket.bind": "binds a socket",
    "socket.getaddrinfo": "looks up a name",
}


class _Watch:
    """What a test does that the layer is not for; None while no test runs."""

    def __init__(self) -> None:
        self.found: list[str] | None = None

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if self.found is None:
            return
        if event in _FOREIGN:
            self.found.append(f"{_FOREIGN[event]} ({event})")

    def sleep(self, seconds: float | SupportsIndex) -> None:
        """Stands for time.sleep, whose own audit event came with Python 3.13."""
        if self.found is not None and float(seconds) > PAUSE_LIMIT:
            self.found.append(f"sleeps for {float(seconds):g} s")
        _sleep(seconds)


_watch = _Watch()
_sleep = time.sleep
sys.addaudithook(_watch)
# Before any module of ours is imported: some keep it as the default of a parameter.
time.sleep = _watch.sleep


@pytest.fixture(autouse=True, scope="session")
def surroundings() -> Iterator[None]:
    """The same for everybody: a width of the terminal, and no waiting for the disk (that the agent's files survive a
    power cut is tested on a practice host).
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "120")
        patch.setattr(os, "fsync", lambda file: None)
        yield


def pytest_collection_finish() -> None:
    """Looking often for garbage through what thousands of small tests leave behind takes seconds."""
    st.text().validate()  # in a fresh checkout hypothesis first works out a table of characters: seconds, once
    gc.set_threshold(100_000, 50, 50)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Fail a test of the layer that breaks one of its rules."""
    begun = time.process_time()
    found: list[str] = []
    _watch.found = found
    try:
        yield
    finally:
        _watch.found = None
    if found:
        pytest.fail(f"a unit test that {', '.join(dict.fromkeys(found))}: it belongs in tests/host", pytrace=False)
    taken = time.process_time() - begun
    if taken > CPU_LIMIT and not _FUZZ and not _CROWDED and not sys.getprofile() and taken > CPU_LIMIT * _slowness():
        pytest.fail(f"a unit test that takes {taken:.2f} s of the processor; {CPU_LIMIT:g} are allowed", pytrace=False)


def _slowness() -> float:
    """How many times slower than an ordinary processor this one is, at least 1: others may be working on it as well."""
    begun = time.process_time()
    for _ in range(1_000_000):
        pass
    return max(1.0, (time.process_time() - begun) / _ORDINARY)
