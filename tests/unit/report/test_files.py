"""Files that a benchmark is exported to: looked at before it is measured, and no reason to lose it."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deployer.errors import UsageError
from deployer.records.bench import BenchRun
from deployer.report.files import STDOUT, append, check_exports, replace, write_exports


def test_files_that_cannot_be_written_are_an_error_beforehand(tmp_path: Path) -> None:
    for one, two, said in (
        (tmp_path / "no" / "x", None, "no folder"),
        (None, tmp_path / "no" / "x", "no folder"),
        (tmp_path / "x", tmp_path / "." / "x", "cannot hold both"),
    ):
        with pytest.raises(UsageError, match=said):
            check_exports(one, two)
    check_exports(tmp_path / "x", tmp_path / "y")
    assert list(tmp_path.iterdir()) == []


def test_one_that_fails_does_not_keep_the_other(tmp_path: Path) -> None:
    written, errors = write_exports(BenchRun(), "0001-p@1", tmp_path, tmp_path / "y")
    assert written == [tmp_path / "y"]
    assert [str(tmp_path) in error.message for error in errors] == [True]


@pytest.fixture
def little_room() -> Iterator[None]:
    """No file may grow beyond a block: what a disk does that fills up in the middle of one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("write", [replace, append])
@pytest.mark.usefixtures("little_room")
def test_a_disk_that_fills_up_leaves_the_file_that_was_there(
    tmp_path: Path, write: Callable[[Path, str], None]
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("as it was\n")
    for path in (old, new):
        with pytest.raises(UsageError, match="cannot be written: File too large"):
            write(path, "x" * 100_000)
    assert old.read_text() == "as it was\n"
    assert list(tmp_path.iterdir()) == [old], "nothing half is left"


def test_an_existing_file_is_replaced_or_added_to(tmp_path: Path) -> None:
    target, link = tmp_path / "x", tmp_path / "link"
    target.write_text("old\n")
    target.chmod(0o640)
    link.symlink_to(target)
    replace(link, "new\n")
    append(link, "more\n")
    assert target.read_text() == "new\nmore\n"
    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640


def test_places_that_are_no_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="it is a folder"):
        check_exports(tmp_path, None)
    check_exports(STDOUT, None)
    replace(STDOUT, "one\n")
    append(STDOUT, "two\n")
    assert capsys.readouterr().out == "one\ntwo\n"
    replace(Path(os.devnull), "gone")
    with pytest.raises(UsageError, match="No space left on device"):
        replace(Path("/dev/full"), "x")
