from __future__ import annotations

import os
from pathlib import Path

import pytest

from deployer.config.files import FILE_LIMIT
from deployer.config.inventory import load_inventory
from deployer.errors import ConfigError, UsageError
from tests.unit.config.conftest import GOOD, Write, message


def refused(write: Write, text: str) -> str:
    path = write(text)
    with pytest.raises(ConfigError) as caught:
        load_inventory(path)
    said = message(caught)
    assert str(path) in said
    return said


def test_defaults_of_a_small_inventory(write: Write) -> None:
    inventory = load_inventory(write(GOOD))
    host, service = inventory.host("box"), inventory.service()
    assert (host.name, host.address, host.port, host.transport, host.host_keys) == (
        "box",
        "box",
        22,
        "ssh",
        "strict",
    )
    assert (service.name, service.port, service.bind, service.gpus) == ("kimi", 30000, "127.0.0.1", None)
    assert service.bench.levels == [8, 16, 32, 48, 64]
    assert service.deadlines.start == 2700.0
    assert service.deadlines.stall["load"] == 600.0


def test_local_host_has_an_address(write: Write) -> None:
    inventory = load_inventory(write(GOOD.replace("gpus = 8", 'transport = "local"')))
    assert inventory.host("box").address == "localhost"


def test_defaults_are_merged_table_by_table(write: Write) -> None:
    text = (
        GOOD
        + """
[defaults]
port = 31000
environment.A = "1"
environment.B = { env = "B" }
deadlines = { start = 10, stall = { load = 5 } }
[services.kimi.deadlines]
grace = 20
[services.kimi.environment]
B = { file = "b" }
"""
    )
    service = load_inventory(write(text)).service()
    assert service.port == 31000
    assert (service.deadlines.start, service.deadlines.grace, service.deadlines.stall["load"]) == (10, 20, 5)
    assert service.deadlines.stall["capture"] == 900.0
    assert service.environment["A"] == "1"
    assert "file" in repr(service.environment["B"])


@pytest.mark.parametrize(
    ("change", "place", "words"),
    [
        (("gpus = 8", "gpu = 8"), "hosts.box.gpu: unknown key", ["did you mean gpus?"]),
        (("gpus = 8", 'gpus = "8"'), "hosts.box.gpus: found", ['"8"', "whole number"]),
        (("gpus = 8", "gpus = true"), "hosts.box.gpus: found true", ["whole number"]),
        (("gpus = 8", 'transport = "sssh"'), "hosts.box.transport", ["did you mean ssh?", "local"]),
        (("gpus = 8", 'host_keys = "pinned"'), "hosts.box", ["needs host_key"]),
        (("gpus = 8", 'host_key = "SHA256:x"'), "hosts.box.host_key", ["ssh-ed25519"]),
        (("gpus = 8", "connect_timeout = 0"), "hosts.box.connect_timeout", ["greater than 0"]),
        (("gpus = 8", "connect_timeout = inf"), "hosts.box.connect_timeout", ["finite"]),
        (('host = "box"', 'host = "bocks"'), "services.kimi.host", ['no host "bocks"', "box"]),
        (('host = "box"', 'host = ["box", "b"]'), "services.kimi.host", ["list of 2 hosts", "one host"]),
        (('host = "box"', ""), "services.kimi.host: is missing", []),
        (('model = "/models/kimi"', "model = 3"), "services.kimi.model", ["text in quotes"]),
        (('host = "box"', 'host = "box"\nport = 70000'), "services.kimi.port", ["70000", "65535"]),
        (('host = "box"', 'host = "box"\nport = "30000"'), "services.kimi.port", ['"30000"', "whole number"]),
        (('host = "box"', 'host = "box"\ngpus = [0, 8]'), "services.kimi.gpus", ["no GPU 8", "0 to 7"]),
        (("gpus = 8", "gpus = -1"), "hosts.box.gpus", ["-1"]),
        (('host = "box"', 'host = "box"\ngpus = []'), "services.kimi.gpus: has too few items", ["minimum 1"]),
        (('model = "/models/kimi"', 'model = ""'), "services.kimi.model", ["must not be empty"]),
        (('host = "box"', 'host = "box"\ngpus = [0, 0]'), "services.kimi.gpus", ["twice"]),
        (('host = "box"', 'host = "box"\ngpus = ["0"]'), "services.kimi.gpus[0]", ["whole number"]),
        (('host = "box"', 'host = "box"\nbind = "all"'), "services.kimi.bind", ["IP address"]),
        (('host = "box"', 'host = "box"\nadvertised = "kimi:1"'), "services.kimi.advertised", ["URL"]),
        (('host = "box"', 'host = "box"\nuser = "a b"'), "services.kimi.user", ["an account's name"]),
        (('host = "box"', 'host = "box"\nhome = "x"'), "services.kimi.home", ["absolute path"]),
        (('host = "box"', 'host = "box"\ndeadlines.stall.lod = 3'), "services.kimi.deadlines.stall.lod", ["load?"]),
        (('host = "box"', 'host = "box"\ndeadlines.stall.load = -3'), "services.kimi.deadlines.stall.load", ["above"]),
        (('host = "box"', 'host = "box"\nbench.levels = [8, 4]'), "services.kimi.bench.levels", ["rise"]),
        (('host = "box"', 'host = "box"\ngate."agregate_tok_s@8" = 1'), "agregate_tok_s@8", ["aggregate_tok_s@8?"]),
        (('host = "box"', 'host = "box"\ngate.aggregate_tok_s = 1'), "gate.aggregate_tok_s", ["aggregate_tok_s@LEVEL"]),
        (('host = "box"', 'host = "box"\ngate.single_stream_tok_s = 0'), "gate.single_stream_tok_s", ["above 0"]),
        (('host = "box"', 'host = "box"\nbench.repeats = 0'), "services.kimi.bench.repeats", ["0", "to 1"]),
        (('host = "box"', 'host = "box"\nbench.waves = 0'), "services.kimi.bench.waves", ["0", "to 1"]),
        (('host = "box"', 'host = "box"\nbench.requests = 0'), "services.kimi.bench.requests", ["0", "to 1"]),
        (('host = "box"', 'host = "box"\nbench.budget = 0.5'), "services.kimi.bench.budget", ["0.5", "to 1"]),
        (('host = "box"', 'host = "box"\nbench.requests_at_least = -1'), "bench.requests_at_least", ["-1", "to 0"]),
        (('host = "box"', 'host = "box"\nrelative_gate.max_loss = 0'), "relative_gate.max_loss", ["than 0"]),
        (('host = "box"', 'host = "box"\nrelative_gate.max_level_loss = 0.0'), "gate.max_level_loss", ["than 0"]),
        (('host = "box"', 'host = "box"\nrelative_gate.max_loss = 0.5'), "relative_gate.max_loss", ["0.5", "0.45"]),
        (('host = "box"', 'host = "box"\nrelative_gate.starts = 0'), "services.kimi.relative_gate.starts", ["to 1"]),
        (('host = "box"', 'host = "box"\nrelative_gate.baseline = "lvie"'), "relative_gate.baseline", ["live"]),
        (('host = "box"', 'host = "box"\ngate.ttft_p99_s@8 = 1'.replace("ttft_p99_s@8", '"ttft_p99_s@8"')),
            'gate."ttft_p99_s@8"', ["p99 is reported but does not gate"]),
        (('host = "box"', 'host = "box"\nenvironment.PATH = "/x"'), "environment.PATH", ["engine.path"]),
        (('host = "box"', 'host = "box"\nenvironment."A B" = "/x"'), 'environment."A B"', ["letters"]),
        (('host = "box"', 'host = "box"\napi_key = {env = "A", file = "b"}'), "services.kimi.api_key", ["exactly one"]),
        (('host = "box"', 'host = "box"\napi_key = {}'), "services.kimi.api_key", ["exactly one"]),
        (("[services.kimi]", "[services.Kimi_K]"), "services.Kimi_K", ["lower-case"]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(write: Write, change: tuple[str, str], place: str, words: list[str]) -> None:
    assert change[0] in GOOD
    said = refused(write, GOOD.replace(*change))
    assert place in said
    for word in words:
        assert word in said


def test_all_problems_come_at_once(write: Write) -> None:
    text = GOOD.replace("gpus = 8", "gpu = 8") + 'prt = 1\n[services.kimi.bench]\nseed = "x"\n[defaults]\nporrt = 1\n'
    said = refused(write, text + "[oops]\na = 1\n")
    assert "5 problems" in said
    for place in (
        "hosts.box.gpu",
        "engine.prt",
        "bench.seed",
        "defaults.porrt: unknown key; did you mean port?",
        "oops",
    ):
        assert place in said


def test_two_services_on_one_port(write: Write) -> None:
    second = GOOD[GOOD.index("[services.kimi]") :].replace("kimi", "qwen")
    said = refused(write, GOOD + second)
    assert "services.qwen.port: found 30000, but service kimi uses that port on host box" in said
    assert "services.qwen.gpus: service kimi uses all GPUs of host box, too" in said
    other = second.replace('host = "box"', 'host = "box"\nport = 30001\ngpus = [4]')
    alone = GOOD.replace('host = "box"', 'host = "box"\ngpus = [0, 1]')
    assert set(load_inventory(write(alone + other)).services) == {"kimi", "qwen"}


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ("gpus = [0, 1]", "gpus = [1, 2]", "GPU 1 of host"),
        ("gpus = [2]", "", "GPU 2 of host"),
        ("", "", "all GPUs of host"),
        ("gpus = [0, 1]", "gpus = [2, 3]", None),
        ("extra_args = { base-gpu-id = 0 }", "extra_args = { base-gpu-id = 2 }", None),  # a profile decides how many
    ],
)
def test_gpus_are_shared_only_by_services_that_exclude_each_other(
    write: Write, one: str, other: str, shared: str | None
) -> None:
    second = GOOD[GOOD.index("[services.kimi]") :].replace("kimi", "qwen")
    second = second.replace('host = "box"', f'host = "box"\nport = 30001\n{other}')
    first = GOOD.replace('host = "box"', f'host = "box"\n{one}')
    if shared is None:
        load_inventory(write(first + second))
        return
    said = refused(write, first + second)
    assert f"services.qwen.gpus: service kimi uses {shared} box, too" in said
    assert 'exclusive_with = ["kimi"]' in said
    # One side's declaration counts for both, and for the port too.
    second = second.replace("port = 30001\n", "")
    for texts in (
        (first, second.replace('host = "box"', 'host = "box"\nexclusive_with = ["kimi"]')),
        (first.replace('host = "box"', 'host = "box"\nexclusive_with = ["qwen"]'), second),
    ):
        services = load_inventory(write("".join(texts))).services
        assert {name: item.exclusive_with for name, item in services.items()} == {"kimi": ["qwen"], "qwen": ["kimi"]}


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ('["kimi"]', "kimi is the service itself"),
        ('["kimmi"]', 'there is no service "kimmi"'),
        ('["far"]', "far runs on another host, so both can run at the same time"),
        ("[7]", "expected"),
    ],
)
def test_a_declaration_names_other_services_of_the_host(write: Write, names: str, problem: str) -> None:
    far = GOOD[GOOD.index("[services.kimi]") :].replace("kimi", "far").replace('host = "box"', 'host = "other"')
    first = GOOD.replace('host = "box"', f'host = "box"\nexclusive_with = {names}')
    said = refused(write, first + far + "[hosts.other]\n")
    assert "services.kimi.exclusive_with" in said
    assert problem in said


def test_one_host_in_a_list_is_fine(write: Write) -> None:
    assert load_inventory(write(GOOD.replace('"box"', '["box"]'))).service().host == "box"


def test_a_literal_secret_is_refused_and_not_repeated(write: Write) -> None:
    lines = (
        'api_key = "hunter2"',
        'environment.HF_TOKEN = "hunter2"',
        'api_key = {env = "A", x = "hunter2"}',
    )
    for line in lines:
        said = refused(write, GOOD.replace('host = "box"', f'host = "box"\n{line}'))
        assert "hunter2" not in said


def test_syntax_error_has_a_line(write: Write) -> None:
    assert "line 3" in refused(write, "[hosts.a]\ngpus = 8\ngpus == 9\n")


def test_files_that_are_none(tmp_path: Path) -> None:
    empty, binary = tmp_path / "empty.toml", tmp_path / "binary.toml"
    empty.write_text("# nothing\n")
    binary.write_bytes(b"[hosts.a]\nx = '\xff'\n")
    for path, word in (
        (tmp_path / "none.toml", "does not exist"),
        (tmp_path, "is a folder"),
        (empty, "is empty"),
        (binary, "line 2 has the byte 0xff"),
        (tmp_path / "a\0b", "cannot be read"),
    ):
        with pytest.raises(ConfigError) as caught:
            load_inventory(path)
        assert word in message(caught)


@pytest.mark.timeout(10)
def test_only_regular_files_are_read(write: Write, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path / "link", Path("/dev/zero")):
        with pytest.raises(ConfigError) as caught:
            load_inventory(path)
        assert "not a regular file" in message(caught)
    with (tmp_path / "large").open("wb") as stream:
        stream.truncate(FILE_LIMIT + 1)
    with pytest.raises(ConfigError, match="larger than 16 MiB"):
        load_inventory(tmp_path / "large")
    (tmp_path / "good").symlink_to(write("\ufeff" + GOOD))
    assert load_inventory(tmp_path / "good").service().name == "kimi"


def test_a_host_without_gpus(write: Write) -> None:
    assert load_inventory(write(GOOD.replace("gpus = 8", "gpus = 0"))).host("box").gpus == 0
    said = refused(write, GOOD.replace("gpus = 8", "gpus = 0").replace('host = "box"', 'host = "box"\ngpus = [0]'))
    assert "host box has no GPU 0 (it has none)" in said


def test_without_hosts_and_services(write: Write) -> None:
    said = refused(write, "[defaults]\nport = 1\n")
    assert "no hosts" in said
    assert "no services" in said


def test_paths_are_relative_to_the_file(write: Write, tmp_path: Path) -> None:
    text = GOOD.replace("gpus = 8", 'identity_file = "keys/a"\nknown_hosts = "~/kh"\nssh_config = "/etc/x"')
    host = load_inventory(write(text)).host("box")
    assert host.identity_file == tmp_path / "keys/a"
    assert host.known_hosts == Path(os.path.expanduser("~/kh"))
    assert host.ssh_config == Path("/etc/x")


def test_choosing_a_service(write: Write) -> None:
    second = (
        GOOD[GOOD.index("[services.kimi]") :].replace("kimi", "qwen").replace("host =", "port = 1\ngpus = [1]\nhost =")
    )
    inventory = load_inventory(write(GOOD.replace("host =", "gpus = [0]\nhost =") + second))
    assert inventory.service("qwen").port == 1
    with pytest.raises(UsageError, match="2 services"):
        inventory.service()
    with pytest.raises(UsageError, match="did you mean kimi"):
        inventory.service("kimmi")
    with pytest.raises(UsageError, match="no host nowhere"):
        inventory.host("nowhere")
