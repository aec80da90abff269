"""Services that must not run beside each other, on a machine in memory: how one makes room, and how it comes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deployer.host.agent import guard
from deployer.host.agent.base import Fail
from tests.fakes.host import FakeService
from tests.fakes.machine import Engine, FakeMachine
from tests.unit.host.agent.conftest import PORT, Operator

LIVE, TO, OTHER = "0001-a", "0002-b", "0001-mini"
EXCLUSIVE: dict[str, Any] = {"exclusive": [{"service": "mini", "port": 30001, "stop_timeout": 10.0}]}


@pytest.fixture
def mini(machine: FakeMachine) -> FakeService:
    """The service that runs, on the GPUs that kimi is to have."""
    mini = FakeService(machine, "mini")
    mini.make_live(OTHER)
    return mini


@pytest.fixture
def idle(service: FakeService) -> FakeService:
    """kimi with a live release that does not run, because mini does."""
    service.make_live(LIVE)
    service.end("inactive")
    Path(service.enable_link).unlink()
    return service


def attempt(operator: Operator) -> dict[str, Any]:
    """A change of kimi up to the start of its candidate."""
    operator.begin(TO, **EXCLUSIVE)
    operator("unit.stop")
    operator("unit.exclude")
    return operator("unit.start", release=TO, text=f"[X-Deployer]\nRelease={TO}\n")


def seen(service: FakeService) -> tuple[str | None, bool]:
    return service.release, service.is_enabled()


@pytest.fixture(autouse=True)
def ports(machine: FakeMachine) -> None:
    machine.engines.update({LIVE: Engine(port=PORT), TO: Engine(port=PORT), OTHER: Engine(port=30001)})


ON, OFF = (OTHER, True), (None, False)


def test_it_is_recorded_before_it_is_done(operator: Operator, idle: FakeService, mini: FakeService) -> None:
    operator.begin(TO, **EXCLUSIVE)
    record = idle.transition()
    assert record is not None
    assert record["exclusive"] == [{**EXCLUSIVE["exclusive"][0], "was_active": True, "was_enabled": True}]
    assert seen(mini) == ON
    assert operator("unit.exclude") == {"stopped": ["mini"]}
    assert seen(mini) == OFF
    assert operator("unit.exclude") == {"stopped": []}
    # A connection that broke begins again: what was recorded stays.
    record = operator("transition.begin", transition={"to": TO, "step": "stop", **EXCLUSIVE})["transition"]
    assert record["exclusive"][0]["was_active"] is True
    last = json.loads(Path(mini.folder, "audit.jsonl").read_text().splitlines()[-1])
    assert (last["op"], last["args"]) == ("unit.exclude", {"by": "kimi"})


def left_to(by: str, operator: Operator, machine: FakeMachine, idle: FakeService) -> None:
    """The change is left to the guard, or by a power cut to recovery."""
    if by == "guard":
        idle.end()
        operator.leave()
        assert guard.look(guard.OwnOperator(machine), idle)
    else:
        machine.reboot()
        assert guard.recover(machine, "kimi") == 0


@pytest.mark.parametrize("by", ["operator", "guard", "recover"])
def test_whoever_goes_back_brings_it_back(
    operator: Operator, machine: FakeMachine, idle: FakeService, mini: FakeService, by: str
) -> None:
    attempt(operator)
    assert (seen(mini), idle.release) == (OFF, TO)
    if by == "operator":
        answer = operator("converge", start=True)
        assert (answer["started"], answer["serving"]) == (False, False)
        assert [(item["service"], item["started"]) for item in answer["returned"]] == [("mini", True)]
    else:
        left_to(by, operator, machine, idle)
    assert (seen(mini), seen(idle)) == (ON, OFF)
    assert idle.transition() is None
    assert idle.candidate is None


def test_a_first_release_that_fails_brings_it_back_too(
    operator: Operator, service: FakeService, mini: FakeService
) -> None:
    attempt(operator)
    assert operator("converge", start=True)["live"] is None
    assert (seen(mini), service.release) == (ON, None)


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("active", [True, False])
def test_it_comes_back_as_it_was(
    operator: Operator, idle: FakeService, mini: FakeService, active: bool, enabled: bool
) -> None:
    if not active:
        mini.end("inactive")
    if not enabled:
        Path(mini.enable_link).unlink()
    attempt(operator)
    operator("converge", start=True)
    assert seen(mini) == (OTHER if active else None, enabled)
    # Nothing had to make room: kimi's own live release is started, as an apply that failed does.
    assert seen(idle) == ((LIVE, True) if not active and not enabled else OFF)


@pytest.mark.parametrize("by", ["operator", "guard", "recover", "the next change"])
@pytest.mark.parametrize("text", ["", "{", "[]", '{"to": 7}'])
def test_a_damaged_record_does_not_lose_who_made_room(
    operator: Operator, machine: FakeMachine, idle: FakeService, mini: FakeService, by: str, text: str
) -> None:
    attempt(operator)
    Path(idle.transition_path).write_text(text)
    if by == "the next change":
        operator.begin("0003-c", **EXCLUSIVE)
        record = idle.transition()
        assert record is not None
        assert record["exclusive"] == [{**EXCLUSIVE["exclusive"][0], "was_active": True, "was_enabled": True}]
        operator("converge", start=True)
    elif by == "operator":
        operator("converge", start=True)
    else:
        left_to(by, operator, machine, idle)
    assert (seen(mini), seen(idle)) == (ON, OFF)
    assert not Path(idle.begun_path).exists()


def test_a_damaged_record_of_a_promoted_release_keeps_the_other_away(
    operator: Operator, machine: FakeMachine, idle: FakeService, mini: FakeService
) -> None:
    operator.promote(TO, LIVE, attempt(operator))
    Path(idle.transition_path).write_text("{")
    mini.restart()
    operator("converge", start=True)
    assert (seen(mini), seen(idle)) == (OFF, (TO, True))


@pytest.mark.parametrize("interference", ["", "started by hand", "power cut"])
def test_after_the_promotion_it_stays_away(
    operator: Operator, machine: FakeMachine, idle: FakeService, mini: FakeService, interference: str
) -> None:
    operator.promote(TO, LIVE, attempt(operator))
    if interference == "started by hand":
        mini.restart()
    if interference == "power cut":
        machine.reboot()
        assert guard.recover(machine, "kimi") == 0
    else:
        operator("converge", start=True)
    assert (seen(mini), seen(idle)) == (OFF, (TO, True))


def test_two_that_ran_beside_each_other_do_not_again(
    operator: Operator, service: FakeService, mini: FakeService
) -> None:
    service.make_live(LIVE)
    attempt(operator)
    operator("converge", start=True)
    assert (seen(service), seen(mini)) == ((LIVE, True), OFF)
    assert {"action": "mini is left stopped and disabled"} in operator.events


def refusal(operator: Operator, op: str, **args: Any) -> str:
    with pytest.raises(Fail) as caught:
        operator(op, **args)
    assert caught.value.code == "excluded"
    return caught.value.message


def test_nothing_is_started_beside_it(operator: Operator, idle: FakeService, mini: FakeService) -> None:
    message = refusal(operator, "converge", start=True, **EXCLUSIVE)
    assert message == "sglang-mini.service runs, on the same GPUs or port: sglang-kimi.service was not started"
    operator.begin(TO, **EXCLUSIVE)
    refusal(operator, "unit.start", release=TO, text=f"[X-Deployer]\nRelease={TO}\n")
    assert (idle.release, mini.release) == (None, OTHER)


def test_one_that_is_being_changed_is_left_alone(operator: Operator, service: FakeService, mini: FakeService) -> None:
    operator.begin(TO)  # of kimi
    mini.end("inactive")
    transition = {"to": "0002-x", "step": "stop", "exclusive": [{"service": "kimi"}]}
    with pytest.raises(Fail, match="kimi is being changed itself") as caught:
        operator("transition.begin", service="mini", transition=transition)
    assert caught.value.code == "excluded"
    assert mini.transition() is None
    refusal(operator, "converge", service="mini", start=True, exclusive=[{"service": "kimi"}])


def test_one_that_could_not_be_brought_back_is_not_stopped(
    operator: Operator, service: FakeService, mini: FakeService
) -> None:
    Path(mini.live_path).unlink()
    operator.stage(TO)
    refusal(operator, "transition.begin", transition={"to": TO, "step": "stop", **EXCLUSIVE})
    assert service.transition() is None


def test_a_record_that_names_nothing_is_no_reason_to_stop(operator: Operator, idle: FakeService) -> None:
    record = {"to": TO, "step": "stop", "exclusive": [7, {"service": "../x"}, {}, {"service": "gone"}]}
    operator.stage(TO)
    operator("transition.begin", transition=record)
    assert operator("unit.exclude") == {"stopped": []}
    assert operator("converge", start=True)["live"] == LIVE


def test_one_that_does_not_come_up_again_is_said(
    operator: Operator, machine: FakeMachine, idle: FakeService, mini: FakeService
) -> None:
    attempt(operator)
    machine.engines[OTHER] = Engine(fails_after=0.0, port=30001)
    actions = operator("converge", start=True)["actions"]
    assert any("mini is as it was" in text and "does not stay up" in text for text in actions), actions
