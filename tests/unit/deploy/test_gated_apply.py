"""What an apply does with the verdict: the same profile may not get slower unnoticed, another one may be chosen."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deployer.config.profile import Profile, load_profile, profile_folders
from deployer.deploy.apply import apply
from deployer.deploy.reporter import Reporter
from deployer.records.outcome import Outcome
from deployer.records.verdict import BaselineUsed, Verdict
from tests.fakes.host import FakeWorld
from tests.unit.deploy.test_apply import LIVE, TP1, TP2, Agreed, bench, engine, live_copy, session


class Agrees(Agreed):
    def __init__(self) -> None:
        self.asked: list[Any] = []

    def unclear(self, verdict: Verdict) -> bool:
        self.asked.append(verdict)
        return True


def changed(name: str = "tp1", **relative: Any) -> Profile:
    """A profile with a changed environment, so that applying it is a new start."""
    wanted = load_profile(name, profile_folders())
    gate = wanted.relative_gate.model_copy(update=relative)
    return wanted.model_copy(update={"environment": {"CHANGED": "1"}, "relative_gate": gate})


def applied(made: FakeWorld, profile: Profile, rate: float, consent: Agreed | None = None) -> Outcome:
    """Apply a profile whose benchmark then shows ``rate`` where the live one has 100."""
    document = bench(rate)
    made.run = lambda args: ([json.dumps({"event": "result", "bench": document})], 0)
    number = len(made.service("kimi").manifests()) + 1
    made.engines[f"{number:04d}-{profile.name}"] = engine(TP2 if profile.name == "tp2" else TP1)
    with session(made) as opened:
        return apply(opened, profile, Reporter(), consent or Agreed())


@pytest.fixture
def live_world() -> FakeWorld:
    return live_copy()


def test_the_first_of_a_profile_is_held_against_nothing_and_says_so(live_world: FakeWorld) -> None:
    manifest = live_world.service("kimi").manifest(LIVE)
    assert manifest["verdict"]["summary"] == "pass (no thresholds and no baseline yet)"
    assert manifest["verdict"]["relative"] is None


def test_the_same_profile_does_not_get_slower_unnoticed(live_world: FakeWorld) -> None:
    outcome = applied(live_world, changed(), 80.0)
    assert (outcome.outcome, outcome.exit_code) == ("rolled_back", 5)
    assert outcome.failure is not None
    assert outcome.failure.signature == "gate-fail"
    assert "throughput -20.0 % (" in outcome.failure.cause
    assert "against 1 start of tp1" in outcome.failure.cause
    assert "--baseline none" in str(outcome.failure.remedy)
    assert live_world.service("kimi").release == LIVE


def test_a_loss_is_accepted_where_nothing_is_to_decide(live_world: FakeWorld) -> None:
    assert applied(live_world, changed(baseline="none"), 80.0).outcome == "live"


def test_another_profile_may_be_slower_and_the_difference_is_said(live_world: FakeWorld) -> None:
    outcome = applied(live_world, changed("tp2"), 50.0)
    assert outcome.outcome == "live"
    assert outcome.verdict is not None
    assert any(reason.startswith("for information only: ") for reason in outcome.verdict.reasons)
    assert outcome.verdict.baseline is not None
    assert outcome.verdict.baseline.releases == ()


def test_unless_the_live_one_is_to_decide(live_world: FakeWorld) -> None:
    outcome = applied(live_world, changed("tp2", baseline="live"), 50.0)
    assert outcome.outcome == "rolled_back"
    assert outcome.verdict is not None
    assert outcome.verdict.baseline == BaselineUsed("live", "tp1", (LIVE,), ())


def test_as_fast_as_before_passes_and_history_says_by_how_much(live_world: FakeWorld) -> None:
    outcome = applied(live_world, changed(), 101.0)
    assert outcome.outcome == "live"
    assert outcome.verdict is not None
    assert outcome.verdict.summary is not None
    assert outcome.verdict.summary.startswith("pass: +1.0 % (-")
    assert outcome.verdict.summary.endswith("against 1 start of tp1")
    kept = live_world.service("kimi").manifest("0002-tp1")["verdict"]
    assert kept["relative"]["interval"][0] < 0 < kept["relative"]["interval"][1]


def test_what_cannot_be_told_is_refused_and_counts_at_the_next_apply(live_world: FakeWorld) -> None:
    first = applied(live_world, changed(), 96.0)
    assert (first.outcome, first.exit_code) == ("inconclusive", 7)
    assert first.failure is not None
    assert "a loss of 10 % cannot be ruled out" in first.failure.cause
    assert "apply again: both starts then count together" in str(first.failure.remedy)
    second = applied(live_world, changed(), 99.0)
    assert second.outcome == "live"
    assert second.verdict is not None
    assert second.verdict.relative is not None
    assert second.verdict.relative.candidate_starts == 2
    assert second.verdict.baseline is not None
    assert second.verdict.baseline.earlier == ("0002-tp1",)


def test_what_cannot_be_told_is_promoted_by_policy(live_world: FakeWorld) -> None:
    outcome = applied(live_world, changed(inconclusive="promote"), 96.0)
    assert outcome.outcome == "live"
    assert outcome.verdict is not None
    assert outcome.verdict.result == "inconclusive"
    assert "promoted although the verdict is inconclusive" in (outcome.verdict.promoted or "")


def left_hanging(made: FakeWorld, profile: Profile, status: int) -> Outcome:
    """Apply a profile of whose last requests the benchmark's end found one without an answer; /health says this."""
    document = bench()
    document["levels"][0].update(completed=1, failed={"stalled": 1})
    candidate = engine(TP1)

    def ran(args: Any) -> Any:
        candidate.http["/health"] = (status, "")
        return [json.dumps({"event": "result", "bench": document})], 0

    made.run = ran
    made.engines["0002-tp1"] = candidate
    with session(made) as opened:
        return apply(opened, profile, Reporter(), Agreed())


@pytest.mark.parametrize("policy", ["refuse", "promote"])
def test_a_server_that_may_hang_is_never_promoted(live_world: FakeWorld, policy: str) -> None:
    outcome = left_hanging(live_world, changed(inconclusive=policy), 200)
    assert (outcome.outcome, outcome.exit_code) == ("inconclusive", 7)
    assert outcome.failure is not None
    assert "deployer logs" in str(outcome.failure.remedy)
    assert live_world.service("kimi").release == LIVE


def test_a_server_that_does_not_serve_after_its_benchmark_failed(live_world: FakeWorld) -> None:
    outcome = left_hanging(live_world, changed(), 503)
    assert (outcome.outcome, outcome.exit_code) == ("rolled_back", 5)
    assert outcome.failure is not None
    assert "(/health: 503)" in outcome.failure.cause
    kept = live_world.service("kimi").manifest("0002-tp1")
    assert (kept["state"], kept["verdict"]["result"]) == ("failed", "fail")
    assert "/health: 503" in kept["verdict"]["summary"]


@pytest.mark.parametrize("agrees", [True, False])
def test_or_when_somebody_agrees(live_world: FakeWorld, agrees: bool) -> None:
    consent = Agrees() if agrees else Agreed()
    outcome = applied(live_world, changed(inconclusive="ask"), 96.0, consent)
    assert outcome.outcome == ("live" if agrees else "inconclusive")


def test_nobody_is_asked_about_a_failure(live_world: FakeWorld) -> None:
    consent = Agrees()
    assert applied(live_world, changed(inconclusive="ask"), 70.0, consent).outcome == "rolled_back"
    assert consent.asked == []
