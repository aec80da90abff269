"""The score of a folder of logs, and that of the project's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.paths import DATA
from tools.score_logs import main, score

REPORTS = DATA / "reports"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
ODD = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\n    g()\nFooError: it says no\n'


def test_every_log_of_a_fault_that_was_reported_is_read_right() -> None:
    result = score(REPORTS)
    assert set(result.verdicts) == {path.name for path in REPORTS.glob("*.log")}
    assert not {name: result.said[name] for name, one in result.verdicts.items() if one != "right"}


def test_right_unknown_and_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (("a.log", OOM), ("b.log", ODD), ("c.log", OOM), ("d.log", ODD)):
        (tmp_path / name).write_text(text)
    (tmp_path / "expect.toml").write_text(
        '["a.log"]\nsignature = ["x", "cuda_oom_load"]\n["b.log"]\nsignature = "cuda_oom_load"\n'
        '["c.log"]\nsignature = "disk_full"\n["d.log"]\nsignature = "unknown"\nwords = "it says no"\n'
    )
    assert main([str(tmp_path), "--max-wrong", "25"]) == 0
    assert "4 logs: right 50.0 %, unknown 25.0 %, wrong 25.0 %" in capsys.readouterr().out
    assert main([str(tmp_path)]) == 1
    assert main([str(tmp_path), "--max-wrong", "25", "--min-right", "75"]) == 1


@pytest.mark.parametrize("text", [None, '["a.log"]\nsigature = "x"\n', "not toml"])
def test_a_folder_without_proper_expectations(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "expect.toml").write_text(text)
    assert main([str(tmp_path)]) == 2
