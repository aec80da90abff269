"""Help, completion and mistakes answer at once: they load none of the large packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from deployer.cli.main import COMMANDS
from tests.paths import ROOT

#: Packages that take longer to import than everything else that these answers need.
HEAVY = {"paramiko", "fabric", "httpx", "jinja2", "pydantic", "pydantic_settings", "rich"}
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
