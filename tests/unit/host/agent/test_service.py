"""What belongs to a service on the host: names, unit files, releases, the transition."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deployer.host.agent import transition
from deployer.host.agent.base import Fail, checked
from deployer.host.agent.files import set_aside
from deployer.host.agent.guard import DAMAGED, transition_of, verdict
from deployer.host.agent.service import TRANSITION, keys_of, unit_file, unit_release
from deployer.units.quoting import file_line
from tests.fakes.host import FakeService
from tests.fakes.machine import Engine, FakeMachine
from tests.unit.host.agent.conftest import DAMAGE, PORT, Operator


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("[X-Deployer]\nRelease=0007-pp8\n", "0007-pp8"),
        ("[Service]\nRelease=no\n[X-Deployer]\n Release=0007-pp8 \n", "0007-pp8"),
        ("[X-Deployer]\n[Install]\nRelease=no\n", None),
        ("", None),
    ],
)
def test_the_release_of_a_unit_text(text: str, release: str | None) -> None:
    assert unit_release(text) == release


def test_a_mask_is_not_a_unit_file(tmp_path: Path) -> None:
    (tmp_path / "mask").symlink_to("/dev/null")
    assert unit_file(str(tmp_path / "mask")) is None


@pytest.mark.parametrize("name", ["", "..", "a/b", "-a", ".a", "a b", "a\n", "é", None, 7, "a" * 200])
def test_names_that_are_not_valid_file_names_are_refused(name: Any) -> None:
    with pytest.raises(Fail, match="not a valid name") as caught:
        checked(name, "service")
    assert caught.value.code == "bad-request"


def test_quoting_for_a_unit_line() -> None:
    assert transition.quoted('/a b/%h$X"\\') == '"/a b/%%h$$X\\"\\\\"'


def test_guard_and_recover_units_name_the_service(machine: FakeMachine, service: FakeService) -> None:
    assert transition.install(service)
    text = Path(machine.run_dir, "deployer-guard@.service").read_text()
    assert " guard %i\nRestart=always" in text
    assert "RestartPreventExitStatus=77\nSuccessExitStatus=77" in text
    assert "IgnoreOnIsolate=yes" in text
    text = Path(machine.live_dir, "deployer-recover@.service").read_text()
    assert "Before=sglang-%i.service" in text
    assert "TimeoutStartSec=140" in text
    assert "Restart=on-failure" in text
    text = Path(machine.live_dir, "deployer-assess@.service").read_text()
    assert "After=sglang-%i.service" in text
    assert "Type=exec" in text, "the boot does not wait for it"
    assert not transition.install(service), "nothing is written twice"
    machine.systemd_version = lambda: 239  # type: ignore[method-assign]
    assert transition.install(service)
    assert "Restart=" not in Path(machine.live_dir, "deployer-recover@.service").read_text(), "it would be refused"


# --- releases ---------------------------------------------------------------------------------------------------


def put(service: FakeService, name: str, text: str | None) -> None:
    folder = Path(service.releases, name)
    folder.mkdir(parents=True)
    if text is not None:
        (folder / "manifest.json").write_text(text)


@pytest.mark.parametrize("text", [*DAMAGE, None])
def test_a_damaged_manifest_hides_no_other(service: FakeService, text: str | None) -> None:
    put(service, "0001-a", json.dumps({"release": "0001-a", "number": 1, "state": "live"}))
    put(service, "0002-b", text)
    problems: list[str] = []
    manifests = service.manifests(problems)
    assert [(item["release"], item["number"], item["state"]) for item in manifests] == [
        ("0001-a", 1, "live"),
        ("0002-b", 2, "corrupt"),
    ]
    assert len(problems) == 1
    assert "0002-b/manifest.json" in problems[0]


def test_a_manifest_under_another_name_or_number_is_damaged(service: FakeService) -> None:
    put(service, "0003-c", json.dumps({"release": "0001-a", "number": 1}))
    put(service, "adopted", json.dumps({"release": "adopted", "number": "many"}))
    manifests = service.manifests()
    assert [(item["number"], item["state"]) for item in manifests] == [(0, "corrupt"), (3, "corrupt")]


@pytest.mark.parametrize("name", ["transition.json", "releases/0001-a/manifest.json"])
def test_a_newer_schema_is_refused_everywhere(service: FakeService, name: str) -> None:
    put(service, "0001-a", None)
    Path(service.folder, name).write_text('{"schema": 2}')
    with pytest.raises(Fail) as caught:
        service.transition() if name == "transition.json" else service.manifests()
    assert caught.value.code == "schema"


@pytest.mark.parametrize("text", DAMAGE)
def test_a_damaged_transition_is_converged_by_the_guard_and_set_aside(service: FakeService, text: str) -> None:
    path = Path(service.transition_path)
    assert transition_of(service) is None
    path.parent.mkdir()
    path.write_text(text)
    damaged = transition_of(service)
    assert damaged is DAMAGED
    assert verdict(service, damaged, None)[0] == "converge"
    assert set_aside(str(path), TRANSITION)
    assert transition_of(service) is None
    assert [item.read_text() for item in path.parent.glob("transition.json.corrupt-*")] == [text]


def test_the_settings_of_a_unit_text() -> None:
    text = "[Service]\n# User=x\nExecStart=\nExecStart=/bin/a \\\n# Nice=1\n  --b=c\n Environment = A=b\n;Type=x\n"
    assert keys_of(text) == ["ExecStart", "Environment"]


def test_drop_ins_that_decide_are_reported(
    machine: FakeMachine, service: FakeService, operator: Operator, tmp_path: Path
) -> None:
    texts = {
        "a": "[Service]\nUser=x\nNice=1\n",
        "b": "[Service]\nNice=1\n",
        "c": "[Service]\nExecStartPre=/x\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    machine.drop_ins = lambda unit: [str(tmp_path / name) for name in texts]  # type: ignore[method-assign]
    report = operator("probe", text="[Service]\nExecStart=/x\n")
    drop_ins = [(Path(item["path"]).name, item["keys"]) for item in report["drop_ins"]]
    assert drop_ins == [("a", ["User"]), ("c", ["ExecStartPre"])]
    assert not list(Path(machine.run_dir).iterdir())


# --- transition and stop ----------------------------------------------------------------------------------------


def test_a_guard_that_does_not_start_leaves_no_transition(
    machine: FakeMachine, service: FakeService, operator: Operator
) -> None:
    systemctl = machine.systemctl

    def broken(*words: str, check: bool = True) -> Any:
        done = systemctl(*words, check=check)
        done.returncode, done.stderr = int(words[0] == "start"), "Job failed.\n"
        return done

    machine.systemctl = broken  # type: ignore[method-assign]
    with pytest.raises(Fail, match="the guard does not start: Job failed") as caught:
        operator.begin("0001-a")
    assert caught.value.code == "guard"
    assert service.transition() is None


def test_a_start_that_systemd_does_not_begin_is_an_error(
    machine: FakeMachine, service: FakeService, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transition, "START_WAIT", 0.01)
    monkeypatch.setattr(machine, "start", lambda name: None)
    with pytest.raises(Fail) as caught:
        operator.attempt("0001-a")
    assert caught.value.code == "not-started"


def test_a_unit_that_another_file_outranks_is_not_started(
    machine: FakeMachine,
    service: FakeService,
    operator: Operator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = tmp_path / service.unit
    other.write_text("[Service]\n")
    monkeypatch.setattr(machine, "outranking", (str(tmp_path),))
    machine.fragment = lambda name: str(other)  # type: ignore[method-assign]
    with pytest.raises(Fail, match=f"is read from {other}, not from") as caught:
        operator.attempt("0001-a")
    assert (caught.value.code, caught.value.detail["shadows"]) == ("shadowed", [str(other)])
    assert service.candidate is None


def test_a_server_that_does_not_end_is_killed_after_its_time(
    machine: FakeMachine, service: FakeService, operator: Operator
) -> None:
    service.make_live("0001-a")
    machine.unit(service.unit).stops = False
    answer = operator("unit.stop", stop_timeout=0.01)
    assert (answer["killed"], service.release) == (True, None)
    assert [event["stage"] for event in operator.events] == ["stopping", "killing"]


def test_a_process_that_does_not_even_die_is_reported(
    machine: FakeMachine, service: FakeService, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.make_live("0001-a")
    machine.unit(service.unit).stops = False
    monkeypatch.setattr("deployer.host.agent.stop.GONE_WAIT", 0.01)
    monkeypatch.setattr(machine, "kill", lambda pid: None)
    monkeypatch.setattr(machine, "process_stat", lambda pid: ["D"])
    with pytest.raises(Fail, match="do not end even when killed") as caught:
        operator("unit.stop", stop_timeout=0.01)
    assert caught.value.code == "not-gone"
    assert [item["unit"] for item in caught.value.detail["uninterruptible"]] == [service.unit]
    assert [item["port"] for item in caught.value.detail["listeners"]] == [PORT]


@pytest.mark.parametrize(
    ("ranks", "metrics", "expected"),
    [
        ([{"num_running_reqs": 2, "num_waiting_reqs": 3}], "", 5),
        ([{"num_running_reqs": 0, "num_waiting_reqs": 0, "num_used_tokens": 0}], "", 0),
        # Under a pipeline the micro-batch in turn may be empty while others run: their tokens are held.
        ([{"num_running_reqs": 0, "num_waiting_reqs": 0, "num_used_tokens": 900}], "", 1),
        ([{"num_running_reqs": 0}, {"num_running_reqs": 1}], "", 1),
        ([], 'sglang:num_running_reqs{rank="0"} 2.0\nsglang:num_queue_reqs 1.0\nother 9\n', 3),
        ([], "", None),
    ],
)
def test_requests_in_flight_are_drained(
    machine: FakeMachine,
    service: FakeService,
    operator: Operator,
    ranks: list[dict[str, int]],
    metrics: str,
    expected: int | None,
) -> None:
    answers = {"/v1/loads": (200, json.dumps({"loads": ranks})), "/metrics": (200, metrics)}
    machine.engines["0001-a"] = Engine(http=answers)
    service.make_live("0001-a")
    assert operator("unit.stop", drain=0.0)["inflight"] == expected


def test_what_runs_is_shown_beside_its_release_without_secrets(
    machine: FakeMachine, service: FakeService, operator: Operator
) -> None:
    environment = {"DEPLOYER_RELEASE": "0001-a", "NCCL_DEBUG": "INFO", "LEFT_OUT": "1"}
    secrets = {"HF_TOKEN": 'a "b" \\ $c\nd', "OTHER": "old"}
    machine.engines["0001-a"] = Engine(
        environment={**environment, **secrets, "OTHER": "new", "LD_PRELOAD": "/x.so", "LANG": "C", "SITE_WIDE": "1"}
    )
    service.keep("0001-a", {"environment": {**environment, "UNSET": "1"}}, {})
    lines = "".join(file_line(name, value) for name, value in secrets.items())
    machine.write_file(f"{service.release_dir('0001-a')}/env", lines, 0o600)
    machine.manager_variables = lambda: {"SITE_WIDE"}  # type: ignore[method-assign]
    text = "[X-Deployer]\nRelease=0001-a\n"
    machine.write_file(service.live_path, text)
    service.restart()
    machine.process = without(machine.process, "UNSET")  # type: ignore[method-assign]
    answer = operator("observe", services=[{"service": "kimi", "port": PORT}])
    running = answer["services"]["kimi"]["running"]
    assert running["environment"] == environment
    assert (running["secrets"], running["others"]) == (["OTHER"], ["LD_PRELOAD"])
    assert not any(value in json.dumps(answer) for value in ('a \\"b', "/x.so", '"new"', '"old"'))


def without(process: Any, name: str) -> Any:
    """The machine's way to read a process, for one that lacks a variable."""

    def read(pid: int) -> Any:
        shown = process(pid)
        shown["environment"].pop(name)
        return shown

    return read


def test_the_live_unit_is_shown_beside_the_text_that_its_release_keeps(
    machine: FakeMachine, service: FakeService, operator: Operator
) -> None:
    service.make_live("0001-a")
    kept = service.live
    machine.write_file(service.live_path, "[X-Deployer]\nRelease=0001-a\nX=1\n", 0o600)

    def live() -> Any:
        return operator("observe", services=[{"service": "kimi", "port": PORT}])["services"]["kimi"]["live"]

    assert (live()["kept"], live()["mode"]) == (kept, 0o600)
    assert live()["modified"] > 0
    machine.write_file(service.live_path, "[X-Deployer]\nRelease=../../etc\n")
    assert live()["kept"] is None
