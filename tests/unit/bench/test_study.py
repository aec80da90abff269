"""The gate's error rates are what docs/gate.md says, and within what is promised there."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from deployer.bench import study
from deployer.bench.noise import learn
from deployer.bench.rates import aligned, rates_of
from deployer.bench.relative import compared, judge

DOCS = Path(__file__).parents[3] / "docs" / "gate.md"
TYPICAL = next(item for item in study.CONDITIONS if item.name == "typical")


def test_false_alarms_are_rare_and_a_tenth_is_found() -> None:
    found = {cell.loss: cell for cell in study.cells([TYPICAL], [3], [0.0, 0.10], trials=250)}
    assert found[0.0].fail < 0.01
    assert found[0.10].fail > 0.95
    assert found[0.10].passed < 0.01
    assert found[0.0].passed > 0.9


def test_applying_again_settles_what_one_start_cannot() -> None:
    once, again = (
        {cell.loss: cell for cell in study.cells([TYPICAL], [1], [0.0, 0.10], trials=150, applies=applies)}
        for applies in (1, 3)
    )
    for loss in (0.0, 0.10):
        assert again[loss].inconclusive < once[loss].inconclusive
    assert again[0.0].passed > once[0.0].passed
    assert again[0.10].fail > once[0.10].fail
    assert again[0.0].fail < 0.02
    assert again[0.10].passed < 0.02


def test_the_page_is_of_this_gate() -> None:
    assert study.mark() in DOCS.read_text(encoding="utf-8"), "the gate changed: run `make gate-study`"


def test_the_page_keeps_its_promise() -> None:
    rows = [
        line.split("|")[1:-1] for line in DOCS.read_text(encoding="utf-8").splitlines() if "1/2/1" in line
    ]
    row = next(row for row in rows if row[1].strip() == "3")
    shares = [[float(number) for number in cell.split("/")] for cell in row[2:]]
    assert shares[0][0] < 1.0
    assert shares[3][0] > 95.0
    assert all(abs(sum(cell) - 100) < 0.2 for cell in shares)


def test_the_study_asks_the_gate_itself() -> None:
    rng = random.Random(1)
    starts = [study.one_start(rng, TYPICAL) for _ in range(4)]
    logs = aligned([rates_of(bench) for bench in starts])
    noise = learn([starts[1:]])
    whole = judge(starts[:1], starts[1:], noise)
    assert whole is not None
    assert whole.as_dict() == compared(logs[:1], logs[1:], noise).as_dict()


def test_a_page_without_marks_is_refused() -> None:
    page = f"a\n{study.BEGIN}\nold\n{study.END}\nb\n"
    assert study.replaced(page, "new\n") == f"a\n{study.BEGIN}\nnew\n{study.END}\nb\n"
    with pytest.raises(ValueError, match="no <!-- study: begin -->"):
        study.replaced("a page", "new")
