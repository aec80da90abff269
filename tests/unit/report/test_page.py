"""The comparison as one page: what is in it, and that nothing in it comes from elsewhere or breaks out of its place."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from itertools import combinations
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deployer.bench.comparison import Subject
from deployer.inspect.compare import DifferentArgument
from deployer.records.bench import About
from deployer.report.charts import Axis, Point, Series, line_chart, round_ticks
from deployer.report.comparison_view import comparison_document
from deployer.report.page import comparison_page, plots, waterfalls
from tests.unit.bench.test_comparison import bench, documents, level, subject
from tests.unit.report.test_comparison_view import compared, text

Json = dict[str, Any]


def served(at: int, rate: float) -> Json:
    """A level with what the server did meanwhile."""
    gpus = [
        {
            "index": n,
            "utilization": {"mean": 60.0 + n},
            "power_w": {"mean": 300.0 + n},
            "power_limit_w": 600.0,
        }
        for n in range(8)
    ]
    return level(at, rate, server={"gpus": gpus, "sentence": f"C={at}: all in flight"}, requests=at, completed=at)


def made(name: str, share: float) -> Subject:
    phases = (("launch", 4.0), ("load", 61.0), ("capture", 12.5 * share), ("ready", 1.0))
    levels = [served(at, 20.0 * at**0.7 * share) for at in (8, 16, 32, 48, 64)]
    passes = [one for item in levels for one in item["passes"]]
    for place, one in enumerate(passes):
        one["started_s"] = 5.0 + 4 * place
    seen = [{"t_s": n + 0.5, "utilization": 50.0 * (n > 4) + n / 2, "power_w": 300.0} for n in range(46)]
    return subject(
        name,
        bench(*levels, single=26 * share, over_time=[{"t_s": 0.1, "utilization": None}, *seen]),
        releases=[name],
        sglang="0.5.12.post1",
        model={"path": "/m", "fingerprint": "f"},
        gpus=["NVIDIA RTX PRO 6000"] * 8,
        timeline=[{"name": phase, "seconds": seconds} for phase, seconds in phases],
    )


FIVE = [made(f"000{n}-profile-{n}", 1 + n / 10) for n in range(1, 6)]
ARGUMENTS = (DifferentArgument("--pp-size", {item.name: None if n else "8" for n, item in enumerate(FIVE)}),)


class Tags(HTMLParser):
    """Collects tags with their attributes, and whether they close."""

    VOID = frozenset({"meta", "link", "br", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    return tags


def embedded(page: str) -> Json:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found is not None
    document: Json = json.loads(found[1])
    return document


def test_everything_is_on_it() -> None:
    page = comparison_page(compared(*FIVE, arguments=ARGUMENTS), now=0.0)
    for words in (
        "Throughput against concurrency",
        "Time per token against throughput",
        "Time to first token against throughput",
        "GPUs busy against concurrency",
        "GPU power against concurrency",
        "GPUs busy over time",
        "0001-profile-1, 8 in flight, pass 1: GPUs 53 % busy",
        "Single stream",
        "How they started",
        "--pp-size",
        "0.5.12.post1",
        "8 x NVIDIA RTX PRO 6000",
        "C=64: all in flight",
        "1970-01-01 00:00 UTC",
        "no effect shown",
    ):
        assert words in page
    assert len(page) < 400_000
    assert page.count('class="series') == 6 * len(FIVE)


def test_gpus_over_time_are_a_line_with_a_point_a_pass() -> None:
    line, *others = plots(compared(*FIVE))[-1].lines
    assert len(others) == 4
    assert len(line.path) == 46, "a row that says nothing of the GPUs is no place of the line"
    assert [point.label for point in line.points] == [str(at) for at in (8, 16, 32, 48, 64) for _ in range(2)]
    assert all((point.x, point.y) in line.path for point in line.points)
    assert line.points[0].x == 6.5, "the middle of a pass from 5 to 8 s"


@pytest.mark.parametrize(
    "rows",
    [None, "x", [1], [{"t_s": "1"}], [{"t_s": True, "utilization": "n"}], [{"t_s": 1e999, "utilization": 1}]],
)
def test_a_damaged_course_is_not_drawn(rows: Any) -> None:
    item = FIVE[0].benches[0]
    odd = subject("odd", {**item.as_json(), "over_time": rows}, releases=["x"])
    assert "GPUs busy over time" not in {plot.title for plot in plots(compared(odd, odd))}


def test_it_loads_nothing() -> None:
    page = comparison_page(compared(*FIVE))
    tags = read(page)
    assert {value for _, attrs in tags.found for key, value in attrs.items() if key in ("src", "href")} == {"data:,"}
    assert "@import" not in page
    assert "url(" not in page
    policy = next(attrs["content"] for tag, attrs in tags.found if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none';")


def test_the_numbers_can_be_taken_from_it() -> None:
    found = compared(*FIVE)
    document = embedded(comparison_page(found))
    assert document["comparisons"] == json.loads(json.dumps([item.as_json() for item in found.comparisons]))
    kept = document["benches"]["0001-profile-1"][0]["levels"][0]
    assert kept["passes"]
    assert "samples" not in kept


@pytest.mark.parametrize(
    "name", ["</script><script>alert(1)</script>", '"><img src=x onerror=y>', "{{ 7*7 }}", "&amp;"]
)
def test_no_name_breaks_out_of_its_place(name: str) -> None:
    odd = Subject(
        name,
        FIVE[0].benches,
        ("x",),
        About.from_json(
            {
                "profile": name,
                "sglang": name,
                "timeline": [{"name": name, "seconds": 1.0}],
                "releases": [name],
            }
        ),
    )
    page = comparison_page(compared(FIVE[1], odd, arguments=(DifferentArgument(name, {name: name}),)))
    plain = comparison_page(compared(FIVE[1], FIVE[0]))
    kinds = {tag for tag, _ in read(page).found}
    assert kinds <= {tag for tag, _ in read(plain).found}
    assert page.count("<script") == 2
    assert embedded(page)["subjects"][1]["name"] == name


def test_what_was_not_measured_has_no_plot() -> None:
    old = subject("old", {"levels": [{"concurrency": 8, "aggregate_tok_s": 100.0}]})
    found = compared(old, subject("new", {"levels": []}))
    assert [plot.title for plot in plots(found)] == ["Throughput against concurrency"]
    page = comparison_page(found)
    read(page)
    assert "How they started" not in page
    assert "Single stream" not in page


def test_starts_are_on_one_scale() -> None:
    rows = waterfalls([made("a", 1.0), made("b", 3.0), subject("c", bench())])
    assert [(row.name, row.total) for row in rows] == [("a", "78.5 s"), ("b", "103.5 s")]
    last = rows[1].phases[-1]
    assert last.left + last.width == pytest.approx(100, abs=0.01)
    first = rows[0].phases
    assert first[1].left == pytest.approx(first[0].width)
    assert [phase.kind for phase in first] == [phase.kind for phase in rows[1].phases]


values = st.floats(1e-6, 1e9)


@given(st.lists(st.tuples(values, values), min_size=1, max_size=6), st.booleans())
def test_a_chart_is_sound_whatever_its_figures(places: list[tuple[float, float]], log: bool) -> None:
    line = Series(0, "a", [Point(x, y, "<words>", "l") for x, y in places], dots=places, path=places)
    drawn = ElementTree.fromstring(str(line_chart("t&t", [line], Axis("x", log=log), Axis("y"))))
    circles = [item for item in drawn.iter() if item.tag == "circle"]
    assert len(circles) == 3 * len(places)
    for item in circles:
        assert 0 <= float(item.attrib["cx"]) <= 420
        assert 0 <= float(item.attrib["cy"]) <= 270


@example(5e-324)
@example(1.7e308)
@given(st.floats(allow_nan=True, allow_infinity=True))
def test_ticks_are_few_and_reach_the_top(top: float) -> None:
    ticks = round_ticks(top)
    assert 2 <= len(ticks) <= 8
    if 1e-300 < top < 1e300:
        assert ticks[-1] >= top * (1 - 1e-6)
    assert ticks == sorted(ticks)


@given(documents, documents)
def test_whatever_the_documents_hold_there_is_a_page_and_a_table(one: Json, two: Json) -> None:
    found = compared(subject("a", one), subject("b", two))
    read(comparison_page(found))
    text(found)
    json.dumps(comparison_document(found))


def test_labels_neither_lie_on_one_another_nor_leave_the_plot() -> None:
    lines = [Series(n, f"s{n}", [Point(8, 500, "w", "8"), Point(64 + n, 500, "w", "64")]) for n in range(5)]
    lines.append(Series(5, "apart", [Point(30, 100, "w", "32")]))
    drawn = str(line_chart("t", lines, Axis("x"), Axis("y")))
    labels = re.findall(r'<text class="label" x="([\d.]+)" y="([\d.]+)"[^>]*>(\d+)<', drawn)
    places = [(float(x), float(y)) for x, y, _ in labels]
    assert [words for _, _, words in labels].count("8") == 1
    assert {words for _, _, words in labels} == {"8", "64", "32"}
    assert all(y > 10 for _, y in places)
    assert all(abs(a - c) >= 15 or abs(b - d) >= 10 for (a, b), (c, d) in combinations(places, 2))
