"""Help, completion and mistakes answer at once: they load none of the large packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from deployer.cli.main import COMMANDS
from tests.paths import ROOT

#: Packages that take longer to import than everything that these answers need: others', and parts of deployer.
HEAVY = {"paramiko", "fabric", "httpx", "jinja2", "pydantic", "rich"}
HEAVY |= {f"deployer.{part}" for part in ("bench", "deploy", "host", "inspect", "records", "report", "sglang")}
PROGRAM = """
import json, sys
from deployer.cli.main import run
try:
    status = run(sys.argv[1:])
except SystemExit as end:
    status = end.code
print(json.dumps({"status": status, "modules": list(sys.modules)}), file=sys.stderr)
"""


def answer(*argv: str, **environment: str) -> tuple[int, str, set[str]]:
    """Run deployer in a new interpreter: its exit status, its output, and the heavy packages it has loaded."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *argv],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    *words, last = done.stderr.splitlines()
    report = json.loads(last)
    return report["status"], done.stdout + "\n".join(words), HEAVY & set(report["modules"])


def completed(*words: str) -> tuple[int, str, set[str]]:
    line = " ".join(("deployer", *words))
    return answer(_DEPLOYER_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(words)))


@pytest.mark.parametrize(
    ("argv", "text"), [("--version", "deployer, version"), ("--help", "status"), ("-h", "Exit codes")]
)
def test_version_and_help(argv: str, text: str) -> None:
    status, output, heavy = answer(argv)
    assert (status, heavy) == (0, set())
    assert text in output


@pytest.mark.parametrize("command", [*COMMANDS, "rehearse up", "sglang learn"])
def test_help_of_a_command(command: str) -> None:
    status, output, heavy = answer(*command.split(), "--help")
    assert (status, heavy) == (0, set())
    assert "Example" in output


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        (("st",), {"status"}),
        (("",), set(COMMANDS)),
        (("status", "--int"), {"--interval"}),
        (("sglang", "l"), {"learn"}),
        (("rehearse", "f"), {"fault"}),
        (("apply", "--baseline", "l"), {"live"}),
    ],
)
def test_completion(words: tuple[str, ...], completions: set[str]) -> None:
    status, output, heavy = completed(*words)
    assert (status, heavy) == (0, set())
    assert {line.rpartition(",")[2] for line in output.splitlines()} == completions


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["stauts"], "No such command 'stauts'. Did you mean 'status'?"),
        (["rehears", "up"], "Did you mean 'rehearse'?"),
        (["status", "--wacth"], "--watch"),
        (["--jsno", "status"], "--json"),
        (["history", "x"], "'x' is not a valid integer"),
    ],
)
def test_a_mistake(argv: list[str], text: str) -> None:
    status, output, heavy = answer(*argv)
    assert (status, heavy) == (2, set())
    assert text in output


def test_a_mistake_as_json() -> None:
    status, output, heavy = answer("--json", "stauts")
    assert (status, heavy) == (2, set())
    assert "Did you mean 'status'?" in json.loads(output)["error"]["message"]


CONNECTING = """
import json, sys
import deployer.cli.app, deployer.host.connect
from deployer.cli.main import run
deployer.cli.app.load_in_background = lambda modules: None
def connect(*args, **options):
    print(json.dumps(list(sys.modules)), file=sys.stderr)
    raise SystemExit(0)
deployer.host.connect.connect = connect
run(sys.argv[1:])
"""


@pytest.mark.parametrize("command", ["status", "apply tp8", "plan tp8", "converge"])
def test_a_connection_is_not_kept_waiting(command: str) -> None:
    """What a command needs after it has connected is imported meanwhile, not before."""
    inventory = str(ROOT / "inventories/example.toml")
    done = subprocess.run(
        [sys.executable, "-c", CONNECTING, "-i", inventory, *command.split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    loaded = set(json.loads(done.stderr))
    later = {"jinja2", "deployer.deploy.session", "deployer.deploy.apply", "deployer.records.release"}
    assert not loaded & {
        *later,
        "deployer.deploy.wait",
        "deployer.bench",
        "deployer.inspect",
        "deployer.sglang",
    }
