"""What is kept of the real SGLang, and what its stand-in is held to, is still what the real one does."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from deployer.rehearsal.real_engine import MODEL, PYTHON
from tests.e2e.sglang.conftest import PATIENCE, SglangSite
from tests.e2e.sglang.seen import journal, watching
from tests.engines import answers, behaviour

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

    def __init__(self, site: SglangSite, name: str, *argv: str) -> None:
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
            str(PORT),
            "--sleep-on-idle",
        ]
        site.host.run([*words, *argv])
        self.pid = site.host.run(["systemctl", "show", "-P", "MainPID", self.unit]).strip()

    def wait_for(self, text: str) -> None:
        self.site.until(lambda: any(text in line for line in journal(self.site, self.unit)), PATIENCE)

    def signal(self, name: str, title: str = "") -> None:
        """To the main process, or to the child of that title."""
        pid = self.pid
        if title:
            found = [line.split() for line in self.site.server_processes() if title in line]
            pid = next(words[0] for words in found if words[1] == self.pid)
        self.site.host.run(["kill", f"-{name}", pid])

    def exit(self) -> int:
        """How it ended: exit status, or the negative number of the signal."""
        look = ["sh", "-c", f"cat {self.end} 2>/dev/null || true"]
        self.site.until(lambda: bool(self.site.host.run(look)), PATIENCE)
        code, status = self.site.host.run(look).split()
        return int(status) if code == "exited" else -signal.Signals[f"SIG{status}"]


@pytest.fixture
def site(sglang_site: SglangSite) -> Iterator[SglangSite]:
    yield sglang_site
    units = "'loose-*'"
    over = f"systemctl kill -s KILL {units}; systemctl stop {units}; systemctl reset-failed {units}"
    sglang_site.host.run(["sh", "-c", f"{over}; rm -f /run/loose-*; true"])


def test_its_ends_are_those_that_are_kept(site: SglangSite) -> None:
    kept = behaviour.kept("ends", VERSION)
    found: dict[str, dict[str, Any]] = {
        "bad flag": {"exit": Loose(site, "flag", "--no-such-flag").exit()},
        "wrong model": {"exit": Loose(site, "model", "--model-path", "/srv/none").exit()},
    }
    with watching(site.host.address, PORT) as health:
        loading = Loose(site, "loading")
        loading.wait_for("server_args=")  # its children import
        loading.signal("TERM")
        found["SIGTERM while it starts"] = {"exit": loading.exit()}
        idle = Loose(site, "idle")
        idle.wait_for("fired up and ready to roll")
        site.until(lambda: health.states[-1] == "200")
        started, health.states[:] = list(health.states), ["200"]
        assert behaviour.fits(started, behaviour.kept("launch", VERSION)["health"])
        idle.signal("TERM")
        found["SIGTERM while idle"] = {"exit": idle.exit(), "health": [*health.states]}
    assert min(health.seconds["200"]) >= 1.0  # it generates a token, and looks once a second
    killed = Loose(site, "killed")
    killed.wait_for("fired up and ready to roll")
    killed.signal("KILL", "sglang::scheduler")
    found["scheduler killed"] = {"exit": killed.exit()}
    assert found == kept
