"""A bench document for other programs: a line a request, or lines as ``sglang.bench_serving`` has them. Pure."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from statistics import fmean, pstdev

from deployer.bench.load.levels import FINEST, GROWTH
from deployer.bench.load.stats import known, percentile
from deployer.records.bench import ONE, BenchRun, Level, Quantiles, Sample, Singles
from deployer.records.codec import Json


def request_lines(bench: BenchRun, name: str) -> str:
    """Return one JSON line for each request that was measured, failed ones included; times in seconds."""
    lines = []
    for kind, concurrency, stage in _stages(bench):
        head = {"benchmark": name, "stage": kind, "concurrency": concurrency}
        lines += [json.dumps({**head, **sample.as_json()}, ensure_ascii=False) for sample in stage.samples]
    return "".join(line + "\n" for line in lines)


def bench_serving_lines(bench: BenchRun, name: str) -> str:
    """Return a JSON line a level with the keys of ``sglang.bench_serving --output-file`` (0.5.23).

    The single runs are a level of 1. Times in ms. What bench_serving has and we do not measure is null;
    ``request_rate`` is ``Infinity`` there and here (as Python's json reads and writes it).
    """
    lines = []
    for _, concurrency, stage in _stages(bench):
        done = [sample for sample in stage.samples if sample.failed is None]
        if done:
            lines.append(json.dumps(_serving(bench, name, concurrency, stage, done)))
    return "".join(line + "\n" for line in lines)


def _stages(bench: BenchRun) -> Iterator[tuple[str, int, Singles | Level]]:
    if bench.singles:
        yield "single", ONE, bench.singles
    for level in bench.levels:
        yield "level", level.concurrency, level


def _serving(bench: BenchRun, name: str, concurrency: int, stage: Singles | Level, done: Sequence[Sample]) -> Json:
    spec, spent = bench.spec, known(sample.seconds for sample in done)
    wall = stage.wall_s if isinstance(stage, Level) else None
    duration = wall or sum(spent)  # the single runs come one after another
    prompts = sum(sample.prompt_tokens or 0 for sample in done)
    output = sum(sample.output_tokens or 0 for sample in done)

    def rate(count: float) -> float | None:
        return count / duration if duration else None

    return {
        "tag": name,
        "backend": "sglang-oai",
        "dataset_name": "deployer",
        "request_rate": float("inf"),
        "max_concurrency": concurrency,
        "sharegpt_output_len": None,
        "random_input_len": spec and spec.prompt_tokens,
        "random_output_len": spec and spec.output_tokens,
        "random_range_ratio": 1.0,
        "server_info": {},
        "duration": duration,
        "completed": len(done),
        "total_input_tokens": prompts,
        "total_input_text_tokens": prompts,
        "total_input_vision_tokens": 0,
        "total_output_tokens": output,
        "total_output_tokens_retokenized": None,
        "request_throughput": rate(len(done)),
        "input_throughput": rate(prompts),
        "output_throughput": rate(output),
        "total_throughput": rate(prompts + output),
        **_spread("e2e_latency", spent),
        **_spread("ttft", known(sample.ttft_s for sample in done)),
        **_spread("tpot", known(sample.tpot_s for sample in done)),
        **_gaps(stage),
        "concurrency": rate(sum(spent)),
        "accept_length": None,
        "max_output_tokens_per_s": None,
        "max_concurrent_requests": concurrency,
    }


def _spread(name: str, seconds: Iterable[float]) -> Json:
    """Mean, median, deviation, p90, p95 and p99 of times, in ms."""
    values = sorted(value * 1000 for value in seconds)
    figures = {f"p{q}": percentile(values, q) if values else None for q in (90, 95, 99)}
    centre = {"median": percentile(values, 50)} if values else {"median": None}
    mean = {"mean": fmean(values), "std": pstdev(values)} if values else {"mean": None, "std": None}
    return {f"{key}_{name}_ms": value for key, value in {**mean, **centre, **figures}.items()}


def _gaps(stage: Singles | Level) -> Json:
    """The same for the time between tokens, from its histogram (true to half a percent) if there is one."""
    itl, bins = (stage.itl_s, stage.itl_histogram) if isinstance(stage, Level) else (None, {})
    itl = itl or Quantiles()
    figures = {"mean": itl.mean, "std": None, "median": itl.p50, "p90": None, "p95": itl.p95, "p99": itl.p99}
    counts = sorted(bins.items())
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
