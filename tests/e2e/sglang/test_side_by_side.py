"""What is kept of the real SGLang, and what its stand-in is held to, is still what the real one does."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from deployer_rehearsal.real_engine import MODEL, PYTHON
from tests.e2e.sglang.conftest import PATIENCE, SglangSite
from tests.e2e.sglang.seen import journal, watching
from tests.engines import answers, behaviour
from tests.engines.behaviour import end_kinds
from tests.patience import until

VERSION = "0.5.23"
PORT = 30002
#: Lets a server end in some way; tells how it ended and what it said.
End = Callable[[SglangSite], dict[str, Any]]


def test_its_answers_are_those_that_are_kept(tp1_site: SglangSite) -> None:
    now = answers.collect(f"http://{tp1_site.host.address}:30000")
    kept = answers.recall(answers.kept(VERSION))
    assert answers.differences(kept, now) == answers.differences(now, kept) == []
    assert now["metrics"] == kept["metrics"]


def test_its_launch_lines_are_those_that_are_kept(tp1_site: SglangSite) -> None:
    kept = behaviour.kept("launch", VERSION)
    lines = journal(tp1_site)
    assert behaviour.launch_kinds(lines) == kept["tp1"]
    assert behaviour.batch_fields(lines)["prefill"] == kept["batches"]["prefill"]


class Loose:
    """A server of no service of deployer's: a unit of its own, which lets it die in peace.

    Not with RemainAfterExit: children that the main process left behind would send their SIGQUIT to PID 1.
    """

    def __init__(self, site: SglangSite, name: str, *argv: str, port: int = PORT) -> None:
        self.site, self.unit, self.end = site, f"loose-{name}", f"/run/loose-{name}"
        settings = {
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "SGLANG_CPU_OMP_THREADS_BIND": "0|1",
            "PYTHONUNBUFFERED": "1",
        }
        noted = f"ExecStopPost=/bin/sh -c 'echo $$EXIT_CODE $$EXIT_STATUS >{self.end}'"
        words = ["systemd-run", "-q", f"--unit={self.unit}", "-p", "KillMode=mixed", "-p", noted]
        words += [f"--setenv={key}={value}" for key, value in settings.items()]
        words += [PYTHON, "-m", "sglang.launch_server", "--model-path", MODEL, "--device", "cpu"]
        words += [
            "--max-total-tokens",
            "4096",
            "--host",
            site.host.address,
            "--port",
            str(port),
            "--sleep-on-idle",
        ]
        site.host.run([*words, *argv])
        shown = site.host.run(["systemctl", "show", "-P", "MainPID", "-P", "InvocationID", self.unit])
        self.pid, self.invocation = shown.split()

    def lines(self) -> list[str]:
        """What it wrote, line by line."""
        words = ["journalctl", "-o", "cat", "--all", "--no-pager"]
        return self.site.host.run([*words, f"_SYSTEMD_INVOCATION_ID={self.invocation}"]).splitlines()

    def wait_for(self, text: str) -> None:
        until(lambda: any(text in line for line in self.lines()), PATIENCE)

    def ready(self) -> Loose:
        self.wait_for("fired up and ready to roll")
        return self

    def child(self, title: str) -> str:
        """The pid of the child of that title."""
        found = [line.split() for line in self.site.server_processes() if title in line]
        return next((words[0] for words in found if words[1] == self.pid), "")

    def signal(self, name: str, *titles: str) -> None:
        """To the main process, or to the child of one of the titles, as soon as there is one."""
        pids = [] if titles else [self.pid]

        def found() -> bool:
            pids.extend(filter(None, map(self.child, titles)))
            return bool(pids)

        until(lambda: bool(pids) or found(), PATIENCE)
        self.site.host.run(["kill", f"-{name}", pids[0]])

    def alive(self) -> bool:
        """Whether its main process is still there."""
        return any(line.split()[0] == self.pid for line in self.site.server_processes())

    def exit(self) -> int:
        """How it ended: exit status, or the negative number of the signal."""
        look = ["sh", "-c", f"cat {self.end} 2>/dev/null || true"]
        until(lambda: bool(self.site.host.run(look)), PATIENCE)
        code, status = self.site.host.run(look).split()
        return int(status) if code == "exited" else -signal.Signals[f"SIG{status}"]

    def ended(self) -> dict[str, Any]:
        """How it ended, and what it said of that."""
        return {"exit": self.exit(), "said": end_kinds(self.lines())}


@pytest.fixture
def site(sglang_site: SglangSite) -> Iterator[SglangSite]:
    yield sglang_site
    end_loose(sglang_site)


def end_loose(site: SglangSite) -> None:
    """No server of ours is left."""
    units = "'loose-*'"
    over = f"systemctl kill -s KILL {units}; systemctl stop {units}; systemctl reset-failed {units}"
    site.host.run(["sh", "-c", f"{over}; rm -f /run/loose-*; true"])


def busy_end(*interrupts: str) -> End:
    """SIGTERM while a request is under way; ``interrupts``: lines of its log at each of which it gets a SIGINT."""

    def end(site: SglangSite) -> dict[str, Any]:
        server, answers = Loose(site, "busy").ready(), []
        body = {"prompt": "the of and", "max_tokens": 600, "ignore_eos": True}

        def ask() -> None:
            with contextlib.suppress(OSError):
                answers.append(site.ask("/v1/completions", body, timeout=200, port=PORT)["usage"]["completion_tokens"])

        client = threading.Thread(target=ask, daemon=True)
        client.start()
        until(lambda: site.ask("/v1/loads", port=PORT)["loads"][0]["num_used_tokens"] > 0)
        server.signal("TERM")
        for line in interrupts:
            server.wait_for(line)
            server.signal("INT")
            server.wait_for("Shutting down")
        try:
            site.ask("/v1/completions", {**body, "max_tokens": 1}, timeout=60, port=PORT)
            new = "answered"
        except OSError:
            new = "refused"
        found = server.ended()
        client.join(30)
        return {**found, "answered": answers == [600], "new request": new}

    return end


def taken_end(site: SglangSite) -> dict[str, Any]:
    """The port is another's, and then a SIGTERM."""
    listen = ["python3", "-m", "http.server", str(PORT), "--bind", site.host.address]
    site.host.run(["systemd-run", "-q", "--unit=loose-thief", *listen])
    server = Loose(site, "taken")
    server.wait_for("error while attempting to bind")
    server.signal("TERM")
    time.sleep(20)
    found = {"alive after SIGTERM": server.alive(), "said": end_kinds(server.lines())}
    server.signal("KILL")
    return {**found, "exit": server.exit()}


def idle_end(site: SglangSite) -> dict[str, Any]:
    """SIGTERM while nothing is under way; /health is watched from the start to the end."""
    with watching(site.host.address, PORT) as health:
        idle = Loose(site, "idle").ready()
        until(lambda: health.states[-1] == "200")
        started, health.states[:] = list(health.states), ["200"]
        assert behaviour.fits(started, behaviour.kept("launch", VERSION)["health"])
        idle.signal("TERM")
        found = {**idle.ended(), "health": [*health.states]}
    assert min(health.seconds["200"]) >= 1.0  # it generates a token, and looks once a second
    return found


def starting_end(site: SglangSite) -> dict[str, Any]:
    """SIGTERM while its children import."""
    server = Loose(site, "starting")
    server.wait_for("server_args=")
    server.signal("TERM")
    return server.ended()


def signalled(name: str, *titles: str, argv: Sequence[str] = ()) -> End:
    """A signal to a server that is up."""

    def end(site: SglangSite) -> dict[str, Any]:
        server = Loose(site, "signalled", *argv).ready()
        server.signal(name, *titles)
        return server.ended()

    return end


def early_end(site: SglangSite) -> dict[str, Any]:
    """SIGKILL of its first child, which is the scheduler, while that imports."""
    server = Loose(site, "early")
    server.signal("KILL", "spawn_main", "sglang::scheduler")
    return server.ended()


ENDS: dict[str, End] = {
    "bad flag": lambda site: Loose(site, "flag", "--no-such-flag").ended(),
    "wrong model": lambda site: Loose(site, "model", "--model-path", "/srv/none").ended(),
    "SIGTERM while it starts": starting_end,
    "SIGTERM while idle": idle_end,
    "SIGINT while idle": signalled("INT"),
    "SIGTERM while busy": busy_end(),
    "SIGTERM and SIGINT while busy": busy_end("SIGTERM received"),
    "SIGINT again while busy": busy_end("SIGTERM received", "Gracefully exiting"),
    "scheduler killed": signalled("KILL", "sglang::scheduler"),
    "detokenizer killed": signalled("KILL", "sglang::detokenizer"),
    "one stage of two killed": signalled("KILL", "sglang::scheduler_PP1", argv=("--pp-size", "2")),
    "scheduler killed while it starts": early_end,
    "port taken": taken_end,
}


@pytest.mark.parametrize("name", ENDS)
def test_its_ends_are_those_that_are_kept(site: SglangSite, name: str) -> None:
    kept = behaviour.kept("ends", VERSION)
    assert set(kept) == set(ENDS)
    found = ENDS[name](site)
    assert behaviour.same_end(found, kept[name]), found
