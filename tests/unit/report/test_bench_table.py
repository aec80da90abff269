"""Benchmarks side by side."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from deployer.records.bench import BenchRun
from deployer.report.bench_table import bench_view, doubts


def bench(single: float | None, rates: dict[int, float | None], ttft: float = 0.5, **more: Any) -> dict[str, Any]:
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


def view(name: str, document: dict[str, Any]) -> RenderableType:
    return bench_view(name, BenchRun.from_json(document))


TWO = {
    "0001-tp8": bench(26.0, {8: 100.0, 32: 250.0}),
    "0002-pp8": bench(32.5, {8: 90.0, 64: 400.0}, ttft=0.25),
}


def test_doubts_about_a_benchmark_are_shown() -> None:
    odd = bench(26.0, {8: 100.0}, stopped="interrupted (SIGINT) during level 16")
    odd["levels"][0].update(completed=5, client={"client_limited": True})
    odd["foreign_traffic"] = {"value": True}
    odd["client"] = {"sampler_ended_s": 6.2}
    said = doubts("b", BenchRun.from_json(odd))
    assert said == [
        "b: 3 of 8 requests at level 8 failed",
        "b: the load client was saturated at level 8",
        "b: somebody else used the server meanwhile",
        "b: the process that looks at the server ended after 6 s; what it did then was not seen",
        "b: ended early, interrupted (SIGINT) during level 16",
    ]
    shown = text(view("b", odd))
    assert all(line in shown for line in said)
    assert doubts("a", BenchRun.from_json(TWO["0001-tp8"])) == []


def test_one_benchmark() -> None:
    shown = text(view("0001-tp8", TWO["0001-tp8"]))
    assert "0001-tp8" in shown
    assert any("one" in line and "2/2" in line and "26.0" in line and "38.0" in line for line in shown.splitlines())
    assert any("32/32" in line and "250" in line and "40.1" in line for line in shown.splitlines())


def test_names_with_markup_are_shown_as_they_are() -> None:
    assert "[red]x[/red]" in text(view("[red]x[/red]", TWO["0001-tp8"]))


rate = st.one_of(st.none(), st.floats(0, 1e6))
levels = st.dictionaries(st.sampled_from([8, 16, 64]), rate, max_size=3)


@given(rate, levels)
def test_whatever_was_measured_is_shown(single: float | None, rates: dict[int, float | None]) -> None:
    shown = text(view("a", bench(single, rates)))
    assert all(f"{n}/{n}" in shown for n in rates)


def test_an_empty_benchmark_is_shown() -> None:
    assert "level" in text(view("a", {"levels": [], "single_stream_tok_s": None, "singles": None}))
