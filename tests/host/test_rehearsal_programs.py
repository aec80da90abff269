"""The parts of a rehearsal that lean on processes, programs and file locks of this machine."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.errors import HostError
from deployer.resources import package_root
from deployer_rehearsal import container, machine, sets
from deployer_rehearsal.engine_venv import quoted
from tests.patience import until


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """State folder and registry of this test only."""
    monkeypatch.setenv("DEPLOYER_REHEARSAL_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(sets, "_REGISTRY", tmp_path / "registry")
    return tmp_path / "state"


def test_a_process_is_known_by_its_start() -> None:
    mine = container.process_started(os.getpid())
    assert mine is not None
    assert mine > 0
    with subprocess.Popen(["sleep", "30"]) as child:
        later = container.process_started(child.pid)
        assert later is not None
        assert later >= mine
        child.kill()
        until(lambda: container.process_started(child.pid) is None)  # a zombie does not count
    assert container.containers_of(Path("/nowhere")) == []


def test_a_set_is_used_by_one_command_at_a_time(root: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with sets.lock_set("a"):
            order.append("second")

    with sets.lock_set("a"):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.1)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_a_lock_holds_though_its_file_comes_and_goes(root: Path) -> None:
    inside: list[int] = []
    seen: list[int] = []

    def work(number: int) -> None:
        for _ in range(50):
            with sets.lock_set("a"):
                inside.append(number)
                seen.append(len(inside))
                time.sleep(0)
                inside.remove(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [1] * 200


def test_a_lock_is_held_until_the_programs_started_under_it_have_ended(root: Path, tmp_path: Path) -> None:
    started, go, ended = (tmp_path / name for name in ("started", "go", "ended"))
    os.mkfifo(go)
    lock = sets._REGISTRY / "set-a.lock"
    slow = ["sh", "-c", f"touch {started}; read word < {go}; touch {ended}"]
    holder = (
        "from pathlib import Path; from deployer_rehearsal import machine\n"
        f"with machine.locked(Path({str(lock)!r})): machine.run({slow!r})"
    )
    with subprocess.Popen([sys.executable, "-c", holder]) as child:
        until(started.exists)
        child.kill()
    with lock.open("w") as handle, pytest.raises(BlockingIOError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    go.write_text("\n")
    with sets.lock_set("a"):
        assert ended.exists()


def test_a_mount_that_vanishes_meanwhile_is_unmounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[list[str]] = []

    def run(argv: list[str]) -> str:
        tries.append(argv)
        raise HostError("not mounted")

    tables = iter([[tmp_path / "root", tmp_path / "disk"], [tmp_path / "disk"], []])
    monkeypatch.setattr(machine, "run", run)
    monkeypatch.setattr(machine, "mounts_below", lambda folder: next(tables))
    machine.unmount_below(tmp_path)
    assert tries == [["umount", str(tmp_path / "root")], ["umount", str(tmp_path / "disk")]]


def test_a_busy_mount_is_detached_lazily(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = [tmp_path / "disk"]

    def run(argv: list[str]) -> str:
        if "--lazy" not in argv:
            raise HostError("target is busy")
        mounts.clear()
        return ""

    monkeypatch.setattr(machine, "run", run)
    monkeypatch.setattr(machine, "mounts_below", lambda folder: list(mounts))
    machine.unmount_below(tmp_path, patience=0.0)
    assert not mounts


def test_a_mount_that_cannot_be_detached_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(argv: list[str]) -> str:
        raise HostError("permission denied")

    monkeypatch.setattr(machine, "run", run)
    monkeypatch.setattr(machine, "mounts_below", lambda folder: [tmp_path / "disk"])
    with pytest.raises(HostError, match="permission denied"):
        machine.unmount_below(tmp_path, patience=0.0)


@pytest.mark.parametrize("vanished", [True, False])
def test_a_loop_device_may_be_detached_by_the_kernel_first(
    vanished: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(argv: list[str]) -> str:
        if "--detach" in argv:
            raise HostError("losetup: /dev/loop7: detach failed: No such device or address")
        return next(listings)

    listings = iter(["/dev/loop7\n", "" if vanished else "/dev/loop7\n"])
    monkeypatch.setattr(machine, "run", run)
    with nullcontext() if vanished else pytest.raises(HostError, match="still held by /dev/loop7"):
        machine.detach_loops(tmp_path / "disk.img", patience=0.0)


@given(st.text(st.characters(blacklist_characters="\0/", blacklist_categories=["Cs"]), min_size=1, max_size=40))
def test_a_path_is_one_word_for_a_shell(name: str) -> None:
    done = subprocess.run(["sh", "-c", f"printf %s {quoted(Path(name))}"], capture_output=True, check=True)
    assert done.stdout == str(Path(name)).encode()


def test_the_commands_work_where_the_working_directory_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    program = (
        "import os, sys; os.rmdir(os.getcwd()); import deployer_rehearsal.demo, deployer_rehearsal.commands as c;"
        " print(c.rerun_hint())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=gone,
        env={**os.environ, "PYTHONPATH": str(package_root().parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "/inventories/rehearsal.toml status" in done.stdout
