"""Statistics: against the standard library's, by properties, and by hand-made requests."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.bench.load import stats
from deployer.bench.load.levels import Pass, level_summary
from deployer.bench.load.stats import Request

numbers = st.floats(min_value=0, max_value=1e6, allow_nan=False)


def level(requests: list[Request], concurrency: int) -> Any:
    return level_summary([Pass(0, 0.0, requests, {}, None)], concurrency, 0.0)


def request(
    index: int,
    *,
    start: float = 0.0,
    ttft: float = 0.2,
    itl: float = 0.02,
    tokens: int = 11,
    per_chunk: int = 1,
) -> Request:
    """A completed request whose chunks come exactly on time."""
    chunks = -(-tokens // per_chunk)
    stamps = [start + ttft + itl * per_chunk * i for i in range(chunks)]
    return Request(
        index,
        tokens,
        intent=start,
        sent=start + 0.01,
        stamps=stamps,
        end=stamps[-1] + 0.001,
        tokens=tokens,
        prompt_tokens=7,
        text="it goes on and on",
        kind=None,
    )


@given(st.lists(numbers, min_size=1), st.floats(min_value=0, max_value=100))
def test_a_percentile_is_within_the_data_and_rises_with_q(values: list[float], q: float) -> None:
    ordered = sorted(values)
    found = stats.percentile(ordered, q)
    assert ordered[0] <= found <= ordered[-1] or found == pytest.approx(ordered[0])
    assert stats.percentile(ordered, 0) == ordered[0]
    assert stats.percentile(ordered, 100) == ordered[-1]
    assert found <= stats.percentile(ordered, min(q + 10, 100)) + 1e-6


@given(st.lists(numbers, min_size=2))
def test_percentiles_are_those_of_the_standard_library(values: list[float]) -> None:
    ordered = sorted(values)
    inclusive = statistics.quantiles(ordered, n=100, method="inclusive")
    for q in (50, 95, 99):
        assert stats.percentile(ordered, q) == pytest.approx(inclusive[q - 1], abs=1e-6)


def test_a_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing"):
        stats.percentile([], 50)


@pytest.mark.parametrize(
    ("n", "p95", "p99"), [(0, False, False), (19, False, False), (20, True, False), (100, True, True)]
)
def test_percentiles_without_enough_samples_are_null(n: int, p95: bool, p99: bool) -> None:
    found = stats.distribution([1.0] * n)
    assert found["n"] == n
    assert (found["mean"] is not None) == (n > 0)
    assert (found["p95"] is not None) == p95
    assert (found["p99"] is not None) == p99


def test_times_of_one_request() -> None:
    r = request(0, tokens=11)
    assert stats.ttft(r) == pytest.approx(0.2)
    assert stats.ttft_sent(r) == pytest.approx(0.19)
    assert stats.tpot(r) == pytest.approx(0.02)
    assert stats.token_gaps(r) == pytest.approx([0.02] * 10)


@given(st.integers(1, 8), st.integers(2, 40))
def test_several_tokens_a_chunk_do_not_inflate_the_token_gaps(per_chunk: int, chunks: int) -> None:
    r = request(0, tokens=per_chunk * chunks, per_chunk=per_chunk)
    assert stats.token_gaps(r) == pytest.approx([0.02] * (chunks - 1))


def test_a_failed_request_gives_no_figures() -> None:
    r = request(0)
    r.kind = "reset"
    assert stats.tpot(r) is None
    assert stats.token_gaps(r) == []
    assert stats.single_stream_rate([r]) is None


def test_single_stream_rate_is_tokens_over_the_whole_time() -> None:
    runs = [request(0, tokens=11), request(1, start=5.0, tokens=21)]
    seconds = (0.2 + 0.2 + 0.001) + (0.2 + 0.4 + 0.001)
    assert stats.single_stream_rate(runs) == pytest.approx(32 / seconds, rel=1e-5)


def test_a_level_in_two_waves() -> None:
    # Two streams; the second starts 0.1 s late. Each has two requests of 0.2 + 10 * 0.02 s.
    requests = [request(i, start=0.1 * (i % 2) + 0.401 * (i // 2)) for i in range(4)]
    found = level(requests, 2)
    wall = 0.1 + 2 * 0.401
    assert (found["requests"], found["completed"], found["failed"]) == (4, 4, {})
    assert found["output_tokens"] == 44
    assert found["wall_s"] == pytest.approx(wall)
    assert found["aggregate_tok_s"] == pytest.approx(44 / wall, rel=1e-5)
    opens, closes = stats.steady_window(requests, 2) or (0, 0)
    assert opens == pytest.approx(0.3)  # the late stream's first text
    assert closes == pytest.approx(0.802)  # the early stream's last end
    assert found["steady_s"] == pytest.approx(closes - opens)


def test_the_steady_rate_is_the_decode_rate() -> None:
    requests = [request(i, start=0.05 * i, tokens=101) for i in range(4)]
    found = level(requests, 4)
    assert found["steady_s"] == pytest.approx(2.0 + 0.001 - 0.15)
    assert found["steady_tok_s"] == pytest.approx(4 / 0.02, rel=0.03)
    assert found["aggregate_tok_s"] < 0.9 * found["steady_tok_s"]  # ramp and tail are in it


def test_no_steady_rate_without_a_steady_time() -> None:
    apart = [request(0), request(1, start=10.0)]
    assert stats.steady_window(apart, 2) is None
    assert level(apart, 2)["steady_tok_s"] is None
    short = [request(i, tokens=3) for i in range(2)]
    assert stats.steady_window(short, 2) is not None
    assert level(short, 2)["steady_tok_s"] is None
    broken = [request(0, tokens=101), request(1, tokens=101)]
    broken[1].kind = "timeout"
    assert stats.steady_window(broken, 2) is None
    idle = [request(0, tokens=101), request(2, tokens=101)]
    assert stats.steady_window(idle, 2) is None, "the second stream sent nothing"


def test_the_window_ends_with_the_first_stream_that_has_nothing_more_to_send() -> None:
    # Three requests in two streams: the second stream is done after one, at 0.2 + 10 * 0.02 s.
    requests = [request(0), request(1), request(2, start=0.401)]
    assert stats.steady_window(requests, 2) == pytest.approx((0.2, 0.401))


@given(st.lists(st.sampled_from([None, "cut", "reset", "http-500", "timeout"]), min_size=1, max_size=30))
def test_every_request_is_accounted_for(kinds: list[str | None]) -> None:
    requests = []
    for i, kind in enumerate(kinds):
        r = request(i)
        r.kind = kind
        requests.append(r)
    for found in (level(requests, 4), stats.single_summary(requests)):
        assert found["completed"] + sum(found["failed"].values()) == found["requests"] == len(kinds)
        assert found["output_tokens"] == 11 * kinds.count(None)
        assert len(found["samples"]) == len(kinds)


def test_a_level_that_never_began() -> None:
    found = level([Request(i, 8) for i in range(3)], 3)
    assert found["failed"] == {"cut": 3}
    assert found["wall_s"] is None
    assert found["aggregate_tok_s"] is None


@given(st.text(min_size=1, max_size=16), st.integers(8, 40))
def test_one_unit_over_and_over_is_seen(unit: str, times: int) -> None:
    assert stats.one_token_repeated(unit * times)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ok",
        "!!!",
        "The first eight words, and then!!!!!!!!!!!!!!!!!!!!",
        "a b c d e f g h i j k l m n o p q r s t u v w",
    ],
)
def test_ordinary_text_is_not_repetitive(text: str) -> None:
    assert not stats.one_token_repeated(text)
