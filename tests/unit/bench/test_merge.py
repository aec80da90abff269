"""A run and more passes of its levels as one document."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.bench.load.levels import level_summary, of_histogram
from deployer.bench.load.sanity import sanity
from deployer.bench.merge import against_baseline, merged, once_more
from deployer.records.bench import BenchRun, Budget, ForeignTraffic, Sanity
from tests.unit.bench.load.test_levels import a_pass
from tests.unit.bench.load.test_sanity import GOOD, answer


def document(passes: list[Any], started: float, *, concurrency: int = 4, **more: Any) -> BenchRun:
    level = level_summary(passes, concurrency, passes[0].began)
    found = {
        "started": started,
        "spec": {"salt": "s"},
        "client": {"length_factor": 0.7},
        "levels": [{**level, "discarded": None}],
        "over_time": [{"t_s": 1.5, "utilization": 60.0}],
        "budget": {"seconds": 300, "used_s": 20.0, "cut": []},
        "stopped": None,
        "interrupted": None,
        "client_limited": False,
        "foreign_traffic": {"value": False, "evidence": ["a"]},
        **more,
    }
    return BenchRun.from_json(found)


@given(st.integers(1, 3), st.integers(1, 3), st.floats(min_value=0.005, max_value=0.1))
def test_merged_is_what_one_run_would_have_given(first: int, more: int, itl: float) -> None:
    passes = [a_pass(i, 100.0 * i, itl=itl * (1 + 0.1 * i)) for i in range(first + more)]
    whole = document(passes, 0.0).levels[0].as_json()
    found = merged(document(passes[:first], 0.0), document(passes[first:], 100.0 * first)).levels[0].as_json()
    assert found.pop("itl_s") == of_histogram(whole["itl_histogram"])
    del whole["itl_s"]
    assert close(found, whole)


def close(one: Any, other: Any) -> bool:
    """Equal but for the rounding of what is in the document."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(close, one, other))
    if isinstance(one, float):
        return bool(other == pytest.approx(one, rel=1e-4, abs=2e-6))
    return bool(one == other)


def test_what_went_wrong_in_either_went_wrong() -> None:
    one = document([a_pass(0, 0.0)], 0.0)
    cut = {"seconds": 280.0, "used_s": 5.0, "cut": ["level 4: left out"]}
    other = document(
        [a_pass(1, 0.0, failed=(1,))],
        50.0,
        budget=cut,
        stopped="none of them",
        foreign_traffic={"value": None, "evidence": ["b"]},
        client_limited=True,
    )
    found = merged(one, other)
    assert found.levels[0].failed == {"reset": 1}
    assert found.budget == Budget(300, 25.0, ("level 4: left out",))
    assert found.stopped == "none of them"
    assert found.client_limited
    assert found.foreign_traffic == ForeignTraffic(None, ("a", "b"))
    assert [part.started_s for part in found.levels[0].passes] == [0.0, 50.0]
    assert [row.t_s for row in found.over_time] == [1.5, 51.5]


def test_a_run_of_one_more_pass_goes_on_where_the_first_ended() -> None:
    bench = document([a_pass(0, 0.0), a_pass(1, 9.0)], 0.0)
    asked = once_more({"levels": [4, 8], "waves": 2, "warmups": 2}, bench, [8, 4], 33.0)
    assert asked == {
        "levels": [4],
        "waves": 2,
        "warmups": 0,
        "singles": 0,
        "repeats": 1,
        "requests_at_least": 0,
        "first_repeat": 2,
        "discard": False,
        "fixed_prompt": False,
        "salt": "s",
        "length_factor": 0.7,
        "budget": 33.0,
    }


def answers(*texts: str) -> Sanity:
    return Sanity.from_json(sanity(GOOD, [answer(text) for text in texts]))


def test_the_baseline_answers_alike_or_otherwise_or_not_at_all() -> None:
    one, other = answers("April", "April"), answers("May", "May")
    assert against_baseline(one, BenchRun(sanity=one)).ok is True
    found = against_baseline(one, BenchRun(sanity=other))
    assert found.ok is False
    assert found.checks[-1].text == "the fixed prompt was answered differently from the baseline"
    for baseline in (None, BenchRun(), BenchRun(sanity=answers())):
        assert against_baseline(one, baseline).checks[-1].ok is None
        assert against_baseline(one, baseline).ok is True
