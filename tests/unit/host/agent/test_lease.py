"""The lease: who has it, for how long, and what is left of it when files are damaged or the disk is full."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from deployer.host.agent import files, lease
from deployer.host.agent.base import Fail
from tests.fakes.machine import FakeMachine
from tests.unit.host.agent.conftest import DAMAGE, OWNER, Operator


def view(machine: FakeMachine) -> dict[str, Any]:
    return lease.lease_view(machine, lease.read_lease(machine)) or {}


def path(machine: FakeMachine) -> Path:
    return Path(lease.lease_path(machine))


def test_others_see_it_without_its_token(machine: FakeMachine, operator: Operator) -> None:
    assert operator.session.generation == 1
    seen = view(machine)
    assert (seen["owner"], seen["state"], seen["valid"], "token" in seen) == (OWNER, "held", True, False)
    assert seen["expires_in"] == pytest.approx(60, abs=1)


def test_one_of_another_boot_is_not_valid(machine: FakeMachine) -> None:
    raw = {"generation": 3, "token": "t", "state": "held", "boot_id": "elsewhere", "expires_boottime": 1e12}
    seen = lease.lease_view(machine, raw)
    assert seen is not None
    assert not seen["valid"]
    seen = lease.lease_view(machine, {**raw, "boot_id": machine.boot_id})
    assert seen is not None
    assert seen["valid"]


def test_it_excludes_others_until_it_expires(machine: FakeMachine, operator: Operator) -> None:
    other = Operator(machine)
    with pytest.raises(Fail, match=r"held by ann@desk \(apply\)") as caught:
        other.take_lease()
    assert caught.value.code == "lease-held"
    machine.sleep(61.0)
    other.take_lease()
    with pytest.raises(Fail, match="taken over by ann@desk"), operator.session.holding():
        pass


def test_whoever_wakes_up_late_can_change_nothing_until_the_heartbeat(machine: FakeMachine, operator: Operator) -> None:
    machine.sleep(61.0)
    with pytest.raises(Fail, match="expired 1 s ago"), operator.session.holding():
        pass
    operator("lease.renew")
    with operator.session.holding():
        pass


def test_waiting_for_it_takes_until_it_is_free(machine: FakeMachine, operator: Operator) -> None:
    other = Operator(machine)
    with pytest.raises(Fail):
        other.take_lease(wait=0.01)
    operator("lease.release")
    assert other.take_lease(wait=10.0)["generation"] == 2


def test_a_lost_connection_takes_it_back_unless_others_did(machine: FakeMachine) -> None:
    first, again, other = Operator(machine), Operator(machine), Operator(machine)
    grant = first.take_lease()
    reclaim = {"generation": grant["generation"], "token": grant["token"]}
    assert again.take_lease(reclaim=reclaim)["generation"] == 2
    again.leave()
    other.take_lease()
    with pytest.raises(Fail) as caught:
        first.take_lease(reclaim=reclaim)
    assert caught.value.code == "lease-lost"


def test_the_lock_is_waited_for_and_then_given_up(
    machine: FakeMachine, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LOCK_WAIT", 0.1)
    with lease.locked(machine), pytest.raises(Fail, match="held the host's lock for a minute") as caught:
        operator("lease.renew")
    assert caught.value.code == "busy"


# --- damaged files and full disks -------------------------------------------------------------------------------


@pytest.mark.parametrize("text", DAMAGE)
def test_a_damaged_one_counts_as_none_and_still_fences(machine: FakeMachine, text: str) -> None:
    first, second = Operator(machine), Operator(machine)
    before = first.take_lease()
    path(machine).write_text(text)
    with pytest.raises(Fail) as caught, first.session.holding():
        pass
    assert caught.value.code == "lease-lost"
    after = second.take_lease()
    assert after["generation"] > before["generation"] + 1000
    assert [item.read_text() for item in path(machine).parent.glob("lease.json.corrupt-*")] == [text]
    with pytest.raises(Fail), first.session.holding():
        pass
    with second.session.holding():
        pass
    second.session.finish("released")
    assert first.take_lease()["generation"] == after["generation"] + 1


def test_a_newer_deployers_lease_is_refused(machine: FakeMachine) -> None:
    path(machine).write_text('{"schema": 2}')
    with pytest.raises(Fail) as caught:
        lease.read_lease(machine)
    assert caught.value.code == "schema"


def test_a_renewal_waits_for_no_disk(machine: FakeMachine, operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    written = path(machine).read_text()
    machine.sleep(1000.0)
    assert not view(machine)["valid"]
    with monkeypatch.context() as slow:
        slow.setattr(os, "fsync", lambda fd: pytest.fail("a renewal synced a disk"))
        operator("lease.renew")
    assert path(machine).read_text() == written
    assert view(machine)["expires_in"] == pytest.approx(60, abs=1)
    operator.session.finish("released")
    assert not view(machine)["valid"]


@pytest.mark.parametrize("text", [*DAMAGE, None])
def test_a_renewal_of_another_lease_or_a_damaged_one_counts_for_nothing(machine: FakeMachine, text: str | None) -> None:
    first, second = Operator(machine), Operator(machine)
    first.take_lease(6000.0)
    first("lease.renew")
    first.session.finish("released")
    second.take_lease()
    if text is not None:
        Path(lease.renewal_path(machine)).write_text(text)
    assert view(machine)["expires_in"] == pytest.approx(60, abs=1)
    second("lease.renew")
    assert view(machine)["valid"]


def test_if_memory_takes_nothing_a_renewal_goes_to_the_disk(machine: FakeMachine, operator: Operator) -> None:
    Path(machine.volatile_dir).write_text("not a folder")
    before = path(machine).read_text()
    operator("lease.renew")
    assert path(machine).read_text() != before


def test_it_changes_hands_on_a_disk_that_takes_nothing_at_all(
    machine: FakeMachine, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: str, *rest: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", path)

    monkeypatch.setattr(files, "write_new", full)
    operator("lease.renew")
    operator.session.finish("released")
    assert Operator(machine).take_lease()["generation"] == 2


# --- the audit trail --------------------------------------------------------------------------------------------


def test_every_change_leaves_a_line_without_long_texts(machine: FakeMachine, operator: Operator) -> None:
    operator.stage("0001-a")
    operator("release.update", release="0001-a", patch={"note": "x" * 200}, append={"log": "y" * 200})
    with pytest.raises(Fail):
        operator.stage("0001-a")
    trail = Path(machine.state_dir, "kimi", "audit.jsonl").read_text()
    lines = [json.loads(line) for line in trail.splitlines()]
    assert [(line["op"], line["result"]) for line in lines] == [
        ("stage", "ok"),
        ("release.update", "ok"),
        ("stage", "exists"),
    ]
    assert (lines[0]["owner"], lines[0]["generation"]) == (OWNER, 1)
    assert (lines[1]["args"]["patch"], lines[1]["args"]["append"]) == (["note"], ["log"])
    assert "xxx" not in trail


def test_a_line_that_cannot_be_written_stops_nothing(machine: FakeMachine, operator: Operator) -> None:
    Path(machine.state_dir, "kimi", "audit.jsonl").mkdir(parents=True)
    operator.stage("0001-a")


@pytest.mark.parametrize("name", ["..", "a/b", ""])
def test_a_name_that_is_not_valid_leads_nowhere(machine: FakeMachine, operator: Operator, name: str) -> None:
    with pytest.raises(Fail) as caught:
        operator("transition.end", service=name)
    assert caught.value.code == "bad-request"
    assert not list(Path(machine.folder).glob("**/audit.jsonl"))
