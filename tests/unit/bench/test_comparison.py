"""Benchmarks against each other: effects, intervals, verdicts."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.bench.comparison import Subject, compare, differences
from deployer.records.bench import About, BenchRun
from deployer.records.verdict import Noise

Json = dict[str, Any]


def level(at: int, rate: float, ttft: float = 0.5, *, jitter: float = 0.01, **more: Any) -> Json:
    drawn = random.Random(at)
    passes = [
        {"aggregate_tok_s": rate * share, "wall_s": 3.0, "failed": {}, "repeat": n}
        for n, share in enumerate((0.997, 1.003))
    ]
    samples = [
        {
            "pass": index % 2,
            "ttft_s": ttft * (1 + drawn.uniform(-1, 1) * jitter),
            "tpot_s": at / rate * (1 + drawn.uniform(-1, 1) * jitter),
        }
        for index in range(2 * at)
    ]
    return {
        "concurrency": at,
        "aggregate_tok_s": rate,
        "steady_tok_s": None,
        "ttft_s": {"p50": ttft},
        "tpot_s": {"p50": at / rate},
        "failed": {},
        "passes": passes,
        "samples": samples,
        **more,
    }


def bench(*levels: Json, single: float = 26.0, **more: Any) -> Json:
    return {
        "levels": list(levels),
        "singles": {
            "tok_s": [single * 0.999, single * 1.001],
            "ttft_s": {"p50": 0.05},
            "tpot_s": {"p50": 1 / single},
        },
        "single_stream_tok_s": single,
        "workload": {"prompt_tokens": 128, "output_tokens": 128, "shared_prefix": 0},
        "model": "kimi",
        "place": "host",
        **more,
    }


def subject(name: str, *benches: Mapping[str, Any] | BenchRun, **about: Any) -> Subject:
    runs = tuple(one if isinstance(one, BenchRun) else BenchRun.from_json(one) for one in benches)
    starts = tuple(f"{name}/{index}" for index in range(len(benches)))
    return Subject(name, runs, starts, About.from_json(about))


ASYNC = subject("pp8-async", bench(level(8, 113.0), level(32, 248.0), single=34.0))
MB64 = subject("mb64", bench(level(8, 113.4), level(32, 250.7), single=34.0))


def test_a_small_difference_is_no_effect_and_a_large_one_is() -> None:
    found = compare(ASYNC, MB64, Noise())
    assert {item.verdict for item in (*found.changes, found.pooled)} == {"no effect shown"}
    at = found.at("aggregate_tok_s", 32)
    assert at is not None
    assert at.effect is not None
    assert at.effect == pytest.approx(250.7 / 248 - 1, abs=0.004)
    assert at.low < 0 < at.high
    assert any(
        text.startswith("mb64 against pp8-async: +1.") and text.endswith(" at 32, within noise: no effect shown")
        for text in found.sentences()
    )

    slow = compare(ASYNC, subject("pp8", bench(level(8, 80.0), level(32, 96.0), single=25.0)), Noise())
    at = slow.at("aggregate_tok_s", 32)
    assert at is not None
    assert (at.verdict, at.word(), at.better) == ("less", "slower", False)
    longer = slow.at("tpot_s", 32)
    assert longer is not None
    assert (longer.verdict, longer.word(), longer.better) == ("more", "longer", False)


def test_more_starts_tell_smaller_differences() -> None:
    one = compare(ASYNC, MB64, Noise()).pooled
    many = [bench(level(8, 113.0), level(32, 248.0), single=34.0) for _ in range(5)]
    five = compare(subject("a", *many), subject("b", *many), Noise()).pooled
    assert one.effect is not None
    assert five.effect is not None
    assert five.high - five.low < 0.6 * (one.high - one.low)


def test_two_benchmarks_of_one_start_are_one_start() -> None:
    document = BenchRun.from_json(bench(level(8, 113.0), level(32, 248.0), single=34.0))
    twice = Subject("a", (document, document), ("a", "a"))
    apart = Subject("a", (document, document), ("a", "b"))
    assert (twice.count(), apart.count()) == (1, 2)
    narrow, wide = (compare(ASYNC, item, Noise()).at("tpot_s", 32) for item in (apart, twice))
    assert narrow is not None
    assert wide is not None
    assert narrow.effect is not None
    assert wide.effect is not None
    assert narrow.high < wide.high


def test_times_whose_requests_scatter_have_wide_intervals() -> None:
    def width(jitter: float) -> float:
        other = subject("b", bench(level(8, 113.0, ttft=0.6, jitter=jitter)))
        found = compare(subject("a", bench(level(8, 113.0))), other, Noise()).at("ttft_s", 8)
        assert found is not None
        assert found.effect is not None
        return found.high - found.low

    assert width(0.9) > 1.3 * width(0.01)


@pytest.mark.parametrize(("slower", "verdict"), [(0.045, "no effect shown"), (0.5, "more")])
def test_a_few_milliseconds_to_the_first_token_are_noise(slower: float, verdict: str) -> None:
    base = subject("a", bench(level(32, 248.0, ttft=0.025)))
    found = compare(base, subject("b", bench(level(32, 248.0, ttft=slower))), Noise()).at("ttft_s", 32)
    assert found is not None
    assert found.verdict == verdict


def test_times_of_a_pass_that_was_disturbed_do_not_count() -> None:
    half = level(32, 248.0)
    half["passes"][0]["foreign_traffic"] = True
    for sample in half["samples"][::2]:
        sample["ttft_s"] = 9.0
    half["ttft_s"]["p50"] = 4.0
    item = compare(ASYNC, subject("b", bench(half)), Noise()).at("ttft_s", 32)
    assert item is not None
    assert item.value == pytest.approx(0.5, rel=0.01)


def test_nothing_in_common_is_said() -> None:
    found = compare(
        subject("a", bench(level(8, 1.0), singles=None)),
        subject("b", bench(level(9, 1.0), singles=None)),
        Noise(),
    )
    assert found.sentences() == ["b against a: no level is sound in both, so nothing can be concluded"]
    assert found.pooled.verdict == "not compared"


def test_documents_of_the_first_schema_are_compared() -> None:
    old = {"levels": [{"concurrency": 32, "aggregate_tok_s": 240.0, "ttft_s": {"p50": 0.4}}]}
    item = compare(subject("old", old), ASYNC, Noise()).at("aggregate_tok_s", 32)
    assert item is not None
    assert item.verdict == "no effect shown"


@pytest.mark.parametrize(
    ("changed", "about", "why"),
    [
        ({}, {}, []),
        ({"place": "operator"}, {}, ["the load came from the host and comes from the operator"]),
        ({"workload": {"output_tokens": 64}}, {}, ["output_tokens was 128 and is 64"]),
        ({"model": "other"}, {}, ["the model: kimi and other"]),
        ({}, {"model": {"path": "/n", "fingerprint": "f"}}, ["the model: /m and /n"]),
        (
            {},
            {"model": {"path": "/m", "fingerprint": "g"}},
            ["the model's files changed between the measurements"],
        ),
    ],
)
def test_what_is_not_comparable(changed: Json, about: Json, why: list[str]) -> None:
    reference = subject("a", bench(level(8, 100.0)), **({"model": {"path": "/m", "fingerprint": "f"}} if about else {}))
    assert differences(reference, subject("b", {**bench(level(8, 100.0)), **changed}, **about)) == why


anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers(-3, 70) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(level(1, 1.0))), inner, max_size=4)
    ),
    max_leaves=12,
)
KEYS = [
    "levels",
    "singles",
    "single_stream_tok_s",
    "place",
    "workload",
    "spec",
    "model",
    "budget",
    "client",
    "started",
]
part = st.dictionaries(st.sampled_from(sorted(level(1, 1.0))), anything, max_size=6)


def with_levels(document: Json, levels: list[Json]) -> Json:
    return {**document, "levels": [{"concurrency": 8, **item} for item in levels]} if levels else document


documents = st.builds(
    with_levels, st.dictionaries(st.sampled_from(KEYS), anything, max_size=6), st.lists(part, max_size=2)
)


@given(documents, documents)
def test_whatever_the_documents_hold_there_is_an_answer(one: Json, two: Json) -> None:
    first, second = subject("a", one), subject("b", two)
    differences(first, second)
    found = compare(first, second, Noise())
    json.dumps(found.as_json())
    assert found.sentences()
