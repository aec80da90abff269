"""What the server did while a level was measured: samples and log lines as figures and one sentence. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Json = dict[str, Any]

_GPU_SPREADS = ("utilization", "power_w", "sm_clock_mhz")
#: Rows of `over_time` at most: a run of hours is kept in longer steps.
MOST_ROWS = 400
#: Decode lines from which slots are told: a line is of one micro-batch, and those are not all of one size.
FEWEST_LINES = 3


def spread(values: Iterable[float | None]) -> Json | None:
    """``{mean, min, max}``; None of nothing."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {"mean": round(sum(known) / len(known), 4), "min": min(known), "max": max(known)}


def summary(samples: Sequence[Json], spans: Sequence[tuple[float, float]], concurrency: int) -> Json | None:
    """The ``server`` of a level, from the samples taken within its passes; None where nothing was seen."""
    inside = [one for one in samples if any(begin <= one["t"] <= end for begin, end in spans)]
    if not inside:
        return None
    said = [one for one in inside if "running" in one]
    found = {
        "running": spread(one["running"] for one in said),
        "queued": spread(one["queued"] for one in said),
        "slots": None,
        "graph_share": None,
        "kv_use": spread(one["kv_use"] for one in said),
        "gpus": _gpus([gpu for one in inside for gpu in one.get("gpus", ())]),
        "samples": len(inside),
    }
    return {**found, "sentence": sentence(found, concurrency)}


def over_time(samples: Sequence[Json], origin: float) -> list[Json]:
    """All samples of a run in steps of a second or, in a long run, more: what there is to draw.

    ``{"t_s", "running", "queued", "kv_use", "utilization", "power_w"}``: means within the step, those of GPUs over
    all of them, None where nothing was seen. ``t_s`` counts from ``origin`` (on the samples' clock) to the middle of
    the step.
    """
    if not samples:
        return []
    step = max(1.0, (max(one["t"] for one in samples) - origin) / MOST_ROWS)
    steps: dict[int, list[Json]] = {}
    for one in samples:
        steps.setdefault(int(max(one["t"] - origin, 0.0) / step), []).append(one)
    rows = []
    for number, seen in sorted(steps.items()):
        gpus = [gpu for one in seen for gpu in one.get("gpus", ())]
        means = {key: _mean(one.get(key) for one in seen) for key in ("running", "queued", "kv_use")}
        means |= {key: _mean(gpu.get(key) for gpu in gpus) for key in ("utilization", "power_w")}
        rows.append({"t_s": round((number + 0.5) * step, 3), **means})
    return rows


def _mean(values: Iterable[float | None]) -> float | None:
    found = spread(values)
    return None if found is None else round(float(found["mean"]), 3)


def _gpus(rows: Sequence[Json]) -> list[Json]:
    found = []
    for index in sorted({row["index"] for row in rows}):
        mine = [row for row in rows if row["index"] == index]
        memory = [row["memory_used"] for row in mine if row.get("memory_used") is not None]
        found.append(
            {
                "index": index,
                **{name: spread(row.get(name) for row in mine) for name in _GPU_SPREADS},
                "power_limit_w": mine[-1].get("power_limit_w"),
                "memory_used": max(memory, default=None),
                "memory_total": mine[-1].get("memory_total"),
            }
        )
    return found


def with_log(
    found: Json | None,
    concurrency: int,
    *,
    batches: Sequence[int],
    queued: Sequence[int],
    graphs: Sequence[bool],
    slots: int,
) -> Json | None:
    """The same with what the log's batch lines say: sizes of decode batches, queue lengths, graph or not.

    ``slots`` is how many micro-batches the server turns over (1 without pipeline parallelism). How many of
    them were at work (``seen``) follows from the lines, each of one micro-batch and of all in turn: what is not queued
    is in flight, in batches of their mean size. None where there are too few lines.
    """
    if not batches:
        return found
    base = found or {"running": None, "queued": None, "kv_use": None, "gpus": [], "samples": 0}
    waiting = spread(queued) or base["queued"] or {"mean": 0.0, "min": 0, "max": 0}
    size = spread(batches) or {"mean": 1.0}
    flying = max(concurrency - waiting["mean"], 1.0)
    seen = None
    if len(batches) >= FEWEST_LINES or slots == 1:
        seen = min(max(round(flying / max(size["mean"], 1.0)), 1), slots)
    result = {
        **base,
        "queued": waiting,
        "slots": {"seen": seen, "of": slots, "batch": size},
        "graph_share": round(sum(graphs) / len(graphs), 4) if graphs else None,
    }
    return {**result, "sentence": sentence(result, concurrency)}


def sentence(found: Json, concurrency: int) -> str:
    """All of it in one line.

    ``C=32: 8 in flight in 1 of 16 slots, 24 queued, GPUs 40-100 % busy at 310 W of 600 W``
    """
    parts = []
    slots, queued, running = found.get("slots"), found.get("queued"), found.get("running")
    if slots:
        flying = max(concurrency - (queued or {"mean": 0})["mean"], 0)
        within = f" in {slots['seen']} of {slots['of']} slots" if slots["of"] > 1 and slots["seen"] else ""
        parts.append(f"{flying:.0f} in flight{within}")
    elif running and running["mean"] >= 0.5:  # less: the looks fell between the requests, which says nothing
        parts.append(f"{running['mean']:.0f} in flight")
    if queued:
        parts.append(f"{queued['mean']:.0f} queued" if queued["mean"] >= 0.5 else "none queued")
    share = found.get("graph_share")
    if share is not None and share < 0.995:
        parts.append(
            "no step by a captured graph" if share == 0 else f"{share:.0%} of steps by a captured graph"
        )
    kv = found.get("kv_use")
    if kv and kv["max"] >= 0.5:
        parts.append(f"KV pool up to {kv['max']:.0%} full")
    parts += _gpu_words(found.get("gpus") or [])
    return f"C={concurrency}: {', '.join(parts)}" if parts else f"C={concurrency}: nothing to be seen"


def sentences(bench: Mapping[str, Any]) -> list[str]:
    """What the server did during each level of a bench document; a level of which nothing was seen has none."""
    seen = [(level.get("server") or {}).get("sentence") for level in bench.get("levels") or []]
    return [str(said) for said in seen if said]


def _gpu_words(gpus: Sequence[Json]) -> list[str]:
    busy = [gpu["utilization"] for gpu in gpus if gpu["utilization"]]
    power = [gpu["power_w"]["mean"] for gpu in gpus if gpu["power_w"]]
    limits = [gpu["power_limit_w"] for gpu in gpus if gpu["power_limit_w"]]
    words = ""
    if busy:
        means = [one["mean"] for one in busy]
        low, high = f"{min(means):.0f}", f"{max(means):.0f}"
        words = f"GPUs {low if low == high else f'{low}-{high}'} % busy"
    if power:
        of = f" of {max(limits):.0f} W" if limits else ""
        words += f"{' at' if words else 'GPUs at'} {sum(power) / len(power):.0f} W{of}"
    return [words] if words else []
