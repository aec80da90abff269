"""The summary of one level: its passes, and what they give together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, log
from typing import Any

from deployer.bench.load import stats
from deployer.bench.load.spec import Json
from deployer.bench.load.stats import Request, known, rounded

#: Bins of the histogram of token gaps: bin i holds gaps from FINEST * GROWTH**i seconds.
FINEST = 1e-5
GROWTH = 1.01


@dataclass
class Pass:
    """One repeat of a level: its requests, and what was seen beside them. ``began`` is on the requests' clock."""

    repeat: int
    began: float
    requests: list[Request]
    client: Json
    foreign_traffic: bool | None
    cut_short: str | None = None

    def span(self) -> tuple[float, float] | None:
        """Return first intent and last end; None if nothing was sent."""
        begun = known(r.intent for r in self.requests)
        ended = known(r.end for r in self.requests)
        return (min(begun), max(ended)) if begun and ended else None


def pass_summary(one: Pass, concurrency: int, origin: float) -> Json:
    """Return one entry of a level's ``passes``. ``started_s`` counts from ``origin``; wall = ramp + steady + tail."""
    done = [r for r in one.requests if r.completed]
    tokens = sum(r.tokens or 0 for r in done)
    span, window = one.span(), stats.steady_window(one.requests, concurrency)
    wall = span[1] - span[0] if span else None
    rate = None
    if window:
        rate = stats.steady_rate(stats.steady_tokens(one.requests, window), window[1] - window[0], concurrency)
    return {
        "repeat": one.repeat,
        "started_s": rounded(one.began - origin),
        "requests": len(one.requests),
        "completed": len(done),
        "failed": stats.failures(one.requests),
        "output_tokens": tokens,
        "wall_s": rounded(wall),
        "ramp_s": rounded(window[0] - span[0]) if window and span else None,
        "steady_s": rounded(window[1] - window[0]) if window else None,
        "tail_s": rounded(span[1] - window[1]) if window and span else None,
        "aggregate_tok_s": rounded(tokens / wall) if wall and done else None,
        "steady_tok_s": rounded(rate),
        "client": one.client,
        "foreign_traffic": one.foreign_traffic,
        "cut_short": one.cut_short,
    }


def level_summary(passes: Sequence[Pass], concurrency: int, origin: float) -> Json:
    """Return one level: ``concurrency`` streams side by side, in one or more passes.

    The throughputs are tokens over time, each summed over the passes: ``aggregate_tok_s`` over the walls
    (first intent to last event), ``steady_tok_s`` over the times in which every stream was busy. The
    distributions are those of all requests together.
    """
    requests = [r for one in passes for r in one.requests]
    done = [r for r in requests if r.completed]
    each = [pass_summary(one, concurrency, origin) for one in passes]
    tokens = sum(r.tokens or 0 for r in done)
    chunks = sum(len(r.stamps) for r in done)
    prompts = [r.prompt_tokens for r in done if r.prompt_tokens is not None]
    gaps = [gap for r in done for gap in stats.token_gaps(r)]
    common = stats.stage_summary(requests)
    del common["samples"]
    samples = []
    for one in passes:
        starts = one.span()
        for r in one.requests:
            samples.append({"pass": one.repeat, **stats.sample(r, starts[0] if starts else 0.0)})
    return {
        "concurrency": concurrency,
        **common,
        **throughput(each, concurrency),
        "tokens_per_request": rounded(tokens / len(done)) if done else None,
        "tokens_per_chunk": rounded(tokens / chunks) if chunks else None,
        "prompt_tokens_per_request": rounded(sum(prompts) / len(prompts)) if prompts else None,
        "ttft_s": stats.distribution(known(stats.ttft(r) for r in done)),
        "ttft_sent_s": stats.distribution(known(stats.ttft_sent(r) for r in done)),
        "itl_s": stats.distribution(gaps),
        "tpot_s": stats.distribution(known(stats.tpot(r) for r in done)),
        "itl_histogram": histogram(gaps),
        "passes": each,
        "samples": samples,
    }


def throughput(passes: Sequence[Json], concurrency: int) -> Json:
    """Return what passes give together, from their summaries: times, rates, and what casts doubt on them."""
    walls = known(one["wall_s"] for one in passes)
    windows = [one for one in passes if one["steady_s"] is not None]
    steady = sum(one["steady_s"] for one in windows)
    rates = [one for one in windows if one["steady_tok_s"] is not None]
    steady_rated = sum(one["steady_s"] for one in rates)
    in_windows = sum(one["steady_tok_s"] * one["steady_s"] for one in rates)
    done, wall = sum(one["completed"] for one in passes), sum(walls)
    tokens = sum(one["output_tokens"] for one in passes)
    short = [one["cut_short"] for one in passes if one["cut_short"]]
    return {
        "wall_s": rounded(wall) if walls else None,
        "aggregate_tok_s": rounded(tokens / wall) if wall and done else None,
        "steady_tok_s": rounded(stats.steady_rate(in_windows, steady_rated, concurrency)),
        "steady_s": rounded(steady) if windows else None,
        "client": worst_client(one["client"] for one in passes),
        "foreign_traffic": any_of(one["foreign_traffic"] for one in passes),
        "cut_short": "; ".join(short) or None,
    }


def worst_client(clients: Iterable[Json]) -> Json:
    """Return the saturation of several clients (or of one at several times) as one: the worst of everything."""
    every = list(clients)

    def worst(key: str) -> Any:
        return max(known(one.get(key) for one in every), default=None)

    return {
        **{key: worst(key) for key in ("cpu", "lag_p50_s", "lag_p99_s")},
        "samples": sum(one.get("samples") or 0 for one in every),
        "client_limited": any(one.get("client_limited") for one in every),
        "processes": worst("processes") or 1,
    }


def any_of(values: Iterable[bool | None]) -> bool | None:
    """Return True if one is, False if all are False, None if that is unknown."""
    known = list(values)
    return True if True in known else (False if known and None not in known else None)


def histogram(gaps: Iterable[float]) -> dict[str, int]:
    """Return how many gaps fell into which bin (1 % wide): what makes distributions of several runs one."""
    bins = Counter(max(0, floor(log(gap / FINEST) / log(GROWTH))) if gap > FINEST else 0 for gap in gaps)
    return {str(number): bins[number] for number in sorted(bins)}


def of_histogram(bins: Mapping[Any, int]) -> Json:
    """Return the distribution of a histogram, true to half a percent (below 0.01 ms to that)."""
    ordered = sorted((int(number), count) for number, count in bins.items())
    n = sum(count for _, count in ordered)

    def value(number: int) -> float:
        return FINEST * float(GROWTH ** (number + 0.5))

    def at(q: float) -> float:
        place, seen = (n - 1) * q / 100, 0
        for number, count in ordered:
            seen += count
            if seen > place:
                return value(number)
        return value(ordered[-1][0])

    mean = sum(value(number) * count for number, count in ordered) / n if n else None
    return {
        "mean": rounded(mean),
        "p50": rounded(at(50)) if n else None,
        "p95": rounded(at(95)) if n >= stats.SAMPLES_FOR_P95 else None,
        "p99": rounded(at(99)) if n >= stats.SAMPLES_FOR_P99 else None,
        "n": n,
    }
