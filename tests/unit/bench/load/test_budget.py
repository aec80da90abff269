"""What fits into the time of a run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.bench.load.budget import HUNG, STALLED, Pace, discard_fits, kind_of_cut, what_to_leave_out

positive = st.floats(min_value=0.01, max_value=1e5)


def test_a_pace_is_what_was_measured_and_else_a_cautious_guess() -> None:
    pace = Pace()
    assert pace.rate(8) is None
    assert pace.seconds(8, 1000) == 0.0
    pace.learn(1, 26.0)
    assert pace.rate(16) == pytest.approx(104)
    pace.learn(8, 175.0)
    pace.learn(16, None)
    assert pace.rate(8) == 175
    assert pace.rate(32) == pytest.approx(350)
    assert pace.seconds(8, 1750) == pytest.approx(10)


@given(st.dictionaries(st.integers(1, 256), positive, min_size=1), st.integers(1, 256), st.integers(1, 256))
def test_a_pace_is_always_positive_and_exact_where_known(known: dict[int, float], one: int, other: int) -> None:
    pace = Pace()
    for concurrency, rate in known.items():
        pace.learn(concurrency, rate)
    assert (pace.rate(one) or 0) > 0
    if one in known:
        assert pace.rate(one) == known[one]
    assert pace.seconds(other, 10) <= pace.seconds(other, 20)


def test_a_discarded_wave_never_costs_a_first_pass() -> None:
    pace = Pace()
    pace.learn(8, 100.0)
    passes = [(8, 1000.0), (8, 2000.0)]
    assert discard_fits(pace, (8, 1000.0), passes, left=60.1)
    assert not discard_fits(pace, (8, 1000.0), passes, left=59.9)


@pytest.mark.parametrize(
    ("left", "grace", "said"),
    [(11, 0, None), (9, 0, "about 10 s and 9 s"), (9, 2, None), (0, 2, "used up"), (-5, 30, "used up")],
)
def test_what_is_left_out_says_why(left: float, grace: float, said: str | None) -> None:
    pace = Pace()
    pace.learn(8, 100.0)
    found = what_to_leave_out(pace, 8, 1000, left, grace)
    assert (found is None) if said is None else (said in (found or ""))


def test_a_server_on_which_something_moves_is_not_hung() -> None:
    assert kind_of_cut([0.0, 5.0], 5.0 + HUNG + 1) == ("timeout", HUNG + 1)
    assert kind_of_cut([0.0, 6.5], 5.0 + HUNG + 1)[0] == "stalled"
    assert kind_of_cut([0.0, 5.0], 5.0 + STALLED - 1)[0] == "cut"
    assert kind_of_cut([], 1e9) == ("cut", 0.0)
