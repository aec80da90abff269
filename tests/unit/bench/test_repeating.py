"""What is worth another pass, and what is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from deployer.bench.gate import Policy
from deployer.bench.repeating import MOST_PASSES
from deployer.bench.repeating import worth_repeating as worth
from deployer.records.bench import BenchRun
from deployer.records.verdict import Noise

Json = dict[str, Any]

LEVELS = (8, 32)
#: Passes that differ a lot and starts that do not: there repeats tell.
RESTLESS = Noise(run=0.05, level=0.001, start=0.001, starts=30, freedom=60)


def bench(factor: float = 1.0, passes: int = 2, **more: Any) -> Json:
    few = {"requests": 2, "completed": 2, "failed": {}}
    levels = [
        {
            "concurrency": level,
            "requests": level,
            "completed": level,
            "failed": {},
            "aggregate_tok_s": 20.0 * level * factor,
            "passes": [{"aggregate_tok_s": 20.0 * level * factor, "wall_s": 10.0}] * passes,
        }
        for level in LEVELS
    ]
    return {"warmups": few, "levels": levels, "foreign_traffic": {"value": False}, **more}


def again(found: Json, noise: Noise | None = None, left: float = 1000.0, **policy: Any) -> list[int]:
    return worth_repeating(found, [bench()] * 3, noise, left, **policy)


def worth_repeating(
    document: Json, baseline: Sequence[Json], noise: Noise | None, left: float, **policy: Any
) -> list[int]:
    earlier = tuple(map(BenchRun.from_json, baseline))
    return worth(BenchRun.from_json(document), Policy(baseline=earlier, noise=noise or Noise(), **policy), left)


def test_a_clear_result_is_left_alone() -> None:
    assert again(bench()) == []
    assert again(bench(0.5)) == []


def test_a_close_one_is_measured_again_where_passes_are_the_noise() -> None:
    assert again(bench(0.94), RESTLESS) == [8, 32]
    assert again(bench(0.94, passes=MOST_PASSES), RESTLESS) == []


def test_not_where_the_starts_are_the_noise() -> None:
    starts = Noise(run=0.0005, level=0.001, start=0.04, starts=30, freedom=60)
    assert again(bench(0.90), starts) == []


def test_only_what_fits_the_time() -> None:
    assert again(bench(0.94), RESTLESS, left=15.0) == [8]
    assert again(bench(0.94), RESTLESS, left=5.0) == []


def test_a_threshold_that_was_nearly_met_is_measured_again() -> None:
    close, far = {"aggregate_tok_s@32": 645.0}, {"aggregate_tok_s@32": 900.0}
    assert worth_repeating(bench(), [], None, 60.0, thresholds=close) == [32]
    assert worth_repeating(bench(), [], None, 60.0, thresholds=far) == []
    assert worth_repeating(bench(), [], None, 60.0, thresholds={"aggregate_tok_s@32": 630.0}) == []


def test_a_failed_request_is_never_given_another_chance() -> None:
    broken = bench(0.94)
    broken["levels"][0]["failed"] = {"reset": 1}
    assert again(broken, RESTLESS) == []
    assert again(bench(0.94, interrupted="SIGINT"), RESTLESS) == []


def test_what_others_disturbed_is_measured_again_and_what_we_disturbed_is_not() -> None:
    def disturbed(**how: Any) -> Json:
        found = bench()
        for level in found["levels"]:
            level["passes"] = [{**part, **how} for part in level["passes"]]
        return found

    gate = {"aggregate_tok_s@32": 100.0}
    assert worth_repeating(disturbed(foreign_traffic=True), [], None, 60.0, thresholds=gate) == [32]
    times = {"itl_p50_s@32": 9.0}
    assert worth_repeating(disturbed(foreign_traffic=True), [], None, 60.0, thresholds=times) == []
    limited = disturbed(client={"client_limited": True})
    assert worth_repeating(limited, [], None, 60.0, thresholds=gate) == []
    assert again(disturbed(foreign_traffic=True)) == [8, 32], "nothing could be compared"


@given(st.floats(0.3, 1.5), st.integers(1, 6), st.floats(0, 100), st.booleans())
def test_it_ends_and_keeps_to_the_time(factor: float, passes: int, left: float, restless: bool) -> None:
    found = again(bench(factor, passes), RESTLESS if restless else None, left)
    assert len(found) * 10.0 <= left
    assert set(found) <= set(LEVELS)
    assert not found or passes < MOST_PASSES
