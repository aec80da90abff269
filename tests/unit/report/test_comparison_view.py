"""The comparison as tables and as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rich.console import Console

from deployer.bench.comparison import Subject, compare
from deployer.inspect.compare import Compared, DifferentArgument
from deployer.records.verdict import Noise
from deployer.report.comparison_view import all_doubts, comparison_document, comparison_view
from tests.unit.bench.test_comparison import bench, level, subject

Json = dict[str, Any]


def compared(*subjects: Subject, **more: Any) -> Compared:
    return Compared(subjects, tuple(compare(subjects[0], other, Noise()) for other in subjects[1:]), Noise(), **more)


def text(found: Compared, *, colours: bool = False) -> str:
    console = Console(width=100, color_system="standard" if colours else None, force_terminal=colours)
    with console.capture() as captured:
        console.print(comparison_view(found))
    return captured.get()


TP8 = subject("0001-tp8", bench(level(8, 175.0), level(32, 577.0)), argv=["--tp", "8"], releases=["0001-tp8"])
PP8 = subject("0002-pp8-async", bench(level(8, 113.0), level(32, 248.0), single=34.0), releases=["0002-pp8-async"])
FIVE = [
    subject(f"000{n}-pp8-async-mb64", *(bench(*(level(at, 10.0 * at * n) for at in (8, 16, 32, 48, 64))),) * 2)
    for n in range(1, 6)
]


def test_the_table_has_values_changes_and_verdicts() -> None:
    lines = text(compared(TP8, PP8)).splitlines()
    row = next(line for line in lines if line.split()[:2] == ["32", "aggregate,"])
    assert " 577 " in row
    assert " 248 " in row
    assert "-57." in row
    assert row.rstrip().endswith("slower")
    one = next(line for line in lines if line.split()[:1] == ["one"])
    assert one.rstrip().endswith("faster")
    assert any(line.startswith("0002-pp8-async against 0001-tp8: -") for line in lines)
    assert "typical noise is assumed" in lines[-2]


@pytest.mark.parametrize("found", [compared(TP8, PP8), compared(*FIVE)], ids=["two", "five"])
def test_it_fits_a_hundred_columns_and_loses_nothing(found: Compared) -> None:
    shown = text(found)
    assert all(len(line) <= 100 for line in shown.splitlines())
    assert "…" not in shown
    for comparison in found.comparisons:
        for item in comparison.changes:
            assert str(item) in shown


def test_better_and_worse_have_their_colours() -> None:
    shown = text(compared(TP8, PP8), colours=True)
    assert "\x1b[31mslower" in shown
    assert "\x1b[32mfaster" in shown
    assert "\x1b[31mlonger" in shown
    assert "\x1b[2mwithin noise" in text(compared(TP8, subject("b", *TP8.benches)), colours=True)


def test_differing_arguments_are_shown() -> None:
    rows = (
        DifferentArgument("--tp", {"0001-tp8": "8", "0002-pp8-async": None}),
        DifferentArgument("--mem", {"0001-tp8": "0.8", "0002-pp8-async": "0.9"}),
        DifferentArgument("--else", {"0001-tp8": "0.8"}),
    )
    shown = text(compared(TP8, PP8, arguments=rows))
    assert "  --mem: 0.8 -> 0.9" in shown
    assert "  only 0001-tp8: --tp 8" in shown
    assert "--else" not in shown


def test_doubts_are_shown() -> None:
    cut = bench(level(8, 100.0), budget={"cut": ["level 64, pass 2: left out, the time was used up"]})
    found = compared(TP8, subject("b", cut), differences=("b: place",))
    assert all_doubts(found) == [
        "not measured alike: b: place",
        "b: level 64, pass 2: left out, the time was used up",
    ]
    assert all(f"! {doubt}" in text(found) for doubt in all_doubts(found))


def test_names_with_markup_are_shown_as_they_are() -> None:
    assert "[red]x" in text(compared(TP8, subject("[red]x[/red]", *TP8.benches)))


def test_the_document_is_json() -> None:
    document = json.loads(json.dumps(comparison_document(compared(TP8, PP8))))
    assert document["reference"] == "0001-tp8"
    assert document["releases"] == ["0001-tp8", "0002-pp8-async"]
    assert document["subjects"][1]["aggregate_tok_s"] == {"1": pytest.approx(34.0), "8": 113.0, "32": 248.0}
    found = next(
        item
        for item in document["comparisons"][0]["findings"]
        if (item["figure"], item["concurrency"]) == ("aggregate_tok_s", 32)
    )
    assert found["verdict"] == "less"
    assert found["interval"][0] < found["effect"] < found["interval"][1] < 0
    assert document["comparisons"][0]["pooled"]["word"] == "slower"
