"""The parts of a rehearsal that touch neither mounts nor containers."""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from deployer.config.inventory import load_inventory
from deployer.config.profile import load_profile, profile_folders
from deployer.errors import ConfigError, PreflightRefused, UsageError
from deployer.resources import package_root, shipped
from deployer.sglang.flags.arguments import render
from deployer.sglang.flags.versions import flag_table
from deployer_rehearsal import commands, container, hosts, machine, model, real_engine, sets, sglang_env
from deployer_rehearsal.engine_venv import needed_from_machine
from deployer_rehearsal.hosts import RehearsalHost
from deployer_rehearsal.inventory import TEMPLATES, inventory_text
from deployer_rehearsal.layer import Layer

MOUNTINFO = r"""
21 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 21 7:0 / /s/a/disk rw,relatime - ext4 /dev/loop0 rw
31 21 0:40 / /s/a/root rw,relatime - overlay o rw
32 31 0:41 / /s/a/root/with\040blank rw - tmpfs t rw
33 21 7:1 / /s/ab/disk rw,relatime - ext4 /dev/loop1 rw
"""


def host(name: str, address: str, folder: Path) -> RehearsalHost:
    return RehearsalHost(name, address, 2222, "mine", folder / name)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """State folder and registry of this test only."""
    monkeypatch.setenv("DEPLOYER_REHEARSAL_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(sets, "_REGISTRY", tmp_path / "registry")
    monkeypatch.setattr(machine, "address_free", lambda address, port: True)
    return tmp_path / "state"


# Mounts and packages


def test_mounts_below_a_folder_come_innermost_first() -> None:
    assert machine.mounts_below(Path("/s/a"), MOUNTINFO) == [
        Path("/s/a/root/with blank"),
        Path("/s/a/root"),
        Path("/s/a/disk"),
    ]
    assert machine.mounts_below(Path("/s/a/disk"), MOUNTINFO) == [Path("/s/a/disk")]
    assert machine.mounts_below(Path("/s/c"), MOUNTINFO) == []


def test_control_groups_are_made_in_every_hierarchy() -> None:
    table = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /c/pids cgroup rw,pids 0 0\ncgroup2 /c/unified cgroup2 rw 0 0\n"
    assert container.group_paths("n", table) == [
        Path("/c/pids/deployer-rehearsal/n"),
        Path("/c/unified/deployer-rehearsal/n"),
    ]


def test_missing_programs_are_told_as_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.missing_packages(lambda name: f"/usr/bin/{name}") == []
    assert machine.missing_packages(
        lambda name: None if name in ("systemd-nspawn", "sshd", "ssh", "ssh-keygen") else name
    ) == ["openssh-client", "openssh-server", "systemd-container"]
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(machine, "missing_packages", lambda: ["dbus", "sudo"])
    with pytest.raises(PreflightRefused) as caught:
        machine.require_fit()
    assert caught.value.remedy == "run `apt-get install -y dbus sudo`"


def test_without_root_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(PreflightRefused, match="need root"):
        hosts.up("never")
    with pytest.raises(PreflightRefused, match="need root"):
        hosts.down("never")


# The writable layer


def test_a_layer_has_the_modes_of_what_is_below(tmp_path: Path) -> None:
    below, upper = tmp_path / "below", tmp_path / "upper"
    (below / "home/me/tool").mkdir(parents=True)
    (below / "home/me").chmod(0o700)
    upper.mkdir()
    owner = (os.getuid(), os.getgid())
    layer = Layer(upper, below)
    layer.file("/home/me/x", "text", 0o600, owner)
    assert (upper / "home/me/x").read_text() == "text"
    assert (upper / "home/me/x").stat().st_mode & 0o777 == 0o600
    assert (upper / "home/me").stat().st_mode & 0o777 == 0o700
    layer.way_to(Path("/home/me/tool/python"))
    assert (upper / "home/me").stat().st_mode & 0o777 == 0o711
    assert (below / "home/me").stat().st_mode & 0o777 == 0o700
    layer.link("/home/me/l", "/a")
    layer.link("/home/me/l", "/b")
    assert (upper / "home/me/l").readlink() == Path("/b")
    assert layer.read_below("/none") == ""


# Sets


@pytest.mark.parametrize("name", ["", "a/b", "..", "A", "-a", "a" * 33, "a b", "ä"])
def test_a_set_has_a_plain_name(root: Path, name: str) -> None:
    with pytest.raises(UsageError, match="is not a valid name"):
        sets.set_folder(name)


def test_a_state_folder_that_mount_cannot_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOYER_REHEARSAL_DIR", "/a,b")
    with pytest.raises(UsageError, match="mount options"):
        sets.set_folder("mine")


def test_addresses_are_not_given_twice(root: Path) -> None:
    for name in ("a", "b"):
        (root / name).mkdir(parents=True)
    first = sets.take_addresses("a", root / "a", 2)
    second = sets.take_addresses("b", root / "b", 2)
    assert len({*first, *second}) == 4
    assert sets.take_addresses("a", root / "a", 2) == first
    sets.give_addresses_back(root / "a")
    assert sets.take_addresses("b", root / "b", 4) == sorted([*first, *second])


def test_a_set_whose_folder_is_gone_has_no_address(root: Path) -> None:
    (root / "a").mkdir(parents=True)
    (root / "b").mkdir()
    first = sets.take_addresses("a", root / "a", 1)
    (root / "a").rmdir()
    assert sets.take_addresses("b", root / "b", 1) == first


def test_a_set_whose_removal_was_interrupted_is_still_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = root / "a"
    (folder / "practice-1").mkdir(parents=True)
    sets.SetRecord("a", folder, "0.5.23").save()

    def interrupt(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", interrupt)
        with pytest.raises(KeyboardInterrupt):
            sets.remove_set(folder)
    assert sets.all_sets() == ["a"]
    sets.remove_set(folder)
    assert not folder.exists()


def test_a_removed_set_leaves_no_lock_file(root: Path) -> None:
    with sets.lock_set("a"):
        (root / "a").mkdir(parents=True)
    assert (sets._REGISTRY / "set-a.lock").exists()
    with sets.lock_set("a"):
        (root / "a").rmdir()
    assert not list(sets._REGISTRY.glob("set-*.lock"))


def test_a_record_is_read_as_it_was_saved(root: Path) -> None:
    assert sets.load_set("a") is None
    (root / "a").mkdir(parents=True)
    record = sets.SetRecord("a", root / "a", "0.5.23", {"practice-1": sets.HostRecord("practice-1", "127.77.0.30")})
    record.save()
    assert sets.load_set("a") == record
    assert [found.address for found in hosts.find("a")] == ["127.77.0.30"]
    shown = hosts.status("a")
    assert shown["hosts"][0]["running"] is False
    assert sets.all_sets() == ["a"]
    (root / "a/set.json").write_text("{")
    with pytest.raises(ConfigError, match="damaged"):
        sets.load_set("a")


@pytest.mark.parametrize("name", ["lost+found", "photos"])
def test_a_folder_of_somebody_else_is_no_set_and_stays(root: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "require_fit", lambda: None)
    monkeypatch.setattr(machine, "require_root", lambda: None)
    (root / name).mkdir(parents=True)
    (root / name / "mine").write_text("x")
    (root / "made").mkdir()  # for a set whose `up` was killed
    assert sets.all_sets() == ["made"]
    assert hosts.sets_with("sglang") == []
    for engine in ("standin", "sglang"):
        with pytest.raises(UsageError, match=r"not a set of practice hosts|is not a valid name"):
            hosts.up(name, engine=engine)
    with pytest.raises(UsageError, match=r"not a set of practice hosts|is not a valid name"):
        hosts.down(name)
    assert (root / name / "mine").read_text() == "x"
    assert hosts.down("made")


def test_impossible_wishes_are_refused(root: Path) -> None:
    with pytest.raises(UsageError, match="cannot speak like SGLang 9"):
        hosts.up("a", engine_version="9")
    with pytest.raises(UsageError, match="1 to 9 hosts"):
        hosts.up("a", 10)


def test_the_key_belongs_to_who_called_sudo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[Path, int, int]] = []
    monkeypatch.setattr(os, "chown", lambda path, user, group: given.append((path, user, group)))
    monkeypatch.delenv("SUDO_UID", raising=False)
    sets.give_to_operator(tmp_path)
    assert given == []
    monkeypatch.setenv("SUDO_UID", "1000")
    monkeypatch.setenv("SUDO_GID", "1001")
    sets.give_to_operator(tmp_path)
    assert given == [(tmp_path, 1000, 1001)]


# What others read


def test_the_shipped_inventory_is_valid() -> None:
    inventory = load_inventory(shipped("inventories") / "rehearsal.toml")
    service = inventory.service(None)
    there = inventory.host(service.host)
    assert (there.address, service.bind) == ("127.77.0.1", "127.77.0.1")
    assert there.identity_file == sets.DEFAULT_FOLDER / "default/client_key"
    assert service.model == model.MODEL
    assert (service.deadlines.lease, service.deadlines.grace) == (10, 15)


def test_an_inventory_of_another_set_has_all_its_hosts(tmp_path: Path) -> None:
    both = [host("practice-1", "127.77.0.21", tmp_path), host("practice-2", "127.77.0.22", tmp_path)]
    template = (shipped("inventories") / "rehearsal.toml").read_text()
    (tmp_path / "i.toml").write_text(inventory_text(template, tmp_path, both))
    inventory = load_inventory(tmp_path / "i.toml")
    assert {name: there.address for name, there in inventory.hosts.items()} == {
        "practice-1": "127.77.0.21",
        "practice-2": "127.77.0.22",
    }
    assert inventory.service(None).bind == "127.77.0.21"
    assert inventory.hosts["practice-2"].known_hosts == tmp_path / "known_hosts"
    login = both[1].login("careful")
    data = inventory.hosts["practice-2"].model_dump()
    assert {key: value for key, value in login.items() if key not in ("name", "user")}.items() <= data.items()


@pytest.mark.parametrize("engine", ["standin", "sglang"])
def test_the_shipped_inventory_is_what_the_usual_set_writes(engine: str) -> None:
    file, usual, address = TEMPLATES[engine]
    template = (shipped("inventories") / file).read_text()
    folder = sets.DEFAULT_FOLDER / usual
    text = inventory_text(template, folder, [replace(host("practice-1", address, folder), engine=engine)])
    assert tomllib.loads(text) == tomllib.loads(template)


def test_the_inventory_of_the_real_engine_is_valid() -> None:
    inventory = load_inventory(shipped("inventories") / "rehearsal-sglang.toml")
    service = inventory.service(None)
    assert (service.model, service.engine.python) == (real_engine.MODEL, real_engine.PYTHON)
    assert inventory.host(service.host).gpus == 0
    assert service.limits.max_total_tokens
    assert sets._FIXED_ADDRESSES[sets.SGLANG_SET][0] == int(service.bind.rpartition(".")[2])
    for name in ("tp1", "tp2", "pp2", "pp2-async"):
        argv = render(load_profile(name, profile_folders()), service, flag_table(sglang_env.VERSION)).argv
        assert argv[argv.index("--device") + 1] == "cpu"


@pytest.mark.parametrize(
    ("engine", "version", "settings", "words"),
    [
        ("sglang", None, {"scale": 1}, "only the stand-in engine has settings"),
        ("sglang", "0.5.12.post1", {}, "is SGLang 0.5.23, not 0.5.12.post1"),
        ("vllm", None, {}, "unknown engine vllm"),
        ("standin", "0.1", {}, "cannot speak like SGLang 0.1"),
        ("standin", None, {"scal": 1}, "did you mean scale"),
    ],
)
def test_what_an_engine_does_not_accept_is_refused(
    engine: str, version: str | None, settings: dict[str, object], words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        hosts.up("mine", engine=engine, engine_version=version, settings=settings)
    assert words in caught.value.message


def test_the_model_looks_like_the_real_one(tmp_path: Path) -> None:
    config = model.config()
    text = config["text_config"]
    assert isinstance(text, dict)
    assert (text["num_hidden_layers"], text["n_routed_experts"], text["num_attention_heads"]) == (61, 384, 64)
    header = model._header("a.b", 1000)
    length = int.from_bytes(header[:8], "little")
    assert len(header) == 256
    assert length == 248
    assert json.loads(header[8:])["a.b"]["data_offsets"] == [0, 744]


def test_the_checkout_is_bound_and_the_system_is_not() -> None:
    bound = needed_from_machine()
    assert any(path == package_root() or path in package_root().parents for path in bound)
    assert not any(path == Path("/usr") or Path("/usr") in path.parents or path == Path("/") for path in bound)
    assert not any(one != other and one in other.parents for one in bound for other in bound)


# Commands


def test_options_are_json_or_text() -> None:
    assert commands.options(("percent=30", "once=true", "text=a=b", "list=[1]", "empty=")) == {
        "percent": 30,
        "once": True,
        "text": "a=b",
        "list": [1],
        "empty": "",
    }
    for wrong in ("percent", "=3"):
        with pytest.raises(UsageError, match="KEY=VALUE"):
            commands.options((wrong,))


def test_commands_without_a_set(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "as_root", lambda: None)
    monkeypatch.setattr(machine, "require_root", lambda: None)
    runner = CliRunner()
    shown = runner.invoke(commands.rehearse, ["status", "--name", "none", "--json"])
    assert json.loads(shown.output)["hosts"] == []
    assert "no practice hosts in set none" in runner.invoke(commands.rehearse, ["status", "--name", "none"]).output
    root_flags = SimpleNamespace(flags={"json": True})
    assert runner.invoke(commands.rehearse, ["status", "--name", "none"], obj=root_flags).output == shown.output
    gone = runner.invoke(commands.rehearse, ["down", "--name", "none", "--json"])
    assert json.loads(gone.output) == {"set": "none", "removed": False}
    failed = runner.invoke(commands.rehearse, ["fault", "slow", "--name", "none"])
    assert isinstance(failed.exception, UsageError)
    assert runner.invoke(commands.rehearse, ["fault", "melt"]).exit_code == 2


def test_json_may_be_asked_for_by_the_environment(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "as_root", lambda: None)
    runner = CliRunner(env={"DEPLOYER_JSON": "true"})
    assert json.loads(runner.invoke(commands.rehearse, ["status", "--name", "none"]).output)["hosts"] == []
    runner = CliRunner(env={"DEPLOYER_JSON": "false"})
    assert "no practice hosts in set none" in runner.invoke(commands.rehearse, ["status", "--name", "none"]).output


def test_every_command_has_an_example() -> None:
    runner = CliRunner()
    for name in ("up", "down", "status", "fault"):
        assert f"deployer rehearse {name}" in runner.invoke(commands.rehearse, [name, "--help"]).output
    assert "oom-in-capture" in runner.invoke(commands.rehearse, ["fault", "--help"]).output
