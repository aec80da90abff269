"""A bench document for other programs: a line a request, or lines as ``sglang.bench_serving`` has them. Pure."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from statistics import fmean, pstdev
from typing import Any

from deployer.bench.load.levels import FINEST, GROWTH
from deployer.bench.load.stats import percentile
from deployer.bench.rates import ONE, table, tables

Json = dict[str, Any]


def request_lines(bench: Mapping[str, Any], name: str) -> str:
    """One JSON line for each request that was measured, failed ones included; times in seconds."""
    lines = []
    for stage, concurrency, part in _stages(bench):
        for sample in tables(part.get("samples")):
            head = {"benchmark": name, "stage": stage, "concurrency": concurrency}
            lines.append(json.dumps({**head, **sample}, ensure_ascii=False))
    return "".join(line + "\n" for line in lines)


def bench_serving_lines(bench: Mapping[str, Any], name: str) -> str:
    """A JSON line a level with the keys of ``sglang.bench_serving --output-file`` (0.5.23, benchmark/serving.py).

    The single runs are a level of 1. Times in ms. What bench_serving has and we do not measure is null;
    ``request_rate`` is ``Infinity`` there and here (as Python's json reads and writes it).
    """
    lines = []
    for _, concurrency, part in _stages(bench):
        done = [item for item in tables(part.get("samples")) if item.get("failed") is None]
        if done:
            lines.append(json.dumps(_serving(bench, name, concurrency, part, done)))
    return "".join(line + "\n" for line in lines)


def _stages(bench: Mapping[str, Any]) -> list[tuple[str, int, Mapping[str, Any]]]:
    singles = table(bench.get("singles"))
    levels = [("level", item["concurrency"], item) for item in tables(bench.get("levels"))]
    return [*([("single", ONE, singles)] if singles else []), *levels]


def _serving(
    bench: Mapping[str, Any],
    name: str,
    concurrency: int,
    part: Mapping[str, Any],
    done: Sequence[Mapping[str, Any]],
) -> Json:
    spec, spent = table(bench.get("spec")), _numbers(done, "seconds")
    duration = part.get("wall_s") or sum(spent)  # the single runs come one after another
    asked, got = (sum(_numbers(done, key)) for key in ("prompt_tokens", "output_tokens"))

    def rate(count: float) -> float | None:
        return count / duration if duration else None

    return {
        "tag": name,
        "backend": "sglang-oai",
        "dataset_name": "deployer",
        "request_rate": float("inf"),
        "max_concurrency": concurrency,
        "sharegpt_output_len": None,
        "random_input_len": spec.get("prompt_tokens"),
        "random_output_len": spec.get("output_tokens"),
        "random_range_ratio": 1.0,
        "server_info": {},
        "duration": duration,
        "completed": len(done),
        "total_input_tokens": asked,
        "total_input_text_tokens": asked,
        "total_input_vision_tokens": 0,
        "total_output_tokens": got,
        "total_output_tokens_retokenized": None,
        "request_throughput": rate(len(done)),
        "input_throughput": rate(asked),
        "output_throughput": rate(got),
        "total_throughput": rate(asked + got),
        **_spread("e2e_latency", spent),
        **_spread("ttft", _numbers(done, "ttft_s")),
        **_spread("tpot", _numbers(done, "tpot_s")),
        **_gaps(part),
        "concurrency": rate(sum(spent)),
        "accept_length": None,
        "max_output_tokens_per_s": None,
        "max_concurrent_requests": concurrency,
    }


def _numbers(samples: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [item[key] for item in samples if isinstance(item.get(key), int | float)]


def _spread(name: str, seconds: Sequence[float]) -> Json:
    """mean, median, std, p90, p95, p99 of times, in ms."""
    values = sorted(value * 1000 for value in seconds)
    figures = {f"p{q}": percentile(values, q) if values else None for q in (90, 95, 99)}
    centre = {"median": percentile(values, 50)} if values else {"median": None}
    mean = {"mean": fmean(values), "std": pstdev(values)} if values else {"mean": None, "std": None}
    return {f"{key}_{name}_ms": value for key, value in {**mean, **centre, **figures}.items()}


def _gaps(part: Mapping[str, Any]) -> Json:
    """The same for the time between tokens, from its histogram (true to half a percent) where there is one."""
    found = table(part.get("itl_s"))
    figures = {"mean": found.get("mean"), "std": None, "median": found.get("p50"), "p90": None}
    figures |= {"p95": found.get("p95"), "p99": found.get("p99")}
    counts = sorted((int(number), int(count)) for number, count in table(part.get("itl_histogram")).items())
    total = sum(count for _, count in counts)
    if total:
        values = [(FINEST * GROWTH ** (number + 0.5), count) for number, count in counts]
        mean = sum(value * count for value, count in values) / total
        squares = sum(count * (value - mean) ** 2 for value, count in values)
        passed = list(accumulate(count for _, count in values))
        figures |= {"mean": mean, "std": math.sqrt(squares / total)}
        for name, share in (("median", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)):
            figures[name] = values[bisect_left(passed, share * total)][0]
    return {f"{key}_itl_ms": None if value is None else value * 1000 for key, value in figures.items()}
