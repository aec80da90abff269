"""Marks by folder, and the practice hosts that tests of real SSH and real systemd share.

A test run has a set of hosts of its own, named after its process, and removes it at its end. Sets of test runs that
were killed are removed by the next one.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from deployer_rehearsal import hosts, sets

# How many examples a property is tried on: few in every run, many by `make fuzz`.
settings.register_profile("quick", max_examples=10, deadline=None, database=None)
settings.register_profile("thorough", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

_FOLDER = Path(__file__).parent
_SET = f"test-{os.getpid()}"
SETTINGS = {"scale": 0.25}
"""Settings of the stand-in engine in tests: a start takes about three seconds."""
#: How long threads that a test has started may take to end after it, in seconds.
THREAD_PATIENCE = 30.0
# What a test may leave on a host: services of ours with their files, the lease, faults, transient units.
_WIPE = r"""
set -u
systemctl stop 'deployer-*' >/dev/null 2>&1
systemctl kill --signal=KILL 'sglang-*' >/dev/null 2>&1
systemctl stop 'sglang-*' >/dev/null 2>&1
for folder in /etc/systemd/system /run/systemd/system /usr/local/lib/systemd/system /etc/systemd/system.control \
    /run/systemd/system.control /run/systemd/transient; do
    rm -rf "$folder"/sglang-* "$folder"/deployer-* "$folder"/*.wants/sglang-* "$folder"/*.wants/deployer-*
done
rm -rf /var/lib/deployer/* /run/sglang-standin
systemctl daemon-reload
systemctl reset-failed
"""


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Shells let programs in the background ignore Ctrl-C, and these pass it on to those whose end by it is tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """tests/host needs a host, tests/e2e runs whole commands against one."""
    for item in items:
        place = str(item.path).removeprefix(f"{_FOLDER}/")
        if place.startswith(("host/", "e2e/")):
            item.add_marker(place.partition("/")[0])
        if place.startswith("e2e/"):
            # Whole commands on a machine that runs several of them at once take their time.
            item.add_marker(pytest.mark.timeout(1200))
        if place.startswith("e2e/sglang/"):
            item.add_marker("sglang")
        if item.get_closest_marker("alone"):
            item.add_marker(pytest.mark.xdist_group("load client" if "/bench/" in place else "host"))
    items.sort(key=lambda item: "test_make_demo" not in item.name)  # the longest first: the others fit beside it


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of this run's own, for the commands it starts, too."""
    folder = tmp_path_factory.getbasetemp() / "cache"
    os.environ["XDG_CACHE_HOME"] = str(folder)
    return folder


def pytest_collection_finish() -> None:
    """What is loaded by now stays; looking through it for garbage after every test would take seconds."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a thread running, or a file, socket or process open that nobody holds any more.

    Otherwise what becomes of them, an error included, would be blamed on a later test. Threads of fixtures that live
    longer were there before.
    """
    before = set(threading.enumerate())
    yield
    if request.node.get_closest_marker("host") or request.node.get_closest_marker("e2e"):
        gc.collect()  # pytest turns what this finds into an error of this test
    deadline = time.monotonic() + THREAD_PATIENCE
    for thread in set(threading.enumerate()) - before:
        thread.join(max(0.0, deadline - time.monotonic()))
    left = sorted(thread.name for thread in set(threading.enumerate()) - before)
    if left:
        pytest.fail(f"the test leaves threads running: {', '.join(left)}", pytrace=False)


@pytest.fixture(scope="session")
def rehearsal_host() -> Iterator[hosts.RehearsalHost]:
    """A booted practice host, shared by the whole run."""
    remove_left_behind()
    try:
        yield hosts.up(_SET, 1, settings=SETTINGS)[0]
    finally:
        hosts.down(_SET)


@pytest.fixture
def fresh_host(rehearsal_host: hosts.RehearsalHost) -> hosts.RehearsalHost:
    """The practice host with nothing of ours on it: no services, no state, no faults, default settings."""
    hosts.configure(rehearsal_host, **SETTINGS)
    wipe(rehearsal_host)
    return rehearsal_host


def wipe(host: hosts.RehearsalHost) -> None:
    """Remove everything that deployer and the stand-in engine left on a host."""
    host.run(["sh", "-c", _WIPE], timeout=120)


def remove_left_behind() -> None:
    """Take down the sets of test runs that were killed."""
    for name in sets.all_sets():
        kind, _, owner = name.partition("-")
        owner = owner.partition("-")[0]
        if kind == "test" and owner.isdigit() and not Path(f"/proc/{owner}").exists():
            hosts.down(name)
