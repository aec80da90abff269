"""How a watch judges what its witnesses see, and what it takes for the beginning."""

from __future__ import annotations

import queue
from typing import Any

import pytest

from deployer.host.agent import watch
from deployer.host.agent.base import Call
from deployer.host.agent.lease import Session
from tests.fakes.host import FakeService, HastyCall
from tests.fakes.machine import Engine, FakeMachine

UP = {
    "ActiveState": "active",
    "SubState": "running",
    "LoadState": "loaded",
    "NRestarts": 0,
    "InvocationID": "i",
}


def judge() -> watch.Watch:
    """A watch without witnesses."""
    watching = watch.Watch.__new__(watch.Watch)
    watching.invocation, watching.restarts = "i", None
    return watching


@pytest.mark.parametrize(
    ("changes", "proof"),
    [
        ({}, None),
        ({"ActiveState": "activating"}, None),
        ({"ActiveState": "failed"}, "unit"),
        ({"ActiveState": "deactivating"}, "unit"),
        ({"ActiveState": "activating", "SubState": "auto-restart"}, "unit"),
        ({"NRestarts": 1}, "restart"),
        ({"InvocationID": "other"}, "restart"),
        ({"ActiveState": "inactive", "LoadState": "not-found"}, "vanished"),
    ],
)
def test_what_proves_failure(changes: dict[str, Any], proof: str | None) -> None:
    watching = judge()
    assert watching.judge_unit(UP) is None
    judged = watching.judge_unit({**UP, **changes})
    assert (judged and judged["proof"]) == proof


def test_restarts_of_long_ago_do_not_count() -> None:
    watching = judge()
    assert watching.judge_unit({**UP, "NRestarts": 3}) is None
    judged = watching.judge_unit({**UP, "NRestarts": 4})
    assert judged is not None
    assert judged["proof"] == "restart"


def test_all_that_a_unit_logged_before_it_failed_is_passed_on(machine: FakeMachine, service: FakeService) -> None:
    """However much of it waits: more than one look takes, and all of it delivered already."""
    sent: list[dict[str, Any]] = []
    watching = judge()
    watching.machine, watching.call, watching.fatal = machine, Call(sent.append), []
    watching.witnesses = witnesses = watch.Witnesses.__new__(watch.Witnesses)
    witnesses.machine, witnesses.service, witnesses.started = machine, service, 0.0
    witnesses.delivered, witnesses.seen = 7, queue.SimpleQueue()
    machine.journal.append({"unit": service.unit, "__REALTIME_TIMESTAMP": "7"})
    for number in range(2500):
        witnesses.seen.put(("log", {"t": 0.0, "text": str(number), "source": "systemd", "piece": False}))
    watching.last_words()
    lines = [line["text"] for message in sent for line in message["event"]["lines"]]
    assert lines == [str(number) for number in range(2500)]


def test_a_watch_of_a_server_that_runs_already_counts_from_its_own_beginning(
    machine: FakeMachine, service: FakeService
) -> None:
    args = {"service": "kimi", "started_boottime": 5.0}
    assert watch.start_time(service, args) == 5.0
    assert abs(watch.start_time(service, {**args, "attach": True}) - machine.boottime()) < 1.0


def watched(machine: FakeMachine, **args: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The events of a whole watch, and its answer."""
    events: list[dict[str, Any]] = []
    call = HastyCall(lambda message: events.append(message["event"]))
    answer = watch.watch(Session(machine), {"service": "kimi", "port": 1, "cursor": "0", **args}, call)
    return events, answer


def test_a_fatal_line_ends_it_and_the_lines_before_are_passed_on(machine: FakeMachine, service: FakeService) -> None:
    machine.engines["0001-a"] = Engine(log=("loading", "Traceback"), ready_after=None)
    service.make_live("0001-a")
    events, answer = watched(machine, fatal=["^Trace"])
    assert (answer["proof"], answer["detail"]["pattern"]) == ("fatal-line", "^Trace")
    logged = [line["text"] for event in events if event["kind"] == "log" for line in event["lines"]]
    assert logged == ["loading", "Traceback"]
    assert events[-1]["kind"] == "failed"


def test_a_stranger_on_the_port_is_not_taken_for_the_server(machine: FakeMachine, service: FakeService) -> None:
    machine.engines["0001-a"] = Engine(ready_after=None)
    service.make_live("0001-a")
    machine.strangers = [{"pid": 7, "comm": "nginx", "cgroup": None, "unit": None, "address": "127.0.0.1", "port": 1}]
    assert watched(machine)[1]["proof"] == "not-ours"
