"""The schedules of `make chaos`: a seed decides all, and every blow meets every moment in time."""

from __future__ import annotations

from tests.chaos.run import BLOWS as CARRIED_OUT
from tests.chaos.schedule import BLOWS, STEPS, schedule


def test_a_seed_and_a_number_decide_all() -> None:
    assert [schedule(1, number) for number in range(50)] == [schedule(1, number) for number in range(50)]
    assert schedule(1, 3) != schedule(2, 3)


def test_every_blow_can_be_carried_out() -> None:
    assert set(CARRIED_OUT) == set(BLOWS)


def test_every_blow_and_every_step_has_its_turn() -> None:
    all_of_them = [schedule(1, number) for number in range(150)]
    assert {item.blow for item in all_of_them} == set(BLOWS)
    assert {item.at for item in all_of_them if isinstance(item.at, str)} == set(STEPS)
    assert all(item.fault is None or item.change == "apply" for item in all_of_them)
