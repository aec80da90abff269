"""What make hands over to the command."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from deployer.resources import package_root

#: A make that runs these tests hands its own settings on.
ENVIRONMENT = {
    key: value for key, value in os.environ.items() if not key.startswith("MAKE") and key not in ("MFLAGS", "VENV")
}
ARGUMENTS = '#!/bin/sh\nfor word in "$@"; do printf "%s\\0" "$word"; done\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The Makefile with a Python that prints its arguments."""
    shutil.copy(package_root() / "Makefile", tmp_path)
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").write_text(ARGUMENTS)
    (tmp_path / ".venv/bin/python").chmod(0o755)
    (tmp_path / ".venv/.installed").touch()
    return tmp_path


@pytest.mark.parametrize(
    "profile",
    [
        "tp8",
        'a"; touch found; "',
        "a'; touch found; '",
        "$(shell touch found)",
        "`touch found`",
        "--help",
        "a b",
    ],
)
def test_a_profile_is_one_word_whatever_is_in_it(folder: Path, profile: str) -> None:
    done = subprocess.run(
        ["make", "-s", "apply", f"PROFILE={profile}", "ARGS=--yes --json"],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    words = ["-m", "deployer", "apply", "--yes", "--json", "--", profile]
    assert done.stdout.split("\0")[:-1] == words
    assert not (folder / "found").exists()


def test_without_a_profile_it_says_so(folder: Path) -> None:
    done = subprocess.run(
        ["make", "-s", "apply"], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "make apply needs a profile: make apply PROFILE=tp8\n")
