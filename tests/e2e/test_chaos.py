"""Three schedules of `make chaos`, chosen so that most of what heals a host has its turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployer_rehearsal.host import RehearsalHost
from tests.chaos.run import carry_out, unmount
from tests.chaos.schedule import schedule
from tests.e2e.conftest import Site

#: Of seed 1, where each is: its change, its blow and the step.
SELECTION = {
    "apply, disk read-only for a while at switch": 17,
    "apply (garbage-output), power cut, recovery killed again and again at verify": 18,
    "apply, isolated to another target and back at switch": 34,
}


@pytest.mark.parametrize("words", SELECTION)
def test_a_disturbed_change_heals(rehearsal_host: RehearsalHost, tmp_path: Path, words: str) -> None:
    wanted, site = schedule(1, SELECTION[words]), Site(rehearsal_host, tmp_path)
    assert str(wanted) == f"{SELECTION[words]}: {words}"
    try:
        assert not carry_out(site, wanted).wrong
    finally:
        unmount(site)
