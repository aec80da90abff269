"""A server that breaks in the middle of a level: what the load client counts, and what the gate makes of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deployer.bench.gate import Policy
from deployer.bench.gate import evaluate as judge
from deployer.bench.load import client as load
from deployer.bench.load.spec import Spec
from deployer.records.bench import BenchRun
from deployer.records.verdict import Verdict
from tests.host.test_engine import NEW, Engine, Start, start

__all__ = ["start"]

#: A warm-up, a single run and a level of four come before: the sixth level request is the twelfth of all.
MID_LEVEL = 12


def evaluate(bench: dict[str, Any], thresholds: dict[str, float]) -> Verdict:
    return judge(BenchRun.from_json(bench), Policy(thresholds))


def broken(start: Start, *faults: dict[str, Any], metrics: bool = True) -> Engine:
    """A quick server that has these faults."""
    words = ("--tp-size", "2", *(("--enable-metrics",) if metrics else ()))
    return start(NEW, *words, faults=faults, SGLANG_STANDIN_SPEED="8").ready()


def measured(engine: Engine, tell: Callable[[Any], None] = lambda _: None, **more: Any) -> dict[str, Any]:
    """The benchmark of it: two levels, no wave discarded."""
    values = {
        "levels": [4, 8],
        "output_tokens": 16,
        "warmups": 1,
        "singles": 1,
        "repeats": 1,
        "budget": 120.0,
    }
    values |= {"requests_at_least": 0, "discard": False, "prompt_tokens": 16}
    spec = {"base_url": engine.url, "model": "m", **values, **more}
    bench = load.run(Spec.from_json(spec), tell)
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
def test_a_server_that_breaks_in_mid_level_fails(start: Start, fault: str, options: dict[str, Any], kind: str) -> None:
    # The engine looks for the time to crash twice a second, so that the level has to last.
    tokens = 300 if fault == "crash-while-serving" else 16
    bench = measured(broken(start, {"name": fault, "at": MID_LEVEL, **options}), output_tokens=tokens)
    first, last = bench["levels"]
    assert first["failed"] == {}
    assert set(last["failed"]) == {kind}
    assert 0 < last["failed"][kind] < 8 or fault == "crash-while-serving"
    verdict = evaluate(bench, {})
    assert verdict.result == "fail"
    assert f"{last['failed'][kind]} {kind}" in verdict.reasons[0] + verdict.reasons[1]


def both_levels(start: Start, fault: dict[str, Any]) -> dict[str, Any]:
    """A benchmark whose time ends in its second level; a busy machine needs more of it to get there."""
    for budget in (5.0, 12.0, 30.0):
        engine = broken(start, fault)
        bench = measured(engine, budget=budget)
        if len(bench["levels"]) == 2 and bench["levels"][1]["failed"]:
            break
        engine.clean()
    return bench


@pytest.mark.alone
@pytest.mark.parametrize("fault", [("broken-stream", {"how": "stall", "every": 3}), ("hang-at-request", {})])
def test_a_server_that_falls_silent_at_the_end_of_the_time_leaves_it_open(
    start: Start, monkeypatch: pytest.MonkeyPatch, fault: tuple[str, dict[str, Any]]
) -> None:
    monkeypatch.setattr("deployer.bench.load.budget.STALLED", 1.0)
    name, options = fault
    bench = both_levels(start, {"name": name, "at": MID_LEVEL, **options})
    kinds = bench["levels"][1]["failed"]
    assert set(kinds) == {"stalled"}
    verdict = evaluate(bench, {})
    assert verdict.result == "inconclusive"
    assert f"{kinds['stalled']} of 8 requests had not ended" in verdict.reasons[0]


@pytest.mark.alone
def test_a_server_that_gets_far_too_slow_in_mid_level_leaves_it_open(start: Start) -> None:
    bench = both_levels(start, {"name": "slow", "at": MID_LEVEL, "percent": 20_000})
    assert bench["levels"][1]["failed"] == {"cut": 8}
    verdict = evaluate(bench, {})
    assert verdict.result == "inconclusive"
    assert "none of its 8 requests had ended" in verdict.reasons[0]


@pytest.mark.parametrize("how", ["missing", "garbage", "nan", "negative", "huge", "infinite"])
def test_counters_of_no_use_leave_the_measurement_alone(start: Start, how: str) -> None:
    engine = broken(start, {"name": "bad-counters", "how": how})
    bench = measured(engine, levels=[4], output_tokens=200, sample_interval=0.05)
    assert bench["levels"][0]["completed"] == 4
    assert bench["foreign_traffic"]["value"] is None
    assert bench["levels"][0]["server"] is None
    assert "sampler_ended_s" not in bench["client"]
    if not bench["levels"][0]["client"]["client_limited"]:  # by other tests on this machine
        assert evaluate(bench, {"aggregate_tok_s@4": 1.0}).result == "pass"


def test_counters_that_do_not_answer_cost_their_time_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployer.bench.load.run.PATIENCE", 4.0)
    bench = measured(broken(start, {"name": "bad-counters", "how": "hang"}))
    assert [level["completed"] for level in bench["levels"]] == [4, 8]
    assert bench["seconds"] < 40.0, "ten looks of four seconds would be more"


def test_a_sampling_process_that_is_killed_is_missed_and_nothing_else(start: Start) -> None:
    engine = broken(start)
    told: list[dict[str, Any]] = []

    def kill(event: dict[str, Any]) -> None:
        told.append(event)
        for pid in children("--sampler"):
            os.kill(pid, signal.SIGKILL)

    bench = measured(engine, kill, output_tokens=400, progress_interval=0.1)
    assert [level["completed"] for level in bench["levels"]] == [4, 8]
    assert bench["client"]["sampler_ended_s"] < bench["seconds"]
    assert any("is not seen" in event.get("text", "") for event in told)


def children(argument: str) -> list[int]:
    """Processes of ours with this argument."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and argument in (path / "cmdline").read_text():
                found.append(int(path.name))
    return found
