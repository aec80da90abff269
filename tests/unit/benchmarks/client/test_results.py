"""The results of each client, as it writes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.client import results
from benchmarks.client.figures import Summary


def of(values: list[float]) -> dict[str, float]:
    return {"mean": sum(values) / len(values), "p99": max(values)}


BENCH: dict[str, Any] = {
    "levels": [
        {
            "samples": [
                {"ttft_s": 0.205, "ttft_sent_s": 0.201, "failed": None},
                {"ttft_s": 0.207, "ttft_sent_s": 0.203, "failed": None},
                {"ttft_s": None, "ttft_sent_s": None, "failed": "reset"},
            ],
            "itl_s": of([0.02, 0.021]),
            "failed": {"reset": 1},
        }
    ]
}
#: As sglang 0.5.23 writes it with --output-details, shortened.
SERVING = {
    "backend": "sglang-oai",
    "completed": 2,
    "ttfts": [0.201, 0.203, 0.0],
    "itls": [[0.02, 0.021], [0.02], []],
    "errors": ["", "", "Connection refused"],
}
#: As guidellm 0.8.1 writes it, shortened.
GUIDELLM = {
    "benchmarks": [
        {
            "requests": {
                "successful": [
                    {"time_to_first_token_ms": 201.0, "inter_token_latency_ms": 20.0, "output_tokens": 3},
                    {"time_to_first_token_ms": 203.0, "inter_token_latency_ms": 21.0, "output_tokens": 2},
                ],
                "errored": [],
            }
        }
    ]
}


def aiperf(ttft: float, gaps: list[float]) -> str:
    """As aiperf 0.13.0 writes a record, shortened."""
    metrics = {
        "time_to_first_token": {"value": ttft, "unit": "ms"},
        "inter_chunk_latency": {"value": gaps, "unit": "ms"},
    }
    return json.dumps({"metadata": {"benchmark_phase": "profiling"}, "metrics": metrics, "error": None})


FAILED_RECORD = json.dumps({"metadata": {}, "metrics": {}, "error": {"code": 500}})
AIPERF = "\n".join([aiperf(201.0, [20.0, 21.0]), FAILED_RECORD, aiperf(203.0, [20.0])]) + "\n"
PROTOCOL = {"ttft_s": [0.201, 0.203], "itl_s": [[0.02, 0.021], [0.02]], "tokens": 5, "failed": 0}
EVENTS = '{"event": "progress"}\n' + json.dumps({"event": "result", "bench": BENCH}) + "\n"


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (results.of_deployer, EVENTS),
        (results.of_bench_serving, json.dumps(SERVING) + "\n"),
        (results.of_guidellm, json.dumps(GUIDELLM)),
        (results.of_aiperf, AIPERF),
        (results.of_protocol, json.dumps(PROTOCOL)),
    ],
)
def test_failed_requests_are_not_in_the_figures(read: Callable[[str], Summary], text: str) -> None:
    found = read(text)
    assert found.ttft_mean == pytest.approx(0.202)
    assert found.ttft_p99 == pytest.approx(0.20298)
    assert found.itl_mean == pytest.approx(0.0203, abs=0.0003)
    assert found.itl_p99 == pytest.approx(0.021, abs=0.0001)


def test_both_clocks_of_this_client() -> None:
    assert results.of_deployer(EVENTS, clock="ttft_s").ttft_mean == pytest.approx(0.206)


def test_guidellm_knows_requests_and_not_gaps() -> None:
    assert results.of_guidellm(json.dumps(GUIDELLM)).itl_of == "request"
    assert results.of_aiperf(AIPERF).itl_of == "gap"


READERS = [
    results.of_deployer,
    results.of_protocol,
    results.of_bench_serving,
    results.of_guidellm,
    results.of_aiperf,
]


@pytest.mark.parametrize("read", READERS)
@given(text=st.sampled_from(["", "{", "[]", "null", "7", '{"bench": null}', '{"benchmarks": []}', "{}\n{}"]))
def test_what_is_no_result_is_a_plain_error(read: Callable[[str], Summary], text: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        read(text)


def test_a_level_that_was_not_measured() -> None:
    nothing = json.dumps({"bench": {"levels": [], "stopped": "none of the 1 requests was completed"}})
    with pytest.raises(results.NoResult, match="none of the 1 requests"):
        results.of_deployer(nothing)
