"""Benchmarks for other programs: JSON lines, and the schema of bench_serving."""

from __future__ import annotations

import json
import math
from statistics import median, pstdev
from typing import Any

import pytest

from deployer.bench.export import bench_serving_lines, request_lines
from deployer.bench.levels import histogram

GAPS = [0.02] * 95 + [0.2] * 5


def sample(index: int, **more: Any) -> dict[str, Any]:
    made = {
        "pass": 0,
        "index": index,
        "failed": None,
        "ttft_s": 0.1 * (index + 1),
        "tpot_s": 0.02,
        "seconds": 1.0 + index,
        "output_tokens": 64,
        "prompt_tokens": 128,
    }
    return {**made, **more}


BENCH: dict[str, Any] = {
    "spec": {"prompt_tokens": 128, "output_tokens": 64},
    "singles": {"samples": [sample(0), sample(1)], "itl_s": None},
    "levels": [
        {
            "concurrency": 4,
            "wall_s": 8.0,
            "samples": [*(sample(index) for index in range(4)), sample(4, failed="timeout", ttft_s=None)],
            "itl_histogram": histogram(GAPS),
        }
    ],
}


def test_a_line_a_request() -> None:
    lines = [json.loads(line) for line in request_lines(BENCH, "0007-pp8@1").splitlines()]
    assert [(line["stage"], line["concurrency"], line["index"]) for line in lines] == [
        ("single", 1, 0),
        ("single", 1, 1),
        *(("level", 4, index) for index in range(5)),
    ]
    assert {line["benchmark"] for line in lines} == {"0007-pp8@1"}
    assert lines[-1]["failed"] == "timeout"


def test_the_schema_of_bench_serving() -> None:
    single, level = (json.loads(line) for line in bench_serving_lines(BENCH, "0007-pp8@1").splitlines())
    assert (single["max_concurrency"], single["duration"], single["completed"]) == (1, 3.0, 2)
    assert single["output_throughput"] == pytest.approx(128 / 3)
    assert (level["max_concurrency"], level["duration"], level["completed"]) == (4, 8.0, 4)
    assert (level["total_input_tokens"], level["total_output_tokens"]) == (512, 256)
    assert level["output_throughput"] == 32.0
    assert level["total_throughput"] == 96.0
    assert level["request_throughput"] == 0.5
    assert level["concurrency"] == 10.0 / 8.0
    assert level["mean_ttft_ms"] == pytest.approx(250.0)
    assert level["median_ttft_ms"] == pytest.approx(250.0)
    assert level["std_ttft_ms"] == pytest.approx(pstdev([100, 200, 300, 400]))
    assert level["p99_ttft_ms"] == pytest.approx(397.0)
    assert level["mean_e2e_latency_ms"] == 2500.0
    assert math.isinf(level["request_rate"])
    assert level["median_itl_ms"] == pytest.approx(1000 * median(GAPS), rel=0.006)
    assert level["p99_itl_ms"] == pytest.approx(200.0, rel=0.006)
    assert level["mean_itl_ms"] == pytest.approx(29.0, rel=0.006)
    assert level["std_itl_ms"] == pytest.approx(1000 * pstdev(GAPS), rel=0.02)
    assert single["mean_itl_ms"] is None


def test_a_level_without_a_completed_request_has_no_line() -> None:
    failed = {"concurrency": 8, "samples": [sample(0, failed="reset")]}
    assert bench_serving_lines({"levels": [failed]}, "x") == ""
    assert len(request_lines({"levels": [failed]}, "x").splitlines()) == 1
    assert request_lines({}, "x") == ""
