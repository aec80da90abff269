"""What each client's own result says, read from its own files. Pure; ValueError where a result is none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from benchmarks.client.figures import Summary, percentile, summarized

Json = dict[str, Any]


class NoResult(ValueError):
    """The client's result is not what was expected; the message says what is missing."""


def of_deployer(text: str, *, clock: str = "ttft_sent_s") -> Summary:
    """The last line of ``load.py``: the bench document of one level. ``clock``: ``ttft_s`` is from intent."""
    bench = _document(text.strip().rpartition("\n")[2]).get("bench") or {}
    levels = bench.get("levels") or []
    if not levels:
        raise NoResult(f"no level was measured ({bench.get('stopped')})")
    samples = [sample[clock] for sample in levels[0]["samples"] if sample.get("failed") is None]
    itl = levels[0]["itl_s"]
    if not samples or itl.get("mean") is None or itl.get("p99") is None:
        raise NoResult(f"nothing completed: {levels[0].get('failed')}")
    return Summary(fmean(samples), percentile(samples, 99), itl["mean"], itl["p99"])


def of_protocol(text: str) -> Summary:
    """What ``protocol_client.py`` prints."""
    found = _document(text)
    return summarized(found["ttft_s"], found["itl_s"])


def of_bench_serving(text: str) -> Summary:
    """A line of ``sglang.bench_serving --output-file F --output-details``. Times there are in seconds."""
    found = _document(text.strip().rpartition("\n")[2])
    done = [
        (ttft, itl)
        for ttft, itl, error in zip(found["ttfts"], found["itls"], found["errors"], strict=True)
        if not error
    ]
    return summarized([ttft for ttft, _ in done], [itl for _, itl in done])


def of_guidellm(text: str) -> Summary:
    """guidellm's JSON report. It keeps the mean gap of a request only, so its percentile is over requests."""
    (run,) = _document(text)["benchmarks"]
    done = run["requests"]["successful"]
    if not done:
        raise NoResult("no request was successful")
    means = [request["inter_token_latency_ms"] / 1000 for request in done]
    counts = [max(request["output_tokens"] - 1, 1) for request in done]
    ttft = [request["time_to_first_token_ms"] / 1000 for request in done]
    whole = sum(mean * count for mean, count in zip(means, counts, strict=True)) / sum(counts)
    return Summary(fmean(ttft), percentile(ttft, 99), whole, percentile(means, 99), "request")


def of_aiperf(text: str) -> Summary:
    """aiperf's ``profile_export.jsonl``: a record a request, with the gaps between chunks in ms."""
    records = [_document(line)["metrics"] for line in text.splitlines() if line.strip()]
    done = [record for record in records if "time_to_first_token" in record and "inter_chunk_latency" in record]
    if not done:
        raise NoResult("no request was successful")
    return summarized(
        _seconds([record["time_to_first_token"]["value"] for record in done]),
        [_seconds(record["inter_chunk_latency"]["value"]) for record in done],
    )


def _seconds(values: Sequence[float]) -> list[float]:
    return [value / 1000 for value in values]


def _document(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise NoResult(f"not JSON: {text[:80]!r}") from error
    if not isinstance(found, dict):
        raise NoResult(f"not an object: {text[:80]!r}")
    return found
