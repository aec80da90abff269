"""The practice host as the tests of the agent use it: with a small engine, and connections that end with the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deployer_rehearsal.host import RehearsalHost
from tests.host.host_contract import Place, make_place


@pytest.fixture
def place(fresh_host: RehearsalHost) -> Iterator[Place]:
    """The practice host without SSH, which is slower; its engine obeys files that are gone after the test."""
    made = make_place("local", fresh_host)
    yield made
    made.run("rm", "-f", "/run/engine-health", "/run/engine-delay")
    made.close()
