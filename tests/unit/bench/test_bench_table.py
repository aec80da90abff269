"""Benchmarks side by side."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from deployer.report.bench_table import (
    bench_view,
    comparison_document,
    comparison_view,
    doubts,
    rows,
)


def bench(
    single: float | None, rates: dict[int, float | None], ttft: float = 0.5, **more: Any
) -> dict[str, Any]:
    return {
        "single_stream_tok_s": single,
        "singles": {
            "requests": 2,
            "completed": 2,
            "ttft_s": {"p50": 0.2},
            "tpot_s": {"p50": 0.038},
        },
        "levels": [
            {
                "concurrency": n,
                "requests": n,
                "completed": n,
                "aggregate_tok_s": rate,
                "steady_tok_s": None,
                "ttft_s": {"p50": ttft, "p95": None},
                "itl_s": {"p50": 0.0401, "p95": 0.05},
            }
            for n, rate in rates.items()
        ],
        "spec": {"prompt_tokens": 128, "output_tokens": 128},
        "place": "host",
        **more,
    }


def text(view: RenderableType) -> str:
    console = Console(width=140, file=None, record=True, color_system=None, quiet=False, force_terminal=False)
    with console.capture() as captured:
        console.print(view)
    return captured.get()


TWO = {
    "0001-tp8": bench(26.0, {8: 100.0, 32: 250.0}),
    "0002-pp8": bench(32.5, {8: 90.0, 64: 400.0}, ttft=0.25),
}


def test_rows_hold_figures_and_differences() -> None:
    found = {(row.title, row.level): row for row in rows(TWO)}
    assert [cell.value for cell in found["single stream", None].cells] == [26.0, 32.5]
    assert found["single stream", None].cells[0].delta is None
    assert found["single stream", None].cells[1].delta == pytest.approx(0.25)
    assert found["aggregate", 8].cells[1].delta == pytest.approx(-0.1)
    assert found["TTFT p50", 8].cells[1].delta == pytest.approx(-0.5)
    assert [cell.value for cell in found["aggregate", 32].cells] == [250.0, None]
    assert [(cell.value, cell.delta) for cell in found["aggregate", 64].cells] == [
        (None, None),
        (400.0, None),
    ]


def test_the_table() -> None:
    shown = text(comparison_view(TWO))
    lines = shown.splitlines()
    assert "0001-tp8" in lines[0]
    assert "0002-pp8" in lines[0]
    single = next(line for line in lines if "single stream" in line)
    assert "26.0" in single
    assert "32.5 +25.0%" in single
    assert any("TTFT p50, ms" in line and "500" in line and "250 -50.0%" in line for line in lines)
    assert any(line.lstrip().startswith("64") and " - " in line and "400" in line for line in lines)


def test_better_and_worse_have_their_colours() -> None:
    console = Console(width=140, force_terminal=True, color_system="standard")
    with console.capture() as captured:
        console.print(comparison_view(TWO))
    shown = captured.get()
    assert "\x1b[32m +25.0%" in shown  # more tok/s
    assert "\x1b[31m -10.0%" in shown  # fewer tok/s
    assert "\x1b[32m -50.0%" in shown  # less time
    assert "\x1b[2m +0.0%" in shown  # within noise


def test_the_document_is_json() -> None:
    document = json.loads(json.dumps(comparison_document(TWO)))
    assert document["reference"] == "0001-tp8"
    figure = next(f for f in document["figures"] if (f["figure"], f["concurrency"]) == ("TTFT p50", 8))
    assert figure["unit"] == "s"
    assert figure["values"] == {"0001-tp8": 0.5, "0002-pp8": 0.25}
    assert figure["delta"] == {"0001-tp8": None, "0002-pp8": -0.5}


def test_what_speaks_against_a_comparison_is_said() -> None:
    odd = bench(26.0, {8: 100.0}, place="operator", stopped="interrupted (SIGINT) during level 16")
    odd["levels"][0].update(completed=5, client={"client_limited": True})
    odd["foreign_traffic"] = {"value": True}
    odd["spec"]["output_tokens"] = 64
    said = doubts({"a": TWO["0001-tp8"], "b": odd})
    assert said == [
        "b: 3 of 8 requests failed at level 8",
        "b: the load client was saturated at level 8",
        "b: somebody else used the server meanwhile",
        "b: ended early, interrupted (SIGINT) during level 16",
        "not measured alike: output tokens 128, 64",
        "not measured alike: place of the client host, operator",
    ]
    shown = text(comparison_view({"a": TWO["0001-tp8"], "b": odd}))
    assert all(line in shown for line in said)
    assert doubts({"a": TWO["0001-tp8"]}) == []


def test_one_benchmark() -> None:
    shown = text(bench_view("0001-tp8", TWO["0001-tp8"]))
    assert "0001-tp8" in shown
    assert any(
        "one" in line and "2/2" in line and "26.0" in line and "38.0" in line for line in shown.splitlines()
    )
    assert any("32/32" in line and "250" in line and "40.1" in line for line in shown.splitlines())


def test_names_with_markup_are_shown_as_they_are() -> None:
    assert "[red]x[/red]" in text(comparison_view({"[red]x[/red]": TWO["0001-tp8"]}))


def test_an_empty_benchmark_is_shown() -> None:
    nothing: dict[str, Any] = {"levels": [], "single_stream_tok_s": None, "singles": None}
    assert "single stream" in text(comparison_view({"a": nothing, "b": TWO["0001-tp8"]}))
    assert "level" in text(bench_view("a", nothing))
    assert comparison_document({})["reference"] is None


rate = st.one_of(st.none(), st.floats(0, 1e6))
levels = st.dictionaries(st.sampled_from([8, 16, 64]), rate, max_size=3)


@given(st.dictionaries(st.text(max_size=9), st.tuples(rate, levels), min_size=1, max_size=4))
def test_every_figure_has_a_cell_for_every_benchmark(
    made: dict[str, tuple[float | None, dict[int, float | None]]],
) -> None:
    benches = {name: bench(single, rates) for name, (single, rates) in made.items()}
    for row in rows(benches):
        assert len(row.cells) == len(benches)
        assert row.cells[0].delta is None
    json.dumps(comparison_document(benches))
    text(comparison_view(benches))
