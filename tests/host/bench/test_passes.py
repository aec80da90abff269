"""Passes, discarded waves and the budget, against a server of known schedule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from deployer.bench.load import client as load
from deployer.bench.load.spec import Spec
from tests.patience import one_right, one_within


def measure(base: str, model: str, **more: Any) -> dict[str, Any]:
    values = {
        "warmups": 0,
        "singles": 0,
        "output_tokens": 16,
        "request_timeout": 20.0,
        "fixed_prompt": False,
        "requests_at_least": 0,
        **more,
    }
    httpx.get(base + "/seen")
    bench = load.run(Spec.from_json({"base_url": base, "model": model, **values}), lambda _: None)
    stages = [part for level in bench["levels"] for part in (level, *level["passes"], level["discarded"])]
    for stage in stages:
        if stage:
            assert stage["completed"] + sum(stage["failed"].values()) == stage["requests"]
    return bench


def test_each_level_has_a_discarded_wave_and_its_passes(mock_server: str) -> None:
    bench = measure(mock_server, "fast", levels=[2, 4], repeats=3, waves=2)
    seen = httpx.get(mock_server + "/seen").json()
    assert len(seen) == (2 + 4) * (1 + 3 * 2)
    assert len({request["body"]["prompt"] for request in seen}) == len(seen), "no prompt comes twice"
    for level in bench["levels"]:
        width = level["concurrency"]
        assert level["discarded"]["completed"] == width
        assert [one["repeat"] for one in level["passes"]] == [0, 1, 2]
        assert all(one["requests"] == 2 * width for one in level["passes"])
        assert level["requests"] == 6 * width
        walls = sum(one["wall_s"] for one in level["passes"])
        assert level["aggregate_tok_s"] == pytest.approx(level["output_tokens"] / walls, rel=1e-3)
    starts = [one["started_s"] for repeat in range(3) for one in (lv["passes"][repeat] for lv in bench["levels"])]
    assert starts == sorted(starts), "all levels once, then all again: a drift of the server is in every level"
    assert bench["budget"]["cut"] == []
    assert bench["workload"]["requests"] == {"2": 4, "4": 8}


def test_more_waves_where_a_pass_is_to_have_more_requests(mock_server: str) -> None:
    bench = measure(mock_server, "fast", levels=[2, 8], requests=7, repeats=1, discard=False)
    assert [level["requests"] for level in bench["levels"]] == [8, 8]


def test_prompts_share_what_they_are_asked_to(mock_server: str) -> None:
    measure(mock_server, "fast", levels=[4], repeats=2, warmups=1, shared_prefix=40, prompt_tokens=20)
    prompts = [request["body"]["prompt"] for request in httpx.get(mock_server + "/seen").json()[1:]]
    heads = {text.partition("\nNote ")[0] for text in prompts}
    assert len(heads) == 1
    assert len(set(prompts)) == len(prompts)


def test_a_small_sweep_goes_on_until_it_has_200_requests(mock_server: str) -> None:
    options = {"levels": [4, 16], "singles": 1, "warmups": 2, "fixed_prompt": True, "requests_at_least": 200}
    bench = measure(mock_server, "fast", **options)
    seen = len(httpx.get(mock_server + "/seen").json())
    # 2 + 1 + 1, then a discarded wave and two passes a level, then eight passes of 16, and the fixed prompt.
    assert seen == 4 + 3 * (4 + 16) + 9 * 16 + 1 == 209
    assert [len(level["passes"]) for level in bench["levels"]] == [2, 11]
    assert [one["repeat"] for one in bench["levels"][1]["passes"]] == list(range(11))
    assert {one["requests"] for one in bench["levels"][1]["passes"]} == {16}
    assert bench["workload"]["requests"] == {"4": 4, "16": 16}
    assert bench["budget"]["cut"] == []


@pytest.mark.alone
def test_nothing_new_is_sent_after_the_end_and_what_is_under_way_may_finish(
    mock_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_right(lambda: measure_until_the_time_is_up(mock_server, monkeypatch))


def measure_until_the_time_is_up(mock_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A request takes 2.1 s, so the third of a stream is under way after 5.6 s, unless the machine is busy.
    options = {"levels": [2], "waves": 5, "repeats": 1, "discard": False, "output_tokens": 96, "budget": 5.6}
    for options["budget"] in (5.6, 6.6, 8.0):
        level = measure(mock_server, "slow", **options)["levels"][0]
        if level["failed"]:
            break
    sent = level["requests"]
    assert level["cut_short"] == f"the time was used up with {sent} of 10 requests sent, 2 of them not ended"
    assert level["failed"] == {"cut": 2}, "a grace of a tenth is not enough"
    assert level["completed"] == sent - 2
    with monkeypatch.context() as patch:
        patch.setattr("deployer.bench.load.spec.GRACE", 0.5)
        level = measure(mock_server, "slow", **options)["levels"][0]
    assert level["cut_short"] == f"the time was used up with {level['requests']} of 10 requests sent"
    assert level["failed"] == {}
    assert level["steady_tok_s"] == pytest.approx(2 * 96 / 2.12, rel=0.15)


@pytest.mark.alone
def test_a_server_that_hangs_until_the_time_is_up_failed(mock_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"levels": [2], "repeats": 1, "discard": False, "budget": 2.5}
    bench = measure(mock_server, "hang", **options)
    assert bench["levels"][0]["failed"] == {"cut": 2}, "after two seconds nobody can tell"
    monkeypatch.setattr("deployer.bench.load.budget.HUNG", 0.5)
    bench = measure(mock_server, "hang", **options)
    assert bench["levels"][0]["failed"] == {"timeout": 2}
    assert "timeout" in bench["stopped"]


def test_a_discarded_wave_that_fails_ends_the_run_and_is_seen(mock_server: str) -> None:
    bench = measure(mock_server, "http-500", levels=[2, 4], budget=30)
    assert [level["failed"] for level in bench["levels"]] == [{"http-500": 2}]
    assert "discarded" in bench["stopped"]


@pytest.mark.alone
def test_a_level_of_several_processes_is_one_level(mock_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployer.bench.load.workers.STREAMS_EACH", 2)
    monkeypatch.setattr("deployer.bench.load.run.usable_cores", lambda: 3)
    one_within(0.3, lambda _: last_start_of_several_processes(mock_server))  # all processes begin together


def last_start_of_several_processes(mock_server: str) -> float:
    options = {"levels": [2, 6], "waves": 2, "repeats": 2, "discard": False, "progress_interval": 0.05}
    events: list[dict[str, Any]] = []
    spec = {"warmups": 0, "singles": 0, "output_tokens": 40, "fixed_prompt": False, "requests_at_least": 0}
    httpx.get(mock_server + "/seen")
    asked = Spec.from_json({"base_url": mock_server, "model": "fast", **spec, **options})
    bench = load.run(asked, events.append, "k-5")
    one, three = bench["levels"]
    assert [level["client"]["processes"] for level in (one, three)] == [1, 3]
    assert (three["completed"], three["output_tokens"]) == (24, 24 * 40)
    assert sorted(sample["index"] for sample in three["samples"]) == sorted([*range(12)] * 2)
    starts = [sample["start_s"] for sample in three["samples"] if sample["index"] < 6]
    seen = httpx.get(mock_server + "/seen").json()
    assert {request["headers"]["authorization"] for request in seen} == {"Bearer k-5"}
    assert len({request["body"]["prompt"] for request in seen}) == len(seen) == 8 + 24
    last = [event for event in events if event["event"] == "level"][-1]
    assert (last["total"], last["ended"]) == (12, True)
    return float(max(starts))


def test_several_processes_are_cut_and_gone_when_interrupted(mock_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployer.bench.load.workers.STREAMS_EACH", 1)
    monkeypatch.setattr("deployer.bench.load.run.usable_cores", lambda: 2)

    def emit(event: dict[str, Any]) -> None:
        if event["event"] == "level" and event["tok_s"] > 0:
            raise OSError("nobody reads")

    values = {"levels": [4], "warmups": 0, "singles": 0, "output_tokens": 100_000, "fixed_prompt": False}
    values |= {"discard": False, "progress_interval": 0.1, "requests_at_least": 0}
    before = set(children())
    bench = load.run(Spec.from_json({"base_url": mock_server, "model": "slow", **values}), emit)
    assert bench["interrupted"] == "nobody reads the results"
    assert bench["levels"][0]["failed"] == {"cut": 4}
    assert set(children()) == before


def children() -> list[int]:
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found
