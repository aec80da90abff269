"""What deployer writes into units, read back from a real systemd: over D-Bus, and by a process it starts."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from deployer.config.inventory import inventory_from
from deployer.config.profile import load_profile, profile_folders
from deployer.units import quoting
from deployer.units.bundle import build_bundle
from deployer_rehearsal.hosts import RehearsalHost
from tests.unit.units.cases import NASTY

UNIT = "deployer-quoting.service"
PATH = f"/run/systemd/system/{UNIT}"
DUMP = (
    "import json, os, sys; json.dump({'argv': sys.argv, 'env': dict(os.environ)}, open('/run/deployer-quoting', 'w'))"
)
ARGV = ["/usr/bin/python3", "-c", DUMP, *NASTY, "--last", "x" * (quoting.ARGUMENT_LIMIT - 1)]
VALUES = [word for word in NASTY if not any(char in word for char in "\r\x01\x1b\x7f")]
DIRECT = {f"DIRECT_{number}": value for number, value in enumerate(VALUES)}
FROM_FILE = {f"FILE_{number}": value for number, value in enumerate(VALUES)}


def put(host: RehearsalHost, path: str, text: str) -> None:
    host.run(["sh", "-c", 'cat > "$1"', "sh", path], stdin=text)


def load(host: RehearsalHost, text: str) -> None:
    put(host, PATH, text)
    host.run(["systemctl", "daemon-reload"])


def read_back(host: RehearsalHost, key: str) -> Any:
    text = host.run(
        [
            "busctl", "--json=short", "get-property", "org.freedesktop.systemd1",
            "/org/freedesktop/systemd1/unit/deployer_2dquoting_2eservice", "org.freedesktop.systemd1.Service", key,
        ]
    )  # fmt: skip
    return json.loads(text)["data"]


@pytest.fixture
def unit(fresh_host: RehearsalHost) -> RehearsalHost:
    """A host with a unit that holds everything nasty at once."""
    lines = [f"Environment={quoting.assignment(name, value)}" for name, value in DIRECT.items()]
    load(
        fresh_host,
        "\n".join(
            [
                "[Unit]",
                f"Description={quoting.plain('100% ; # $x')}",
                "[Service]",
                "Type=oneshot",
                f"ExecStart={quoting.command_line(ARGV)}",
                *lines,
                f"EnvironmentFile={quoting.path('/run/deployer 100% quoting.env')}",
                "",
            ]
        ),
    )
    text = "".join(quoting.file_line(name, value) for name, value in FROM_FILE.items())
    put(fresh_host, "/run/deployer 100% quoting.env", text)
    return fresh_host


def test_systemd_holds_what_was_written(unit: RehearsalHost) -> None:
    (command,) = read_back(unit, "ExecStart")
    assert command[1] == ARGV
    assert dict(item.split("=", 1) for item in read_back(unit, "Environment")) == DIRECT


def test_a_process_gets_what_was_written(unit: RehearsalHost) -> None:
    unit.run(["systemctl", "start", UNIT])
    got = json.loads(unit.run(["cat", "/run/deployer-quoting"]))
    assert got["argv"] == ["-c", *ARGV[3:]]
    assert {name: got["env"].get(name) for name in DIRECT} == DIRECT
    assert {name: got["env"].get(name) for name in FROM_FILE} == FROM_FILE


@pytest.mark.parametrize("which", ["unit", "candidate"])
def test_the_template_is_taken_without_a_word(fresh_host: RehearsalHost, which: str) -> None:
    """systemd-analyze has nothing to say about a rendered unit, and systemd reads its argv back exactly."""
    service = {
        "host": "box",
        "model": "/models/a b $x 100%",
        "gpus": [0, 1],
        "user": "daemon",
        "engine": {"python": "/usr/bin/python3", "cuda_home": "/usr"},
        "environment": {"GREETING": "a b", "HF_TOKEN": {"env": "TOKEN"}},
        "api_key": {"env": "KEY"},
        "extra_args": {"json-model-override-args": {"a": "$b; %c"}},
    }
    site = inventory_from({"hosts": {"box": {"gpus": 2}}, "services": {"kimi": service}}, Path("/site/i.toml"))
    profile = load_profile("pp2-async", profile_folders())
    made = build_bundle(
        site.service(),
        site.host("box"),
        profile,
        "0.5.12.post1",
        "0001-pp2-async",
        resolve=lambda _: "secret",
    )
    text = made.files["unit" if which == "unit" else "unit.candidate"]["text"]
    load(fresh_host, text)
    said = fresh_host.run(["sh", "-c", f"systemd-analyze verify --recursive-errors=no {PATH} 2>&1; echo $?"])
    assert said.strip() == "0"
    (command,) = read_back(fresh_host, "ExecStart")
    assert command[1] == made.argv
    assert dict(item.split("=", 1) for item in read_back(fresh_host, "Environment")) == made.environment
    assert read_back(fresh_host, "Restart") == ("on-failure" if which == "unit" else "no")
    assert read_back(fresh_host, "LimitMEMLOCK") == read_back(fresh_host, "LimitAS")
    assert read_back(fresh_host, "LogRateLimitIntervalUSec") == 1000


#: How many argument lists are tried, and in what order of chance; `make fuzz-systemd` tries 10,000.
LISTS = int(os.environ.get("DEPLOYER_ARGUMENT_LISTS", "500"))
SEED = int(os.environ.get("DEPLOYER_SEED", "0"))
#: Lists in one unit: each is an ExecStart= of its own.
BATCH = 250
ALPHABETS = ("$%{}\\\"'`;#@:!|+-= \t\n\r[]*?~&<>()xs0", "%$\\", "ab %h${HOME}", "äß日本😀\u2028\u00a0\ufeff\x01\x1b")


def argument_list(chance: random.Random) -> list[str]:
    """Words that are hard to write: known ones, pieces of them, and letters with a meaning to systemd."""
    words = []
    for _ in range(chance.randrange(6)):
        kind = chance.randrange(4)
        if kind == 0:
            words.append(chance.choice(NASTY))
        elif kind == 1:
            words.append("".join(chance.choice(NASTY)[:20] for _ in range(chance.randrange(1, 4))))
        elif kind == 2:
            words.append("".join(chance.choices(chance.choice(ALPHABETS), k=chance.randrange(1, 30))))
        else:
            codes = (chance.choice((chance.randrange(1, 128), chance.randrange(128, 0xD800))) for _ in range(8))
            words.append("--" * chance.randrange(2) + "".join(map(chr, codes)))
    return words


def test_systemd_reads_any_argument_list_as_it_was_meant(fresh_host: RehearsalHost) -> None:
    chance = random.Random(SEED)
    lists = [["/usr/bin/true", *argument_list(chance)] for _ in range(LISTS)]
    for begin in range(0, LISTS, BATCH):
        batch = lists[begin : begin + BATCH]
        commands = "".join(f"ExecStart={quoting.command_line(words)}\n" for words in batch)
        load(fresh_host, f"[Service]\nType=oneshot\n{commands}")
        commands_read = [command[1] for command in read_back(fresh_host, "ExecStart")]
        for number, (meant, was_read) in enumerate(zip(batch, commands_read, strict=True), begin):
            assert was_read == meant, f"list {number} of seed {SEED}"
