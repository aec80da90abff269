"""What the server did while a level was measured: the samples as figures. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from deployer.bench.load.spec import Json

_GPU_SPREADS = ("utilization", "power_w", "sm_clock_mhz")
#: Rows of `over_time` at most: a run of hours is kept in longer steps.
MOST_ROWS = 400


def spread(values: Iterable[float | None]) -> Json | None:
    """Return ``{mean, min, max}``; None of nothing."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {"mean": round(sum(known) / len(known), 4), "min": min(known), "max": max(known)}


def summary(samples: Sequence[Json], spans: Sequence[tuple[float, float]]) -> Json | None:
    """Return the ``server`` of a level, from the samples taken within its passes; None if there are none."""
    inside = [one for one in samples if any(begin <= one["t"] <= end for begin, end in spans)]
    if not inside:
        return None
    loads = [one for one in inside if "running" in one]
    return {
        **{key: spread(one[key] for one in loads) for key in ("running", "queued", "kv_use")},
        "gpus": _gpus([gpu for one in inside for gpu in one.get("gpus", ())]),
        "samples": len(inside),
    }


def over_time(samples: Sequence[Json], origin: float) -> list[Json]:
    """Return all samples of a run in steps of a second or, in a long run, more: what there is to draw.

    ``{"t_s", "running", "queued", "kv_use", "utilization", "power_w"}``: means within the step, those of GPUs over
    all of them, None if nothing was seen. ``t_s`` counts from ``origin`` (on the samples' clock) to the middle of
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
    known = spread(values)
    return None if known is None else round(float(known["mean"]), 3)


def _gpus(rows: Sequence[Json]) -> list[Json]:
    gpus = []
    for index in sorted({row["index"] for row in rows}):
        mine = [row for row in rows if row["index"] == index]
        memory = [row["memory_used"] for row in mine if row.get("memory_used") is not None]
        gpus.append(
            {
                "index": index,
                **{name: spread(row.get(name) for row in mine) for name in _GPU_SPREADS},
                "power_limit_w": mine[-1].get("power_limit_w"),
                "memory_used": max(memory, default=None),
                "memory_total": mine[-1].get("memory_total"),
            }
        )
    return gpus
