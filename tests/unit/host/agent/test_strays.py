"""Processes of a service outside its unit: known by pid and start, ended by a stop, and nobody else's with them."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from deployer.host.agent.base import Fail
from deployer.host.agent.strays import record_path, remember, strays
from tests.fakes.host import FakeService
from tests.fakes.machine import FakeMachine
from tests.unit.host.agent.conftest import PORT, Operator


@pytest.fixture
def stray(machine: FakeMachine, service: FakeService) -> int:
    """The pid of a live release's process that stands outside the unit, which has ended."""
    service.make_live("0001-a")
    remember(service)
    return machine.leave_behind(service.unit)


def pids(service: FakeService) -> list[int]:
    return [item["pid"] for item in strays(service, PORT)]


def test_a_process_in_the_unit_is_no_stray(service: FakeService) -> None:
    service.make_live("0001-a")
    remember(service)
    assert pids(service) == []


def test_what_was_seen_in_the_unit_is_known_outside(service: FakeService, stray: int) -> None:
    assert pids(service) == [stray]


def test_what_was_never_seen_in_the_unit_is_not_ours(machine: FakeMachine, service: FakeService) -> None:
    service.make_live("0001-a")
    machine.leave_behind(service.unit)
    assert pids(service) == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"processes": 7}', '{"processes": {"x": 1, "²": 1}}', "{}"])
def test_a_damaged_record_knows_nobody_and_is_written_anew(service: FakeService, stray: int, text: str) -> None:
    Path(record_path(service)).write_text(text)
    assert pids(service) == []
    service.restart()
    remember(service)
    assert json.loads(Path(record_path(service)).read_text())["processes"]


def test_a_pid_that_is_used_again_is_somebody_elses(service: FakeService, stray: int) -> None:
    record = Path(record_path(service))
    record.write_text(json.dumps({"processes": {str(stray): 7 * stray + 1}}))
    assert pids(service) == []


def test_one_that_holds_neither_gpu_nor_port_is_left_alone(
    machine: FakeMachine, service: FakeService, stray: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "listeners", lambda port, first=None: [])
    assert pids(service) == [stray], "it holds a GPU"
    monkeypatch.setattr(machine, "nvidia_smi", lambda query, until=None: None)
    assert pids(service) == []


def test_one_on_the_port_is_known_without_the_driver(
    machine: FakeMachine, service: FakeService, stray: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(query: str, until: float | None = None) -> None:
        raise Fail("timeout", "nvidia-smi did not answer")

    monkeypatch.setattr(machine, "nvidia_smi", silent)
    assert pids(service) == [stray]


@pytest.mark.parametrize(("ends", "killed"), [(signal.SIGTERM, False), (signal.SIGKILL, True)])
def test_a_stop_ends_them(
    machine: FakeMachine, service: FakeService, operator: Operator, stray: int, ends: signal.Signals, killed: bool
) -> None:
    machine.left[stray] = ends
    answer = operator("unit.stop", stop_timeout=5.0)
    assert (machine.left, answer["killed"]) == ({}, killed)


def test_one_that_does_not_end_is_named(
    machine: FakeMachine, operator: Operator, stray: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.left[stray] = None
    monkeypatch.setattr("deployer.host.agent.stop.GONE_WAIT", 0.2)
    with pytest.raises(Fail) as caught:
        operator("unit.stop", stop_timeout=0.2)
    assert caught.value.code == "not-gone"
    assert [item["pid"] for item in caught.value.detail["pids"]] == [stray]


def test_a_stop_ends_nobody_elses(machine: FakeMachine, service: FakeService, operator: Operator) -> None:
    other = FakeService(machine, "other")
    other.make_live("0001-a")
    remember(other)
    stray = machine.leave_behind(other.unit)
    operator("unit.stop")
    assert (stray in machine.left, pids(other)) == (True, [stray])


def test_converge_ends_them_before_it_starts(
    machine: FakeMachine, service: FakeService, operator: Operator, stray: int
) -> None:
    answer = operator("converge", start=True)
    assert (machine.left, answer["started"], service.release) == ({}, True, "0001-a")
    assert "ended old processes of the service outside its unit" in answer["actions"]


def test_a_link_at_the_records_place_is_replaced_not_followed(service: FakeService, tmp_path: Path) -> None:
    (target := tmp_path / "target").write_text("theirs")
    path = Path(record_path(service))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
    service.make_live("0001-a")
    remember(service)
    assert (target.read_text(), path.is_symlink()) == ("theirs", False)


def test_observe_names_strays_and_whose_the_other_units_are(
    machine: FakeMachine, operator: Operator, stray: int
) -> None:
    other = FakeService(machine, "other")
    other.make_live("0003-x")
    machine.start("sglang-byhand.service")
    seen = operator("observe", services=[{"service": "kimi", "port": PORT}])
    assert [item["pid"] for item in seen["services"]["kimi"]["strays"]] == [stray]
    assert seen["units"] == {
        "sglang-byhand.service": {"restart": "no", "release": None},
        "sglang-other.service": {"restart": "no", "release": "0003-x"},
    }
