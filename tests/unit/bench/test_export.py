"""Benchmarks for other programs: JSON lines, and the schema of bench_serving."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import median, pstdev
from typing import Any

import pytest

from deployer.bench.export import bench_serving_lines, request_lines
from deployer.bench.load.levels import histogram
from deployer.records.bench import BenchRun
from tests.paths import DATA

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


DOCUMENT: dict[str, Any] = {
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
BENCH = BenchRun.from_json(DOCUMENT)


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
    bench = BenchRun.from_json({"levels": [failed]})
    assert bench_serving_lines(bench, "x") == ""
    assert len(request_lines(bench, "x").splitlines()) == 1
    assert request_lines(BenchRun(), "x") == ""


#: The keys of a line that SGLang 0.5.23's own client wrote, in its order, and the kind of each value.
FIELDS: dict[str, str] = json.loads((DATA / "bench_serving.json").read_text())["fields"]
KINDS: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "integer": (int,),
    "number": (int, float),
    "object": (dict,),
}
#: What the other client measures and this one does not: null.
UNKNOWN = {"total_output_tokens_retokenized", "max_output_tokens_per_s"}


def test_the_keys_are_those_that_bench_serving_writes() -> None:
    for line in bench_serving_lines(BENCH, "x").splitlines():
        assert set(json.loads(line)) == set(FIELDS)


def test_the_values_are_of_the_kinds_that_bench_serving_writes() -> None:
    """Null only where it writes null too, where a figure was not measured, or (singles) where there are no gaps."""
    single, level = (json.loads(line) for line in bench_serving_lines(BENCH, "x").splitlines())
    for found, gaps in ((single, False), (level, True)):
        for key, kind in FIELDS.items():
            if key in UNKNOWN or kind == "null" or (key.endswith("_itl_ms") and not gaps):
                continue
            assert isinstance(found[key], KINDS[kind]), key


def test_a_script_for_bench_serving_reads_it(tmp_path: Path) -> None:
    """As such scripts do it: a line a run, picked by concurrency, throughput per request, percentiles in ms."""
    path = tmp_path / "runs.jsonl"
    path.write_text(bench_serving_lines(BENCH, "x"))
    runs = {run["max_concurrency"]: run for run in map(json.loads, path.read_text().splitlines())}
    assert sorted(runs) == [1, 4]
    best = max(runs.values(), key=lambda run: run["output_throughput"])
    assert best["total_output_tokens"] / best["duration"] == pytest.approx(best["output_throughput"])
    assert best["median_ttft_ms"] < best["p99_ttft_ms"] < 1000 * best["duration"]
