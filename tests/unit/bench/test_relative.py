"""The relative gate: its rule, and what must hold whatever is measured."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.bench.noise import learn
from deployer.bench.rates import rates_of
from deployer.bench.relative import Tolerance, judge, student
from deployer.records.bench import BenchRun, Level
from deployer.records.verdict import Noise, Relative

Json = dict[str, Any]

ORDER = {"fail": 0, "inconclusive": 1, "pass": 2}
LEVELS = (8, 16, 32, 48, 64)


def document(rates: dict[int, list[float]] | None = None, factor: float = 1.0, **more: Any) -> BenchRun:
    """A benchmark; ``rates``: passes of each level."""
    found = rates or {level: [25.0 * level] * 3 for level in LEVELS}
    levels = [
        {"concurrency": level, "passes": [{"steady_tok_s": rate * factor, "wall_s": 4.0} for rate in passes]}
        for level, passes in found.items()
    ]
    return BenchRun.from_json({"levels": levels, "foreign_traffic": {"value": False}, **more})


def judged(candidate: BenchRun, baseline: list[BenchRun], **more: Any) -> Relative:
    found = judge([candidate], baseline, **more)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("factor", "starts", "result", "why"),
    [
        (1.0, 3, "pass", ""),
        (1.2, 3, "pass", ""),
        (0.97, 3, "pass", ""),
        (0.88, 3, "fail", "more than the 5 % tolerated, and more than noise explains"),
        (0.945, 1, "inconclusive", "more than the 5 % tolerated, but it may be noise"),
        (0.96, 1, "inconclusive", "a loss of 10 % cannot be ruled out"),
    ],
)
def test_the_rule(factor: float, starts: int, result: str, why: str) -> None:
    found = judged(document(factor=factor), [document()] * starts, name="tp8")
    assert found.result == result
    assert found.effect is not None
    assert math.isclose(found.effect, factor - 1, abs_tol=1e-9)
    assert found.low < found.effect < found.high
    counted = "1 start" if starts == 1 else f"{starts} starts"
    assert f"against {counted} of tp8" in found.reasons[0]
    assert found.reasons[0].endswith(why)


def test_a_tolerance_is_told_as_it_was_set() -> None:
    for loss, said in ((0.001, "a loss of 0.2 %"), (0.025, "a loss of 5 %"), (0.012, "a loss of 2.4 %")):
        found = judged(document(), [document()], tolerance=Tolerance(loss, 0.125), name="tp8")
        assert said in found.reasons[0]
    found = judged(document(factor=0.7), [document()] * 3, tolerance=Tolerance(0.4, 0.125))
    assert "more than the 12.5 % tolerated at one level" in found.reasons[0]


def test_more_starts_and_known_quiet_narrow_the_interval() -> None:
    def width(found: Relative) -> float:
        assert found.effect is not None
        return found.high - found.low

    one, three = (judged(document(), [document()] * n) for n in (1, 3))
    quiet = judged(document(), [document()] * 3, noise=Noise(0.002, 0.002, 0.004, 20, 15))
    both = judge([document(), document()], [document()] * 3)
    assert both is not None
    assert width(one) > width(three) > width(quiet)
    assert width(three) > width(both), "two starts of the candidate count together"


def test_one_level_may_not_pay_for_all() -> None:
    rates = {level: [25.0 * level * (0.8 if level == 64 else 1.02)] * 3 for level in LEVELS}
    found = judged(document(rates), [document()] * 3)
    assert found.effect is not None
    assert found.effect > -0.05
    assert found.result == "fail"
    assert found.reasons[0].startswith("level 64 -20.0 % (")
    assert "more than the 12 % tolerated at one level" in found.reasons[0]


def test_without_a_baseline_there_is_nothing_to_say() -> None:
    assert judge([document()], []) is None
    assert judge([document()], [BenchRun()]) is None
    assert judge([document(spec={"prompt_tokens": 128})], [document(spec={"prompt_tokens": 256})]) is None
    assert judge([document(place="host")], [document(place="operator")]) is None


def test_a_disturbed_candidate_is_inconclusive_not_slow() -> None:
    candidate = document(factor=0.5).as_json()
    for level in candidate["levels"][1:]:
        for part in level["passes"]:
            part["foreign_traffic"] = True
    found = judged(BenchRun.from_json(candidate), [document()] * 3)
    assert found.result == "inconclusive"
    assert found.effect is None
    assert "1 of 5 levels are sound (level 16, pass 1: somebody else used the server" in found.reasons[0]


def test_a_disturbed_pass_is_left_out() -> None:
    candidate = document().as_json()
    candidate["levels"][2]["passes"][1] |= {"steady_tok_s": 1.0, "client": {"client_limited": True}}
    found = judged(BenchRun.from_json(candidate), [document()] * 3)
    assert found.result == "pass"
    assert [str(item) for item in found.set_aside] == ["level 32, pass 2: the load client itself was saturated"]


def test_a_document_of_schema_1_counts_as_one_pass_a_level() -> None:
    levels = [{"concurrency": 8, "aggregate_tok_s": 100.0}]
    old = BenchRun.from_json({"levels": levels, "singles": {"tok_s": [20.0, 22.0]}})
    rates = rates_of(old)
    assert rates.levels() == {1, 8}
    assert len(rates.passes[1]) == 2
    assert judged(old, [old]).result == "pass"


def test_a_level_without_a_steady_rate_is_compared_by_the_other_figure() -> None:
    def half(steady: float | None) -> BenchRun:
        return BenchRun(levels=(Level(concurrency=8, aggregate_tok_s=100.0, steady_tok_s=steady),))

    found = judged(half(None), [half(500.0)])
    assert found.effect is not None
    assert found.effect == 0.0


def test_the_document_is_what_the_contract_says() -> None:
    found = judged(document(factor=0.9), [document()] * 3).as_json()
    assert found["result"] == "fail"
    assert found["effect"] == -0.1
    assert found["interval"][0] < -0.1 < found["interval"][1] < 0
    assert found["baseline_starts"] == 3
    assert found["noise"]["start"] == 0.02
    assert [level["concurrency"] for level in found["levels"]] == list(LEVELS)


# -- what must hold always ------------------------------------------------------------------------------------------

rate = st.floats(1.0, 1e4)
documents = st.dictionaries(
    st.sampled_from(LEVELS), st.lists(rate, min_size=1, max_size=3), min_size=1, max_size=5
).map(document)
full = st.lists(st.lists(rate, min_size=1, max_size=3), min_size=5, max_size=5).map(
    lambda passes: document(dict(zip(LEVELS, passes, strict=True)))
)


def rates(bench: BenchRun) -> dict[int, list[float]]:
    return {level.concurrency: [part.steady_tok_s or 0.0 for part in level.passes] for level in bench.levels}


@given(full, st.lists(full, min_size=1, max_size=3), st.floats(0.01, 100.0))
def test_scaling_both_sides_changes_nothing(candidate: BenchRun, baseline: list[BenchRun], factor: float) -> None:
    one = judged(candidate, baseline)
    two = judged(document(rates(candidate), factor), [document(rates(bench), factor) for bench in baseline])
    assert one.effect is not None
    assert two.effect is not None
    assert math.isclose(one.effect, two.effect, rel_tol=1e-6, abs_tol=1e-9)
    assert math.isclose(one.low, two.low, rel_tol=1e-6, abs_tol=1e-9)


@given(full, full, st.lists(st.floats(0.5, 1.0), min_size=5, max_size=5))
def test_a_slower_candidate_never_gets_a_better_verdict(
    candidate: BenchRun, base: BenchRun, factors: list[float]
) -> None:
    passes = rates(candidate).items()
    slower = document(
        {at: [rate * factor for rate in each] for (at, each), factor in zip(passes, factors, strict=True)}
    )
    assert ORDER[judged(slower, [base]).result] <= ORDER[judged(candidate, [base]).result]


@given(st.floats(0.7, 1.3), st.floats(0.0, 0.3))
def test_it_is_monotone_where_it_matters(factor: float, step: float) -> None:
    before = ORDER[judged(document(factor=factor), [document()] * 2).result]
    assert ORDER[judged(document(factor=factor * (1 - step)), [document()] * 2).result] <= before


@given(full, full)
def test_swapping_the_two_mirrors_the_interval(one: BenchRun, other: BenchRun) -> None:
    there, back = judged(one, [other]), judged(other, [one])
    assert there.effect is not None
    assert back.effect is not None
    for a, b in ((there.effect, back.effect), (there.low, back.high), (there.high, back.low)):
        assert math.isclose(math.log1p(a), -math.log1p(b), abs_tol=1e-6)


KEYS = ["levels", "passes", "concurrency", "steady_tok_s", "aggregate_tok_s", "singles", "tok_s", "client"]
KEYS += ["foreign_traffic", "failed", "spec", "place", "value", "cut_short", "wall_s"]
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=25,
)
objects = st.dictionaries(
    st.sampled_from(["levels", "singles", "spec", "foreign_traffic", "place", "workload"]), anything
).map(BenchRun.from_json)


@given(objects | documents, st.lists(objects | documents, max_size=3), st.floats(0.001, 0.49))
def test_it_never_raises(candidate: BenchRun, baseline: list[BenchRun], loss: float) -> None:
    found = judge([candidate], baseline, learn([baseline]), Tolerance(loss, loss))
    assert found is None or found.result in ORDER


# -- the noise ------------------------------------------------------------------------------------------------------


def test_students_quantiles() -> None:
    # From tables of the distribution: t(10, 1 %) = 2.764, t(20, 1 %) = 2.528, t(30, 0.1 %) = 3.385.
    assert math.isclose(student(0.01, 10), 2.764, abs_tol=0.01)
    assert math.isclose(student(0.01, 20), 2.528, abs_tol=0.005)
    assert math.isclose(student(0.001, 30), 3.385, abs_tol=0.01)


def test_noise_is_typical_until_something_is_known() -> None:
    assert learn([]) == Noise()
    assert "no start of this service shows its own yet" in str(learn([]))
    one = learn([[document()]])
    assert (one.starts, one.freedom) == (1, 0)
    assert one.run < Noise().run
    assert one.start == Noise().start, "quiet passes say nothing about starts"


def test_equal_starts_make_it_quieter_and_unequal_ones_noisier() -> None:
    quiet = learn([[document()] * 6])
    assert quiet.start < Noise().start
    assert (quiet.starts, quiet.freedom) == (6, 5)
    wild = learn([[document(factor=factor) for factor in (0.8, 1.0, 1.2)]])
    assert wild.start > 0.1, "25 % between starts is believed after three of them"
    assert "from 3 starts of this service" in str(wild)


def test_noisy_passes_let_noisy_starts_be_expected() -> None:
    rates = {level: [25.0 * level * factor for factor in (0.95, 1.0, 1.05)] for level in LEVELS}
    assert learn([[document(rates)]]).start > 1.5 * Noise().start


def test_configurations_are_not_mixed() -> None:
    apart = learn([[document()] * 2, [document(factor=0.4)] * 2])
    assert apart.start < Noise().start
    assert (apart.starts, apart.freedom) == (4, 2)


@given(st.lists(st.lists(documents, max_size=3), max_size=3))
def test_learnt_noise_is_a_number_and_survives_the_way_to_a_file(groups: list[list[BenchRun]]) -> None:
    noise = learn(groups)
    assert 0 < noise.run < 50
    assert 0 < noise.start < 50
    assert math.isclose(Noise.from_json(noise.as_json()).start, noise.start, abs_tol=1e-6)
