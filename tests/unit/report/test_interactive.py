"""Figures for plotly: the same lines as the page's own plots."""

from __future__ import annotations

import importlib
import json
import math
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.errors import UsageError
from deployer.report.charts import Axis, Point, Series
from deployer.report.interactive import figure, library
from deployer.report.page import comparison_page, plots
from tests.unit.report.test_comparison_view import compared
from tests.unit.report.test_page import FIVE

numbers = st.floats(0, 1e6)
points = st.builds(Point, numbers, numbers, st.text(max_size=8), st.text(max_size=3))


def test_a_line_its_dots_and_its_whiskers() -> None:
    line = Series(3, "a", [Point(8, 50.0, "a <b>"), Point(16, 70.0, "b")], [(8, 49.0)], [(8, 40.0, 60.0)])
    made = figure([line], Axis("in flight", [8, 16], log=True), Axis("%", top=100.0))
    one, dots = made["data"]
    assert (one["x"], one["y"], one["meta"]) == ([8, 16], [50.0, 70.0], 3)
    assert one["customdata"] == ["a &lt;b&gt;", "b"]
    assert (one["error_y"]["array"], one["error_y"]["arrayminus"]) == ([10.0, 0.0], [10.0, 0.0])
    assert (dots["x"], dots["y"], dots["meta"]) == ([8], [49.0], 3)
    assert made["layout"]["xaxis"]["type"] == "log"
    assert made["layout"]["xaxis"]["ticktext"] == ["8", "16"]
    assert made["layout"]["yaxis"]["range"][1] > 100


def test_a_line_that_is_finer_than_its_points() -> None:
    line = Series(1, "a", [Point(2, 5.0, "a", "8")], path=[(1, 4.0), (2, 5.0), (3, 6.0)])
    path, marks = figure([line], Axis("s"), Axis("%", top=100.0))["data"]
    assert (path["mode"], path["x"], path["y"], path["meta"]) == ("lines", [1, 2, 3], [4.0, 5.0, 6.0], 1)
    assert (marks["mode"], marks["x"], marks["text"], marks["meta"]) == ("markers+text", [2], ["8"], 1)
    assert "line" not in marks


@given(st.lists(st.builds(Series, st.integers(0, 20), st.text(max_size=5), st.lists(points, max_size=4)), max_size=4))
def test_every_point_is_in_it_and_json_can_hold_it(lines: list[Series]) -> None:
    made = figure(lines, Axis("x"), Axis("y"))
    assert [len(trace["x"]) for trace in made["data"]] == [len(line.points) for line in lines]
    assert all(math.isfinite(value) for trace in made["data"] for value in trace["y"])
    json.dumps(made, allow_nan=False)


def test_only_the_page_that_is_to_have_it_has_it() -> None:
    found = compared(*FIVE)
    with_it, without = comparison_page(found, library="/* the library */"), comparison_page(found)
    assert "/* the library */" in with_it
    assert with_it.count('class="zoom"') == len(plots(found)) == 6
    assert "figures" not in without
    assert with_it.count('<svg class="plot"') == 6, "for paper, and where no script runs"


def test_without_the_extra_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ModuleType:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(UsageError, match="not installed") as caught:
        library()
    assert "deployer[plots]" in str(caught.value.remedy)
