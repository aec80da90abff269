"""The parts of a rehearsal that lean on processes, programs and file locks of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.rehearsal import container, sets
from deployer.rehearsal.engine_venv import quoted
from deployer.resources import package_root


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
        deadline = time.monotonic() + 5
        while container.process_started(child.pid) is not None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert container.process_started(child.pid) is None, "a zombie is no process"
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
    thread.join(5)
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
        thread.join(20)
    assert seen == [1] * 200


@given(
    st.text(st.characters(blacklist_characters="\0/", blacklist_categories=["Cs"]), min_size=1, max_size=40)
)
def test_a_path_is_one_word_for_a_shell(name: str) -> None:
    done = subprocess.run(["sh", "-c", f"printf %s {quoted(Path(name))}"], capture_output=True, check=True)
    assert done.stdout == str(Path(name)).encode()


def test_the_commands_work_where_the_working_directory_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    program = (
        "import os, sys; os.rmdir(os.getcwd()); import deployer.rehearsal.demo, deployer.rehearsal.commands as c;"
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
