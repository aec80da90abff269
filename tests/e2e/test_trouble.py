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


def holders(site: Site, text: str) -> list[str]:
    """Which files of the host hold a text (with their modes), and which command lines. The journal is left out."""
    grep = "grep -s -D skip -laF -f /dev/stdin --exclude-dir=journal"
    places = "/var/lib/deployer /run /etc/systemd /usr/local/lib/systemd /tmp/deployer-* /var/tmp/deployer-*"
    script = f"cat > /dev/shm/text; {grep} -r {places} < /dev/shm/text; {grep} /proc/[0-9]*/cmdline < /dev/shm/text"
    found = site.host.run(["sh", "-c", f"({script}; rm /dev/shm/text) | xargs -r stat -c '%a %n'"], stdin=text)
    return sorted(found.splitlines())


def test_a_changed_key_does_not_spoil_the_way_back(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    token = "hf-token-0123456789"
    variables = '[services.kimi.environment]\nHF_TOKEN = { env = "KIMI_TOKEN" }'
    site.write_inventory(more=f'api_key = {{ env = "KIMI_KEY" }}\n{variables}')
    monkeypatch.setenv("KIMI_TOKEN", token)
    monkeypatch.setenv("KIMI_KEY", "first-key-0123456789")
    assert site.json("apply", "tp2")["outcome"] == "live"
    monkeypatch.setenv("KIMI_KEY", "second-key-0123456789")
    site.fault("crash-in-load", when_argv_contains="--pp-size")
    document = site.json("apply", "pp2", "--yes", expect=5)
    assert document["outcome"] == "rolled_back"
    assert site.status()["live"]["release"] == "0001-tp2"
    everything = site.run("logs", "-n", "2000") + site.run("history", "--json") + str(document)
    everything += "".join(site.run(*words, "--json") for words in (["status"], ["plan", "tp2"], ["diagnose"]))
    everything += site.run("plan", "pp2", "--diff", "--out", "plan.json") + (site.folder / "plan.json").read_text()
    assert "0123456789" not in everything
    # On the host they are in the files that only root reads, and nowhere else: manifest, audit, units, argv.
    releases = "600 /var/lib/deployer/kimi/releases"
    both = ["0001-tp2", "0002-pp2"]
    assert holders(site, token) == [f"{releases}/{release}/env" for release in both]
    assert holders(site, "key-0123456789") == [f"{releases}/{release}/config.yaml" for release in both]
    journal = site.host.run(["journalctl", "--no-pager", "-o", "cat"]).splitlines()
    assert not [line for line in journal if token in line]
    # SGLang itself prints its key, in one line: `check` says so.
    assert all("server_args=" in line for line in journal if "key-0123456789" in line)
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
