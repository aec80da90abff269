"""The requests of a server that is being stopped, under steady traffic, on a clock that nobody waits for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployer.host.agent import guard
from deployer.host.agent.base import Call
from deployer.host.agent.main import all_operations, perform
from deployer.records.codec import Json
from tests.fakes.host import FakeService
from tests.fakes.machine import Engine, FakeMachine
from tests.unit.host.agent.conftest import PORT, Operator

SGLANG = ("/opt/sglang/bin/python", "-m", "sglang.launch_server")
WORKERS = (*SGLANG, "--tokenizer-worker-num", "2")


class Timeless(Call):
    """A call whose waits only move the machine's clock."""

    def __init__(self, machine: FakeMachine, events: list[Json]) -> None:
        super().__init__(lambda message: events.append(message["event"]))
        self.machine = machine

    def pause(self, seconds: float) -> None:
        self.machine.sleep(seconds)


def stop(machine: FakeMachine, *, traffic: tuple[float, ...], argv: tuple[str, ...] = SGLANG, **args: Any) -> Json:
    """Stop a server that has served such traffic for a while; return the answer, and the stages it went through."""
    machine.engines["0001-a"] = Engine(traffic=traffic, argv=argv)
    FakeService(machine, "kimi").make_live("0001-a")
    machine.sleep(1000.0)
    operator, events = Operator(machine), []  # type: Operator, list[Json]
    operator.take_lease(ttl=3600.0)
    given = {"service": "kimi", "port": PORT, "stop_timeout": 60.0, **args}
    answer = perform(all_operations()["unit.stop"], operator.session, Timeless(machine, events), "unit.stop", given)
    return {**answer, "stages": list(dict.fromkeys(event["stage"] for event in events))}


def test_under_steady_traffic_it_lasts_as_long_as_the_requests_and_breaks_none(machine: FakeMachine) -> None:
    answer = stop(machine, traffic=(1.0, 2.5, 7.0), drain=60.0)
    assert (answer["inflight"], answer["aborted"], answer["refused"], answer["killed"]) == (3, 0, True, False)
    assert answer["seconds"] < 7.0 + 2.0
    assert answer["stages"] == ["draining"]


def test_requests_that_end_before_it_is_looked_at_again_were_still_finished_without_new_ones(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine that is busy with other things."""
    monkeypatch.setattr("deployer.host.agent.stop.POLL", 60.0)
    answer = stop(machine, traffic=(1.0,), drain=600.0)
    assert (answer["inflight"], answer["aborted"], answer["refused"], answer["killed"]) == (1, 0, True, False)


def test_what_outlasts_the_budget_is_cut_off_then_and_nothing_else(machine: FakeMachine) -> None:
    answer = stop(machine, traffic=(1.0, 5000.0), drain=10.0)
    assert (answer["inflight"], answer["aborted"], answer["refused"], answer["killed"]) == (2, 1, True, False)
    assert 10.0 <= answer["seconds"] < 13.0
    assert answer["stages"][:2] == ["draining", "aborting"]


def test_an_idle_server_ends_by_sigterm_alone_and_releases_what_it_holds(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "kill", None)
    answer = stop(machine, traffic=(), drain=60.0)
    assert (answer["inflight"], answer["aborted"], answer["refused"], answer["killed"]) == (None, 0, False, False)


def test_one_that_cannot_refuse_is_waited_for_and_killed_with_what_is_left(machine: FakeMachine) -> None:
    answer = stop(machine, traffic=(1.0, 1.0), argv=WORKERS, drain=10.0)
    assert (answer["inflight"], answer["aborted"], answer["refused"], answer["killed"]) == (2, 2, False, True)
    assert 70.0 <= answer["seconds"] < 75.0
    assert answer["stages"] == ["draining", "stopping", "killing"]


def test_one_that_does_not_heed_the_signal_is_not_said_to_refuse(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "interrupt", lambda unit: None)
    answer = stop(machine, traffic=(1.0,), drain=10.0)
    assert (answer["aborted"], answer["refused"], answer["killed"]) == (1, False, True)
    assert answer["seconds"] < 10.0 + 60.0 + 5.0


def test_the_drain_ends_before_systemd_would_kill_the_server(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit of before may have a shorter time than the inventory gives now."""
    monkeypatch.setattr(machine, "properties", lambda unit, interface: {"TimeoutStopUSec": 20_000_000})
    answer = stop(machine, traffic=(5000.0,), drain=600.0)
    assert (answer["aborted"], answer["killed"]) == (1, False)
    assert answer["seconds"] < 20.0


@settings(max_examples=25)
@given(
    traffic=st.lists(st.floats(0.5, 12.0), max_size=5).map(tuple),
    drain=st.floats(0.0, 10.0),
    refuses=st.booleans(),
)
def test_its_time_is_bounded_and_no_request_is_broken_that_ends_within_it(
    traffic: tuple[float, ...], drain: float, refuses: bool
) -> None:
    answer = stop(FakeMachine(), traffic=traffic, argv=SGLANG if refuses else WORKERS, drain=drain, stop_timeout=3.0)
    longest = max(traffic, default=0.0)
    assert answer["seconds"] <= drain + 5.0 + (3.0 if not refuses else 0.0)
    if refuses and longest <= drain:
        assert answer["aborted"] == 0
        assert answer["seconds"] <= longest + 2.0
    assert answer["aborted"] <= (answer["inflight"] or 0) <= len(traffic)
    assert not (refuses and answer["killed"])


def test_whoever_stops_it_again_leaves_its_requests_their_time(machine: FakeMachine) -> None:
    """As after a Ctrl-C in the middle of the stop."""
    machine.engines["0001-a"] = Engine(traffic=(50.0,), argv=SGLANG)
    service = FakeService(machine, "kimi")
    service.make_live("0001-a")
    machine.systemctl("stop", "--no-block", service.unit)
    machine.interrupt(machine.unit(service.unit))
    operator, events = Operator(machine), []  # type: Operator, list[Json]
    operator.take_lease(ttl=3600.0)
    given = {"service": "kimi", "port": PORT, "drain": 60.0, "stop_timeout": 10.0}
    answer = perform(all_operations()["unit.stop"], operator.session, Timeless(machine, events), "unit.stop", given)
    assert (answer["killed"], answer["aborted"]) == (False, 0)
    assert 40.0 < answer["seconds"] < 55.0


def test_the_guard_waits_for_a_drain_whose_operator_is_gone_and_starts_the_live_release_again(
    machine: FakeMachine, service: FakeService, operator: Operator
) -> None:
    machine.engines["0001-a"] = Engine(traffic=(50.0,), argv=SGLANG)
    service.make_live("0001-a")
    operator.begin("0002-b", drain=60.0)
    operator.leave()  # right after it had begun to stop the old server
    before = machine.unit(service.unit)
    machine.systemctl("stop", "--no-block", service.unit)
    machine.interrupt(before)
    watching = guard.OwnOperator(machine)
    for _ in range(4):
        assert guard.look(watching, service)
        assert before.active == "deactivating", "its requests have time"
        machine.sleep(10.0)
    machine.sleep(10.0)
    machine.unit(service.unit)
    assert before.active == "inactive", "it has ended by itself"
    guard.look(watching, service)
    assert service.release == "0001-a"
    assert not Path(service.transition_path).exists()
