"""One bench document out of two: a run, and more passes of some of its levels. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from deployer.bench.load.levels import any_of, of_histogram, throughput
from deployer.bench.load.stats import distribution, known, rounded

Json = dict[str, Any]


def merged(first: Json, more: Json) -> Json:
    """``first`` with the passes of ``more`` added to its levels.

    All figures are made anew from passes and samples; those of token gaps from the histogram, so to half a
    percent. ``more`` ran later on the same server with the same workload.
    """
    late = more["started"] - first["started"]
    levels = {level["concurrency"]: level for level in first["levels"]}
    for level in more["levels"]:
        known_one = levels.get(level["concurrency"])
        if known_one:
            levels[level["concurrency"]] = _level(known_one, level, late)
    budget = dict(first["budget"])
    budget["used_s"] = rounded(budget["used_s"] + more["budget"]["used_s"])
    budget["cut"] = [*budget["cut"], *more["budget"]["cut"]]
    foreign = [first["foreign_traffic"], more["foreign_traffic"]]
    return {
        **first,
        "levels": list(levels.values()),
        "over_time": [
            *first["over_time"],
            *({**row, "t_s": rounded(row["t_s"] + late)} for row in more["over_time"]),
        ],
        "budget": budget,
        "seconds": budget["used_s"],
        "stopped": first["stopped"] or more["stopped"],
        "interrupted": first["interrupted"] or more["interrupted"],
        "client_limited": first["client_limited"] or more["client_limited"],
        "foreign_traffic": {
            "value": any_of(part["value"] for part in foreign),
            "evidence": [line for part in foreign for line in part["evidence"]],
        },
    }


def _level(one: Json, other: Json, late: float) -> Json:
    concurrency = one["concurrency"]
    passes = [*one["passes"], *({**p, "started_s": rounded(p["started_s"] + late)} for p in other["passes"])]
    samples = [*one["samples"], *other["samples"]]
    done = [sample for sample in samples if sample["failed"] is None]
    tokens = sum(p["output_tokens"] for p in passes)
    chunks = sum(sample["chunks"] for sample in done)
    prompts = known(sample["prompt_tokens"] for sample in done)
    bins = _sum(part["itl_histogram"] for part in (one, other))
    return {
        **one,
        **{key: sum(p[key] for p in passes) for key in ("requests", "completed", "output_tokens")},
        "failed": _sum(p["failed"] for p in passes),
        "repetitive": one["repetitive"] + other["repetitive"],
        **throughput(passes, concurrency),
        "tokens_per_request": rounded(tokens / len(done)) if done else None,
        "tokens_per_chunk": rounded(tokens / chunks) if chunks else None,
        "prompt_tokens_per_request": rounded(sum(prompts) / len(prompts)) if prompts else None,
        **{key: _of(done, key) for key in ("ttft_s", "ttft_sent_s", "tpot_s")},
        "itl_s": of_histogram(bins),
        "itl_histogram": bins,
        "passes": passes,
        "samples": samples,
    }


def _of(samples: Sequence[Json], key: str) -> Json:
    return distribution(known(sample[key] for sample in samples))


def _sum(tables: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for table in tables:
        total.update(table)
    return dict(total)


def once_more(values: Json, bench: Json, levels: Sequence[int], seconds: float) -> Json:
    """The spec of a run of one more pass of ``levels`` within ``seconds``, after the one that gave ``bench``."""
    repeats = {level["concurrency"]: len(level["passes"]) for level in bench["levels"]}
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
        "salt": bench["spec"]["salt"],
        "length_factor": bench["client"]["length_factor"],
        "budget": seconds,
    }
