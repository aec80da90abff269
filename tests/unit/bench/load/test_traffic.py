"""Reading a server's counters, and what they say about foreign traffic."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.bench.load import traffic
from deployer.bench.load.traffic import Counters, judge
from deployer.metrics import totals


def generated(text: str) -> float | None:
    return totals(text).get("generation_tokens_total")


def test_metrics_are_summed_over_labels() -> None:
    text = (
        "# HELP sglang:generation_tokens_total Number of generation tokens processed.\n"
        'sglang:generation_tokens_total{model_name="a b",dp_rank="0"} 8.128902e+06\n'
        'sglang:generation_tokens_total{model_name="a b",dp_rank="1"} 2.0\n'
        'sglang:generation_tokens_total_created{x="1"} 99\n'
        "sglang:prompt_tokens_total 7.0\n"
    )
    assert generated(text) == 8128904.0
    assert generated("sglang:prompt_tokens_total 7.0\n") is None
    assert generated("") is None


@pytest.mark.parametrize("number", ["NaN", "+Inf", "1e400", "1e300", "-5.0"])
def test_a_counter_that_counts_nothing_is_not_shown(number: str) -> None:
    assert generated(f"sglang:generation_tokens_total {number}\n") is None


def test_what_does_not_answer_is_asked_once() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        if request.url.path == "/metrics":
            raise httpx.ReadTimeout("no answer in time")
        return httpx.Response(200, json={"loads": [{"num_running_reqs": 0}]})

    async def run() -> list[Counters]:
        silent: set[str] = set()
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
            return [await traffic.settled(client, "http://server", silent) for _ in range(3)]

    assert asyncio.run(run()) == [Counters(None, 0)] * 3
    assert asked.count("/metrics") == 1


@given(st.text())
def test_no_metrics_text_raises(text: str) -> None:
    generated(text)
    generated(f"sglang:generation_tokens_total {text}")


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "LOOK_AGAIN_SECONDS", 0.0)


def look(*answers: dict[str, Any], at_least: float | None = None) -> tuple[Counters, int]:
    """What `settled` finds when the server gives these answers one look after another; and how often it looked."""
    looks = 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal looks
        looks += request.url.path == "/metrics"
        given_now = answers[min(looks, len(answers)) - 1]
        if request.url.path == "/metrics":
            return httpx.Response(200, text=f"sglang:generation_tokens_total {given_now['tokens']}\n")
        return httpx.Response(200, json={"loads": [{"num_running_reqs": given_now["running"]}]})

    async def run() -> Counters:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
            return await traffic.settled(client, "http://server", at_least=at_least)

    return asyncio.run(run()), looks


def test_a_quiet_server_is_looked_at_once() -> None:
    assert look({"tokens": 5, "running": 0}) == (Counters(5.0, 0), 1)


def test_a_lagging_counter_and_a_passing_probe_are_waited_for() -> None:
    found = look({"tokens": 5, "running": 1}, {"tokens": 5, "running": 0}, {"tokens": 9, "running": 0}, at_least=9)
    assert found == (Counters(9.0, 0), 3)


def test_lasting_traffic_is_not_waited_out() -> None:
    assert look({"tokens": 5, "running": 2}) == (Counters(5.0, 2), 4)


def test_a_server_that_shows_nothing() -> None:
    async def run(status: int) -> Counters:
        transport = httpx.MockTransport(lambda _: httpx.Response(status, text="{not json"))
        async with httpx.AsyncClient(transport=transport) as client:
            return await traffic.read_counters(client, "http://server")

    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    async def refused() -> Counters:
        async with httpx.AsyncClient(transport=httpx.MockTransport(refuse)) as client:
            return await traffic.read_counters(client, "http://server")

    assert asyncio.run(run(404)) == asyncio.run(run(200)) == asyncio.run(refused()) == Counters(None, None)


@pytest.mark.parametrize(
    ("before", "after", "unsure", "value"),
    [
        (Counters(100.0, 0), Counters(1100.0, 0), 0, False),
        (Counters(100.0, 0), Counters(1130.0, 0), 0, False),  # health probes
        (Counters(100.0, 0), Counters(1228.0, 0), 0, True),  # one foreign request of 128 tokens
        (Counters(100.0, 0), Counters(1228.0, 0), 128, False),  # it may be one of ours that failed
        (Counters(100.0, 0), Counters(1000.0, 0), 0, None),  # fewer than ours: another server's counter
        (Counters(100.0, 2), Counters(1100.0, 0), 0, True),
        (Counters(None, 0), Counters(None, 1), 0, True),
        (Counters(None, 0), Counters(None, 1), 64, None),  # a server that hangs still holds ours
        (Counters(None, 0), Counters(None, 0), 0, None),
        (Counters(None, None), Counters(5.0, None), 0, None),
    ],
)
def test_the_judgement(before: Counters, after: Counters, unsure: int, value: bool | None) -> None:
    found = judge(before, after, ours=1000, unsure=unsure, seconds=4.0)
    assert found["value"] is value
    assert found["evidence"]
