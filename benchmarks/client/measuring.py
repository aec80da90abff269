"""Runs a client against the server and takes its figures: errors, processor time, start-up, highest rate."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.client.figures import Served, between, errors, rate, span, truth
from benchmarks.client.results import NoResult, of_deployer
from benchmarks.client.server import Server
from benchmarks.client.tools import Load, Tool

Json = dict[str, Any]

#: Seconds between two looks at the processor time, and that a run may take at most.
LOOK = 0.1
LONGEST = 180.0
#: A server busy for more of the time may be what limits the rate.
SATURATED = 0.75
_TICK = os.sysconf("SC_CLK_TCK")
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Cores:
    """Which processors who runs on; None: all of them."""

    server: tuple[int, ...]
    fast_server: tuple[int, ...]
    clients: tuple[int, ...]


def shared_out(cores: Sequence[int]) -> Cores:
    """The server has processors of its own: four (with eight or more), else one."""
    cores = sorted(cores)
    if len(cores) == 1:
        return Cores((cores[0],), (cores[0],), (cores[0],))
    own = 4 if len(cores) >= 8 else 1
    return Cores((cores[0],), tuple(cores[:own]), tuple(cores[own:]))


def adopt_orphans() -> None:
    """Processes that a client leaves behind become children of this one, so that their time counts and they end."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class ProcessorTime:
    """Samples the user and system time of all processes below this one but ``others``, from now on."""

    def __init__(self, others: Sequence[int]) -> None:
        self.others = frozenset(others)
        self.samples: list[tuple[float, float]] = []
        self._reaped = self._of_ended()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            self.look()
            if self._stop.wait(LOOK):
                return

    def look(self) -> None:
        """One sample."""
        total = self._of_ended() - self._reaped
        for pid in descendants(os.getpid(), self.others):
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                total += sum(map(int, fields[11:15])) / _TICK
        # Between a process's end and its being waited for, it may be in neither sum: such a look tells nothing.
        if not self.samples or total >= self.samples[-1][1]:
            self.samples.append((time.monotonic(), total))

    @staticmethod
    def _of_ended() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    def end(self) -> None:
        """No more samples."""
        self._stop.set()
        self._thread.join()
        self.look()


def descendants(root: int, without: frozenset[int]) -> list[int]:
    """Processes below ``root``, but for those named and what is below them."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found, todo = [], [root]
    while todo:
        for child in children.get(todo.pop(), ()):
            if child not in without:
                found.append(child)
                todo.append(child)
    return found


@dataclass(frozen=True)
class Ran:
    """A client's run: when it was started, its result's text, the server's log, its processor time."""

    started: float
    text: str
    log: list[Served]
    samples: list[tuple[float, float]]


def run(tool: Tool, python: str, load: Load, server: Server, cores: Sequence[int]) -> Ran:
    """Run it to its end. NoResult, with the end of what it said, where it has none."""
    with tempfile.TemporaryDirectory(prefix="bench-client-") as name:
        folder = Path(name)
        command = tool.command(python, load, folder)
        server.log()
        beside = descendants(os.getpid(), frozenset())  # the server, and whatever else is not the client's
        with (folder / "stdout").open("w+") as out, (folder / "stderr").open("w+") as err:
            started = time.monotonic()
            process = subprocess.Popen(
                ["taskset", "-c", ",".join(map(str, cores)), *command.argv],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                text=True,
                cwd=folder,
                env={**os.environ, **command.env},
                start_new_session=True,
            )
            sampling = ProcessorTime(beside)
            try:
                process.communicate(command.stdin, timeout=LONGEST)
            except subprocess.TimeoutExpired:
                raise NoResult(f"{tool.name} did not end in {LONGEST:g} s") from None
            finally:
                _end_all(beside)
                process.wait()
                sampling.end()
            out.seek(0)
            err.seek(0)
            said = out.read()
            result = folder / command.result if command.result else None
            if process.returncode or (result and not result.exists()):
                end = (said + err.read()).strip()[-2000:]
                raise NoResult(f"{tool.name} ended with status {process.returncode}: {end}")
            text = result.read_text() if result else said
        return Ran(started, text, server.log(), sampling.samples)


def _end_all(others: Sequence[int]) -> None:
    """What the client has left running ends now, and is waited for."""
    until = time.monotonic() + 5
    for pid in descendants(os.getpid(), frozenset(others)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 15 if time.monotonic() < until else 9)
    while (left := descendants(os.getpid(), frozenset(others))) and time.monotonic() < until + 5:
        for pid in left:
            with contextlib.suppress(ChildProcessError, ProcessLookupError):
                if time.monotonic() > until:
                    os.kill(pid, 9)
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.02)


def level(tool: Tool, python: str, load: Load, server: Server, cores: Sequence[int]) -> Json:
    """The figures of one level: errors in ms, processor time a token in ms, start-up in seconds."""
    ran = run(tool, python, load, server, cores)
    if not ran.log:
        raise NoResult(f"{tool.name} has sent nothing")
    last = ran.log[-load.requests :]  # warm-ups and what is discarded come before
    try:
        seen = tool.read(ran.text)
        intent = of_deployer(ran.text, clock="ttft_s") if tool.ours else None
    except (KeyError, TypeError, ValueError) as error:
        raise NoResult(f"{tool.name}: {error}") from error
    true = truth(last, seen.itl_of)
    begin, end = span(last)
    tokens = sum(len(request.moments) for request in last)
    found = {
        "tool": tool.name,
        "level": load.streams,
        "requests": len(last),
        "tokens": tokens,
        "true": asdict(true),
        "seen": asdict(seen),
        "errors": errors(seen, true),
        "cpu_ms_a_token": 1000 * between(ran.samples, begin, end) / tokens,
        "cpu_s": ran.samples[-1][1],
        "startup_s": ran.log[0].arrival - ran.started,
    }
    if intent is not None:
        found["errors_intent"] = errors(replace(intent, itl_of=seen.itl_of), true)
    return found


def highest(tool: Tool, python: str, load: Load, server: Server, cores: Sequence[int], *, on: str) -> Json:
    """The highest rate in tokens a second, and whether a thread of the server was at its own limit meanwhile."""
    before = _time_of(server.pid)
    ran = run(tool, python, load, server, cores)
    last = ran.log[-load.requests :]
    if len(last) < load.requests:
        raise NoResult(f"{tool.name} has sent {len(last)} of {load.requests} requests")
    begin, end = span(last)
    return {
        "tool": tool.name,
        "on": on,
        "rate_tok_s": rate(last),
        "seconds": end - begin,
        "server_cpu_s": _time_of(server.pid) - before,
        "server_limited": _time_of(server.pid) - before > SATURATED * server.threads * (end - begin),
    }


def _time_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / _TICK


@contextlib.contextmanager
def on(cores: Sequence[int]) -> Iterator[None]:
    """This program itself on these processors."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
