"""Commands without a service named, where there are several: each has its line, and a dead host costs only its own."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest

from deployer import errors
from deployer.cli.main import run
from deployer.config.inventory import HostConfig
from deployer.deploy.session import Session
from deployer.errors import HostUnreachable, worst
from deployer.host.protocol import Host
from deployer.inspect.history import History
from deployer.resources import cache_folder
from tests.fakes.host import FakeHost, FakeWorld
from tests.patience import PATIENCE

SERVICE = (
    '[services.{0}]\nhost = "{1}"\nmodel = "/m"\nport = {2}\nbind = "127.0.0.1"\nengine.python = "/v/bin/python"\n'
)
#: In this order in the inventory, and therefore everywhere.
PLACES = {"zeta": ("a", 30000), "dead": ("gone", 30000), "beta": ("a", 30001), "alone": ("b", 30000)}


class Site:
    """Two hosts that answer and one that is gone, with `zeta` and `alone` live, and nothing of `beta`."""

    def __init__(self, folder: Path) -> None:
        self.worlds = {name: FakeWorld(name) for name in ("a", "b")}
        self.worlds["a"].make_live("zeta", "0001-tp8")
        self.worlds["b"].make_live("alone", "0002-pp8")
        self.connections: Counter[str] = Counter()
        self.inventory = folder / "inventory.toml"
        self.write(PLACES)

    def write(self, places: dict[str, tuple[str, int]]) -> None:
        hosts = "".join(f"[hosts.{name}]\ngpus = 0\n" for name in ("a", "gone", "b"))
        self.inventory.write_text(hosts + "".join(SERVICE.format(name, *at) for name, at in places.items()))

    def connect(self, config: HostConfig, **_: Any) -> Host:
        self.connections[config.name] += 1
        if config.name not in self.worlds:
            raise HostUnreachable(f"{config.name} does not answer", remedy="switch it on")
        return FakeHost(self.worlds[config.name])

    def run(self, *words: str) -> int:
        return run(["-i", str(self.inventory), *words])


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("deployer.cli.main.install_signals", lambda: None)
    for name in ("DEPLOYER_INVENTORY", "DEPLOYER_SERVICE", "DEPLOYER_JSON"):
        monkeypatch.delenv(name, raising=False)
    made = Site(tmp_path)
    monkeypatch.setattr("deployer.host.connect.connect", made.connect)
    return made


def lines(text: str) -> dict[str, str]:
    """The lines of a view by the service they begin with."""
    found = (re.match(r"(\w+) +\w+ +", line) for line in text.splitlines())
    return {match[1]: " ".join(match.string[match.end() :].split()) for match in found if match}


def test_status_shows_every_service_and_exits_with_the_worst(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert site.run("status") == 6  # beta was never deployed: that is worse than not to know of dead
    shown = lines(capsys.readouterr().out)
    assert list(shown) == list(PLACES)
    assert shown["zeta"].startswith("● healthy")
    assert "0001-tp8" in shown["zeta"]
    assert shown["dead"] == "✗ unknown gone does not answer; remedy: switch it on"
    assert shown["beta"].startswith("○ nothing deployed yet")
    assert site.connections == {"a": 1, "b": 1, "gone": 1}


def test_metrics_of_all_services_are_one_text_and_a_dead_host_an_error(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    assert site.run("metrics") == 8
    printed = capsys.readouterr()
    assert printed.out.count("# TYPE deployer_changes_total counter\n") == 1
    assert 'deployer_live_release_info{service="zeta",release="0001-tp8",profile="",sglang=""} 1\n' in printed.out
    assert 'deployer_live_release_info{service="alone",release="0002-pp8"' in printed.out
    assert "dead" not in printed.out
    assert "dead: gone does not answer" in printed.err
    assert site.run("metrics", "--json", "-s", "alone") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["service"], document["host"]) == ("alone", "b")
    assert {"name", "labels", "value"} == set(document["metrics"][0])


def test_the_document_is_a_list_of_what_each_service_has_alone(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert site.run("status", "--json") == 6
    services = {item["service"]: item for item in json.loads(capsys.readouterr().out)["services"]}
    assert list(services) == list(PLACES)
    assert services["dead"]["host"] == "gone"
    assert services["dead"]["error"]["remedy"] == "switch it on"
    assert services["dead"]["exit_code"] == 8
    assert site.run("status", "--json", "-s", "zeta") == 0
    alone = json.loads(capsys.readouterr().out)
    assert set(alone) == set(services["zeta"])
    assert services["zeta"]["hosts"][0]["live"] == alone["hosts"][0]["live"]


def test_a_single_service_is_shown_in_full(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert site.run("status", "-s", "zeta") == 0
    chosen = capsys.readouterr().out
    site.write({"zeta": PLACES["zeta"]})
    assert site.run("status") == 0
    assert lines(capsys.readouterr().out).keys() == lines(chosen).keys()
    assert "sglang-zeta.service" in chosen
    site.write({"dead": PLACES["dead"]})
    assert site.run("status") == 8
    assert "error: gone does not answer" in capsys.readouterr().err


def test_verbose_shows_each_in_full(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert site.run("status", "--verbose") == 6
    text = capsys.readouterr().out
    assert [text.index(f"{name} on {host}\n") for name, (host, _) in PLACES.items()]
    assert "sglang-zeta.service" in text
    assert "switch it on" in text


def test_history_is_a_line_for_each(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert site.run("history") == 8
    shown = lines(capsys.readouterr().out)
    assert list(shown) == list(PLACES)
    assert shown["zeta"].startswith("live: 0001-tp8 1 release; the last: 0001-tp8 live")
    assert shown["beta"].startswith("no releases")
    assert site.run("history", "--json") == 8
    services = json.loads(capsys.readouterr().out)["services"]
    assert [item.get("live") for item in services] == ["0001-tp8", None, None, "0002-pp8"]
    assert site.run("history", "1") == 2  # of which service?


def test_hosts_are_asked_side_by_side_and_so_are_the_services_of_one(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts, services = Barrier(3), Barrier(3)  # nobody gets past one before all have come

    def connect(config: HostConfig, **_: Any) -> Host:
        hosts.wait(PATIENCE)
        return site.connect(config)

    def history_of(session: Session) -> History:
        services.wait(PATIENCE)
        return History(session.service.name, None, ())

    monkeypatch.setattr("deployer.host.connect.connect", connect)
    monkeypatch.setattr("deployer.inspect.history.history_of", history_of)
    assert site.run("history") == 8
    assert list(lines(capsys.readouterr().out)) == list(PLACES)


def test_a_connection_that_breaks_costs_its_own_service_only(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.worlds["b"].faults["observe"] = [errors.ChannelLost("the connection to b broke")]
    site.write({name: PLACES[name] for name in ("zeta", "alone")})
    assert site.run("status") == 8
    shown = lines(capsys.readouterr().out)
    assert shown["zeta"].startswith("● healthy")
    assert "the connection to b broke" in shown["alone"]


def test_doctor_is_a_line_for_each(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert site.run("doctor", "--seconds", "0") == 6
    shown = lines(capsys.readouterr().out)
    assert list(shown) == list(PLACES)
    assert re.match(r"\d+ |nothing found", shown["zeta"])
    assert re.match(r"\d+ error", shown["beta"])
    assert "nothing healthy serves" in shown["beta"]
    assert shown["dead"].endswith("switch it on")
    assert site.run("doctor", "--seconds", "0", "--json") == 6
    services = json.loads(capsys.readouterr().out)["services"]
    assert [item.get("release") for item in services] == ["0001-tp8", None, None, "0002-pp8"]


def test_plan_is_a_line_for_each(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert site.run("plan", "tp1") == 8  # not to know of dead is worse than that the others refuse
    text = capsys.readouterr().out
    shown = lines(text)
    assert list(shown) == list(PLACES)
    assert len(text.splitlines()) == len(PLACES)  # however long they are
    for name in ("zeta", "beta", "alone"):
        assert shown[name].startswith("✗ refused")
        assert "objection" in shown[name]
    assert "0002-tp1 instead of 0001-tp8" in shown["zeta"]
    assert shown["dead"].endswith("switch it on")
    assert site.run("plan", "tp1", "--json") == 8
    services = json.loads(capsys.readouterr().out)["services"]
    assert [item.get("action", "?") for item in services] == ["deploy", "?", "deploy", "deploy"]
    assert site.run("plan", "tp1", "--diff") == 8
    assert "zeta on a\ntp1 would become release 0002-tp1" in capsys.readouterr().out
    assert site.run("plan", "tp1", "--out", "x.plan") == 2  # of which service?
    site.write({name: PLACES[name] for name in ("zeta", "alone")})
    assert site.run("plan", "tp1") == 3


def test_check_on_the_hosts_misses_only_the_dead_one(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert site.run("check", "--on-host") == 8
    shown = capsys.readouterr().out
    heads = [line for line in shown.splitlines() if line and not line.startswith(" ")][: len(PLACES)]
    assert [head.split()[0] for head in heads] == list(PLACES)
    assert heads[1] == "dead ✗ unknown  gone does not answer; remedy: switch it on"
    assert "✗ tp1" in shown
    assert site.connections == {"a": 1, "b": 1, "gone": 1}
    assert site.run("check", "tp1", "--on-host", "--json") == 8
    document = json.loads(capsys.readouterr().out)
    assert [item["service"] for item in document["checked"]] == ["zeta", "beta", "alone"]
    assert [(item["service"], item["host"], item["exit_code"]) for item in document["unreached"]] == [
        ("dead", "gone", 8)
    ]
    assert document["ok"] is False
    assert site.run("check", "--host", "gone") == 8
    assert "error: gone does not answer" in capsys.readouterr().err
    assert site.run("check", "--host", "a", "--json") == 0
    assert "unreached" not in json.loads(capsys.readouterr().out)


def test_watching_tries_a_lost_host_again(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site.worlds["b"].faults["observe"] = [errors.ChannelLost("the connection to b broke")]
    site.write({name: PLACES[name] for name in ("zeta", "alone")})
    pauses = iter([None])

    def sleep(seconds: float) -> None:
        if next(pauses, KeyboardInterrupt) is KeyboardInterrupt:
            raise KeyboardInterrupt

    monkeypatch.setattr("deployer.cli.look.time", SimpleNamespace(sleep=sleep))
    assert site.run("status", "--watch") == 0
    shown = capsys.readouterr().out.splitlines()
    assert [" ".join(line.split())[:19] for line in shown if line.startswith("alone")] == [
        "alone b ✗ unknown t",
        "alone b ● healthy ?",
    ]
    assert site.connections == {"a": 1, "b": 2}


def test_a_hold_is_noted_once_for_its_host(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert site.run("hold", "-s", "zeta", "load test") == 0
    capsys.readouterr()
    site.run("history")
    assert capsys.readouterr().err.count("note: a is on hold") == 1
    site.run("status")
    shown = capsys.readouterr()
    assert "note:" not in shown.err
    assert "load test" in lines(shown.out)["zeta"]


def test_every_exit_code_has_its_place_in_the_order() -> None:
    def codes(kind: type[errors.DeployerError]) -> set[int]:
        return {kind.exit_code}.union(*(codes(below) for below in kind.__subclasses__()))

    assert codes(errors.DeployerError) <= set(errors.WORST_FIRST)
    assert (worst([]), worst([0, 10]), worst([0, 8, 3]), worst([8, 6])) == (0, 10, 8, 6)


def test_a_command_connects_once_and_to_what_the_inventory_says(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    site.write({"zeta": ("a", 30000)})
    assert [site.run("status"), site.connections["a"]] == [0, 1]
    assert [site.run("status"), site.connections["a"]] == [0, 2]
    [memory] = cache_folder("ahead").iterdir()
    memory.write_text(memory.read_text().replace('"name": "a"', '"name": "b"'))
    assert site.run("status") == 0
    assert site.connections == {"a": 3, "b": 1}
    assert [site.run("status"), site.connections["a"]] == [0, 4]
    site.write({"alone": ("b", 30000)})
    assert [site.run("status"), site.connections["b"]] == [0, 2]
