"""Programs that hang or fail, as the agent meets them: real ones."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from pathlib import Path

import pytest

from deployer.host.agent import base, gpus, machine, survey
from tests.fakes.machine import FakeMachine
from tests.patience import PATIENCE


def test_a_program_that_hangs_is_left_behind_with_its_children() -> None:
    with pytest.raises(base.Fail) as caught:
        machine.Machine().execute(["sh", "-c", "sleep 600 & sleep 600"], timeout=0.2)
    assert caught.value.code == "timeout"


def test_a_program_that_prints_without_end_is_ended() -> None:
    with pytest.raises(base.Fail, match="prints more than") as caught:
        machine.Machine().execute(["yes"], timeout=2 * PATIENCE, limit=1 << 16)
    assert caught.value.message == "yes: it prints more than 65536 bytes"


def test_what_a_program_says_is_text() -> None:
    done = machine.Machine().execute(
        ["sh", "-c", r"printf 'a\r\nb\rc\377\n'; printf 'oops\n' >&2; exit 3"], check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "a\nb\nc\ufffd\n", "oops\n")


@pytest.mark.parametrize(
    "script",
    [
        "sleep 600",
        "echo no devices; exit 9",
        "exec yes 0, x",
        "exec tr '\\0' x < /dev/zero",
        "sleep 600 & exec sleep 600",
    ],
)
def test_an_nvidia_smi_in_trouble_is_a_problem_and_no_error(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setitem(base.CHILD_ENV, "PATH", os.environ["PATH"])
    monkeypatch.setattr(machine, "SMI_TIMEOUT", 0.3)
    problems: list[str] = []
    assert gpus.gpu_facts(machine.Machine(), problems, 0.3) == (None, [])
    assert "GPUs cannot be seen: nvidia-smi" in problems[0]
    assert gpus.gpu_memory(machine.Machine(), [1]) is None


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b"HT"]
)
def test_an_answer_that_comes_drop_by_drop_is_cut_off(head: bytes) -> None:
    ended = threading.Event()

    def serve(server: socket.socket) -> None:
        client, _ = server.accept()
        with client, contextlib.suppress(OSError):
            client.sendall(head)
            while not ended.wait(0.05):
                client.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        with pytest.raises(base.Fail) as caught:
            machine.Machine().http("127.0.0.1", server.getsockname()[1], "/", 0.5)
        ended.set()
        thread.join()
    assert caught.value.detail["state"] == "timeout"


def test_an_engine_whose_files_changed_has_another_fingerprint_and_names_them(tmp_path: Path) -> None:
    folder = tmp_path / "site" / "sglang"
    folder.mkdir(parents=True)
    for name in ("__init__.py", "a.py", "b.py"):
        (folder / name).write_text("1\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift\nPYTHONPATH={folder.parent} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    machine = FakeMachine()
    before = survey.engine_facts(machine, str(python))
    assert (before["changed"], before["changed_files"]) == ([], 0)
    (folder / "b.py").write_text("22\n")
    written = (folder / "b.py").stat().st_ctime
    for name in ("__init__.py", "a.py"):
        assert (folder / name).stat().st_ctime < written
    after = survey.engine_facts(machine, str(python), (folder / "a.py").stat().st_ctime)
    assert after["fingerprint"] not in (None, before["fingerprint"])
    assert (after["changed"], after["changed_files"]) == (["b.py"], 1)
    # A patch that puts size and time back is seen by the kernel's own time of the change.
    info = (folder / "b.py").stat()
    (folder / "b.py").write_text("33\n")
    os.utime(folder / "b.py", ns=(info.st_atime_ns, info.st_mtime_ns))
    patched = survey.engine_facts(machine, str(python))
    assert (patched["fingerprint"], patched["written"] != after["written"]) == (after["fingerprint"], True)
