"""What is added to a run's benchmark once it is there: more passes of some levels, and the baseline's answer. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from deployer.bench.load.levels import any_of, of_histogram, throughput
from deployer.bench.load.sanity import verdict
from deployer.bench.load.stats import distribution, known, rounded
from deployer.records.bench import (
    BenchRun,
    Budget,
    Client,
    ForeignTraffic,
    Level,
    Moment,
    Pass,
    Quantiles,
    Sanity,
    SanityCheck,
)
from deployer.records.codec import Json

Key = TypeVar("Key")


def merged(first: BenchRun, more: BenchRun) -> BenchRun:
    """Return ``first`` with the passes of ``more`` added to its levels.

    All figures are made anew from passes and samples; those of token gaps from the histogram, so to half a
    percent. ``more`` ran later on the same server with the same workload.
    """
    late = (more.started or 0.0) - (first.started or 0.0)
    further = {level.concurrency: level for level in more.levels}
    levels = (
        _level(level, further[level.concurrency], late) if level.concurrency in further else level
        for level in first.levels
    )
    one, two = first.budget or Budget(), more.budget or Budget()
    budget = replace(one, used_s=round(one.used_s + two.used_s, 6), cut=(*one.cut, *two.cut))
    evidence = (line for part in (first, more) if part.foreign_traffic for line in part.foreign_traffic.evidence)
    return replace(
        first,
        levels=tuple(levels),
        over_time=(*first.over_time, *(_moved(row, late) for row in more.over_time)),
        budget=budget,
        seconds=budget.used_s,
        stopped=first.stopped or more.stopped,
        interrupted=first.interrupted or more.interrupted,
        client_limited=first.client_limited or more.client_limited,
        foreign_traffic=ForeignTraffic(any_of((first.foreign, more.foreign)), tuple(evidence)),
    )


def _moved(row: Moment, late: float) -> Moment:
    return replace(row, t_s=rounded((row.t_s or 0.0) + late))


def _level(one: Level, other: Level, late: float) -> Level:
    later = (replace(part, started_s=rounded((part.started_s or 0.0) + late)) for part in other.passes)
    passes: tuple[Pass, ...] = (*one.passes, *later)
    samples = (*one.samples, *other.samples)
    done = [sample for sample in samples if sample.failed is None]
    tokens, chunks = sum(part.output_tokens for part in passes), sum(sample.chunks for sample in done)
    prompts = known(sample.prompt_tokens for sample in done)
    bins = _sum((one.itl_histogram, other.itl_histogram))
    figures = throughput([part.as_json() for part in passes], one.concurrency)
    return replace(
        one,
        requests=sum(part.requests for part in passes),
        completed=sum(part.completed for part in passes),
        output_tokens=tokens,
        failed=_sum(part.failed for part in passes),
        repetitive=one.repetitive + other.repetitive,
        **{**figures, "client": Client(**figures["client"])},
        tokens_per_request=rounded(tokens / len(done)) if done else None,
        tokens_per_chunk=rounded(tokens / chunks) if chunks else None,
        prompt_tokens_per_request=rounded(sum(prompts) / len(prompts)) if prompts else None,
        ttft_s=_quantiles(sample.ttft_s for sample in done),
        ttft_sent_s=_quantiles(sample.ttft_sent_s for sample in done),
        tpot_s=_quantiles(sample.tpot_s for sample in done),
        itl_s=Quantiles(**of_histogram(bins)),
        itl_histogram=bins,
        passes=passes,
        samples=samples,
    )


def _quantiles(values: Iterable[float | None]) -> Quantiles:
    return Quantiles(**distribution(known(values)))


def _sum(tables: Iterable[Mapping[Key, int]]) -> dict[Key, int]:
    total: Counter[Key] = Counter()
    for table in tables:
        total.update(table)
    return dict(total)


def once_more(values: Json, bench: BenchRun, levels: Sequence[int], seconds: float) -> Json:
    """Return the spec of a run of one more pass of ``levels`` within ``seconds``, after the one that gave ``bench``."""
    repeats = {level.concurrency: len(level.passes) for level in bench.levels}
    return {
        **values,
        "levels": sorted(level for level in levels if level in repeats),
        "repeats": 1,
        "requests_at_least": 0,
        "first_repeat": max(repeats.values(), default=0),
        "discard": False,
        "warmups": 0,
        "singles": 0,
        "fixed_prompt": False,
        "salt": bench.spec and bench.spec.salt,
        "length_factor": bench.client and bench.client.length_factor,
        "budget": seconds,
    }


def against_baseline(sanity: Sanity, baseline: BenchRun | None) -> Sanity:
    """Return it with one more check: whether the fixed prompt is answered as on the baseline's release."""
    mine = sanity.fixed_prompt
    theirs = baseline.sanity.fixed_prompt if baseline and baseline.sanity else None
    ok: bool | None = None
    text = "the baseline has no answer to the fixed prompt"
    if mine and theirs and mine.prompt == theirs.prompt:
        ok = mine.sha256 == theirs.sha256
        text = f"the fixed prompt was answered {'as on the baseline' if ok else 'differently from the baseline'}"
    checks = (*sanity.checks, SanityCheck("as-baseline", ok, text))
    return replace(sanity, checks=checks, ok=verdict([check.ok for check in checks]))
