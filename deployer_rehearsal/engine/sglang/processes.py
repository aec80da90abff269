"""The server's child processes: one scheduler a rank and a detokenizer, as SGLang has them, doing nothing.

They sleep in the kernel and cost about nothing, but they are real: they show in the control group and hold "GPU
memory", one that dies takes the server down, and they die when the server does.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import time
from pathlib import Path
from typing import NoReturn

_PR_SET_PDEATHSIG = 1


def title(name: str) -> None:
    """Set the name that ``ps`` and ``/proc/<pid>/comm`` show (15 bytes)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name[:15], encoding="utf-8")


def spawn(name: str, *, deaf: bool = False) -> int:
    """Fork a child that sleeps until it is killed or this process ends; with ``deaf`` it ignores SIGTERM."""
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        _rest(name, deaf)
    return pid


def spawn_orphan(name: str, listener: socket.socket | None) -> int:
    """Fork a child that outlives this process and ignores SIGTERM; with ``listener`` it keeps that port."""
    read_end, write_end = os.pipe()
    between = os.fork()
    if between == 0:
        os.close(read_end)
        orphan = os.fork()
        if orphan:
            os.write(write_end, f"{orphan}\n".encode())
            os._exit(0)
        os.close(write_end)
        if listener is not None:
            listener.set_inheritable(True)
        os.setsid()
        _rest(name, deaf=True)
    os.close(write_end)
    with os.fdopen(read_end) as stream:
        pid = int(stream.readline())
    os.waitpid(between, 0)
    return pid


def _rest(name: str, deaf: bool) -> NoReturn:
    """Run a child: it does nothing, with default signal handlers, and never returns."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN if deaf else signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    title(name)
    while True:
        time.sleep(3600)


def exited(pids: list[int]) -> tuple[int, int] | None:
    """Return pid and exit code (negative: a signal) of the first child that has ended by itself."""
    for pid in pids:
        try:
            done, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return pid, -signal.SIGKILL
        if done:
            return pid, os.waitstatus_to_exitcode(status)
    return None


def alive(pid: int) -> bool:
    """Whether a child is still running."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == 0
    except ChildProcessError:
        return False


def kill_all(pids: list[int]) -> None:
    """SIGKILL the children and reap them."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
