"""Files that a benchmark is exported to: looked at before it is measured, and no reason to lose it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deployer.errors import UsageError
from deployer.report.exports import check_exports, write_exports

DOCUMENT: dict[str, Any] = {"name": "0001-p@1", "bench": {"levels": []}}


def test_files_that_cannot_be_written_are_told_beforehand(tmp_path: Path) -> None:
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
    written, errors = write_exports(DOCUMENT, tmp_path, tmp_path / "y")
    assert written == [tmp_path / "y"]
    assert [str(tmp_path) in error.message for error in errors] == [True]
