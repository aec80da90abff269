"""Temporary files of the programs that `run` starts."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from deployer.host.agent.base import Fail
from deployer.host.agent.run import private_folder


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
