"""A server that breaks in the middle of a level: what the load client counts, and what the gate makes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deployer.bench import load
from deployer.bench.gate import evaluate
from deployer.bench.spec import Spec
from tests.host.test_engine import NEW, Engine, Start, start

__all__ = ["start"]

#: A warm-up, a single run and a level of four come before: the sixth level request is the twelfth of all.
MID_LEVEL = 12


def broken(start: Start, *faults: dict[str, Any], metrics: bool = True) -> Engine:
    """A quick server that has these faults."""
    words = ("--tp-size", "2", *(("--enable-metrics",) if metrics else ()))
    return start(NEW, *words, faults=faults, SGLANG_STANDIN_SPEED="8").ready()


def measured(engine: Engine, **more: Any) -> dict[str, Any]:
    """The benchmark of it: two levels, no wave discarded."""
    values = {"levels": [4, 8], "output_tokens": 16, "warmups": 1, "singles": 1, "repeats": 1, "budget": 20.0}
    spec = {"base_url": engine.url, "model": "m", "discard": False, "prompt_tokens": 16, **values, **more}
    bench = load.run(Spec.from_json(spec), lambda _event: None)
    for stage in [bench["warmups"], bench["singles"], *bench["levels"]]:
        assert stage["completed"] + sum(stage["failed"].values()) == stage["requests"]
    json.dumps(bench, allow_nan=False)
    return bench


@pytest.mark.parametrize(
    ("fault", "options", "kind"),
    [
        ("http-error", {}, "http-500"),
        ("http-error", {"every": 3, "status": 503}, "http-503"),
        ("broken-stream", {"how": "reset"}, "reset"),
        ("broken-stream", {"how": "close", "every": 3}, "reset"),
        ("broken-stream", {"how": "garbage", "every": 3}, "protocol"),
        ("broken-stream", {"how": "page", "every": 3}, "protocol"),
        ("crash-while-serving", {}, "reset"),
    ],
)
def test_a_server_that_breaks_in_mid_level_fails(
    start: Start, fault: str, options: dict[str, Any], kind: str
) -> None:
    bench = measured(broken(start, {"name": fault, "at": MID_LEVEL, **options}))
    first, last = bench["levels"]
    assert first["failed"] == {}
    assert set(last["failed"]) == {kind}
    assert 0 < last["failed"][kind] < 8 or fault == "crash-while-serving"
    verdict = evaluate(bench, {})
    assert verdict.result == "fail"
    assert f"{last['failed'][kind]} {kind}" in verdict.reasons[0] + verdict.reasons[1]


@pytest.mark.parametrize("fault", [("broken-stream", {"how": "stall", "every": 3}), ("hang-at-request", {})])
def test_a_server_that_falls_silent_at_the_end_of_the_time_leaves_it_open(
    start: Start, monkeypatch: pytest.MonkeyPatch, fault: tuple[str, dict[str, Any]]
) -> None:
    monkeypatch.setattr("deployer.bench.budget.STALLED", 1.0)
    name, options = fault
    bench = measured(broken(start, {"name": name, "at": MID_LEVEL, **options}), budget=4.0)
    kinds = bench["levels"][1]["failed"]
    assert set(kinds) == {"stalled"}
    verdict = evaluate(bench, {})
    assert verdict.result == "inconclusive"
    assert f"{kinds['stalled']} of 8 requests had not ended" in verdict.reasons[0]


def test_a_server_that_gets_far_too_slow_in_mid_level_leaves_it_open(start: Start) -> None:
    bench = measured(broken(start, {"name": "slow", "at": MID_LEVEL, "percent": 20_000}), budget=3.0)
    assert bench["levels"][1]["failed"] == {"cut": 8}
    verdict = evaluate(bench, {})
    assert verdict.result == "inconclusive"
    assert "none of its 8 requests had ended" in verdict.reasons[0]
