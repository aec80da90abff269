"""State files of the agent that are damaged, and disks that are full; systemd and drivers that do not answer."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.host.agent import base, converge, guard, lease, reading, systemd

OWNER = {"user": "ann", "host": "desk", "pid": 1, "command": "apply"}
ODD = '{"to": "x", "boot_id": "b", "grace": "long", "release": "0002-b", "argv": 7, "generation": 1, "owner": 0}'
DAMAGE = [
    ODD,
    "",
    "{",
    "{}",
    "[]",
    "null",
    "7",
    '"text"',
    '{"schema": "x"}',
    '{"release": 7, "generation": "1"}',
]


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for module in (base, lease, reading):
        monkeypatch.setattr(module, "STATE_DIR", str(tmp_path))
    monkeypatch.setattr(lease, "VOLATILE_DIR", str(tmp_path / "run"))
    (tmp_path / "kimi" / "releases").mkdir(parents=True)
    return tmp_path


def release(state: Path, name: str, text: str | None) -> None:
    folder = state / "kimi" / "releases" / name
    folder.mkdir()
    if text is not None:
        (folder / "manifest.json").write_text(text)


# --- damaged files ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [*DAMAGE, None])
def test_a_damaged_manifest_hides_no_other(state: Path, text: str | None) -> None:
    release(state, "0001-a", json.dumps({"release": "0001-a", "number": 1, "state": "live"}))
    release(state, "0002-b", text)
    problems: list[str] = []
    found = reading.manifests("kimi", problems)
    assert [(item["release"], item["number"], item["state"]) for item in found] == [
        ("0001-a", 1, "live"),
        ("0002-b", 2, "corrupt"),
    ]
    assert len(problems) == 1
    assert "0002-b/manifest.json" in problems[0]


def test_a_manifest_under_another_name_or_number_is_damaged(state: Path) -> None:
    release(state, "0003-c", json.dumps({"release": "0001-a", "number": 1}))
    release(state, "adopted", json.dumps({"release": "adopted", "number": "many"}))
    assert [(item["number"], item["state"]) for item in reading.manifests("kimi")] == [
        (0, "corrupt"),
        (3, "corrupt"),
    ]


@pytest.mark.parametrize("path", ["lease.json", "kimi/transition.json", "kimi/releases/0001-a/manifest.json"])
def test_a_newer_schema_is_refused_everywhere(state: Path, path: str) -> None:
    release(state, "0001-a", None)
    (state / path).write_text('{"schema": 2}')
    readers: dict[str, Any] = {
        "lease.json": lease.read_lease,
        "transition.json": lambda: guard.transition_of("kimi"),
        "manifest.json": lambda: reading.manifests("kimi"),
    }
    with pytest.raises(base.Fail) as caught:
        readers[Path(path).name]()
    assert caught.value.code == "schema"


@pytest.mark.parametrize("text", DAMAGE)
def test_a_damaged_lease_is_no_lease_and_still_fences(state: Path, text: str) -> None:
    first, second = lease.Session(), lease.Session()
    before = first.acquire(OWNER, "kimi", "", 60.0)
    (state / "lease.json").write_text(text)
    with pytest.raises(base.Fail) as caught, first.holding():
        pass
    assert caught.value.code == "lease-lost"
    after = second.acquire(OWNER, "kimi", "", 60.0)
    assert after["generation"] > before["generation"] + 1000
    assert [path.read_text() for path in state.glob("lease.json.corrupt-*")] == [text]
    with pytest.raises(base.Fail), first.holding():
        pass
    with second.holding():
        pass
    second.finish("released")
    assert first.acquire(OWNER, "kimi", "", 60.0)["generation"] == after["generation"] + 1


def test_a_renewal_waits_for_no_disk(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = lease.Session()
    session.acquire(OWNER, "kimi", "", 60.0)
    written = (state / "lease.json").read_text()
    monkeypatch.setattr(lease, "boottime", lambda: base.boottime() + 1000)
    assert not (lease.lease_view(lease.read_lease()) or {})["valid"]
    with monkeypatch.context() as slow:
        slow.setattr(os, "fsync", lambda fd: pytest.fail("a renewal synced a disk"))
        session.renew()
    assert (state / "lease.json").read_text() == written
    assert (lease.lease_view(lease.read_lease()) or {})["expires_in"] == pytest.approx(60, abs=1)
    session.finish("released")
    assert not (lease.lease_view(lease.read_lease()) or {})["valid"]


@pytest.mark.parametrize("text", [*DAMAGE, None])
def test_a_renewal_of_another_lease_or_a_damaged_one_counts_for_nothing(
    state: Path, text: str | None
) -> None:
    first, second = lease.Session(), lease.Session()
    first.acquire(OWNER, "kimi", "", 6000.0)
    first.renew()
    first.finish("released")
    second.acquire(OWNER, "kimi", "", 60.0)
    if text is not None:
        (state / "run/renewal.json").write_text(text)
    assert (lease.lease_view(lease.read_lease()) or {})["expires_in"] == pytest.approx(60, abs=1)
    second.renew()
    assert (lease.lease_view(lease.read_lease()) or {})["valid"]


def test_where_memory_takes_nothing_a_renewal_goes_to_the_disk(state: Path) -> None:
    (state / "run").write_text("not a folder")
    session = lease.Session()
    session.acquire(OWNER, "kimi", "", 60.0)
    before = (state / "lease.json").read_text()
    session.renew()
    assert (state / "lease.json").read_text() != before


@pytest.mark.parametrize("text", DAMAGE)
def test_a_damaged_transition_is_converged_by_the_guard_and_set_aside(state: Path, text: str) -> None:
    path = state / "kimi" / "transition.json"
    assert guard.transition_of("kimi") is None
    path.write_text(text)
    damaged = guard.transition_of("kimi")
    assert damaged is guard.DAMAGED
    assert guard.verdict("kimi", damaged, None)[0] == "converge"
    assert base.set_aside(str(path), base.TRANSITION)
    assert guard.transition_of("kimi") is None
    assert [item.read_text() for item in path.parent.glob("transition.json.corrupt-*")] == [text]


@given(st.text())
def test_no_text_of_a_state_file_is_more_than_damage(text: str) -> None:
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"deployer-test-{os.getpid()}.json"
    path.write_text(text, encoding="utf-8")
    try:
        assert base.read_intact(str(path), base.TRANSITION) is None
    finally:
        path.unlink()


# --- full disks -------------------------------------------------------------------------------------------------


class Full:
    """A disk on which new files cannot be written, except in what the reserve occupied."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, reserve: Path, *, usable: bool = True) -> None:
        self.reserve, self.usable, self.original = reserve, usable, base.write_new
        monkeypatch.setattr(base, "write_new", self.write)

    def write(self, path: str, *rest: Any) -> None:
        if self.reserve.exists() or not self.usable:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        self.original(path, *rest)


def test_the_reserve_is_real_space_and_is_given_up_for_a_state_file(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base.make_reserve()
    reserve = state / "reserve"
    assert reserve.stat().st_blocks * 512 >= base.RESERVE
    Full(monkeypatch, reserve)
    base.write_json(str(state / "a.json"), {"a": 1})
    assert json.loads((state / "a.json").read_text()) == {"a": 1, "schema": 1}
    assert not reserve.exists()


def test_a_lease_changes_hands_on_a_disk_that_takes_nothing_at_all(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = lease.Session(), lease.Session()
    first.acquire(OWNER, "kimi", "", 60.0)
    Full(monkeypatch, state / "reserve", usable=False)
    first.renew()
    first.finish("released")
    assert second.acquire(OWNER, "kimi", "", 60.0)["generation"] == 2
    with pytest.raises(OSError, match="No space"):
        base.write_json(str(state / "new.json"), {})


def test_other_errors_do_not_cost_the_reserve(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base.make_reserve()

    def refuse(*args: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(base, "write_new", refuse)
    with pytest.raises(OSError, match="Read-only"):
        base.write_file(str(state / "x"), "x")
    assert (state / "reserve").exists()


def test_an_audit_line_that_cannot_be_written_stops_nothing(state: Path) -> None:
    (state / "kimi" / "audit.jsonl").mkdir()
    lease.audit(lease.Session(), "stage", {"service": "kimi"}, "ok")


def test_converge_goes_on_without_what_cannot_be_written() -> None:
    converging = converge.Converging(lease.Session(), base.Call(lambda message: None), {"service": "kimi"})

    def full(*words: str) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    assert not converging.possible("the manifest of 0001-a", full, "x")
    assert converging.actions == ["the manifest of 0001-a could not be written: No space left on device"]


# --- what does not answer ---------------------------------------------------------------------------------------


def test_systemctl_is_asked_again_while_systemd_re_executes(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = "Failed to get properties: Connection reset by peer"
    answers = [(1, gone), (1, "Failed to connect to bus: No such file"), (0, ""), (1, "Unit x not found.")]
    asked: list[list[str]] = []

    def execute(argv: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        asked.append(argv)
        status, text = answers[len(asked) - 1]
        return subprocess.CompletedProcess(argv, status, "ActiveState=active\n", text)

    monkeypatch.setattr(base, "execute", execute)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    assert systemd.unit_state("x.service")["ActiveState"] == "active"
    assert len(asked) == 3
    with pytest.raises(base.Fail, match="not found"):
        base.systemctl("start", "x")
    assert len(asked) == 4, "what systemd says itself is final"


# --- drop-ins ---------------------------------------------------------------------------------------------------


def test_drop_ins_of_the_name_its_prefixes_and_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    etc, lib = tmp_path / "etc", tmp_path / "lib"
    for path in (
        etc / "sglang-kimi-2.service.d" / "a.conf",
        lib / "sglang-kimi-2.service.d" / "a.conf",
        lib / "sglang-kimi-.service.d" / "b.conf",
        lib / "sglang-.service.d" / "c.conf",
        lib / "service.d" / "d.conf",
        lib / "sglang-kimi-2.service.d" / "notes.txt",
        lib / "sglang-other.service.d" / "e.conf",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (etc / "service.d").mkdir()
    (etc / "service.d" / "d.conf").symlink_to("/dev/null")
    done = subprocess.CompletedProcess(["systemctl"], 0, f"{etc} {lib}\n", "")
    monkeypatch.setattr(systemd, "systemctl", lambda *words, check=True: done)
    assert [str(Path(path).relative_to(tmp_path)) for path in systemd.drop_ins("sglang-kimi-2.service")] == [
        "etc/sglang-kimi-2.service.d/a.conf",
        "lib/sglang-kimi-.service.d/b.conf",
        "lib/sglang-.service.d/c.conf",
    ]


def test_the_keys_of_a_unit_text() -> None:
    text = "[Service]\n# User=x\nExecStart=\nExecStart=/bin/a \\\n# Nice=1\n  --b=c\n Environment = A=b\n;Type=x\n"
    assert systemd.keys_of(text) == ["ExecStart", "Environment"]
