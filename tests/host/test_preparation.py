"""Preparing by real programs: what they print, how they fail, and what a killed one leaves to the next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from deployer.errors import HostError, PreflightRefused
from deployer_rehearsal import machine, preparation
from deployer_rehearsal.preparation import Step, is_done, pending, prepare
from deployer_rehearsal.sglang_env import find_python

# Waits for the file `go`, so that a test decides when the step ends.
_SLOW = """
import sys
from pathlib import Path
from deployer_rehearsal import machine
from deployer_rehearsal.preparation import Step, prepare
machine.run = lambda argv, **more: ""
folder = Path(sys.argv[1])
wait = "echo begun; touch begun; for i in $(seq 300); do test -e go && break; sleep 0.1; done; echo x >>made"
slow = Step("slow", "being slow", "1", commands=(("sh", "-c", wait),))
prepare(folder, [slow], say=lambda line: print(line, flush=True))
"""


def shell(text: str) -> tuple[tuple[str, ...], ...]:
    """A step's commands: one shell command."""
    return (("sh", "-c", text),)


def begin(folder: Path) -> subprocess.Popen[str]:
    """Prepare the slow step in a process of its own."""
    return subprocess.Popen([sys.executable, "-c", _SLOW, str(folder)], stdout=subprocess.PIPE, text=True)


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncing a disk that others write to takes its time."""
    monkeypatch.setattr(machine, "run", lambda argv, **more: "")


def until(path: Path) -> None:
    """Wait for a file."""
    end = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.02)


def test_a_failure_says_what_the_program_said_and_the_next_call_goes_on(tmp_path: Path) -> None:
    good = Step("one", "doing one", "1", commands=shell("echo 1 >>made"))
    bad = Step("two", "doing two", "1", commands=shell("echo ERROR: no such thing; exit 3"))
    with pytest.raises(HostError, match="doing two failed: ERROR: no such thing") as caught:
        prepare(tmp_path, [good, bad], say=lambda line: None)
    assert str(tmp_path / "log/two.log") in str(caught.value.remedy)
    better = Step("two", "doing two", "1", commands=shell("echo 2 >>made"))
    prepare(tmp_path, [good, better], say=lambda line: None)
    assert (tmp_path / "made").read_text() == "1\n2\n"


def test_the_second_best_is_taken_where_the_best_is_not_to_be_had(tmp_path: Path) -> None:
    step = Step("one", "doing one", "1", commands=shell("touch best; exit 1"), otherwise=shell("touch second"))
    prepare(tmp_path, [step], say=lambda line: None)
    assert (tmp_path / "second").exists()
    assert is_done(tmp_path, step)


def test_the_second_best_is_checked_for_its_own_size_before_it_is_begun(tmp_path: Path) -> None:
    asked: list[list[int]] = []

    def check(left: list[Step]) -> None:
        asked.append([step.size for step in left])
        if left[0].size == 50:
            raise PreflightRefused("too large")

    none = ((str(tmp_path / "none"),),)
    plan = [
        Step("one", "doing one", "1", commands=none, otherwise=none, size=5, otherwise_size=50),
        Step("two", "doing two", "1", size=7),
    ]
    with pytest.raises(PreflightRefused, match="too large"):
        prepare(tmp_path, plan, say=lambda line: None, check=check)
    assert asked == [[5, 7], [5, 7], [50, 7]]


def test_a_program_that_is_not_there_fails_the_step(tmp_path: Path) -> None:
    step = Step("one", "doing one", "1", commands=((str(tmp_path / "none"),),))
    with pytest.raises(HostError, match=r"cannot be run: .*No such file"):
        prepare(tmp_path, [step], say=lambda line: None)


def test_what_is_made_can_be_read_by_everybody_and_scratch_files_go(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        step = Step("one", "doing one", "1", commands=shell("touch made; touch $TMPDIR/x; exit 1"))
        with pytest.raises(HostError):
            prepare(tmp_path, [step], say=lambda line: None)
    finally:
        os.umask(before)
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o644
    assert not (tmp_path / "tmp").exists()


def test_long_steps_are_told_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "REPORT_EVERY", 0.3)
    said: list[str] = []
    step = Step("one", "doing one", "1", commands=shell("echo Downloading x; echo 'a: b'; sleep 1"))
    prepare(tmp_path, [step], say=said.append)
    assert any(line.startswith("1/1   0 s") and line.endswith("Downloading x") for line in said)


def test_the_second_waits_for_the_first_and_makes_nothing_again(tmp_path: Path) -> None:
    first = begin(tmp_path)
    until(tmp_path / "begun")
    second = begin(tmp_path)
    assert second.stdout is not None
    assert "another command is preparing" in second.stdout.readline()
    (tmp_path / "go").touch()
    assert (first.wait(30), second.wait(30)) == (0, 0)
    first.communicate()
    second.communicate()
    assert (tmp_path / "made").read_text() == "x\n"


def test_the_program_of_a_killed_preparation_is_waited_for(tmp_path: Path) -> None:
    first = begin(tmp_path)
    until(tmp_path / "begun")
    first.send_signal(signal.SIGKILL)
    first.communicate()
    second = begin(tmp_path)
    assert second.stdout is not None
    assert "another command is preparing" in second.stdout.readline()
    assert not (tmp_path / "done/slow.json").exists()
    (tmp_path / "go").touch()
    second.communicate(timeout=30)
    assert second.returncode == 0
    # Its work was finished by nobody, so the step is made again.
    assert (tmp_path / "made").read_text() == "x\nx\n"


def test_ctrl_c_ends_the_program_too(tmp_path: Path) -> None:
    child = begin(tmp_path)
    until(tmp_path / "begun")
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=30)
    assert child.returncode != 0
    step = Step("slow", "being slow", "1")
    assert pending(tmp_path, [step]) == [step]
    assert subprocess.run(["flock", "-w", "10", str(tmp_path / "lock"), "true"], check=False).returncode == 0


def test_what_the_program_has_started_ends_with_it(tmp_path: Path) -> None:
    text = "trap '' TERM; (sleep 300 & echo $! >child; touch begun; wait) & wait"
    code = _SLOW.replace('(("sh", "-c", wait),)', f'(("sh", "-c", {text!r}),)')
    preparing = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    until(tmp_path / "begun")
    preparing.send_signal(signal.SIGINT)
    preparing.wait(30)
    state = Path("/proc", (tmp_path / "child").read_text().strip(), "stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_ctrl_c_while_a_program_starts_ends_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The moment in which it runs already, and `Popen` has not returned."""
    real = subprocess.Popen
    children: list[subprocess.Popen[bytes]] = []

    def start(*args: Any, **more: Any) -> subprocess.Popen[bytes]:
        child = real(*args, **more)
        children.append(child)
        signal.raise_signal(signal.SIGINT)
        return child

    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path, [Step("slow", "being slow", "1", commands=shell("sleep 60"))], say=lambda line: None)
    assert children[0].returncode == -signal.SIGTERM
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def fake_python(folder: Path, name: str, text: str) -> None:
    """A program in a folder of its own."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_a_python_that_fits_is_found_and_all_that_do_not_are_named(tmp_path: Path) -> None:
    old, broken = tmp_path / "old", tmp_path / "broken"
    fake_python(old, "python3.11", """echo '[[3, 10, 2], "/x/python3.10", "/x"]'""")
    fake_python(broken, "python3.11", "echo no ensurepip >&2; exit 1")
    path = f"{old}:{broken}"
    found = find_python(("python3.11",), path=path, own=sys.executable)
    assert found.file == Path(os.path.realpath(sys.executable))
    with pytest.raises(PreflightRefused) as caught:
        find_python(("python3.11", "python3.12"), path=path, own=str(old / "python3.11"))
    assert caught.value.detail["tried"] == [
        f"{old}/python3.11 (is 3.10.2)",
        f"{broken}/python3.11 (no ensurepip)",
        "python3.12 (not there)",
        f"{old}/python3.11 (is 3.10.2)",
    ]
