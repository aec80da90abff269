"""The place that is remembered between two commands, and the connection that begins with it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from deployer.config.inventory import HostConfig
from deployer.errors import AuthenticationFailed, HostUnreachable
from deployer.host import ahead
from deployer.host.ahead import Ahead, Memory, Place, state_of
from deployer.host.channel import ChannelHost
from deployer.records.destination import Destination
from deployer.resources import cache_folder
from tests.fakes.host import FakeHost, FakeWorld

BOX = HostConfig.model_validate({"name": "box", "identity_file": "/k"}).destination
OPTIONS = {"inventory": "i.toml"}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "i.toml").write_text("[hosts.box]\n")
    return [tmp_path / ".env", tmp_path / "i.toml"]


def kept(files: list[Path], **changes: Any) -> Place | None:
    Memory(OPTIONS).keep(BOX, "127.0.0.1", 30000, files)
    return Memory({**OPTIONS, **changes}).recall()


def test_the_place_is_that_of_the_last_time(files: list[Path]) -> None:
    assert Memory(OPTIONS).recall() is None
    place = kept(files)
    assert place is not None
    assert (place.destination, place.address, place.port) == (BOX, "127.0.0.1", 30000)
    [path] = cache_folder("ahead").iterdir()
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("change", ["text", "appears", "option", "variable", "folder", "version", "owner"])
def test_whatever_could_lead_elsewhere_makes_it_unknown(
    files: list[Path], change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kept(files) is not None
    if change == "text":
        files[1].write_text("[hosts.xob]\n")
    elif change == "appears":
        files[0].write_text("DEPLOYER_SERVICE=s\n")
    elif change == "variable":
        monkeypatch.setenv("DEPLOYER_SERVICE", "s")
    elif change == "folder":
        monkeypatch.chdir("/")
    elif change == "version":
        monkeypatch.setattr(ahead, "__version__", "0")
    elif change == "owner":
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert Memory(OPTIONS | ({"service": "s"} if change == "option" else {})).recall() is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"destination": 1}', "\udcff"])
def test_a_damaged_memory_is_none(files: list[Path], text: str) -> None:
    kept(files)
    [path] = cache_folder("ahead").iterdir()
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert Memory(OPTIONS).recall() is None
    assert kept(files) is not None


def test_a_cache_that_cannot_be_written_disturbs_nothing(files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    assert kept(files) is None


def test_an_account_without_a_home_remembers_nothing(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert kept(files) is None


def test_what_nobody_asked_for_in_a_month_is_forgotten(files: list[Path]) -> None:
    kept(files)
    [old] = cache_folder("ahead").iterdir()
    os.utime(old, (0, 0))
    Memory({"inventory": "other.toml"}).keep(BOX, "127.0.0.1", 30000, files)
    assert old not in cache_folder("ahead").iterdir()


def place_of(destination: Destination) -> Place:
    return Place(destination, "127.0.0.1", 30000, {"/none": state_of("/none")})


def test_health_is_requested_with_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    world = FakeWorld("box")

    def connected(destination: Destination, **_: object) -> ChannelHost:
        return FakeHost(world)

    monkeypatch.setattr("deployer.host.connect.connect", connected)
    place = place_of(BOX)
    host = Ahead(place).host()
    assert host is not None
    sent: list[object] = []
    monkeypatch.setattr(host, "_send", sent.append)
    with pytest.raises(Exception, match=r"nobody|refused"):
        host.call("http", place.health)  # the answer of the request that was sent before
    assert sent == []
    monkeypatch.undo()
    host.close()


def test_a_password_is_left_to_an_ordinary_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(error: Exception) -> None:
        def connect(destination: Destination, **_: object) -> ChannelHost:
            raise error

        monkeypatch.setattr("deployer.host.connect.connect", connect)

    refused(AuthenticationFailed("sudo wants a password"))
    assert Ahead(place_of(BOX)).host() is None
    refused(HostUnreachable("no answer"))
    with pytest.raises(HostUnreachable):
        Ahead(place_of(BOX)).host()
    Ahead(place_of(BOX)).drop()


def test_the_record_reads_what_it_writes() -> None:
    place = place_of(BOX)
    assert Place.from_json(json.loads(json.dumps(place.as_json()))) == place
