"""The gate's error rates are what docs/gate.md says, and within what is promised there."""

from __future__ import annotations

import random
from typing import Any

import pytest

from deployer.bench.noise import learn
from deployer.bench.rates import aligned, rates_of
from deployer.bench.relative import compared, judge
from tests.paths import DOCS
from tools import gate_study as study

PAGE = DOCS / "gate.md"
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
    assert study.mark() in PAGE.read_text(encoding="utf-8"), "the gate changed: run `make gate-study`"


def test_the_page_keeps_its_promise() -> None:
    rows = [line.split("|")[1:-1] for line in PAGE.read_text(encoding="utf-8").splitlines() if "1/2/1" in line]
    row = next(row for row in rows if row[1].strip() == "3")
    shares = [[float(number) for number in cell.split("/")] for cell in row[2:]]
    assert shares[0][0] < 1.0
    assert shares[3][0] > 95.0
    assert all(abs(sum(cell) - 100) <= 1.1 for cell in shares)  # two of three are whole numbers


def test_the_study_asks_the_gate_itself() -> None:
    rng = random.Random(1)
    starts = [study.one_start(rng, TYPICAL) for _ in range(4)]
    logs = aligned([rates_of(bench) for bench in starts])
    noise = learn([starts[1:]])
    whole = judge(starts[:1], starts[1:], noise)
    assert whole is not None
    assert whole.as_json() == compared(logs[:1], logs[1:], noise).as_json()


def test_a_page_without_marks_is_refused() -> None:
    page = f"a\n{study.BEGIN}\nold\n{study.END}\nb\n"
    assert study.replaced(page, "new\n") == f"a\n{study.BEGIN}\nnew\n{study.END}\nb\n"
    with pytest.raises(ValueError, match="no <!-- study: begin -->"):
        study.replaced("a page", "new")


def real(*results: str, effect: float = 0.01) -> list[dict[str, Any]]:
    return [{"result": result, "effect": effect} for result in results]


SETTINGS = {"profile": "pp8", "noise": 0.01, "start_noise": 0.02, "levels": [2, 4], "repeats": 2}


def test_real_applies_are_counted_and_their_number_is_told() -> None:
    found = {
        "settings": SETTINGS,
        "first": real("pass", effect=0.0),
        "same": real("pass", "pass", "inconclusive", "pass"),
        "slower": real("fail", "fail", effect=-0.1),
    }
    text = study.real_block(found)
    assert "| the same speed, against 3 starts and more | 4 | 3 | 1 | 0 |" in text
    assert "| every step 11 % longer (a tenth slower) | 2 | 0 | 0 | 2 |" in text
    assert "4 applies without a false fail leave a rate of up to 53 % possible" in text
    assert "2 applies without a miss leave a rate of up to 78 % possible" in text


def test_applies_of_the_real_engine_say_what_slowed_it_and_which_noise_was_learnt() -> None:
    noise = {"run": 0.012, "level": 0.01, "start": 0.025, "starts": 7, "freedom": 6}
    settings = {"engine": "sglang", "profile": "tp1", "levels": [2, 4], "repeats": 2, "held": 0.1}

    def applies(result: str, effect: float | None, *seconds: float) -> list[dict[str, Any]]:
        return [
            {"result": result, "effect": effect, "seconds": took, "noise": noise, "load_average": 1.2}
            for took in seconds
        ]

    text = study.real_block(
        {
            "settings": {**settings, "processors": 2},
            "first": applies("pass", None, 90.0, 70.0),
            "same": applies("pass", -0.01, 60.0),
            "slower": applies("fail", -0.11, 75.0),
            "in_turn": [-0.1, -0.14],
        }
    )
    assert "`tp1`, levels 2, 4 with 2 passes each, on 2 processors, 72 s an apply; the load" in text
    assert "before them was 1 to 1. Noise learnt" in text
    assert "in turn: -12.0 % in the mean of 2 (-14.0 to -10.0)" in text
    assert "1.2 / 2.5 / 1.0 % (passes / starts / levels)" in text
    assert "| its scheduler held up for 10 % of the time | 1 | 0 | 0 | 1 |" in text
    assert "its scheduler held up for 10 % of the time: -11.0 to -11.0 %" in text


def test_real_applies_that_erred_promise_nothing() -> None:
    found = {"settings": SETTINGS, "first": [], "same": real("fail", "pass"), "slower": []}
    assert "possible" not in study.real_block(found)


def test_the_gate_page_has_the_marks_of_real_applies() -> None:
    page = (DOCS / "gate.md").read_text(encoding="utf-8")
    for marks in study.REAL_MARKS.values():
        assert "\nTABLE" in study.replaced(page, "TABLE", *marks)
