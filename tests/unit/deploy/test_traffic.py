"""Requests in flight when a server is stopped: what the plan says of them before, and the outcome after."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from deployer.config.profile import load_profile, profile_folders
from deployer.deploy.apply import preview
from deployer.deploy.reporter import Reporter
from deployer.deploy.rollback import rollback
from deployer.records.answers import Stopped
from deployer.records.outcome import Drained, Outcome, Plan, Traffic
from deployer.report.change_view import plan_view
from tests.fakes.host import FakeWorld
from tests.unit.deploy.test_apply import LIVE, TP1, Agreed, engine, live_copy, run, session


@pytest.fixture
def busy() -> FakeWorld:
    """A world on which tp1 is live and has three requests at any time."""
    made = live_copy()
    made.engines[LIVE] = replace(engine(TP1), traffic=(0.1, 0.2, 0.3))
    made.engines["0002-tp1"] = engine({**TP1, "max_running_requests": 9})
    return made


def planned(made: FakeWorld, profile: str = "tp2") -> Plan:
    with session(made) as opened:
        return preview(opened, load_profile(profile, profile_folders())).plan


def test_the_plan_counts_them_and_says_what_becomes_of_them(busy: FakeWorld) -> None:
    plan = planned(busy)
    assert plan.traffic == (Traffic("kimi", 3, drain=30.0, stop=120.0),)
    out = io.StringIO()
    Console(file=out, width=100).print(plan_view(plan))
    text = " ".join(out.getvalue().split())
    assert (
        "3 requests are in flight on kimi. From its stop on it refuses new ones, and those under way have 30 s" in text
    )
    assert plan.as_json()["traffic"] == [
        {"service": "kimi", "in_flight": 3, "why_not": "", "drain_s": 30.0, "stop_s": 120.0}
    ]


def test_a_plan_that_stops_nothing_asks_nobody(busy: FakeWorld) -> None:
    busy.calls.clear()
    assert planned(busy, "tp1").traffic == ()
    assert [args["path"] for op, args in busy.calls if op == "http"] == ["/health"]


@pytest.mark.parametrize(
    ("traffic", "words"),
    [
        (Traffic("s", 1, drain=30), "1 request is in flight on s. From its stop on"),
        (Traffic("s", 0, drain=30), "0 requests are in flight on s. From its stop on"),
        (Traffic("s", None, drain=30), "s does not say how many requests are in flight. From its stop on"),
        (Traffic("s", 2, drain=0), "2 requests are in flight on s. They are cut off at once (drain = 0)"),
        (
            Traffic("s", 2, "it has 4 HTTP workers", 30, 120),
            "2 requests are in flight on s. It cannot refuse new ones (it has 4 HTTP workers): it is stopped as soon "
            "as it has none, after 30 s in any case; what then does not end within 120 s is cut off",
        ),
    ],
)
def test_what_becomes_of_them_in_words(traffic: Traffic, words: str) -> None:
    assert str(traffic).startswith(words)


def test_the_outcome_says_what_was_finished(busy: FakeWorld) -> None:
    busy.engines["0002-tp2"] = engine({"tp_size": 2, "pp_size": 1})
    assert drained(run(busy, "tp2")) == Drained(3, 0, True)
    with session(busy) as opened:
        assert drained(rollback(opened, Reporter(), Agreed())) == Drained(None, 0, False), "nothing was in flight"


def drained(outcome: Outcome) -> Drained:
    assert outcome.outcome == "live"
    assert outcome.drained is not None
    return replace(outcome.drained, seconds=0.0)


@pytest.mark.parametrize(
    ("stopped", "words"),
    [
        (Stopped(1.25), "stopped in 1.2 s"),
        (Stopped(5, 3, refused=True), "stopped in 5.0 s, 3 requests in flight: all finished, new ones were refused"),
        (
            Stopped(5, 3, aborted=1, refused=True),
            "stopped in 5.0 s, 3 requests in flight: 1 cut off, new ones were refused",
        ),
        (Stopped(9, 1, True, 1), "stopped in 9.0 s, at least 1 request in flight: 1 cut off (SIGKILL was needed)"),
    ],
)
def test_a_stop_in_words(stopped: Stopped, words: str) -> None:
    assert str(stopped) == words
