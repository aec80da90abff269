"""A level out of its passes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.bench.load import stats
from deployer.bench.load.levels import Pass, any_of, histogram, level_summary, of_histogram
from deployer.bench.load.stats import Request


def a_pass(repeat: int, began: float, *, itl: float = 0.02, tokens: int = 101, failed: tuple[int, ...] = ()) -> Pass:
    """Four streams; stream i sends 0.05 * i after the beginning, first text after 0.2 s."""
    requests = []
    for i in range(4):
        start = began + 0.05 * i
        stamps = [start + 0.2 + itl * k for k in range(tokens)]
        kind = "reset" if i in failed else None
        requests.append(
            Request(i, tokens, start, start, stamps, stamps[-1] + 0.001, tokens, 7, "on and on it goes", kind)
        )
    return Pass(repeat, began, requests, {"cpu": 0.1 * (repeat + 1), "client_limited": False}, False)


def test_a_pass_is_ramp_steady_and_tail() -> None:
    found = level_summary([a_pass(0, 10.0)], 4, 4.0)["passes"][0]
    assert found["started_s"] == 6.0
    assert found["ramp_s"] == pytest.approx(0.35)
    assert found["tail_s"] == pytest.approx(0.15)
    assert found["wall_s"] == pytest.approx(found["ramp_s"] + found["steady_s"] + found["tail_s"])
    assert found["steady_tok_s"] == pytest.approx(200, rel=0.03)


def test_two_passes_give_tokens_over_time() -> None:
    quick, slow = a_pass(0, 10.0), a_pass(1, 20.0, itl=0.04)
    found = level_summary([quick, slow], 4, 10.0)
    first, second = found["passes"]
    assert (found["requests"], found["completed"], found["output_tokens"]) == (8, 8, 808)
    assert found["aggregate_tok_s"] == pytest.approx(808 / (first["wall_s"] + second["wall_s"]), rel=1e-5)
    assert second["steady_tok_s"] < found["steady_tok_s"] < first["steady_tok_s"]
    assert found["itl_s"]["n"] == 800
    assert found["client"]["cpu"] == pytest.approx(0.2)
    assert [sample["pass"] for sample in found["samples"]] == [0] * 4 + [1] * 4


def test_what_failed_in_one_pass_failed_in_the_level() -> None:
    found = level_summary([a_pass(0, 0.0), a_pass(1, 9.0, failed=(2, 3))], 4, 0.0)
    assert found["failed"] == {"reset": 2}
    assert (found["completed"], found["requests"]) == (6, 8)
    assert found["passes"][1]["steady_tok_s"] is None
    assert found["steady_tok_s"] == found["passes"][0]["steady_tok_s"]


@given(
    st.lists(
        st.lists(st.sampled_from([None, "cut", "reset", "http-500"]), min_size=1, max_size=8),
        min_size=1,
        max_size=4,
    )
)
def test_every_request_of_every_pass_is_accounted_for(kinds: list[list[str | None]]) -> None:
    passes = []
    for repeat, each in enumerate(kinds):
        requests = [Request(i, 4, 0.0, 0.0, [0.1, 0.2], 0.3, 4, 7, "x", kind) for i, kind in enumerate(each)]
        passes.append(Pass(repeat, 0.0, requests, {}, None, "time" if repeat else None))
    found = level_summary(passes, 8, 0.0)
    for part in (found, *found["passes"]):
        assert part["completed"] + sum(part["failed"].values()) == part["requests"]
    assert found["requests"] == sum(one["requests"] for one in found["passes"]) == len(found["samples"])
    assert found["output_tokens"] == sum(one["output_tokens"] for one in found["passes"])
    assert (found["cut_short"] is None) == (len(kinds) == 1)


@given(st.lists(st.floats(min_value=2e-5, max_value=100), min_size=1, max_size=300))
def test_a_histogram_tells_the_distribution_to_a_percent(gaps: list[float]) -> None:
    found, truth = of_histogram(histogram(gaps)), stats.distribution(gaps)
    assert found["n"] == truth["n"]
    assert found["mean"] == pytest.approx(truth["mean"], rel=0.01, abs=2e-6)
    ordered = sorted(gaps)
    low, high = ordered[(len(gaps) - 1) // 2], ordered[len(gaps) // 2]
    assert low * 0.99 - 1e-6 <= found["p50"] <= high * 1.01 + 1e-6


def test_histograms_of_many_gaps_agree_in_the_tail() -> None:
    draw = random.Random(1)
    gaps = [draw.lognormvariate(-4, 0.3) for _ in range(5000)]
    found, truth = of_histogram(histogram(gaps)), stats.distribution(gaps)
    for name in ("p50", "p95", "p99"):
        assert found[name] == pytest.approx(truth[name], rel=0.011)
    assert of_histogram({}) == {"mean": None, "p50": None, "p95": None, "p99": None, "n": 0}
    assert histogram([0.0, 1e-9]) == {"0": 2}


@pytest.mark.parametrize(
    ("values", "found"), [([], None), ([False, None], None), ([False, False], False), ([None, True], True)]
)
def test_one_answer_for_all(values: list[Any], found: bool | None) -> None:
    assert any_of(values) is found
