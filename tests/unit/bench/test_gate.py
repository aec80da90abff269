"""The gate: what passes, fails and stays open, and which keys there are."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.bench import gate as module
from deployer.bench.gate import Policy
from deployer.config.bench import LEVEL_GATES, SINGLE_GATE, split_key
from deployer.records.bench import BenchRun
from deployer.records.verdict import SetAside, Verdict

Json = dict[str, Any]


def level(n: int, rate: float = 200.0, **more: Any) -> Json:
    return {
        "concurrency": n,
        "requests": n,
        "completed": n,
        "failed": {},
        "repetitive": 0,
        "aggregate_tok_s": rate,
        "steady_tok_s": rate * 1.1,
        "ttft_s": {"p50": 0.8, "p95": 1.5 if n >= 20 else None},
        "itl_s": {"p50": 0.04, "p95": 0.05},
        "tpot_s": {"p50": 0.041, "p95": None},
        "client": {"client_limited": False},
        "foreign_traffic": False,
        "samples": [],
        **more,
    }


def bench(*levels: Json, **more: Any) -> Json:
    few = {"requests": 2, "completed": 2, "failed": {}, "repetitive": 0, "samples": []}
    return {
        "warmups": dict(few),
        "singles": {**few, "foreign_traffic": False, "client": {"client_limited": False}},
        "single_stream_tok_s": 26.0,
        "levels": list(levels) or [level(8), level(32)],
        "interrupted": None,
        "stopped": None,
        "foreign_traffic": {"value": False, "evidence": []},
        **more,
    }


def evaluate(
    document: Json,
    thresholds: dict[str, float],
    *,
    baseline: Sequence[Json] = (),
    beside: tuple[str, Json] | None = None,
    **policy: Any,
) -> Verdict:
    """The verdict on a bench document."""
    earlier = tuple(map(BenchRun.from_json, baseline))
    other = None if beside is None else (beside[0], BenchRun.from_json(beside[1]))
    return module.evaluate(BenchRun.from_json(document), Policy(thresholds, baseline=earlier, beside=other, **policy))


def test_a_gate_that_is_met() -> None:
    gate = {
        "single_stream_tok_s": 26.0,
        "aggregate_tok_s@32": 200.0,
        "ttft_p95_s@32": 1.5,
        "itl_p50_s@8": 0.05,
    }
    verdict = evaluate(bench(), gate)
    assert verdict.result == "pass"
    assert [check.result for check in verdict.checks] == ["pass"] * 4
    assert "aggregate_tok_s@32: 200 (minimum 200)" in verdict.reasons
    assert verdict.as_json()["checks"][2]["bound"] == "max"


@pytest.mark.parametrize(
    ("key", "threshold", "said"),
    [
        ("single_stream_tok_s", 30.0, "single_stream_tok_s: 26 (minimum 30)"),
        ("aggregate_tok_s@32", 230.0, "aggregate_tok_s@32: 200 (minimum 230)"),
        ("steady_tok_s@8", 221.0, "steady_tok_s@8: 220 (minimum 221)"),
        ("ttft_p95_s@32", 1.0, "ttft_p95_s@32: 1.5 (maximum 1)"),
        ("tpot_p50_s@8", 0.04, "tpot_p50_s@8: 0.041 (maximum 0.04)"),
    ],
)
def test_a_missed_threshold_fails_with_the_numbers(key: str, threshold: float, said: str) -> None:
    verdict = evaluate(bench(), {key: threshold, "aggregate_tok_s@8": 1.0})
    assert verdict.result == "fail"
    assert verdict.reasons[0] == said


@pytest.mark.parametrize("gate", [{}, {"aggregate_tok_s@8": 1.0}])
def test_a_failed_request_fails_whatever_the_gate(gate: dict[str, float]) -> None:
    broken = bench(level(8, completed=6, failed={"reset": 1, "http-500": 1}))
    verdict = evaluate(broken, gate)
    assert verdict.result == "fail"
    assert verdict.reasons[0] == "level 8: 2 of 8 requests failed (1 reset, 1 http-500)"
    warm = bench()
    warm["warmups"] = {"requests": 2, "completed": 1, "failed": {"timeout": 1}, "repetitive": 0}
    assert evaluate(warm, gate).result == "fail"
    fixed = {"requests": 1, "completed": 0, "failed": {"reset": 1}, "repetitive": 0}
    ended = evaluate(bench(fixed=fixed, stopped="none of it was completed") | {"levels": []}, gate)
    assert ended.result == "fail"
    assert ended.reasons[0] == "the fixed prompt: 1 of 1 requests failed (1 reset)"


def test_one_token_over_and_over_fails() -> None:
    broken = bench(level(8, repetitive=8, samples=[{"repeats": "!!!!"}]))
    verdict = evaluate(broken, {})
    assert verdict.result == "fail"
    assert verdict.reasons[0] == "level 8: 8 of 8 outputs are one token over and over, such as '!!!!'"
    assert evaluate(bench(level(32, repetitive=2)), {}).result == "pass", "an odd prompt among many"


def test_no_gate_says_so() -> None:
    verdict = evaluate(bench(), {})
    assert verdict.result == "pass"
    assert any("no threshold is set" in reason for reason in verdict.reasons)


@pytest.mark.parametrize(
    ("change", "doubt"),
    [
        ({"levels": [level(32, client={"client_limited": True})]}, "the load client itself was saturated"),
        ({"levels": [level(32, foreign_traffic=True)]}, "somebody else used the server"),
        (
            {"levels": [level(32, foreign_traffic=None)], "foreign_traffic": {"value": True, "evidence": []}},
            "somebody else used the server",
        ),
        ({"levels": [level(8)]}, "it was not measured"),
        ({"levels": [level(32, 0.0, aggregate_tok_s=None)]}, "it was not measured"),
        ({"interrupted": "SIGTERM", "levels": [level(32, completed=9, failed={"cut": 23})]}, "cut short"),
    ],
)
def test_what_cannot_be_trusted_is_inconclusive(change: Json, doubt: str) -> None:
    for threshold in (100.0, 1000.0):
        verdict = evaluate(bench(**change), {"aggregate_tok_s@32": threshold})
        assert verdict.result == "inconclusive"
        assert doubt in verdict.reasons[0]


def test_doubts_about_a_level_that_is_not_gated_do_not_matter() -> None:
    crowded = bench(level(8), level(64, client={"client_limited": True}))
    assert evaluate(crowded, {"aggregate_tok_s@8": 100.0}).result == "pass"


def test_a_failure_outweighs_a_doubt() -> None:
    both = bench(level(8, client={"client_limited": True}))
    assert evaluate(both, {"single_stream_tok_s": 99.0, "aggregate_tok_s@8": 1.0}).result == "fail"


def test_an_interruption_does_not_undo_what_was_measured_before() -> None:
    stopped = bench(interrupted="SIGTERM")
    assert evaluate(stopped, {"aggregate_tok_s@32": 100.0}).result == "inconclusive"
    assert evaluate(stopped, {"aggregate_tok_s@32": 1000.0}).result == "fail"


def test_cut_requests_are_not_the_servers_fault() -> None:
    cut = bench(level(8, completed=2, failed={"cut": 6}), interrupted="SIGINT", stopped="interrupted")
    assert evaluate(cut, {}).result == "inconclusive"


@pytest.mark.parametrize(
    ("levels", "said"),
    [
        ([level(8, completed=5, failed={"stalled": 3})], "level 8: 3 of 8 requests had not ended"),
        (
            [level(8), level(32, completed=0, failed={"cut": 32})],
            "level 32: none of its 32 requests had ended",
        ),
        ([level(8, discarded={"requests": 8, "completed": 7, "failed": {"stalled": 1}})], "may hang"),
    ],
)
def test_a_server_that_may_hang_when_the_time_is_up_does_not_pass(levels: list[Json], said: str) -> None:
    verdict = evaluate(bench(*levels), {})
    assert verdict.result == "inconclusive"
    assert said in verdict.reasons[0]
    verdict = evaluate(bench(*levels, level(64, completed=63, failed={"reset": 1})), {})
    assert (verdict.result, verdict.broken) == ("fail", True)


def test_a_level_that_the_end_of_the_time_cut_short_honestly_passes() -> None:
    assert evaluate(bench(level(8, completed=2, failed={"cut": 6})), {}).result == "pass"


def test_unknown_foreign_traffic_is_said_and_does_not_block() -> None:
    verdict = evaluate(bench(foreign_traffic={"value": None, "evidence": []}), {"aggregate_tok_s@8": 1.0})
    assert verdict.result == "pass"
    assert any("unknown" in reason for reason in verdict.reasons)


def test_nothing_measured_is_inconclusive() -> None:
    nothing: Json = {"warmups": None, "singles": None, "levels": [], "single_stream_tok_s": None}
    assert evaluate(nothing, {}).result == "inconclusive"


def test_a_percentile_that_is_null_is_not_measured() -> None:
    verdict = evaluate(bench(), {"ttft_p95_s@8": 2.0})
    assert verdict.result == "inconclusive"
    assert verdict.checks[0].measured is None


def test_without_a_baseline_the_thresholds_alone_decide_and_it_says_so() -> None:
    verdict = evaluate(bench(), {"aggregate_tok_s@32": 50.0})
    assert verdict.result == "pass"
    assert verdict.relative is None
    assert "no proven start to compare with: only the thresholds decide" in verdict.reasons


def test_a_loss_against_the_baseline_fails_whatever_the_thresholds() -> None:
    slower = bench(level(8, 100.0), level(32, 100.0))
    verdict = evaluate(slower, {"aggregate_tok_s@32": 50.0}, baseline=[bench()] * 3, name="tp8")
    assert verdict.result == "fail"
    assert verdict.reasons[0].startswith("throughput -50.0 % (-")
    assert "against 3 starts of tp8: more than the 5 % tolerated, and more than noise explains" in verdict.reasons[0]
    assert verdict.as_json()["relative"]["baseline_starts"] == 3


def test_what_runs_beside_is_reported_and_decides_nothing() -> None:
    slower = bench(level(8, 100.0), level(32, 100.0))
    verdict = evaluate(slower, {"aggregate_tok_s@32": 50.0}, beside=("0001-tp8", bench()))
    assert verdict.result == "pass"
    assert any(
        r.startswith("for information only: ") and r.endswith("against 0001-tp8 (@8 -50.0%, @32 -50.0%)")
        for r in verdict.reasons
    )


def test_a_pass_that_was_disturbed_is_set_aside_and_the_sound_ones_decide() -> None:
    sound = {"aggregate_tok_s": 200.0, "wall_s": 10.0, "foreign_traffic": False}
    disturbed = {"aggregate_tok_s": 90.0, "wall_s": 20.0, "foreign_traffic": True}
    verdict = evaluate(bench(level(8, 130.0, passes=[sound, disturbed])), {"aggregate_tok_s@8": 190.0})
    assert verdict.result == "pass"
    assert verdict.set_aside == (SetAside(8, 1, "somebody else used the server meanwhile"),)
    times = evaluate(bench(level(8, 130.0, passes=[sound, disturbed])), {"itl_p50_s@8": 9.0})
    assert times.result == "inconclusive", "percentiles are over all requests"


def test_an_insane_output_fails_where_it_is_to_gate_and_is_reported_elsewhere() -> None:
    sanity = {"ok": False, "checks": [{"name": "words", "ok": False, "text": "no words in 9 of 10 outputs"}]}
    said = "the output is not sane: no words in 9 of 10 outputs"
    verdict = evaluate(bench(sanity=sanity, spec={"sanity": "gate"}), {})
    assert verdict.result == "fail"
    assert verdict.broken
    assert verdict.reasons[0] == said
    reported = evaluate(bench(sanity=sanity), {})
    assert reported.result == "pass"
    assert said in reported.reasons


@pytest.mark.parametrize(("requests", "said"), [(150, True), (200, False)])
def test_too_few_requests_to_see_a_late_hang_are_said(requests: int, said: bool) -> None:
    level = {"concurrency": 8, "requests": requests, "completed": requests, "failed": {}}
    verdict = evaluate({"levels": [level], "workload": {"prompt_tokens": 8}}, {})
    assert verdict.result == "pass"
    assert ("only 150 requests were sent; a hang that appears after ~200 would go unnoticed" in verdict.reasons) == said


def test_what_the_budget_left_out_is_said() -> None:
    verdict = evaluate(bench(budget={"seconds": 60, "used_s": 60, "cut": ["level 64, pass 1: left out"]}), {})
    assert "the time was short: level 64, pass 1: left out" in verdict.reasons


@given(st.floats(1, 500), st.floats(1, 500), st.floats(1, 500))
def test_a_stricter_gate_never_turns_fail_into_pass(rate: float, one: float, other: float) -> None:
    measured = bench(level(8, rate))
    loose, strict = sorted((one, other))
    key = "aggregate_tok_s@8"
    if evaluate(measured, {key: strict}).result == "pass":
        assert evaluate(measured, {key: loose}).result == "pass"
    assert (evaluate(measured, {key: one}).result == "pass") == (rate >= one)


@given(st.data())
def test_it_does_not_change_what_it_reads(data: st.DataObject) -> None:
    given_bench = bench(level(8, data.draw(st.floats(1, 500)), repetitive=data.draw(st.integers(0, 8))))
    before = copy.deepcopy(given_bench)
    evaluate(given_bench, {"aggregate_tok_s@8": 100.0}, baseline=[given_bench])
    assert given_bench == before


def test_every_key_there_is_is_accepted() -> None:
    gate = {SINGLE_GATE: 1.0, **{f"{name}@8": 1.0 for name in LEVEL_GATES}}
    assert len(evaluate(bench(), gate).checks) == len(gate)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("agregate_tok_s@32", "did you mean aggregate_tok_s@32?"),
        ("aggregate_tok_s", "did you mean aggregate_tok_s@LEVEL?"),
        ("aggregate_tok_s@", "did you mean aggregate_tok_s@LEVEL?"),
        ("aggregate_tok_s@08", "unknown figure"),
        ("aggregate_tok_s@-8", "expected 1 to 4096"),
        ("single_stream_tok_s@8", "unknown figure"),
        ("single_stream", "did you mean single_stream_tok_s?"),
        ("ttft_p99_s@8", "p99 is reported but does not gate"),
        ("zzz", "allowed: single_stream_tok_s, aggregate_tok_s@LEVEL"),
    ],
)
def test_a_wrong_key_is_explained(key: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        split_key(key)
    with pytest.raises(ValueError, match=r".+"):
        evaluate(bench(), {key: 1.0})


@given(st.text(max_size=30))
def test_any_key_is_taken_or_explained(key: str) -> None:
    try:
        name, at = split_key(key)
    except ValueError:
        return
    assert key == (name if at is None else f"{name}@{at}")


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 50) | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["failed", "completed", "requests", "ok", "checks", "cut"]), inner, max_size=4
        )
    ),
    max_leaves=15,
)
PARTS = [
    "warmups",
    "singles",
    "fixed",
    "levels",
    "sanity",
    "budget",
    "foreign_traffic",
    "single_stream_tok_s",
    "interrupted",
]


@given(st.dictionaries(st.sampled_from(PARTS), anything), st.booleans())
def test_a_document_of_any_shape_gets_a_verdict(parts: Json, whole: bool) -> None:
    found = bench(**parts) if whole else parts
    verdict = evaluate(found, {"aggregate_tok_s@8": 1.0, "itl_p50_s@8": 9.0}, baseline=[bench()])
    assert verdict.result in ("pass", "fail", "inconclusive")
    assert verdict.in_short("x").startswith(verdict.result)
