"""The published tables of the command line's benchmark."""

from __future__ import annotations

from benchmarks.cli.measuring import Row
from benchmarks.cli.page import MARKS, tables
from benchmarks.client.page import replaced
from tests.paths import DOCS


def test_a_row_has_median_least_and_most() -> None:
    text = tables([Row("`deployer status`", [1.5, 1.25, 2.0])], [Row("imports", [0.1])], "a machine")
    assert "| `deployer status` | 1.50 | 1.25 | 2.00 |" in text
    assert "| imports | 0.10 | 0.10 | 0.10 |" in text
    assert text.startswith("a machine\n")


def test_the_page_has_the_marks() -> None:
    page = (DOCS / "performance.md").read_text()
    assert "fresh text" in replaced(page, "fresh text\n", MARKS)
