"""State files that are damaged, and disks that are full."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.host.agent import files
from deployer.host.agent.base import Fail
from deployer.host.agent.service import TRANSITION
from tests.fakes.machine import FakeMachine


def test_a_state_file_that_nests_without_end_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a":' * 100_000)
    problems: list[str] = []
    assert files.read_intact(str(tmp_path / "x.json"), {}, problems) is None
    assert "is damaged" in problems[0]


@given(st.text())
def test_no_text_of_a_state_file_is_more_than_damage(text: str) -> None:
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"deployer-test-{os.getpid()}.json"
    path.write_text(text, encoding="utf-8")
    try:
        assert files.read_intact(str(path), TRANSITION) is None
    finally:
        path.unlink()


def test_a_link_points_exactly_there(tmp_path: Path) -> None:
    link = str(tmp_path / "folder" / "link")
    assert files.write_link(link, "/a")
    assert not files.write_link(link, "/a")
    assert files.write_link(link, "/b")
    assert os.readlink(link) == "/b"


# --- full disks -------------------------------------------------------------------------------------------------


class Full:
    """A disk on which new files cannot be written, except in what the reserve occupied."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, reserve: str, *, usable: bool = True) -> None:
        self.reserve, self.usable, self.original = Path(reserve), usable, files.write_new
        monkeypatch.setattr(files, "write_new", self.write)

    def write(self, path: str, *rest: Any) -> None:
        if self.reserve.exists() or not self.usable:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        self.original(path, *rest)


def test_the_reserve_is_real_space_and_is_given_up_for_a_state_file(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.make_reserve()
    reserve, path = Path(machine.reserve), Path(machine.state_dir, "a.json")
    assert reserve.stat().st_blocks * 512 >= files.RESERVE
    Full(monkeypatch, machine.reserve)
    machine.write_json(str(path), {"a": 1})
    assert json.loads(path.read_text()) == {"a": 1, "schema": 1}
    assert not reserve.exists()


def test_a_state_file_is_changed_in_place_on_a_disk_that_takes_nothing_at_all(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{machine.state_dir}/a.json"
    machine.write_json(path, {"a": "a longer text than the next"})
    Full(monkeypatch, machine.reserve, usable=False)
    machine.write_json(path, {"a": 2})
    assert files.read_json(path) == {"a": 2, "schema": 1}
    with pytest.raises(OSError, match="No space"):
        machine.write_json(f"{machine.state_dir}/new.json", {})


def test_other_errors_do_not_cost_the_reserve(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.make_reserve()

    def refuse(*args: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(files, "write_new", refuse)
    with pytest.raises(OSError, match="Read-only"):
        machine.write_file(f"{machine.state_dir}/x", "x")
    assert Path(machine.reserve).exists()


@pytest.mark.parametrize(("text", "code"), [('{"schema": 2}', "schema"), ("{", "corrupt")])
def test_what_a_newer_deployer_wrote_is_refused(tmp_path: Path, text: str, code: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(Fail) as caught:
        files.read_json(str(tmp_path / "x.json"))
    assert caught.value.code == code
