"""Trouble around a deployment: closed terminals and pipes, changed keys, servers that crash again and again."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from tests.e2e.conftest import Site
from tests.patience import PATIENCE, until


def unit_property(site: Site, name: str) -> str:
    return site.host.run(["systemctl", "show", "-P", name, "sglang-kimi.service"]).strip()


def test_a_crash_looping_server_can_be_replaced(live_site: Site) -> None:
    live_site.fault("crash-after-capture", when_argv_contains="--tp-size 2")
    live_site.host.run(["systemctl", "kill", "-s", "KILL", "sglang-kimi.service"])
    until(lambda: unit_property(live_site, "SubState") == "auto-restart")
    document = live_site.json("apply", "pp2", "--yes")
    assert (document["outcome"], document["previous"]) == ("live", "0001-tp2")


def test_a_restarted_and_old_server_is_found_well_by_converge(live_site: Site) -> None:
    live_site.host.run(["sh", "-c", "kill -KILL $(systemctl show -P MainPID sglang-kimi.service)"])
    until(lambda: unit_property(live_site, "NRestarts") == "1")
    until(lambda: live_site.exit_code("status") == 0)
    before = live_site.invocation()
    text = live_site.inventory.read_text().replace("start = 60", "start = 4")
    live_site.inventory.write_text(text)
    document = live_site.json("converge")
    assert (document["outcome"], document["exit_code"]) == ("live", 0)
    assert "again" not in document["message"]
    assert live_site.invocation() == before


def test_a_changed_key_does_not_spoil_the_way_back(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.write_inventory(more='api_key = { env = "KIMI_KEY" }')
    monkeypatch.setenv("KIMI_KEY", "first-key-0123456789")
    assert site.json("apply", "tp2")["outcome"] == "live"
    monkeypatch.setenv("KIMI_KEY", "second-key-0123456789")
    site.fault("crash-in-load", when_argv_contains="--pp-size")
    document = site.json("apply", "pp2", "--yes", expect=5)
    assert document["outcome"] == "rolled_back"
    assert site.status()["live"]["release"] == "0001-tp2"
    everything = site.run("logs", "-n", "2000") + site.run("history", "--json") + str(document)
    assert "key-0123456789" not in everything
    monkeypatch.delenv("KIMI_KEY")
    site.json("converge")


def test_a_closed_terminal_is_a_ctrl_c(live_site: Site) -> None:
    live_site.fault("hang-in-load", when_argv_contains="--pp-size")
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(live_site.folder)
        words = ["apply", "pp2", "--yes", "-i", str(live_site.inventory)]
        os.execv(sys.executable, [sys.executable, "-m", "deployer", *words])
    while live_site.step() != "wait":
        os.read(terminal, 65536)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    assert live_site.step() is None
    assert live_site.status()["unit"]["running"] == "0001-tp2"
    assert not list(live_site.folder.glob("deployer-bug-*"))


def test_a_reader_that_goes_away_does_not_stop_a_change(live_site: Site) -> None:
    apply = f"{sys.executable} -m deployer apply pp2 --yes -i {live_site.inventory}"
    command = f"{apply} | head -3; echo ${{PIPESTATUS[0]}}"
    finished = subprocess.run(
        ["bash", "-c", command],
        cwd=live_site.folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    assert finished.stdout.splitlines()[-1] == "0"
    assert live_site.live() == "0002-pp2"


def test_a_changed_port_does_not_spoil_the_way_back(live_site: Site) -> None:
    text = live_site.inventory.read_text().replace("port = 30000", "port = 30001")
    live_site.inventory.write_text(text)
    assert any("30000" in found and "30001" in found for found in live_site.status()["drift"])
    live_site.fault("crash-in-load", when_argv_contains="--pp-size")
    assert live_site.json("apply", "pp2", "--yes", expect=5)["previous"] == "0001-tp2"
    live_site.fault("clear")
    moved = live_site.json("apply", "tp2", "--yes")
    assert moved["outcome"] == "live"
    assert live_site.status()["drift"] == []
    assert live_site.json("rollback", "--yes")["release"] == "0001-tp2"
    assert live_site.status()["health"]["ok"]
