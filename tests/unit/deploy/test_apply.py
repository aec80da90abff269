"""The steps of apply on a host in memory: their order, and every operation failing in every way once."""

from __future__ import annotations

import errno
import functools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from deployer.config.inventory import Inventory, inventory_from
from deployer.config.profile import load_profile, profile_folders
from deployer.deploy.apply import apply, preview
from deployer.deploy.reporter import Reporter
from deployer.deploy.rollback import converge, converge_plan, resume, rollback
from deployer.deploy.session import Session
from deployer.errors import (
    AgentError,
    ChannelLost,
    ConsentRequired,
    DeployerError,
    HostUnreachable,
    LeaseHeld,
    LeaseLost,
    OnHold,
    PreflightRefused,
    Refused,
    ValidationRefused,
)
from deployer.host.client import HostClient
from deployer.records.answers import ProbeReport, VerifyReport
from deployer.records.outcome import Outcome, Plan
from deployer.records.verdict import Verdict
from deployer.report.change_view import print_outcome
from deployer.report.terminal import TerminalReporter
from tests.fakes.host import Engine, FakeHost, FakeWorld

GIB = 1024**3
LIVE = "0001-tp1"


class Agreed:
    """Consent that is always given."""

    def possible(self, plan: Plan) -> None:
        pass

    def given(self, plan: Plan) -> bool:
        return True

    def unclear(self, verdict: Verdict) -> bool:
        return False


class Nobody(Agreed):
    """Nobody is there to agree."""

    def possible(self, plan: Plan) -> None:
        if plan.interrupts:
            raise ConsentRequired("nobody agreed")


class Declined(Agreed):
    """Somebody says no."""

    def given(self, plan: Plan) -> bool:
        return not plan.interrupts


def inventory() -> Inventory:
    tables = {
        "hosts": {"gpu1": {"gpus": 2}},
        "services": {
            "kimi": {
                "host": "gpu1",
                "model": "/m",
                "engine": {"python": "/opt/sglang/bin/python"},
                "bench": {"levels": [2], "place": "host"},
                "deadlines": {"start": 20, "grace": 5, "lease": 5},
            }
        },
    }
    return inventory_from(tables, Path("i.toml"))


def bench(rate: float = 100.0) -> dict[str, Any]:
    level = {
        "concurrency": 2,
        "requests": 2,
        "completed": 2,
        "failed": {},
        "output_tokens": 20,
        "aggregate_tok_s": rate,
        "client": {"client_limited": False},
        "one_token_repeated": False,
    }
    return {
        "levels": [level],
        "singles": [],
        "single_stream_tok_s": 50.0,
        "foreign_traffic": {"value": False},
        "budget": {"seconds": 300.0, "used_s": 1.0, "cut": []},
    }


def world() -> FakeWorld:
    made = FakeWorld()
    made.observed = {
        "gpus": [
            {"index": index, "uuid": f"u{index}", "name": "g", "memory_total": 96 * GIB, "memory_used": 0}
            for index in range(2)
        ],
        "disk_free": 10 * GIB,
        "engine": {"python": "/p", "exists": True, "sglang": "0.5.12.post1", "httpx": "0.28"},
        "model": {"path": "/m", "exists": True, "bytes": 1, "files": 1, "fingerprint": "f", "config": {}},
    }
    made.run = lambda args: ([json.dumps({"event": "result", "bench": bench()})], 0)
    return made


def engine(info: dict[str, Any], **changes: Any) -> Engine:
    answers = {"/server_info": (200, json.dumps(info)), "/generate": (200, "{}")}
    return Engine(http=answers, **changes)


TP1 = {"tp_size": 1, "pp_size": 1}
TP2 = {"tp_size": 2, "pp_size": 1}


def session(made: FakeWorld, command: str = "test") -> Session:
    found = inventory()
    return Session(found.service(), found.host("gpu1"), lambda config: FakeHost(made), command=command)


def run(made: FakeWorld, profile: str, consent: Any = None, reporter: Reporter | None = None) -> Outcome:
    wanted = load_profile(profile, profile_folders())
    with session(made) as opened:
        return apply(opened, wanted, reporter or Reporter(), consent or Agreed())


@functools.cache
def after_an_apply() -> FakeWorld:
    """A world on which tp1 is live by an apply. It is not to be used, but to be copied."""
    made = world()
    made.engines[LIVE] = engine(TP1)
    assert run(made, "tp1").outcome == "live"
    made.calls.clear()
    return made


def live_copy() -> FakeWorld:
    """A world of its own on which tp1 is live by an apply."""
    return after_an_apply().copy()


@pytest.fixture
def live_world() -> FakeWorld:
    """A world on which tp1 is live by an apply, with an engine for tp2 that works."""
    made = live_copy()
    made.engines["0002-tp2"] = engine(TP2)
    return made


def restored(made: FakeWorld) -> None:
    state = made.service("kimi")
    assert state.release == LIVE
    assert f"Release={LIVE}" in (state.live or "")
    assert state.candidate is None
    assert state.transition() is None


def test_what_is_promised_first_is_done_first(live_world: FakeWorld) -> None:
    outcome = run(live_world, "tp2")
    assert (outcome.outcome, outcome.release, outcome.previous) == ("live", "0002-tp2", LIVE)
    order = [op for op, _ in live_world.calls]
    wanted = [
        "lease.acquire",
        "stage",
        "probe",
        "transition.begin",
        "unit.stop",
        "unit.start",
        "watch",
        "run",
        "promote",
        "converge",
        "transition.end",
    ]
    places = [order.index(op) for op in wanted]
    assert places == sorted(places), order
    steps = [args["step"] for op, args in live_world.calls if op == "transition.step"]
    assert steps == ["switch", "wait", "verify", "bench", "promote", "finish"]
    state = live_world.service("kimi")
    assert state.release == "0002-tp2"
    assert "Release=0002-tp2" in (state.live or "")
    manifest = state.manifest("0002-tp2")
    assert manifest["was_live"] is True
    assert manifest["previous"] == LIVE
    assert manifest["timeline"]
    assert manifest["bench_summary"]["levels"] == {"2": 100.0}


def test_the_same_again_changes_nothing(live_world: FakeWorld) -> None:
    assert run(live_world, "tp1").outcome == "unchanged"
    changing = {"stage", "transition.begin", "unit.stop", "unit.start", "promote", "converge"}
    assert not changing & {op for op, _ in live_world.calls}


@pytest.mark.parametrize(
    ("changes", "info", "phase"),
    [
        ({"fails_after": 0.0}, TP2, None),
        (
            {
                "log": ("[2026-01-01 00:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):",),
                "ready_after": 9.0,
            },
            TP2,
            None,
        ),
        ({}, {"tp_size": 1, "pp_size": 1}, "verify"),
    ],
    ids=["dies", "fatal-line", "not-in-effect"],
)
def test_a_bad_candidate_goes_back(
    live_world: FakeWorld,
    changes: dict[str, Any],
    info: dict[str, Any],
    phase: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("deployer.deploy.wait.TRACEBACK_PAUSE", 0)
    live_world.engines["0002-tp2"] = engine(info, **changes)
    outcome = run(live_world, "tp2")
    assert (outcome.outcome, outcome.exit_code, outcome.previous) == ("rolled_back", 5, LIVE)
    assert outcome.failure
    assert phase is None or outcome.failure.phase == phase
    restored(live_world)
    assert live_world.service("kimi").manifest("0002-tp2")["state"] == "failed"


@pytest.mark.parametrize(
    ("document", "outcome", "code"),
    [
        (
            bench() | {"levels": [bench()["levels"][0] | {"completed": 1, "failed": {"reset": 1}}]},
            "rolled_back",
            5,
        ),
        (bench() | {"interrupted": "by a signal"}, "inconclusive", 7),
    ],
    ids=["incomplete", "cut-short"],
)
def test_the_gate_decides(live_world: FakeWorld, document: dict[str, Any], outcome: str, code: int) -> None:
    live_world.run = lambda args: ([json.dumps({"event": "result", "bench": document})], 0)
    result = run(live_world, "tp2")
    assert (result.outcome, result.exit_code) == (outcome, code)
    restored(live_world)


def test_a_load_client_that_gives_nothing_is_no_verdict(live_world: FakeWorld) -> None:
    live_world.run = lambda args: ([], 1)
    outcome = run(live_world, "tp2")
    assert (outcome.outcome, outcome.exit_code, outcome.previous) == ("inconclusive", 7, LIVE)
    assert outcome.failure
    assert outcome.failure.phase == "bench"
    restored(live_world)
    assert live_world.service("kimi").manifest("0002-tp2")["state"] == "inconclusive"


def test_a_load_client_that_fails_because_the_server_died_tells_of_the_server(live_world: FakeWorld) -> None:
    def die(_args: Any) -> tuple[list[str], int]:
        live_world.service("kimi").end()
        return [], 1

    live_world.run = die
    outcome = run(live_world, "tp2")
    assert (outcome.outcome, outcome.exit_code) == ("rolled_back", 5)
    restored(live_world)
    assert live_world.service("kimi").manifest("0002-tp2")["state"] == "failed"


@pytest.mark.parametrize("how", ["dies", "not-in-effect", "out-of-our-hands", "nothing-left"])
def test_the_cause_of_a_failure_is_told_once(live_world: FakeWorld, how: str) -> None:
    if how == "out-of-our-hands":
        live_world.faults["promote"] = [AgentError("lease-lost", "taken over")]
    else:
        died = {"dies": {"fails_after": 0.0}, "nothing-left": {"fails_after": 0.0}}.get(how, {})
        live_world.engines["0002-tp2"] = engine(TP1, **died)
    if how == "nothing-left":
        live_world.engines[LIVE] = engine(TP1, fails_after=0.0)
    console = Console(width=1000, color_system=None)
    with console.capture() as captured:
        outcome = run(live_world, "tp2", reporter=TerminalReporter(lambda: console, live=False))
        print_outcome(console, outcome)
    shown = captured.get()
    assert outcome.failure
    assert shown.count(outcome.failure.cause) == (2 if how == "nothing-left" else 1)  # it died of the same
    assert shown.count(outcome.message) <= 1 + (outcome.exit_code == 5)
    marks = [line for line in shown.splitlines() if line.startswith("✗")]
    assert len(marks) == (2 if how == "nothing-left" else 1)
    assert all(len(line) < 80 for line in marks)


def test_the_lines_that_prove_the_cause_are_shown_where_the_tail_has_them_not(live_world: FakeWorld) -> None:
    proof = "ValueError: Cannot find the config file for awq"
    log = [
        "Traceback (most recent call last):",
        '  File "x.py", line 1, in load_model',
        proof,
        *["later"] * 80,
    ]
    live_world.engines["0002-tp2"] = engine(TP1, fails_after=0.0, log=log)
    console = Console(width=1000, color_system=None)
    with console.capture() as captured:
        outcome = run(live_world, "tp2")
        print_outcome(console, outcome)
    assert outcome.failure
    assert proof in outcome.failure.evidence
    assert proof not in outcome.failure.log_tail
    told, _, tail = captured.get().partition("The end of the log at that moment:")
    assert proof in told.partition("The lines that prove it:")[2]
    assert "later" in tail


def test_nothing_live_and_a_bad_candidate_is_down() -> None:
    made = world()
    made.engines["0001-tp2"] = engine(TP2, fails_after=0.0)
    outcome = run(made, "tp2")
    assert (outcome.outcome, outcome.exit_code) == ("down", 6)
    assert made.service("kimi").release is None


OPERATIONS = ["unit.stop", "unit.start", "watch", "run", "promote", "converge", "transition.step"]


@pytest.mark.parametrize("op", OPERATIONS)
def test_a_lost_connection_is_taken_up_where_it_was(live_world: FakeWorld, op: str) -> None:
    live_world.faults[op] = [ChannelLost("gone")]
    outcome = run(live_world, "tp2")
    assert (outcome.outcome, outcome.release) == ("live", "0002-tp2")
    assert [name for name, _ in live_world.calls].count("lease.acquire") == 2


@pytest.mark.parametrize("op", OPERATIONS)
def test_ctrl_c_anywhere_goes_back(live_world: FakeWorld, op: str) -> None:
    live_world.faults[op] = [KeyboardInterrupt()]  # what Ctrl-C raises
    outcome = run(live_world, "tp2")
    if op == "converge":  # promoted already: there is no way back any more, and none is needed
        assert live_world.service("kimi").release == "0002-tp2"
        return
    assert (outcome.outcome, outcome.exit_code) == ("interrupted", 130)
    restored(live_world)


@pytest.mark.parametrize("op", OPERATIONS)
def test_an_error_of_the_host_anywhere_goes_back(live_world: FakeWorld, op: str) -> None:
    live_world.faults[op] = [AgentError("os-error", "no space left on device")]
    outcome = run(live_world, "tp2")
    if op == "converge":
        return
    assert (outcome.outcome, outcome.exit_code) == ("rolled_back", 5)
    assert outcome.failure is not None
    assert "no space" in outcome.failure.cause
    restored(live_world)


@pytest.mark.parametrize("op", ["stage", "probe", "transition.begin"])
def test_an_error_before_the_stop_leaves_the_old_server_alone(live_world: FakeWorld, op: str) -> None:
    live_world.faults[op] = [AgentError("os-error", "no space left on device")]
    with pytest.raises(DeployerError):
        run(live_world, "tp2")
    restored(live_world)
    assert "unit.stop" not in [name for name, _ in live_world.calls]


def test_a_lease_that_somebody_else_took_ends_our_part(live_world: FakeWorld) -> None:
    live_world.faults["promote"] = [AgentError("lease-lost", "taken over")]
    outcome = run(live_world, "tp2")
    assert (outcome.outcome, outcome.exit_code) == ("interrupted", 4)
    assert "running is 0002-tp2" in outcome.message


def test_a_connection_lost_while_the_intent_is_written_is_taken_up(live_world: FakeWorld) -> None:
    live_world.faults["transition.begin"] = [ChannelLost("gone")]
    assert run(live_world, "tp2").outcome == "live"


@pytest.mark.parametrize("op", ["lease.acquire", "observe", "stage", "probe"])
def test_a_connection_lost_before_anything_was_changed_is_made_again(live_world: FakeWorld, op: str) -> None:
    live_world.engines |= {f"{number:04d}-tp2": engine(TP2) for number in (2, 3)}
    live_world.faults[op] = [ChannelLost("gone")]
    words: list[str] = []
    wanted = load_profile("tp2", profile_folders())
    with session(live_world) as opened:
        outcome = opened.persist(lambda: apply(opened, wanted, Reporter(), Agreed()), words.append)
    assert (outcome.outcome, live_world.service("kimi").release) == ("live", outcome.release)
    assert words == ["gone; nothing was changed, trying again"]


def test_a_connection_that_keeps_breaking_ends_the_command(live_world: FakeWorld) -> None:
    live_world.faults["observe"] = [ChannelLost("gone")] * 9
    wanted = load_profile("tp2", profile_folders())
    with session(live_world) as opened, pytest.raises(ChannelLost):
        opened.persist(lambda: apply(opened, wanted, Reporter(), Agreed()), lambda text: None)
    restored(live_world)


@pytest.mark.parametrize("failure", [LeaseLost, HostUnreachable])
def test_a_release_that_was_promoted_is_live_whoever_ends_the_change(
    live_world: FakeWorld, failure: type[DeployerError]
) -> None:
    live_world.faults["converge"] = [ChannelLost("gone")]
    wanted = load_profile("tp2", profile_folders())
    with session(live_world) as opened:

        def taken_over(on_try: Any) -> None:
            opened.close(bye=False)
            opened.open()
            raise failure("gone for good")

        opened.reconnect = taken_over  # type: ignore[method-assign]
        outcome = apply(opened, wanted, Reporter(), Agreed())
    assert (outcome.outcome, outcome.exit_code, outcome.failure) == ("live", 0, None)
    assert outcome.notes == ("after the promotion: gone for good; the host completes the change by itself",)


def test_a_promoted_release_of_a_host_that_is_gone_is_said_to_be_live(live_world: FakeWorld) -> None:
    live_world.faults["converge"] = [ChannelLost("gone")]
    wanted = load_profile("tp2", profile_folders())
    with session(live_world) as opened:

        def gone(on_try: Any) -> None:
            live_world.faults["observe"] = [ChannelLost("gone")] * 3
            raise HostUnreachable("gpu1 could not be reached again")

        opened.reconnect = gone  # type: ignore[method-assign]
        outcome = apply(opened, wanted, Reporter(), Agreed())
    assert outcome.exit_code == 8
    assert outcome.message.startswith("0002-tp2 was promoted and is the live release; gpu1 could not be reached")


def test_waiting_for_somebody_else(live_world: FakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployer.deploy.session.POLL", 0)
    with session(live_world) as other, session(live_world) as opened:
        other.acquire()
        with pytest.raises(LeaseHeld):
            opened.take_lease(lambda text: None)
        words: list[str] = []

        def one_leaves(text: str) -> None:
            words.append(text)
            other.close()

        opened.patience = math.inf
        opened.take_lease(one_leaves)
    assert len(words) == 1
    assert words[0].startswith("waiting, ")
    assert "fake is in use for kimi by " in words[0]


def test_a_hold_refuses_a_change_before_anything_happens(live_world: FakeWorld) -> None:
    with session(live_world) as other:
        other.client.hold_set("kimi", other.owner, "load test", None)
    with pytest.raises(OnHold, match="load test"):
        run(live_world, "tp2")
    restored(live_world)


def test_a_transition_that_is_damaged_while_the_connection_is_down_is_undone(live_world: FakeWorld) -> None:
    live_world.faults["watch"] = [ChannelLost("gone")]
    wanted = load_profile("tp2", profile_folders())
    with session(live_world) as opened:
        reconnect = opened.reconnect

        def damaged(on_try: Any) -> None:
            path = Path(live_world.service("kimi").transition_path)
            path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | {"step": "daydream"}), "utf-8")
            reconnect(on_try)

        opened.reconnect = damaged  # type: ignore[method-assign]
        outcome = apply(opened, wanted, Reporter(), Agreed())
    assert (outcome.outcome, outcome.exit_code) == ("rolled_back", 5)
    assert outcome.failure is not None
    assert "its step is 'daydream'" in outcome.failure.cause
    restored(live_world)


def test_ctrl_c_while_reconnecting_says_what_the_host_does(live_world: FakeWorld) -> None:
    live_world.faults["run"] = [ChannelLost("gone")]
    live_world.faults["lease.acquire"] = []
    made = session(live_world)
    wanted = load_profile("tp2", profile_folders())
    with made as opened:
        opened.reconnect = interrupted  # type: ignore[assignment,method-assign]
        outcome = apply(opened, wanted, Reporter(), Agreed())
    assert (outcome.outcome, outcome.exit_code) == ("interrupted", 130)
    assert f"the guard on gpu1 restores {LIVE}" in outcome.message


def interrupted(*args: Any) -> None:
    raise KeyboardInterrupt


def test_a_bug_leaves_the_host_in_order(live_world: FakeWorld) -> None:
    live_world.faults["run"] = [ZeroDivisionError()]
    with pytest.raises(ZeroDivisionError):
        run(live_world, "tp2")
    restored(live_world)


def test_what_cannot_be_written_down_does_not_stop_the_way_back(live_world: FakeWorld) -> None:
    live_world.engines["0002-tp2"] = engine(TP2, fails_after=0.0)
    live_world.faults["release.update"] = [AgentError("os-error", "no space left")] * 5
    outcome = run(live_world, "tp2")
    assert outcome.outcome == "rolled_back"
    restored(live_world)


def test_a_host_that_cannot_converge_keeps_its_guard(live_world: FakeWorld) -> None:
    live_world.engines["0002-tp2"] = engine(TP2, fails_after=0.0)
    live_world.faults["converge"] = [AgentError("shadowed", "it is masked")]
    outcome = run(live_world, "tp2")
    assert (outcome.outcome, outcome.exit_code) == ("down", 6)
    assert "the host's guard goes on trying" in outcome.message
    assert live_world.service("kimi").transition() is not None


def test_without_consent_nothing_is_staged(live_world: FakeWorld) -> None:
    with pytest.raises(ConsentRequired):
        run(live_world, "tp2", Nobody())
    assert "stage" not in [name for name, _ in live_world.calls]
    assert run(live_world, "tp2", Declined()).exit_code == 2
    restored(live_world)


def test_rollback_goes_back_and_then_has_nowhere_to_go(live_world: FakeWorld) -> None:
    run(live_world, "tp2")
    with session(live_world) as opened:
        outcome = rollback(opened, Reporter(), Agreed())
    assert (outcome.outcome, outcome.release, outcome.previous) == ("live", LIVE, "0002-tp2")
    restored(live_world)
    with session(live_world) as opened, pytest.raises(Refused, match="none before it"):
        rollback(opened, Reporter(), Agreed())


def test_rollback_to_a_release_that_fails_now_keeps_the_live_one(live_world: FakeWorld) -> None:
    run(live_world, "tp2")
    live_world.engines[LIVE] = engine(TP1, fails_after=0.0)
    with session(live_world) as opened:
        outcome = rollback(opened, Reporter(), Agreed())
    assert (outcome.outcome, outcome.exit_code, outcome.previous) == ("rolled_back", 5, "0002-tp2")
    assert live_world.service("kimi").release == "0002-tp2"
    # It was proven once and stays a target: a failed return does not unprove it.
    assert live_world.service("kimi").manifest(LIVE)["was_live"] is True


def test_an_abandoned_change_is_resumed(live_world: FakeWorld) -> None:
    live_world.faults["watch"] = [SystemExit()]  # the operator's process ends here
    wanted = load_profile("tp2", profile_folders())
    opened = session(live_world).open()
    with pytest.raises(SystemExit):
        apply(opened, wanted, Reporter(), Agreed())
    opened.close(bye=False)
    with session(live_world) as again:
        outcome = resume(again, Reporter())
    assert (outcome.outcome, outcome.release) == ("live", "0002-tp2")


def test_there_may_be_nothing_to_resume(live_world: FakeWorld) -> None:
    with session(live_world) as opened, pytest.raises(Refused, match="nothing to resume"):
        resume(opened, Reporter())


EDITED = ("p", "--max-running-requests", "16")


def edited(made: FakeWorld, *, restarted: bool = True) -> None:
    """A live unit that somebody edited by hand, and restarted."""
    state = made.service("kimi")
    state.machine.write_file(state.live_path, (state.live or "") + "[Service]\nNice=1\n")
    if restarted:
        made.engines[LIVE] = replace(made.engines[LIVE], argv=EDITED)
        state.restart()


def on_restart(made: FakeWorld) -> None:
    """From the next start on what runs is what the release says."""
    machine, start = made.machine, made.machine.start

    def started(name: str) -> None:
        made.engines[LIVE] = replace(made.engines[LIVE], argv=())
        start(name)

    machine.start = started  # type: ignore[method-assign]


def test_nothing_to_do_is_not_said_of_a_server_that_runs_something_else(live_world: FakeWorld) -> None:
    edited(live_world)
    on_restart(live_world)
    process = live_world.machine.unit("sglang-kimi.service").pid
    with pytest.raises(ConsentRequired):
        run(live_world, "tp1", Nobody())
    refused = run(live_world, "tp1", Declined())
    assert (refused.outcome, refused.exit_code) == ("refused", 2)
    assert live_world.machine.unit("sglang-kimi.service").pid == process
    console = Console(width=200)
    with console.capture() as shown:
        outcome = run(live_world, "tp1", reporter=TerminalReporter(lambda: console, live=False))
    assert (outcome.outcome, outcome.release) == ("live", LIVE)
    assert "running argv: --max-running-requests 16 is new" in shown.get()
    assert "was edited by hand: Nice 1 is new" in shown.get()
    assert live_world.machine.unit("sglang-kimi.service").pid != process
    assert run(live_world, "tp1", Nobody()).outcome == "unchanged"


def test_going_back_says_what_is_not_as_it_was_when_that_release_was_proven(live_world: FakeWorld) -> None:
    facts = live_world.observed["model"]
    live_world.observed["model"] = facts | {"fingerprint": "other"}
    assert run(live_world, "tp2").release == "0002-tp2"
    edited(live_world, restarted=False)
    console = Console(width=200)
    with console.capture() as shown, session(live_world) as opened:
        outcome = rollback(opened, TerminalReporter(lambda: console, live=False), Agreed())
    assert (outcome.outcome, outcome.release) == ("live", LIVE)
    assert "was edited by hand: Nice 1 is new" in shown.get()
    assert "model files: changed since 0001-tp1 was proven (/m)" in shown.get()


def converged(made: FakeWorld, consent: Agreed) -> Outcome:
    with session(made) as opened:
        return converge(opened, Reporter(), consent)


def test_converge_starts_what_serves_again_only_if_it_runs_something_else_and_after_consent(
    live_world: FakeWorld,
) -> None:
    unit = live_world.machine.unit("sglang-kimi.service")
    before = unit.pid
    assert converged(live_world, Nobody()).outcome == "live"
    assert unit.pid == before
    edited(live_world)
    on_restart(live_world)
    before = unit.pid
    with session(live_world) as opened:
        plan = converge_plan(opened)
    assert (plan.action, plan.restart, plan.interrupts, plan.place) == ("converge", True, True, "kimi on gpu1")
    with pytest.raises(ConsentRequired):
        converged(live_world, Nobody())
    assert converged(live_world, Declined()).exit_code == 2
    assert unit.pid == before
    assert "Nice=1" in (live_world.service("kimi").live or "")
    outcome = converged(live_world, Agreed())
    assert (outcome.outcome, outcome.exit_code, outcome.notes) == ("live", 0, ())
    assert unit.pid != before
    with session(live_world) as opened:
        assert converge_plan(opened).equal


def test_what_converge_could_not_make_equal_is_told(live_world: FakeWorld) -> None:
    edited(live_world)
    outcome = converged(live_world, Agreed())
    assert (outcome.outcome, outcome.exit_code) == ("live", 10)
    assert "still differs" in outcome.message
    assert "running argv: --max-running-requests 16 is new" in outcome.notes


def test_converge_brings_up_what_is_down_whatever_a_drop_in_decides(live_world: FakeWorld, tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    path.write_text("[Service]\nExecStart=\nExecStart=/bin/other\n")
    machine, shown = live_world.machine, live_world.machine.unit_state
    machine.unit_state = lambda unit: {**shown(unit), "DropInPaths": [str(path)]}  # type: ignore[method-assign]
    with pytest.raises(PreflightRefused, match="sets ExecStart"):
        converged(live_world, Agreed())
    live_world.service("kimi").end("inactive")
    outcome = converged(live_world, Nobody())
    assert (outcome.outcome, outcome.exit_code) == ("live", 0)
    assert "changes the unit (ExecStart)" in outcome.notes[0]


def test_what_converge_would_do_includes_a_change_that_was_left() -> None:
    made = live_copy()
    left_behind(made)
    with session(made) as opened:
        plan = converge_plan(opened)
    assert "a change to 0002-tp2 was left at the step 'wait'" in plan.differences[0].text
    with session(world()) as opened, pytest.raises(Refused, match="no release is live"):
        converge_plan(opened)


def test_a_unit_that_was_only_edited_is_mended_without_a_restart_and_without_consent(live_world: FakeWorld) -> None:
    before = live_world.service("kimi").live
    edited(live_world, restarted=False)
    process = live_world.machine.unit("sglang-kimi.service").pid
    assert run(live_world, "tp1", Nobody()).outcome == "live"
    assert live_world.service("kimi").live == before
    assert live_world.machine.unit("sglang-kimi.service").pid == process
    assert run(live_world, "tp1", Nobody()).outcome == "unchanged"


@pytest.mark.parametrize("stopped", [False, True])
def test_a_drop_in_that_decides_what_runs_is_refused_whatever_there_is_to_do(
    live_world: FakeWorld, tmp_path: Path, stopped: bool
) -> None:
    path = tmp_path / "a.conf"
    path.write_text("[Service]\nExecStart=\nExecStart=/bin/other\n")
    machine, shown = live_world.machine, live_world.machine.unit_state
    machine.unit_state = lambda unit: {**shown(unit), "DropInPaths": [str(path)]}  # type: ignore[method-assign]
    if stopped:
        live_world.service("kimi").end("inactive")
    with pytest.raises(PreflightRefused, match="sets ExecStart"):
        run(live_world, "tp1")
    with session(live_world) as opened:
        against = preview(opened, load_profile("tp1", profile_folders()))
    assert [item.code for item in against.objections] == ["drop-in-decides"]
    path.write_text("[Service]\nMemoryMax=1G\n")
    outcome = run(live_world, "tp1")
    assert outcome.outcome == ("live" if stopped else "unchanged")
    assert stopped or "MemoryMax" in outcome.notes[0]


def test_an_engine_that_was_patched_in_place_is_proven_anew(live_world: FakeWorld) -> None:
    facts = live_world.observed["engine"]
    live_world.engines["0002-tp1"] = live_world.engines["0003-tp1"] = engine(TP1)
    live_world.observed["engine"] = facts | {"fingerprint": "aaaa"}
    assert run(live_world, "tp1").outcome == "unchanged", "an earlier deployer did not record the engine"
    live_world.observed["model"] = live_world.observed["model"] | {"fingerprint": "g"}
    assert run(live_world, "tp1").release == "0002-tp1"
    assert live_world.service("kimi").manifest("0002-tp1")["engine"]["fingerprint"] == "aaaa"
    live_world.observed["engine"] = facts | {"fingerprint": "bbbb", "changed": ["a.py"], "changed_files": 1}
    with session(live_world) as opened:
        plan = preview(opened, load_profile("tp1", profile_folders())).plan
    assert [str(item) for item in plan.differences] == [
        "engine files: 1 changed since 0002-tp1 was proven (a.py): the next apply proves it anew"
    ]
    assert run(live_world, "tp1").release == "0003-tp1"


def test_converge_starts_what_is_live(live_world: FakeWorld) -> None:
    live_world.service("kimi").end("inactive")
    with session(live_world) as opened:
        outcome = converge(opened, Reporter(), Nobody())
    assert (outcome.outcome, outcome.exit_code) == ("live", 0)
    restored(live_world)


def left_behind(made: FakeWorld) -> None:
    """An operator's process that ended in the middle of an apply of tp2."""
    made.faults["watch"] = [SystemExit()]
    wanted = load_profile("tp2", profile_folders())
    opened = session(made).open()
    with pytest.raises(SystemExit):
        apply(opened, wanted, Reporter(), Agreed())
    opened.close(bye=False)


def test_a_release_whose_manifest_is_damaged_is_not_rolled_back_to(live_world: FakeWorld) -> None:
    service = live_world.service("kimi")
    service.keep("0007-tp2", {"was_live": True, "number": "seven"}, {})
    with session(live_world) as opened, pytest.raises(Refused, match="the manifest of release 7 is damaged"):
        rollback(opened, Reporter(), Agreed(), to=7)
    restored(live_world)


def test_a_change_whose_requirements_are_damaged_is_not_resumed_but_restored(live_world: FakeWorld) -> None:
    left_behind(live_world)
    service = live_world.service("kimi")
    manifest = service.manifest("0002-tp2")
    service.keep("0002-tp2", manifest | {"resolved": manifest["resolved"] | {"gate": {"tok_s": "fast"}}}, {})
    with session(live_world) as opened:
        outcome = resume(opened, Reporter())
    assert (outcome.outcome, outcome.exit_code) == ("rolled_back", 5)
    restored(live_world)


def test_a_change_left_behind_is_ended_before_a_rollback(live_world: FakeWorld) -> None:
    left_behind(live_world)
    with session(live_world) as opened, pytest.raises(Refused, match="none before it"):
        rollback(opened, Reporter(), Agreed())
    restored(live_world)
    assert live_world.service("kimi").manifest("0002-tp2")["state"] == "abandoned"


def test_a_change_left_behind_that_cannot_be_ended_is_said_so(live_world: FakeWorld) -> None:
    left_behind(live_world)
    live_world.faults["converge"] = [AgentError("shadowed", "it is masked")] * 2
    assert run(live_world, "tp1").exit_code == 6
    with session(live_world) as opened:
        assert rollback(opened, Reporter(), Agreed()).exit_code == 6


def full(op: str) -> AgentError:
    """What the agent says where the disk is full."""
    detail = {"errno": errno.ENOSPC, "path": "/var/lib/deployer/kimi/releases/0002-tp2/manifest.json"}
    return AgentError("os-error", f"{op}: [Errno 28] No space left on device", detail=detail)


@pytest.mark.parametrize("op", ["stage", "probe"])
def test_a_disk_that_gets_full_before_the_stop_is_told_and_nothing_live_is_touched(
    live_world: FakeWorld, op: str
) -> None:
    """Nor is it hidden by what cannot be recorded of it."""
    live_world.faults = {op: [full(op)], "release.update": [full("release.update")] * 3}
    with pytest.raises(AgentError, match=r"the disk of /var/lib/deployer/.* is full") as caught:
        run(live_world, "tp2")
    assert caught.value.message.count(op) == 1
    assert "free some space" in str(caught.value.remedy)
    restored(live_world)
    assert not {"unit.stop", "unit.start"} & {name for name, _ in live_world.calls}


def test_a_unit_that_cannot_be_checked_for_want_of_space_is_not_called_wrong(
    live_world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "Failed to setup working directory: No space left on device"
    real = HostClient.probe

    def probe(client: HostClient, service: str, text: str) -> ProbeReport:
        return replace(real(client, service, text), verify=VerifyReport(1, (line,)))

    monkeypatch.setattr(HostClient, "probe", probe)
    with pytest.raises(ValidationRefused, match="no room for temporary files") as caught:
        run(live_world, "tp2")
    assert "/tmp" in str(caught.value.remedy)
    assert live_world.service("kimi").manifest("0002-tp2")["state"] == "abandoned"
    restored(live_world)
