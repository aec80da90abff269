"""Commands without a service named, where there are several: each has its line, and a dead host costs only its own."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from deployer import errors
from deployer.cli.main import run
from deployer.config.inventory import HostConfig
from deployer.errors import HostUnreachable, worst
from deployer.host.protocol import Host
from tests.fakes.host import FakeHost, FakeWorld

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
        hosts = "".join(f"[hosts.{name}]\n" for name in ("a", "gone", "b"))
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
    monkeypatch.setenv("COLUMNS", "200")
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


def test_a_connection_that_breaks_costs_its_own_service_only(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.worlds["b"].faults["observe"] = [errors.ChannelLost("the connection to b broke")]
    site.write({name: PLACES[name] for name in ("zeta", "alone")})
    assert site.run("status") == 8
    shown = lines(capsys.readouterr().out)
    assert shown["zeta"].startswith("● healthy")
    assert "the connection to b broke" in shown["alone"]


def test_every_exit_code_has_its_place_in_the_order() -> None:
    def codes(kind: type[errors.DeployerError]) -> set[int]:
        return {kind.exit_code}.union(*(codes(below) for below in kind.__subclasses__()))

    assert codes(errors.DeployerError) <= set(errors.WORST_FIRST)
    assert (worst([]), worst([0, 10]), worst([0, 8, 3]), worst([8, 6])) == (0, 10, 8, 6)
