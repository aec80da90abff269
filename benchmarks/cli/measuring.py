"""Commands timed in rounds: each round runs every command once, so that all meet the same machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.cli.host import DEPLOYER, PROFILE, PracticeHost


@dataclass(frozen=True)
class Case:
    """A command, and what its output must contain: nothing was to be changed. ``fresh`` is removed before a run."""

    name: str
    argv: Sequence[str]
    proof: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    fresh: Path | None = None

    def seconds(self, folder: Path) -> float:
        """Run it once in ``folder`` and return the seconds it took. SystemExit if it does not do its work."""
        if self.fresh is not None:
            shutil.rmtree(self.fresh, ignore_errors=True)
        begun = time.perf_counter()
        done = subprocess.run(
            self.argv,
            cwd=folder,
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - begun
        output = done.stdout + done.stderr
        if done.returncode or self.proof not in output:
            raise SystemExit(f"{self.name} ended with {done.returncode}, without {self.proof!r}:\n{output}")
        return seconds


@dataclass(frozen=True)
class Row:
    """The seconds of all runs of one command, or of one stage."""

    name: str
    seconds: Sequence[float]

    @property
    def median(self) -> float:
        return median(self.seconds)


def cases(host: PracticeHost, folder: Path, tools: Path) -> list[Case]:
    """The commands, in the order of the table. ``folder`` has the plays, ``tools`` the programs of the others."""
    ours = [DEPLOYER, "-i", str(host.inventory)]
    ansible = [str(tools / "ansible-playbook"), "play.yml"]
    pyinfra = [str(tools / "pyinfra"), "-y", "hosts.py", "deploy.py"]
    unchanged = "changed=0"
    return [
        Case("`python3 -c pass`", [sys.executable, "-c", "pass"]),
        Case("`deployer --version`", [DEPLOYER, "--version"], "version"),
        Case("`deployer --help`", [DEPLOYER, "--help"], "Exit codes"),
        Case("`deployer apply --help`", [DEPLOYER, "apply", "--help"], "PROFILE"),
        Case("`ssh HOST true`", [*host.ssh, "true"]),
        Case("`ssh HOST curl .../health`", [*host.ssh, f"curl --silent --fail {host.health}"]),
        Case("`deployer status`", [*ours, "status"], "healthy"),
        Case("`deployer apply`, nothing to change", [*ours, "apply", PROFILE], "nothing was changed"),
        Case("pyinfra", pyinfra, "No changes", {"NO_COLOR": "1"}),
        Case(
            "Ansible with pipelining, its connection kept",
            ansible,
            unchanged,
            {"ANSIBLE_CONFIG": "pipelining.cfg"},
        ),
        Case(
            "Ansible as it comes",
            ansible,
            unchanged,
            {"ANSIBLE_CONFIG": "default.cfg"},
            fresh=folder / "sockets-default",
        ),
    ]


def measured(commands: Sequence[Case], folder: Path, runs: int) -> list[Row]:
    """Time every command ``runs`` times, after one run that is not counted."""
    seconds: dict[str, list[float]] = {case.name: [] for case in commands}
    for number in range(runs + 1):
        for case in commands:
            taken = case.seconds(folder)
            if number:
                seconds[case.name].append(taken)
        print(f"round {number} of {runs}", file=sys.stderr, flush=True)
    return [Row(name, values) for name, values in seconds.items()]


def stages(host: PracticeHost, runs: int) -> list[Row]:
    """Time the stages of a `status`, each run in a process of its own."""
    argv = [sys.executable, "-m", "benchmarks.cli.stages", str(host.inventory)]
    seconds: dict[str, list[float]] = {}
    for _ in range(runs):
        done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True)
        for name, value in json.loads(done.stdout).items():
            seconds.setdefault(name, []).append(value)
    return [Row(name, values) for name, values in seconds.items()]
