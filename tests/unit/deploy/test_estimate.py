"""How long a launch will take, by an earlier one."""

from __future__ import annotations

import pytest

from deployer.deploy.estimate import Estimate, estimate
from deployer.records.failure import PhaseTime
from deployer.records.release import Release
from tests.unit.deploy import builders


def release(number: int, profile: str, *phases: str) -> Release:
    return builders.release(number, profile, timeline=[PhaseTime(name, number).as_json() for name in phases])


def test_the_last_start_of_the_profile_that_became_ready() -> None:
    releases = [
        release(1, "tp8", "load", "ready"),
        release(2, "pp8", "load", "ready"),
        release(3, "tp8", "load", "ready"),
        release(4, "tp8", "load"),
        release(5, "tp8"),
    ]
    assert estimate(releases, "tp8") == Estimate({"load": 3.0, "ready": 3.0}, "0003-tp8")


def test_another_profile_if_this_one_never_started() -> None:
    releases = [release(1, "tp8", "load", "ready"), release(2, "pp8", "load")]
    assert estimate(releases, "pp8") == Estimate({"load": 1.0, "ready": 1.0}, "0001-tp8")
    assert estimate([release(2, "pp8", "load")], "pp8") is None


def test_what_remains_is_this_phase_and_those_after_it() -> None:
    earlier = Estimate({"launch": 5.0, "load": 60.0, "capture": 20.0}, "0001-tp8")
    assert earlier.remaining("load", 50.0) == pytest.approx(30.0)
    assert earlier.remaining("load", 90.0) == pytest.approx(20.0)
