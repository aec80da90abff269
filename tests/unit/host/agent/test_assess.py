"""After a boot, on a machine in memory: the live release is waited for; else the last good one is tried, once."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from deployer.host.agent import assess as assessing
from deployer.host.agent import guard
from deployer.host.agent.assess import Assessment, assess
from deployer.host.agent.base import Fail
from deployer.host.agent.converge import Converging
from deployer.host.agent.lease import Session, lease_view, read_lease
from deployer.host.agent.notify import deliver
from deployer.records.host import BootReport
from tests.fakes.host import FakeService
from tests.fakes.machine import Engine, FakeMachine
from tests.unit.host.agent.conftest import OWNER, PORT, Operator

GOOD, LIVE, NEW = "0001-a", "0002-b", "0003-c"
WORKS = {"/generate": (200, "{}")}
SICK = Engine(fails_after=0.0)


def put(service: FakeService, release: str, previous: str | None, **manifest: Any) -> None:
    """A release that is live, and was promoted over another."""
    text = f"[X-Deployer]\nRelease={release}\n"
    service.make_live(release)
    facts = {"previous": previous, "was_live": True, "argv": ["sglang", "--port", str(PORT)], "ready_timeout": 100.0}
    files = {"unit": text, "unit.candidate": text}
    service.keep(release, {"state": "live", "promoted": 1.0, **facts, **manifest}, files)


@pytest.fixture
def service(machine: FakeMachine) -> FakeService:
    """A service whose second release is live; both work, and the host was booted."""
    service = FakeService(machine, "kimi")
    machine.engines.update({name: Engine(http=WORKS) for name in (GOOD, LIVE)})
    put(service, GOOD, None)
    put(service, LIVE, GOOD)
    boot(service)
    return service


def boot(service: FakeService) -> None:
    """Boot the host: recovery runs, then systemd starts what is enabled."""
    service.machine.reboot()
    guard.recover(service.machine, service.name)
    if service.is_enabled() and service.machine.fragment(service.unit):
        service.restart()


def assessed(service: FakeService) -> BootReport:
    assert assess(service.machine, service.name) == 0
    lease = lease_view(service.machine, read_lease(service.machine))
    assert not (lease and lease["valid"] and lease["owner"]["command"] == "assess"), "it keeps the lease"
    return BootReport.from_json(service.last_boot() or {})


def ends(service: FakeService) -> tuple[str | None, str | None]:
    """What is live and what runs, where nothing of a change is left."""
    assert (service.candidate, service.transition()) == (None, None)
    return service.live_release(), service.release


def audit(service: FakeService) -> list[dict[str, Any]]:
    path = Path(service.folder, "audit.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


# --- the live release comes up ----------------------------------------------------------------------------------


def test_a_healthy_boot_changes_nothing_and_says_so(service: FakeService) -> None:
    invocation = service.state()["InvocationID"]
    report = assessed(service)
    assert (report.outcome, report.release, report.tried) == ("healthy", LIVE, None)
    assert str(report).partition(": ")[2].startswith("assessed: 0002-b serves, ")
    assert service.state()["InvocationID"] == invocation
    assert read_lease(service.machine) is None, "to look, no lease is taken"
    assert [line["op"] for line in audit(service)] == ["assess.healthy"]


def test_it_is_assessed_once_a_boot(service: FakeService) -> None:
    assessed(service)
    service.end()
    assert assessed(service).outcome == "healthy"
    assert ends(service) == (LIVE, None)
    assert len(audit(service)) == 1


def test_a_release_that_loads_is_waited_for_as_long_as_its_start_may_take(service: FakeService) -> None:
    service.machine.engines[LIVE] = Engine(http=WORKS, ready_after=90.0)
    assert assessed(service).outcome == "healthy"
    service.machine.engines[LIVE] = Engine(http=WORKS, ready_after=130.0)
    boot(service)
    report = assessed(service)
    assert report.outcome == "fell-back"
    assert "no answer of /health within 100 s" in report.text


def test_a_restart_by_systemd_is_waited_for(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = service.machine.unit(service.unit)
    unit.active, unit.sub, unit.pid = "activating", "auto-restart", 0
    sleep = service.machine.sleep

    def later(seconds: float) -> None:
        sleep(seconds)
        if unit.sub:
            unit.sub = ""
            service.restart()

    monkeypatch.setattr(service.machine, "sleep", later)
    assert assessed(service).outcome == "healthy"


def test_health_without_a_generation_is_not_enough(service: FakeService) -> None:
    service.machine.engines[LIVE] = Engine(http={"/generate": (500, "")})
    assert "status 500" in assessed(service).text
    assert ends(service) == (GOOD, GOOD)


def test_the_key_of_the_release_is_shown(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    service.machine.write_file(f"{service.release_dir(LIVE)}/config.yaml", 'api-key: "k-7"\n', 0o600)
    seen: list[Any] = []
    http = service.machine.http

    def watched(*words: Any) -> Any:
        seen.append(words)
        return http(*words)

    monkeypatch.setattr(service.machine, "http", watched)
    assessed(service)
    assert seen[-1][-1]["Authorization"] == "Bearer k-7"
    assert "k-7" not in json.dumps([audit(service), service.last_boot()])


# --- it does not ------------------------------------------------------------------------------------------------


def test_the_last_good_release_takes_its_place(service: FakeService) -> None:
    service.machine.engines[LIVE] = SICK
    report = assessed(service)
    assert (report.outcome, report.release) == ("fell-back", GOOD)
    assert report.tried is not None
    assert (report.tried.from_, report.tried.to, report.tried.result) == (LIVE, GOOD, "live")
    assert report.tried.why == "its unit is failed (exit-code)"
    assert ends(service) == (GOOD, GOOD)
    assert {item["release"]: item["state"] for item in service.manifests()} == {GOOD: "live", LIVE: "superseded"}
    assert [line["op"] for line in audit(service)] == ["assess.try", "assess.fell-back"]


@pytest.mark.parametrize(("sick", "serving"), [((), None), ((LIVE,), True), ((LIVE, GOOD), False)])
def test_others_are_told_if_the_live_release_did_not_come_up(
    service: FakeService, machine: FakeMachine, sick: tuple[str, ...], serving: bool | None
) -> None:
    hooks = {"host": "gpu1", "programs": {"after_restore": ["/opt/page"]}, "timeout": 1.0}
    machine.write_json(service.hooks_path, {**hooks, "webhook": None, "metrics_dir": None}, 0o600)
    machine.engines.update(dict.fromkeys(sick, SICK))
    assessed(service)
    assessed(service)
    deliver(machine, service.name)
    told = [(facts["by"], facts["release"], facts["serving"]) for _, facts in machine.programs]
    expected = [] if serving is None else [("assess@gpu1", GOOD if serving else LIVE, serving)]
    assert told == expected


def test_if_that_fails_as_well_it_stops_there(service: FakeService) -> None:
    service.machine.engines.update({LIVE: SICK, GOOD: SICK})
    report = assessed(service)
    assert report.outcome == "failed"
    assert "nor did 0001-a (its unit is failed (exit-code)); nothing more is tried" in report.text
    assert ends(service) == (LIVE, None)
    assert service.is_enabled()


def test_what_failed_once_is_not_tried_at_the_next_boot(service: FakeService) -> None:
    service.machine.engines.update({LIVE: SICK, GOOD: SICK})
    assessed(service)
    service.machine.engines[GOOD] = Engine(http=WORKS)
    boot(service)
    assert "was tried in the place of 0002-b after an earlier boot" in assessed(service).text
    assert ends(service) == (LIVE, None)
    # A boot at which it comes up by itself settles the matter.
    service.machine.engines[LIVE] = Engine(http=WORKS)
    boot(service)
    assert assessed(service).tried is None
    service.machine.engines[LIVE] = SICK
    boot(service)
    assert assessed(service).outcome == "fell-back"


def test_it_never_goes_to_and_fro_over_boots(service: FakeService) -> None:
    put(service, GOOD, LIVE)  # as after a rollback: each has replaced the other
    put(service, LIVE, GOOD)
    service.machine.engines[LIVE] = SICK
    boot(service)
    assert assessed(service).release == GOOD
    service.machine.engines.update({LIVE: Engine(http=WORKS), GOOD: SICK})
    for _ in range(2):
        boot(service)
        report = assessed(service)
        assert (report.outcome, report.release) == ("failed", GOOD)
        assert ends(service) == (GOOD, None)


def test_a_promotion_renews_the_try(service: FakeService) -> None:
    service.machine.engines[LIVE] = SICK
    assessed(service)
    put(service, NEW, GOOD)
    service.machine.engines[NEW] = SICK
    boot(service)
    assert assessed(service).release == GOOD
    put(service, LIVE, GOOD, promoted=service.last_boot()["t"] + 60.0)  # type: ignore[index]
    boot(service)
    assert assessed(service).outcome == "fell-back"


def test_the_first_release_has_nothing_to_fall_back_to(service: FakeService) -> None:
    put(service, NEW, None)
    service.machine.engines[NEW] = SICK
    boot(service)
    assert "there is no earlier release to try" in assessed(service).text
    assert ends(service) == (NEW, None)


@pytest.mark.parametrize("damage", ["never live", "no unit", "another's candidate", "no port"])
def test_a_release_that_cannot_be_started_is_passed_over(service: FakeService, damage: str) -> None:
    put(service, NEW, LIVE)
    service.machine.engines.update({NEW: SICK, LIVE: SICK})
    if damage == "never live":
        put(service, LIVE, GOOD, was_live=False)
        put(service, NEW, LIVE)
    elif damage == "no unit":
        Path(service.release_dir(LIVE), "unit").unlink()
    elif damage == "no port":
        put(service, LIVE, GOOD, argv=["sglang"])
        put(service, NEW, LIVE)
    else:
        Path(service.release_dir(LIVE), "unit.candidate").write_text("[X-Deployer]\nRelease=0009-x\n")
    boot(service)
    assert assessed(service).release == GOOD


def systemd_logs(service: FakeService, **fields: str) -> None:
    """Let systemd log about the service's last run."""
    machine, run = service.machine, service.state()["InvocationID"]
    stamps = {"__CURSOR": str(len(machine.journal) + 1), "__REALTIME_TIMESTAMP": str(round(time.time() * 1e6))}
    machine.journal.append({**stamps, "_PID": "1", "MESSAGE": "", "unit": service.unit, "invocation": run, **fields})


@pytest.mark.parametrize("active", ["inactive", "failed"])
def test_a_server_that_ends_by_itself_was_not_stopped(service: FakeService, active: str) -> None:
    service.end(active)
    systemd_logs(service, MESSAGE_ID=assessing.STOPPED, JOB_TYPE="restart")
    report = assessed(service)
    assert report.outcome == "fell-back"
    assert f"its unit is {active}" in report.text


# --- somebody else decides --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("stopped", "it was stopped"),
        ("killed at its stop", "it was stopped"),
        ("stopped, and it failed", "it was stopped"),
        ("disabled", "it is not enabled"),
        ("masked", "it is masked"),
        ("changed", "it is being changed by ann@desk (apply)"),
        ("left in a change", "a change of it is under way"),
        ("on hold", "did not come up (its unit is failed (exit-code)); on hold by ann@desk (apply): cabling"),
        ("displaced", "sglang-mini.service runs, on the same GPUs or port"),
    ],
)
def test_what_an_admin_or_operator_has_decided_is_left_alone(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, deed: str, words: str
) -> None:
    machine = service.machine
    machine.engines[LIVE] = SICK
    facts: dict[str, Any] = {}
    if deed == "stopped":
        service.end("inactive")
    elif deed == "killed at its stop":
        facts = {"Result": "timeout"}
    elif deed == "stopped, and it failed":
        systemd_logs(service, MESSAGE_ID=assessing.STOPPED, JOB_TYPE="stop")
    elif deed == "disabled":
        Path(service.enable_link).unlink()
    elif deed == "masked":
        facts = {"LoadState": "masked"}
    elif deed == "changed":
        Operator(machine).take_lease()
    elif deed == "left in a change":
        operator = Operator(machine)
        operator.take_lease()
        operator.begin(NEW)
        operator.leave()
    elif deed == "on hold":
        Operator(machine)("hold.set", owner=OWNER, reason="cabling")
    elif deed == "displaced":
        FakeService(machine, "mini").make_live("0001-m")
        candidate = Path(service.release_dir(GOOD), "unit.candidate")
        candidate.write_text(f"[Unit]\nConflicts=sglang-mini.service x.service\n{candidate.read_text()}")
    state = machine.unit_state
    monkeypatch.setattr(machine, "unit_state", lambda unit: {**state(unit), **facts})
    report = assessed(service)
    assert report.outcome == "left"
    assert words in report.text
    assert service.live_release() == LIVE
    assert report.tried is None


def test_an_operator_who_comes_meanwhile_is_left_alone(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    service.machine.engines[LIVE] = Engine(ready_after=None)
    sleep = service.machine.sleep

    def later(seconds: float) -> None:
        sleep(seconds)
        if read_lease(service.machine) is None:
            Operator(service.machine).take_lease(ttl=3600.0)

    monkeypatch.setattr(service.machine, "sleep", later)
    assert assessed(service).text == "it is being changed by ann@desk (apply): left alone"


def test_a_change_of_another_service_is_waited_for(service: FakeService) -> None:
    service.machine.engines[LIVE] = SICK
    Session(service.machine).acquire(OWNER, "mini", "", 60.0)
    assert assessed(service).outcome == "fell-back"


def test_what_recovery_could_not_tidy_is_tidied_first(service: FakeService) -> None:
    operator = Operator(service.machine)
    operator.take_lease()
    operator.attempt(NEW)
    service.machine.reboot()
    service.restart()
    assert assessed(service).outcome == "healthy"
    assert ends(service) == (LIVE, LIVE)


# --- crashes of its own -----------------------------------------------------------------------------------------


class Killed(BaseException):
    """A death that no handler sees."""


def die_in(service: FakeService, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The assessment falls back and is killed when it comes to this function."""

    def killed(*args: Any, **more: Any) -> Any:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("os.getpid", lambda: 999_999)
        patched.setattr(Session, "finish", lambda *args: None)
        owner = next(item for item in (assessing, Assessment, Converging) if hasattr(item, name))
        patched.setattr(owner, name, killed)
        with pytest.raises(Killed):
            assess(service.machine, service.name)


@pytest.mark.parametrize("place", ["begin", "stop_service", "unit_start", "promote", "mark_manifests", "settle"])
def test_one_that_is_killed_is_followed_by_another_that_goes_on(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    service.machine.engines[LIVE] = Engine(ready_after=None)
    die_in(service, monkeypatch, place)
    report = assessed(service)
    expected = ("failed", LIVE) if place == "begin" else ("fell-back", GOOD)
    assert (report.outcome, report.release) == expected
    assert service.transition() is None


def test_one_that_is_gone_for_good_is_followed_by_the_guard(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.machine.engines[LIVE] = SICK
    die_in(service, monkeypatch, "promote")
    for _ in range(3):
        guard.look(guard.OwnOperator(service.machine), service)
        service.machine.sleep(60.0)
    assert ends(service) == (LIVE, None)
    assert "it was interrupted" in assessed(service).text


@pytest.mark.parametrize("place", ["unit_start", "promote", "settle"])
def test_a_power_cut_in_the_try_is_not_followed_by_another_try(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    service.machine.engines[LIVE] = SICK
    die_in(service, monkeypatch, place)
    boot(service)
    report = assessed(service)
    promoted = place == "settle"
    assert ends(service) == ((GOOD, GOOD) if promoted else (LIVE, None))
    assert report.outcome == ("healthy" if promoted else "failed")


@pytest.mark.parametrize("tried", [7, {}, {"from": LIVE}, {"from": 1, "to": 2, "t": 3.0, "why": "x"}])
def test_a_damaged_record_keeps_nothing_from_being_assessed(service: FakeService, tried: Any) -> None:
    record = {"t": 1.0, "boot_id": service.machine.boot_id, "release": "", "outcome": "trying", "text": ""}
    service.machine.write_json(service.boot_path, {**record, "tried": tried})
    assert assessed(service).outcome == "healthy"


def test_no_try_without_a_note_of_it(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    service.machine.engines[LIVE] = SICK

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(service.machine, "write_json", full)
    with pytest.raises(Fail):
        service.manifest("0009-none")
    assess(service.machine, service.name)
    assert ends(service) == (LIVE, None)


# --- GPUs -------------------------------------------------------------------------------------------------------


def test_recovery_waits_for_the_gpus_that_the_release_needs(service: FakeService) -> None:
    put(service, NEW, LIVE, gpus=[0, 1])
    machine = service.machine
    began = machine.boottime()
    machine.gpus_after = {0: began, 1: began + 50.0, 2: began + 9999.0}
    boot(service)
    assert 50.0 <= machine.boottime() - began < 60.0


def test_recovery_does_not_wait_for_ever_nor_for_what_is_not_needed(service: FakeService) -> None:
    machine = service.machine
    machine.gpus_after = {0: machine.boottime()}
    began = machine.boottime()
    boot(service)
    assert machine.boottime() - began < 5.0, "the release was proven without GPUs"
    put(service, NEW, LIVE, gpus=[0, 7])
    boot(service)
    assert 120.0 <= machine.boottime() - began < 130.0
    Path(service.enable_link).unlink()
    began = machine.boottime()
    boot(service)
    assert machine.boottime() - began < 5.0, "it is not started"


def test_gpus_that_come_late_are_waited_for_and_no_other_release_is_tried(service: FakeService) -> None:
    put(service, NEW, LIVE, gpus=[0])
    machine = service.machine
    machine.engines[NEW] = SICK
    came = machine.boottime() + 300.0
    machine.gpus_after = {0: came}
    boot(service)
    sleep = machine.sleep

    def later(seconds: float) -> None:
        sleep(seconds)
        if machine.boottime() >= came:
            machine.engines[NEW] = Engine(http=WORKS)

    machine.sleep = later  # type: ignore[method-assign]
    report = assessed(service)
    assert (report.outcome, report.release, report.tried) == ("healthy", NEW, None)


def test_without_gpus_no_other_release_is_tried(service: FakeService) -> None:
    put(service, NEW, LIVE, gpus=[0])
    machine = service.machine
    machine.engines[NEW] = SICK
    machine.gpus_after = {3: 0.0}
    boot(service)
    report = assessed(service)
    assert (report.outcome, report.tried) == ("failed", None)
    assert "nvidia-smi lists 1 GPUs, without 0; no other release was tried" in report.text
