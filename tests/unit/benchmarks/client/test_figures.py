"""What the side-by-side benchmark calculates: truth, errors, rates."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.client import figures
from benchmarks.client.figures import Served, Summary

SCHEDULE = [0.2, 0.22, 0.24, 0.26]


def raw(*requests: Served) -> bytes:
    numbers = [
        value for r in requests for value in (r.arrival, r.arrival, r.ended or 0.0, float(len(r.moments)), *r.moments)
    ]
    return struct.pack(f"={len(numbers)}d", *numbers)


def request(arrival: float, *late: float, ended: float | None = None) -> Served:
    times = [arrival + at + (late[i] if i < len(late) else 0.0) for i, at in enumerate(SCHEDULE)]
    return Served(arrival, ended, tuple(times))


def test_the_log_is_read_in_the_order_of_arrival() -> None:
    late, early = request(7.0), request(5.0, ended=6.0)
    assert figures.served(raw(late, early)) == [early, late]
    assert figures.served(b"") == []


@given(st.integers(0, 191))
def test_a_log_that_is_cut_off_is_refused_or_shorter(size: int) -> None:
    one = raw(request(1.0))
    cut = (3 * one)[: 3 * len(one) - size]
    if len(cut) % len(one):
        with pytest.raises(ValueError, match="cut off"):
            figures.served(cut)
    else:
        assert len(figures.served(cut)) == len(cut) // len(one)


def test_the_schedule_is_the_truth_where_the_server_keeps_it() -> None:
    true = figures.truth([request(1.0), request(1.5)])
    assert (true.ttft_mean, true.ttft_p99) == pytest.approx((0.2, 0.2))
    assert (true.itl_mean, true.itl_p99) == pytest.approx((0.02, 0.02))


def test_the_truth_is_what_was_sent_where_the_server_was_late() -> None:
    true = figures.truth([request(1.0, 0.01), request(1.5, 0.03)])
    assert true.ttft_mean == pytest.approx(0.22)
    assert true.ttft_p99 == pytest.approx(0.2298)
    assert true.itl_mean == pytest.approx(0.02 - 0.02 / 3)


def test_percentiles_over_requests_do_not_see_a_single_gap() -> None:
    stutter = request(1.0, 0.0, 0.019)
    over_gaps, over_requests = figures.truth([stutter]), figures.truth([stutter], "request")
    assert over_gaps.itl_p99 == pytest.approx(0.039, abs=0.001)
    assert over_requests.itl_p99 == pytest.approx(0.02)
    assert over_gaps.itl_mean == over_requests.itl_mean


def test_errors_have_a_sign_and_are_in_ms() -> None:
    true, seen = Summary(0.2, 0.2, 0.02, 0.02), Summary(0.201, 0.205, 0.02, 0.0195)
    assert figures.errors(seen, true) == pytest.approx(
        {"ttft_mean": 1.0, "ttft_p99": 5.0, "itl_mean": 0.0, "itl_p99": -0.5}
    )


def test_a_rate_lasts_until_the_client_is_through() -> None:
    quick = [Served(1.0, 1.5, (1.1, 1.2)), Served(1.0, None, (1.1, 1.2))]
    assert figures.rate(quick) == pytest.approx(4 / 0.5)
    assert figures.span(quick) == (1.0, 1.2)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), st.floats(0, 100))
def test_a_percentile_lies_between_neighbours(values: list[float], share: float) -> None:
    found = figures.percentile(values, share)
    assert min(values) <= found <= max(values)
    assert figures.percentile(values, 0) == min(values)
    assert figures.percentile(values, 100) == max(values)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=8), st.floats(0, 100))
def test_growth_between_two_moments_adds_up(pairs: list[tuple[float, float]], middle: float) -> None:
    moments = sorted({moment for moment, _ in pairs})
    values = sorted(value for _, value in pairs)[: len(moments)]
    samples = list(zip(moments, values, strict=True))
    parts = figures.between(samples, 0, middle) + figures.between(samples, middle, 100)
    assert parts == pytest.approx(figures.between(samples, 0, 100))
    assert all(figures.between(samples, a, b) >= 0 for a, b in pairwise(moments))


def test_growth_is_linear_between_samples() -> None:
    samples = [(0.0, 0.0), (1.0, 10.0), (2.0, 10.0)]
    assert figures.between(samples, 0.25, 0.75) == pytest.approx(5.0)
    assert figures.between(samples, 1.2, 1.8) == 0.0
    with pytest.raises(ValueError, match="no samples"):
        figures.between([], 0, 1)
