"""The guard on a machine in memory: its decision table, and what it does about it with the agent's own code."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from deployer.host.agent import guard
from deployer.host.agent.base import Fail
from deployer.host.agent.converge import Converging
from deployer.host.agent.lease import Session, lease_view, read_lease
from deployer.host.agent.transition import GUARD_DONE
from deployer.records.host import GuardState
from tests.fakes.host import FakeService
from tests.fakes.machine import Engine, FakeMachine
from tests.unit.host.agent.conftest import OWNER, PORT, Operator

LIVE, TO = "0001-a", "0002-b"


@pytest.fixture
def service(machine: FakeMachine) -> FakeService:
    """A service whose live release is up."""
    service = FakeService(machine, "kimi")
    service.make_live(LIVE)
    return service


def look(machine: FakeMachine) -> bool:
    """What the guard does twice a second."""
    return guard.look(guard.OwnOperator(machine), FakeService(machine, "kimi"))


def is_restored(service: FakeService) -> bool:
    return (service.release, service.candidate, service.transition()) == (LIVE, None, None)


def leave_dead(service: FakeService, operator: Operator, **transition: Any) -> None:
    """The operator goes while a candidate is started that has ended."""
    operator.attempt(TO, **transition)
    service.end()
    operator.leave()


def audit(service: FakeService) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(service.folder, "audit.jsonl").read_text().splitlines()]


# --- the decision table -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"boot_id": "other", "running": LIVE}, "converge"),
        ({"live": TO, "running": TO, "candidate": True}, "converge"),
        ({"running": LIVE}, "forget"),
        ({"running": TO}, "converge"),
        ({}, "converge"),
        ({"running": LIVE, "unit": {"active": "deactivating"}}, "wait"),
        ({"running": LIVE, "unit": {"active": "deactivating"}, "since": 61}, "converge"),
        ({"candidate": True, "running": TO}, "wait"),
        ({"candidate": True, "running": TO, "since": 601}, "converge"),
        ({"candidate": True, "running": TO, "unit": {"active": "activating"}}, "wait"),
        ({"candidate": True, "running": TO, "step": "restore"}, "converge"),
        ({"candidate": True, "unit": {"active": "failed"}}, "converge"),
        ({"candidate": True, "unit": {"active": "inactive"}}, "converge"),
        ({"candidate": True, "unit": {"active": "activating", "sub": "auto-restart"}}, "converge"),
        ({"candidate": True, "running": TO, "unit": {"restarts": 1}}, "converge"),
        ({"candidate": True, "running": TO, "unit": {"invocation": "later"}}, "converge"),
        ({"candidate": True, "running": TO, "invocation_id": None}, "wait"),
    ],
)
def test_the_guards_table(machine: FakeMachine, facts: dict[str, Any], expected: str) -> None:
    service, facts = FakeService(machine, "kimi"), dict(facts)
    release, since = facts.pop("running", None), facts.pop("since", 0.0)
    texts = {service.live_path: facts.pop("live", LIVE)}
    texts |= {service.candidate_path: TO} if facts.pop("candidate", False) else {}
    for path, name in texts.items():
        Path(path).write_text(f"[X-Deployer]\nRelease={name}\n")
    unit = machine.unit(service.unit)
    unit.pid, unit.active, unit.release, unit.invocation = (7 if release else 0), "active", release, "i"
    for name, value in facts.pop("unit", {}).items():
        setattr(unit, name, value)
    record = {"to": TO, "boot_id": machine.boot_id, "grace": 600, "stop_timeout": 60, "invocation_id": "i"}
    ended = {"boot_id": machine.boot_id, "expires_boottime": machine.boottime() - since}
    assert guard.verdict(service, {**record, **facts}, ended)[0] == expected


# --- what it does -----------------------------------------------------------------------------------------------


def test_it_is_over_when_there_is_no_transition(machine: FakeMachine, service: FakeService) -> None:
    assert not look(machine)
    assert guard.guard(machine, "kimi") == GUARD_DONE
    assert not Path(service.folder, "audit.jsonl").exists()


def test_it_leaves_an_operator_alone(machine: FakeMachine, service: FakeService, operator: Operator) -> None:
    operator.attempt(TO)
    service.end()
    assert look(machine)
    assert (service.release, service.transition() is None) == (None, False)


def test_an_operator_who_goes_silent_is_replaced_when_the_lease_expires(
    machine: FakeMachine, service: FakeService, operator: Operator
) -> None:
    operator.attempt(TO)
    service.end()
    machine.sleep(61.0)
    assert look(machine)
    assert is_restored(service)
    with pytest.raises(Fail) as caught:
        operator("transition.step", step="wait")
    assert caught.value.code == "lease-lost"
    lease = lease_view(machine, read_lease(machine)) or {}
    assert (lease["owner"]["command"], lease["state"]) == ("guard", "released")


def test_an_old_server_that_was_not_stopped_goes_on(
    machine: FakeMachine, service: FakeService, operator: Operator
) -> None:
    operator.begin(TO)
    operator.leave()
    before = machine.unit(service.unit).invocation
    look(machine)
    assert is_restored(service)
    assert machine.unit(service.unit).invocation == before
    assert service.manifest(TO)["state"] == "abandoned"
    assert audit(service)[-1]["op"] == "guard.forget"


def test_a_server_that_was_stopped_is_started_again(
    machine: FakeMachine, service: FakeService, operator: Operator
) -> None:
    operator.begin(TO)
    operator("unit.stop")
    operator.leave()
    look(machine)
    assert is_restored(service)
    line = audit(service)[-1]
    assert (line["op"], line["args"]["why"]) == (
        "guard.converge",
        "nothing is running and there is no candidate",
    )
    assert line["result"].startswith("ok: ")


def test_a_failed_candidate_is_replaced_at_once(machine: FakeMachine, service: FakeService, operator: Operator) -> None:
    machine.engines[TO] = Engine(fails_after=0.0)
    operator.attempt(TO)
    operator.leave()
    look(machine)
    assert is_restored(service)
    assert (service.manifest(LIVE)["state"], service.manifest(TO)["state"]) == ("live", "abandoned")


def test_a_healthy_candidate_has_its_grace(machine: FakeMachine, service: FakeService, operator: Operator) -> None:
    operator.attempt(TO)
    operator.leave()
    machine.sleep(590.0)
    assert look(machine)
    assert service.release == TO
    machine.sleep(20.0)
    look(machine)
    assert is_restored(service)


def test_a_promoted_release_is_kept_without_a_restart(
    machine: FakeMachine, service: FakeService, operator: Operator
) -> None:
    start = operator.attempt(TO)
    operator.promote(TO, LIVE, start)
    operator.leave()
    look(machine)
    assert (service.release, service.live_release(), service.candidate) == (TO, TO, None)
    assert machine.unit(service.unit).invocation == start["invocation_id"]
    assert [service.manifest(name)["state"] for name in (LIVE, TO)] == ["superseded", "live"]


def test_without_a_live_release_nothing_is_left_running(machine: FakeMachine) -> None:
    service, operator = FakeService(machine, "kimi"), Operator(machine)
    operator.take_lease()
    operator.attempt(TO)
    operator.leave()
    machine.sleep(601.0)
    look(machine)
    assert (service.release, service.live, service.candidate, service.transition()) == (
        None,
        None,
        None,
        None,
    )
    assert not service.is_enabled()


def test_a_service_that_its_admin_had_stopped_stays_down(
    machine: FakeMachine, service: FakeService, operator: Operator
) -> None:
    service.end("inactive")
    Path(service.enable_link).unlink()
    leave_dead(service, operator)
    look(machine)
    assert (service.release, service.transition()) == (None, None)
    assert not service.is_enabled()


def test_a_server_that_does_not_stop_is_waited_for_and_then_killed(
    machine: FakeMachine, service: FakeService, operator: Operator
) -> None:
    machine.unit(service.unit).stops = False
    operator.begin(TO)
    machine.systemctl("stop", service.unit)
    operator.leave()
    assert look(machine)
    assert machine.unit(service.unit).active == "deactivating"
    machine.sleep(11.0)
    look(machine)
    assert is_restored(service)
    assert "stopped what was not live" in audit(service)[-1]["result"]


def test_a_damaged_record_is_set_aside_and_the_live_release_served(
    machine: FakeMachine, service: FakeService, operator: Operator
) -> None:
    operator.attempt(TO)
    Path(service.transition_path).write_text("{")
    operator.leave()
    look(machine)
    assert is_restored(service)
    assert len(list(Path(service.folder).glob("transition.json.corrupt-*"))) == 1


def test_somebody_who_takes_over_between_look_and_lease_is_not_disturbed(
    machine: FakeMachine, service: FakeService, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_dead(service, operator)
    verdict = guard.verdict

    def overtaken(*args: Any) -> tuple[str, str]:
        Operator(machine).take_lease()
        return verdict(*args)

    monkeypatch.setattr(guard, "verdict", overtaken)
    with pytest.raises(Fail) as caught:
        look(machine)
    assert caught.value.code == "lease-held"
    assert service.transition() is not None


def test_it_goes_on_until_it_succeeds(
    machine: FakeMachine, service: FakeService, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that cannot be converged now, or whose disk is full, may recover; nobody else is there."""
    leave_dead(service, operator)
    troubles: list[Exception] = [
        Fail("shadowed", "it is masked"),
        OSError(errno.ENOSPC, "No space left on device"),
    ]
    finish, begun = guard.finish, machine.boottime()

    def troubled(session: Session, *args: Any) -> None:
        if troubles:
            session.finish("released")
            raise troubles.pop()
        finish(session, *args)

    monkeypatch.setattr(guard, "finish", troubled)
    assert guard.guard(machine, "kimi") == GUARD_DONE
    assert is_restored(service)
    assert machine.boottime() - begun > 2 * guard.AGAIN


def test_its_own_lease_does_not_expire_while_it_works(
    machine: FakeMachine, service: FakeService, operator: Operator
) -> None:
    machine.engines[LIVE] = Engine(ready_after=None)
    machine.unit(service.unit).stops = False
    operator.begin(TO, stop_timeout=100.0)
    machine.systemctl("stop", service.unit)
    operator.leave()
    machine.sleep(101.0)
    look(machine)
    assert is_restored(service), "although stopping alone took longer than its lease lives"


@pytest.mark.parametrize("setting", [6.0, None])
def test_its_lease_lives_as_long_as_an_operators(
    machine: FakeMachine, service: FakeService, operator: Operator, monkeypatch: pytest.MonkeyPatch, setting: float
) -> None:
    leave_dead(service, operator, **({"lease": setting} if setting else {}))
    killed_in_converge(machine, monkeypatch, 999_999)
    assert (read_lease(machine) or {})["ttl"] == (setting or guard.TTL)


def test_nobody_else_is_let_in_between_its_renewals(
    machine: FakeMachine, service: FakeService, operator: Operator
) -> None:
    """What it asks of the machine may take longer than its lease lives."""
    leave_dead(service, operator, lease=6.0)
    slow = machine.journal_cursor

    def journal_cursor() -> str:
        machine.sleep(8.0)
        return slow()

    machine.journal_cursor = journal_cursor  # type: ignore[method-assign]
    look(machine)
    assert is_restored(service)


class Killed(BaseException):
    """The process ends here, as by SIGKILL: nothing of it runs on."""


def killed_in_converge(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, pid: int) -> None:
    """A guard with this process id takes the lease and is killed while it converges."""

    def killed(*args: Any, **options: Any) -> Any:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("os.getpid", lambda: pid)
        patched.setattr(machine, "birth", lambda number: number * 7)
        patched.setattr(Session, "finish", killed)
        patched.setattr(Converging, "run", killed)
        with pytest.raises(Killed):
            look(machine)


@pytest.mark.parametrize("pid", ["gone", "given to another process"])
def test_a_guard_takes_up_the_work_of_the_one_before_at_once(
    machine: FakeMachine, service: FakeService, operator: Operator, monkeypatch: pytest.MonkeyPatch, pid: str
) -> None:
    leave_dead(service, operator)
    killed_in_converge(machine, monkeypatch, 999_999)
    if pid != "gone":
        machine.left[999_999] = None
        monkeypatch.setattr(machine, "birth", lambda number: 8)
    begun = machine.boottime()
    look(machine)
    assert is_restored(service)
    assert machine.boottime() - begun < 5.0


@pytest.mark.parametrize("other", ["alive", "of another service", "an operator's"])
def test_a_guard_takes_no_other_lease(
    machine: FakeMachine, service: FakeService, operator: Operator, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    leave_dead(service, operator)
    owner: dict[str, Any] = {"user": "root", "host": "localhost", "pid": 999_999, "command": "guard"}
    if other == "alive":
        monkeypatch.setattr(machine, "birth", lambda pid: 8)
        owner["start"] = 8
    if other == "an operator's":
        owner = OWNER
    Session(machine).acquire(owner, "mini" if other == "of another service" else "kimi", "", 60.0)
    assert look(machine)
    assert service.transition() is not None
    machine.sleep(61.0)
    look(machine)
    assert is_restored(service)


def test_it_stays_until_the_live_release_is_healthy(
    machine: FakeMachine, service: FakeService, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.engines[LIVE] = Engine(ready_after=200.0)
    leave_dead(service, operator, ready_timeout=600.0)
    began = machine.boottime()
    look(machine)
    assert is_restored(service)
    assert machine.boottime() - began >= 200.0
    assert audit(service)[-1]["result"].endswith("; serving; transition removed")


def test_a_live_release_that_does_not_become_healthy_is_told(
    machine: FakeMachine, service: FakeService, operator: Operator
) -> None:
    machine.engines[LIVE] = Engine(ready_after=None)
    leave_dead(service, operator, ready_timeout=20.0)
    look(machine)
    deed = service.last_deed() or {}
    assert deed["result"].startswith("no answer of /health within 20 s: ")


def test_one_that_is_stopped_in_the_middle_gives_its_lease_back(
    machine: FakeMachine, service: FakeService, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_dead(service, operator)

    def stopped(*args: Any) -> Any:
        raise SystemExit(0)

    with monkeypatch.context() as patched:
        patched.setattr(Converging, "run", stopped)
        with pytest.raises(SystemExit):
            look(machine)
    lease = lease_view(machine, read_lease(machine)) or {}
    assert (lease["owner"]["command"], lease["valid"]) == ("guard", False)
    assert (service.last_deed() or {})["result"] == "stopped"
    look(machine)
    assert is_restored(service)


def test_one_that_comes_after_it_stays_as_well(
    machine: FakeMachine, service: FakeService, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.engines[LIVE] = Engine(ready_after=200.0)
    leave_dead(service, operator, ready_timeout=600.0)
    with monkeypatch.context() as patched:
        patched.setattr("os.getpid", lambda: 999_999)
        patched.setattr(Session, "finish", lambda *args: None)
        patched.setattr(Converging, "await_ready", lambda *args: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            look(machine)
    assert service.release == LIVE, "it is loading"
    began = machine.boottime()
    look(machine)
    assert is_restored(service)
    assert machine.boottime() - began > 100.0


def test_what_it_did_last_can_be_seen(machine: FakeMachine, service: FakeService, operator: Operator) -> None:
    assert operator("observe", services=[{"service": "kimi"}])["services"]["kimi"]["guard"]["last"] is None
    leave_dead(service, operator)
    look(machine)
    seen = operator("observe", services=[{"service": "kimi"}])["services"]["kimi"]
    deed = GuardState.from_json(seen["guard"]).last
    assert deed is not None
    assert (deed.by, deed.what, deed.why) == ("guard", "converge", "the candidate is failed")
    assert deed.result.startswith("ok: ")
    assert seen["problems"] == []


# --- after a power cut ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("enabled", [True, False])
def test_recover_tidies_a_transition_of_another_boot(
    machine: FakeMachine, service: FakeService, operator: Operator, enabled: bool
) -> None:
    if not enabled:
        Path(service.enable_link).unlink()
    operator.attempt(TO)
    machine.reboot()
    assert guard.recover(machine, "kimi") == 0
    assert (service.candidate, service.transition()) == (None, None)
    assert service.release == (LIVE if enabled else None)
    assert service.is_enabled() == enabled
    assert audit(service)[-1]["op"] == "recover.converge"


def test_a_recovery_that_was_killed_blocks_no_other(
    machine: FakeMachine, service: FakeService, operator: Operator
) -> None:
    operator.attempt(TO)
    machine.reboot()
    owner = {"user": "root", "host": "localhost", "pid": 999_999, "command": "recover"}
    Session(machine).acquire(owner, "kimi", "", 60.0)
    assert guard.recover(machine, "kimi") == 0
    assert service.transition() is None


def test_recover_leaves_a_transition_of_this_boot_to_the_guard(
    machine: FakeMachine, service: FakeService, operator: Operator
) -> None:
    operator.attempt(TO)
    assert guard.recover(machine, "kimi") == 0
    assert service.transition() is not None


def test_a_lease_does_not_outlive_the_boot(machine: FakeMachine, operator: Operator) -> None:
    operator("lease.renew")
    machine.reboot()
    Operator(machine).take_lease()
    with pytest.raises(Fail, match="taken over by ann@desk"):
        operator("lease.renew")
    assert OWNER["command"] == "apply"


def test_the_port_is_the_transitions(
    machine: FakeMachine, service: FakeService, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports: list[int] = []
    http = machine.http

    def counted(address: str, port: int, *rest: Any) -> Any:
        ports.append(port)
        return http(address, port, *rest)

    monkeypatch.setattr(machine, "http", counted)
    leave_dead(service, operator)
    look(machine)
    assert set(ports) == {PORT}
