"""Converge on a machine in memory: what it does where it matters how the host is found."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from deployer.host.agent import converge
from deployer.host.agent.base import Fail
from deployer.host.agent.lease import Session
from tests.fakes.host import FakeService, HastyCall
from tests.fakes.machine import Engine, FakeMachine
from tests.unit.host.agent.conftest import PORT, Operator

LIVE, TO = "0001-a", "0002-b"
READY = "The server is fired up and ready to roll!"


def converging(machine: FakeMachine, **args: Any) -> converge.Converging:
    call = HastyCall(lambda message: None)
    return converge.Converging(Session(machine), call, {"service": "kimi", "port": PORT, **args})


def hung(machine: FakeMachine, *, age: float, answers: list[str], listens: bool = True) -> str | None:
    """What `converge` with `repair` makes of a live process, with 100 s for a start; the text, or None."""
    log = (READY,) if age > 10 else ()
    machine.engines[LIVE] = Engine(log=log, ready_after=0.0 if listens else None)
    service = FakeService(machine, "kimi")
    service.make_live(LIVE)
    machine.unit(service.unit).started -= age
    pending = list(answers)

    def http(address: str, port: int, path: str, timeout: float) -> dict[str, Any]:
        answer = pending.pop(0)
        if answer.isdigit():
            return {"status": int(answer)}
        raise Fail("http", "no answer", state=answer)

    machine.http = http  # type: ignore[method-assign,assignment]
    why = converging(machine, ready_timeout=100.0).hung(LIVE, service.state())
    assert pending == []
    return why


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"age": 50, "answers": ["200"]}, None),
        ({"age": 50, "answers": ["timeout", "200"]}, None),
        ({"age": 50, "answers": ["503", "503"]}, "/health answered 503"),
        ({"age": 50, "answers": ["timeout", "timeout"]}, "/health: timeout"),
        ({"age": 5, "answers": ["503", "503"]}, None),
        ({"age": 5, "answers": ["timeout", "reset"]}, "/health: reset"),
        ({"age": 50, "answers": [], "listens": False}, None),
        ({"age": 101, "answers": [], "listens": False}, "it does not listen 101 s after its start"),
    ],
)
def test_a_hung_server_is_distinguished_from_one_that_loads(
    machine: FakeMachine, facts: dict[str, Any], why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hung(machine, **facts) == why


def test_a_hung_server_is_restarted_if_repair_is_requested(
    machine: FakeMachine, service: FakeService, operator: Operator
) -> None:
    answers = {"/health": (500, "")}
    machine.engines[LIVE] = Engine(http=answers)
    service.make_live(LIVE)
    before = machine.unit(service.unit).invocation
    assert not operator("converge", ready_timeout=0.01)["serving"]
    assert machine.unit(service.unit).invocation == before
    answer = operator("converge", repair=True, ready_timeout=0.01)
    assert answer["actions"][0] == "restarted: /health answered 500"
    assert answer["started"]
    assert machine.unit(service.unit).invocation == answer["invocation_id"] != before


def stranger(address: str) -> dict[str, Any]:
    return {"pid": 7, "comm": "nginx", "cgroup": None, "unit": None, "address": address, "port": PORT}


@pytest.mark.parametrize(
    ("bound", "address", "taken"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("0.0.0.0", "127.0.0.1", True),
        ("127.0.0.1", "0.0.0.0", True),
        ("10.0.0.1", "127.0.0.1", False),
        ("::ffff:127.0.0.1", "127.0.0.1", True),
    ],
)
def test_a_start_is_refused_if_a_stranger_has_the_port(
    machine: FakeMachine, service: FakeService, operator: Operator, bound: str, address: str, taken: bool
) -> None:
    service.make_live(LIVE)
    service.end()
    machine.strangers = [stranger(bound)]
    if not taken:
        assert operator("converge", start=True, address=address, ready_timeout=5.0)["serving"]
        return
    with pytest.raises(Fail, match=rf"port {PORT} of {bound} is taken by nginx \(pid 7\)") as caught:
        operator("converge", start=True, address=address)
    assert caught.value.code == "port-taken"
    assert service.release is None


def test_where_it_listens_is_read_from_its_command_line(
    machine: FakeMachine, service: FakeService, operator: Operator
) -> None:
    service.make_live(LIVE)
    service.end()
    operator("release.update", release=LIVE, patch={"argv": ["python", "--host", "10.0.0.1"]})
    machine.strangers = [stranger("127.0.0.1")]
    assert operator("converge", start=True, ready_timeout=5.0)["serving"]


def test_a_unit_of_before_its_adoption_is_known_by_its_command_line(
    machine: FakeMachine, service: FakeService, operator: Operator
) -> None:
    service.make_live("0000-adopted")
    machine.unit(service.unit).release = None
    machine.engines[""] = Engine(argv=("python", "serve"))
    operator("release.update", release="0000-adopted", patch={"argv": ["python", "serve"]})
    before = machine.unit(service.unit).invocation
    assert operator("converge", start=True, ready_timeout=5.0)["invocation_id"] == before
    machine.engines[""] = Engine(argv=("python", "other"))
    answer = operator("converge", start=True, ready_timeout=5.0)
    assert (answer["actions"][0], answer["started"]) == ("stopped what was not live", True)


def test_a_candidate_that_is_a_link_is_not_ours_to_remove(
    machine: FakeMachine, service: FakeService, operator: Operator
) -> None:
    service.make_live(LIVE)
    Path(service.candidate_path).symlink_to("/dev/null")
    operator("converge", ready_timeout=5.0)
    assert os.path.islink(service.candidate_path)
    with pytest.raises(Fail) as caught:
        operator.attempt(TO)
    assert (caught.value.code, caught.value.detail["shadows"]) == ("shadowed", [service.candidate_path])


def test_a_full_disk_does_not_keep_the_live_release_down(
    machine: FakeMachine, service: FakeService, operator: Operator
) -> None:
    service.make_live(LIVE)
    operator.attempt(TO)

    def full(path: str, *rest: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", path)

    machine.write_json = full  # type: ignore[method-assign,assignment]
    answer = operator("converge", ready_timeout=5.0)
    assert (service.release, service.transition(), answer["serving"]) == (LIVE, None, True)
    missing = "the manifest of 0001-a could not be written: No space left on device"
    assert missing in answer["actions"]


def test_what_cannot_be_written_is_reported() -> None:
    run = converging(FakeMachine())

    def full(*words: str) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    assert not run.possible("the manifest of 0001-a", full, "x")
    assert run.actions == ["the manifest of 0001-a could not be written: No space left on device"]


def test_a_server_that_dies_is_not_waited_for(machine: FakeMachine, service: FakeService, operator: Operator) -> None:
    service.make_live(LIVE)
    service.end()
    machine.engines[LIVE] = Engine(ready_after=None, fails_after=0.0)
    answer = operator("converge", start=True, ready_timeout=600.0)
    assert (answer["started"], answer["serving"], answer["actions"][-1]) == (
        True,
        False,
        "the live unit does not stay up",
    )


def test_a_unit_edited_by_hand_is_made_what_its_release_keeps(
    machine: FakeMachine, service: FakeService, operator: Operator
) -> None:
    service.make_live(LIVE)
    kept, before = service.live, service.state()["InvocationID"]
    assert kept is not None
    machine.write_file(service.live_path, kept + "[Service]\nNice=1\n", 0o600)
    answer = operator("converge", start=True)
    assert "the unit's text and mode are those of the release again" in answer["actions"]
    assert (service.live, Path(service.live_path).stat().st_mode & 0o777) == (kept, 0o644)
    assert (answer["started"], service.state()["InvocationID"]) == (False, before)
    assert operator("converge", start=True)["actions"] == ["serving"]


def test_a_unit_whose_release_keeps_no_text_stays_as_it_is(
    machine: FakeMachine, service: FakeService, operator: Operator
) -> None:
    service.make_live(LIVE)
    edited = f"[X-Deployer]\nRelease={LIVE}\n[Service]\nNice=1\n"
    machine.write_file(service.live_path, edited)
    (Path(service.release_dir(LIVE)) / "unit").write_text("[X-Deployer]\nRelease=0009-x\n")
    operator("converge", start=True)
    assert service.live == edited


def test_what_runs_is_started_again_for_the_reasons_that_are_given(service: FakeService, operator: Operator) -> None:
    service.make_live(LIVE)
    before = service.state()["InvocationID"]
    answer = operator("converge", start=True, restart=["running argv: --x 1 instead of 2"])
    assert "restarted: running argv: --x 1 instead of 2" in answer["actions"]
    assert answer["started"]
    assert service.state()["InvocationID"] != before
