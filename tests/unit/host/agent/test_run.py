"""Temporary files of the programs that `run` starts."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from deployer.host.agent.base import Fail
from deployer.host.agent.run import give_away, private_folder


def test_temporary_files_go_to_memory_if_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full: set[str | None] = {None}
    folders: list[str] = []

    def mkdtemp(prefix: str, dir: str | None) -> str:
        if dir in full:
            raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp', '/var/tmp']")
        path = tmp_path / f"{prefix}{len(folders)}"
        path.mkdir()
        folders.append(str(path))
        return str(path)

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    folder = private_folder({"program.py": "pass"})
    assert (Path(folder) / "program.py").read_text() == "pass"
    full |= {"/dev/shm", "/run"}
    with pytest.raises(Fail, match=r"no room for temporary files: .*No usable") as caught:
        private_folder({"program.py": "pass"})
    assert caught.value.code == "no-space"


def test_a_link_prepared_in_its_place_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim, temporary = tmp_path / "victim", tmp_path / "tmp"
    victim.mkdir()
    temporary.mkdir()
    (temporary / "deployer-run-guessed").symlink_to(victim)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(tempfile, "_get_candidate_names", lambda: iter(["guessed", "another"]))
    folder = Path(private_folder({"program.py": "pass"}))
    assert (folder.name, folder.stat().st_mode & 0o777) == ("deployer-run-another", 0o700)
    assert not list(victim.iterdir())


def test_an_account_gets_its_folder_last_and_nothing_that_a_link_leads_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, given = tmp_path / "folder", []
    folder.mkdir()
    (folder / "program.py").write_text("pass")
    (folder / "link").symlink_to(tmp_path / "missing")
    lchown = os.lchown

    def note(path: str, uid: int, gid: int) -> None:
        lchown(path, uid, gid)
        given.append(Path(path).name)

    monkeypatch.setattr(os, "lchown", note)
    give_away(str(folder), os.getuid(), os.getgid())
    assert sorted(given[:-1]) == ["link", "program.py"]
    assert given[-1] == "folder"
