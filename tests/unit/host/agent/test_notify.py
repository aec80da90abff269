"""What the host tells others of what it did by itself: when, what, to whom, and what stays secret."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deployer.host.agent import guard
from deployer.host.agent.base import Fail
from deployer.host.agent.converge import Converging
from deployer.host.agent.main import main
from deployer.host.agent.notify import ATTEMPTS, deliver, notify
from tests.fakes.host import FakeService
from tests.fakes.machine import Engine, FakeMachine
from tests.unit.host.agent.conftest import Operator

LIVE, TO, SECRET = "0001-a", "0002-b", "s3cr3t"
HOOKS: dict[str, Any] = {
    "host": "gpu1",
    "programs": {"after_restore": ["/opt/page", "x"]},
    "timeout": 30.0,
    "webhook": {
        "url": f"https://x.example/{SECRET}",
        "headers": {"X-Key": SECRET},
        "events": ["after_promote", "after_restore"],
        "format": "facts",
        "timeout": 10.0,
    },
    "metrics_dir": None,
}


@pytest.fixture
def service(machine: FakeMachine, operator: Operator) -> FakeService:
    """A service whose live release is up, on a host with hooks."""
    service = FakeService(machine, "kimi")
    service.make_live(LIVE)
    operator("hooks.set", hooks=HOOKS)
    return service


def look(machine: FakeMachine) -> bool:
    return guard.look(guard.OwnOperator(machine), FakeService(machine, "kimi"))


def deliver_all(machine: FakeMachine) -> list[dict[str, Any]]:
    """What the webhook gets when the notifier has run."""
    machine.posts.clear()
    assert deliver(machine, "kimi") == 0
    return [body for _, body, _ in machine.posts]


def leave_dead(service: FakeService, operator: Operator) -> None:
    operator.attempt(TO)
    service.end()
    operator.leave()


def test_what_the_guard_did_is_told_once_with_the_documented_facts(
    machine: FakeMachine, service: FakeService, operator: Operator
) -> None:
    leave_dead(service, operator)
    assert look(machine)
    assert not look(machine)
    assert len(machine.asked) == 1
    facts = deliver_all(machine)[0]
    assert facts.pop("time") > 0
    assert facts.pop("schema") == 1
    assert facts == {
        "event": "after_restore",
        "service": "kimi",
        "host": "gpu1",
        "release": LIVE,
        "profile": None,
        "previous": TO,
        "by": "guard@gpu1",
        "reason": "the candidate is failed",
        "serving": True,
        "side": "host",
    }
    assert machine.posts[0][2] == {"X-Key": SECRET}
    assert machine.programs[0][0] == ["/opt/page", "x"]
    assert deliver_all(machine) == []


def test_the_notifier_waits_for_the_network_and_nobody_for_it(
    machine: FakeMachine, service: FakeService, operator: Operator
) -> None:
    notify(service, "guard", "why", True)
    argv = machine.asked[0]
    assert argv[:3] == ["systemd-run", "--no-block", "--collect"]
    for name in ("After=network-online.target", "Wants=network-online.target", "IgnoreOnIsolate=yes"):
        assert f"--property={name}" in argv
    assert argv[-2:] == ["notify", "kimi"]
    assert SECRET not in " ".join(argv)


def test_the_secret_is_in_a_file_of_roots_and_nowhere_else(
    machine: FakeMachine, service: FakeService, operator: Operator, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_dead(service, operator)
    look(machine)
    machine.statuses = [500] * ATTEMPTS
    deliver_all(machine)
    files = [path for path in Path(machine.folder).rglob("*") if path.is_file() and SECRET in path.read_text()]
    assert files == [Path(service.hooks_path)]
    assert files[0].stat().st_mode & 0o777 == 0o600
    printed = capsys.readouterr()
    assert SECRET not in printed.out + printed.err


def test_hooks_follow_the_inventory(machine: FakeMachine, service: FakeService, operator: Operator) -> None:
    path = Path(service.hooks_path)
    assert not operator("hooks.set", hooks=HOOKS)["changed"]
    path.chmod(0o644)
    assert operator("hooks.set", hooks=HOOKS)["changed"], "others could read it"
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("{")
    assert operator("hooks.set", hooks=HOOKS)["changed"]
    assert operator("hooks.set", hooks=None)["changed"]
    assert not path.exists()
    notify(service, "guard", "why", True)
    assert machine.asked == []
    with pytest.raises(Fail, match="no lease"):
        Operator(machine)("hooks.set", hooks=HOOKS)


def test_a_failure_that_repeats_is_told_once(
    machine: FakeMachine, service: FakeService, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_dead(service, operator)

    def fail(self: Converging) -> Any:
        raise Fail("port-taken", "taken by nginx")

    with monkeypatch.context() as patch:
        patch.setattr(Converging, "run", fail)
        for _ in range(3):
            with pytest.raises(Fail, match="nginx"):
                look(machine)
    assert look(machine)
    told = deliver_all(machine)
    assert [facts["serving"] for facts in told] == [False, True]
    assert "port-taken: taken by nginx" in told[0]["reason"]


def test_a_guard_that_an_operator_stopped_or_took_over_from_tells_nothing(
    machine: FakeMachine, service: FakeService, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_dead(service, operator)
    for end in (SystemExit(0), Fail("lease-lost", "taken over")):

        def fail(self: Converging, end: BaseException = end) -> Any:
            raise end

        with monkeypatch.context() as patch:
            patch.setattr(Converging, "run", fail)
            with pytest.raises(type(end)):
                look(machine)
    assert machine.asked == []


def test_recovery_does_not_know_whether_it_serves(
    machine: FakeMachine, service: FakeService, operator: Operator
) -> None:
    operator.attempt(TO)
    machine.reboot()
    guard.recover(machine, "kimi")
    (facts,) = deliver_all(machine)
    assert (facts["by"], facts["serving"], facts["event"]) == ("recover@gpu1", None, "after_restore")


def test_a_promoted_release_is_told_as_promoted(machine: FakeMachine, service: FakeService, operator: Operator) -> None:
    start = operator.attempt(TO, **{"from": LIVE})
    operator.promote(TO, LIVE, start)
    operator.leave()
    look(machine)
    (facts,) = deliver_all(machine)
    assert (facts["event"], facts["release"], facts["previous"]) == ("after_promote", TO, LIVE)
    assert machine.programs == []


@pytest.mark.parametrize(
    ("statuses", "calls", "result"),
    [
        ([503, 200], 2, "ok"),
        ([Fail("http", "ConnectionRefusedError"), 204], 2, "ok"),
        ([404], 1, "the webhook was not called: it answered 404"),
        ([302], 1, "the webhook was not called: it answered 302"),
        ([500] * ATTEMPTS, ATTEMPTS, "the webhook was not called: it answered 500"),
    ],
)
def test_attempts_are_bounded_and_the_audit_says_what_came_of_them(
    machine: FakeMachine, service: FakeService, statuses: list[Any], calls: int, result: str
) -> None:
    notify(service, "guard", "why", True)
    machine.statuses = statuses
    assert len(deliver_all(machine)) == calls
    line = json.loads(Path(service.folder, "audit.jsonl").read_text().splitlines()[-1])
    assert (line["op"], line["result"]) == ("notify", result)


def test_slack_gets_one_sentence_without_markup(machine: FakeMachine, service: FakeService, operator: Operator) -> None:
    operator("hooks.set", hooks={**HOOKS, "webhook": {**HOOKS["webhook"], "format": "slack"}})
    notify(service, "guard", "<b> & co", False, previous=TO)
    text = f"kimi on gpu1: after restore of {LIVE} (before: {TO}); NOT serving: &lt;b&gt; &amp; co"
    assert deliver_all(machine) == [{"text": text}]


def test_a_disk_that_is_gone_stops_nobody(
    machine: FakeMachine, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "volatile_dir", "/proc/no")
    notify(service, "guard", "why", True)
    assert machine.asked == []


def test_the_notifier_is_a_way_to_run_the_agent(monkeypatch: pytest.MonkeyPatch, machine: FakeMachine) -> None:
    monkeypatch.setattr("deployer.host.agent.main.Machine", lambda: machine)
    assert main(["notify", "kimi"]) == 0


def test_a_server_that_needs_time_is_waited_for(machine: FakeMachine, service: FakeService, operator: Operator) -> None:
    machine.engines[LIVE] = Engine(ready_after=5.0)
    leave_dead(service, operator)
    look(machine)
    assert deliver_all(machine)[0]["serving"] is True
