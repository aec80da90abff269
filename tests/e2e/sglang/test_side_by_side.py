"""What is kept of the real SGLang, and what its stand-in is held to, is still what the real one does."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from deployer.rehearsal.real_engine import MODEL, PYTHON
from tests.e2e.sglang.conftest import PATIENCE, SglangSite
from tests.e2e.sglang.seen import journal, watching
from tests.engines import answers, behaviour
from tests.engines.behaviour import end_kinds

VERSION = "0.5.23"
PORT = 30002


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
        self.site.until(lambda: any(text in line for line in self.lines()), PATIENCE)

    def ready(self) -> Loose:
        self.wait_for("fired up and ready to roll")
        return self

    def child(self, title: str) -> str:
        """The pid of the child of that title."""
        found = [line.split() for line in self.site.server_processes() if title in line]
        return next((words[0] for words in found if words[1] == self.pid), "")

    def signal(self, name: str, title: str = "") -> None:
        """To the main process, or to the child of that title."""
        pids = [] if title else [self.pid]

        def found() -> bool:
            pids.extend(filter(None, [self.child(title)]))
            return bool(pids)

        self.site.until(lambda: bool(pids) or found(), PATIENCE)
        self.site.host.run(["kill", f"-{name}", pids[0]])

    def alive(self) -> bool:
        """Whether its main process is still there."""
        return any(line.split()[0] == self.pid for line in self.site.server_processes())

    def exit(self) -> int:
        """How it ended: exit status, or the negative number of the signal."""
        look = ["sh", "-c", f"cat {self.end} 2>/dev/null || true"]
        self.site.until(lambda: bool(self.site.host.run(look)), PATIENCE)
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


def busy_end(site: SglangSite) -> dict[str, Any]:
    """SIGTERM while a request is under way."""
    server, answers = Loose(site, "busy").ready(), []
    body = {"prompt": "the of and", "max_tokens": 600, "ignore_eos": True}

    def ask() -> None:
        answers.append(
            site.ask("/v1/completions", body, timeout=200, port=PORT)["usage"]["completion_tokens"]
        )

    client = threading.Thread(target=ask, daemon=True)
    client.start()
    site.until(lambda: site.ask("/v1/loads", port=PORT)["loads"][0]["num_used_tokens"] > 0)
    server.signal("TERM")
    found = server.ended()
    client.join(30)
    return {**found, "answered": answers == [600]}


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


def collect_ends(site: SglangSite) -> dict[str, Any]:
    """Every end that is kept, by its name."""
    found: dict[str, dict[str, Any]] = {
        "bad flag": Loose(site, "flag", "--no-such-flag").ended(),
        "wrong model": Loose(site, "model", "--model-path", "/srv/none").ended(),
    }
    with watching(site.host.address, PORT) as health:
        loading = Loose(site, "loading")
        loading.wait_for("server_args=")  # its children import
        loading.signal("TERM")
        found["SIGTERM while it starts"] = loading.ended()
        idle = Loose(site, "idle").ready()
        site.until(lambda: health.states[-1] == "200")
        started, health.states[:] = list(health.states), ["200"]
        assert behaviour.fits(started, behaviour.kept("launch", VERSION)["health"])
        idle.signal("TERM")
        found["SIGTERM while idle"] = {**idle.ended(), "health": [*health.states]}
    assert min(health.seconds["200"]) >= 1.0  # it generates a token, and looks once a second
    interrupted = Loose(site, "interrupted").ready()
    interrupted.signal("INT")
    found["SIGINT while idle"] = interrupted.ended()
    found["SIGTERM while busy"] = busy_end(site)
    for title in ("scheduler", "detokenizer"):
        killed = Loose(site, f"{title}-killed").ready()
        killed.signal("KILL", f"sglang::{title}")
        found[f"{title} killed"] = killed.ended()
    stages = Loose(site, "stages", "--pp-size", "2").ready()
    stages.signal("KILL", "sglang::scheduler_PP1")
    found["one stage of two killed"] = stages.ended()
    early = Loose(site, "early")
    early.signal("KILL", "spawn_main")  # the first, which is the scheduler, while it imports
    found["scheduler killed while it starts"] = early.ended()
    found["port taken"] = taken_end(site)
    return found


def test_its_ends_are_those_that_are_kept(site: SglangSite) -> None:
    assert collect_ends(site) == behaviour.kept("ends", VERSION)
