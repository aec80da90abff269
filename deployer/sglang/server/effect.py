"""What a running server computed for itself: limits, captured graphs, memory. Pure.

Read from ``/server_info`` (which differs between versions, see docs/sglang.md) and, for what that lacks, from the log
of the start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from deployer.records.effect import Computed
from deployer.sglang.server.info import effective_arguments, internal_states, mapping, running_ceiling

_SUMMARY = {
    "tokens": re.compile(r"max_total_num_tokens=(\d{1,15})\b"),
    "running": re.compile(r"max_running_requests=(\d{1,9})\b"),
    "context": re.compile(r"context_len=(\d{1,12})\b"),
}
_FREE = re.compile(r"available_[gc]pu_mem=(\d{1,6}(?:\.\d{1,6})?) GB")
_SIZES = re.compile(
    r"Capture (?:cuda graph bs |target decode CUDA graph (?:begin|end)\..*?\bbs=)\[(?P<sizes>[\d, ]*)\]"
)


def computed(info: Mapping[str, Any], lines: Iterable[str] = ()) -> Computed:
    """Return what the server computed, from ``/server_info`` of any version and the log of its start."""
    states = internal_states(info)
    live = states[0] if states else {}
    effective = effective_arguments(info)
    memory = mapping(effective.get("memory_usage"))
    log = _from_log(lines)
    pp = _whole(effective.get("pp_size")) or 1
    depth = _whole(effective.get("pp_async_batch_depth")) or 0
    kv_tokens = _whole(info.get("max_total_num_tokens")) or _whole(memory.get("token_capacity")) or log.get("tokens")
    running = running_ceiling(effective) or log.get("running")
    context = log.get("context") or _whole(effective.get("context_length"))
    cap = _whole(live.get("pp_max_micro_batch_size")) or _whole(effective.get("pp_max_micro_batch_size"))
    backend = effective.get("decode_attention_backend") or effective.get("attention_backend")
    return Computed(
        slots=pp + depth if pp > 1 else 1,
        micro_batch_cap=cap,
        kv_tokens=kv_tokens,
        max_running=running,
        graph_sizes=_graph_sizes(effective, log, running),
        context_length=context,
        attention_backend=str(backend) if backend else None,
        weights_gib=_gib(memory.get("weight")),
        kv_gib=_gib(memory.get("kvcache")),
        graphs_gib=_gib(memory.get("graph")),
        free_gib=log.get("free"),
    )


def _from_log(lines: Iterable[str]) -> dict[str, Any]:
    """Return what the log of a start shows; of free memory, the least of all ranks."""
    values: dict[str, Any] = {}
    free: list[float] = []
    for line in lines:
        if len(line) > 4000:
            continue
        if "max_total_num_tokens=" in line and "server_args=" not in line:
            matches = {name: pattern.search(line) for name, pattern in _SUMMARY.items()}
            values.update({name: int(match[1]) for name, match in matches.items() if match})
            left = _FREE.search(line)
            free += [float(left[1])] if left else []
        elif (sizes := _SIZES.search(line)) is not None:
            values["sizes"] = tuple(sorted(int(size) for size in sizes["sizes"].replace(",", " ").split()))
    return {**values, **({"free": min(free)} if free else {})}


def _graph_sizes(effective: Mapping[str, Any], log: Mapping[str, Any], running: int | None) -> tuple[int, ...] | None:
    config = mapping(mapping(effective.get("cuda_graph_config")).get("decode"))
    off = effective.get("disable_cuda_graph") or effective.get("disable_decode_cuda_graph")
    if off or config.get("backend") == "disabled":
        return ()
    listed: Any = effective.get("decode_cuda_graph_bs")
    if isinstance(listed, list):
        return _sizes(listed)
    if "sizes" in log:
        sizes: tuple[int, ...] = log["sizes"]
        return sizes
    listed = config.get("bs") or effective.get("cuda_graph_bs")
    if not isinstance(listed, list):
        return None
    # Sizes above the pool of requests are not captured; the pool's own size is.
    return tuple(sorted({min(size, running or size) for size in _sizes(listed)}))


def _sizes(listed: list[Any]) -> tuple[int, ...]:
    return tuple(sorted(size for size in listed if isinstance(size, int)))


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _gib(value: Any) -> float | None:
    """Return memory as SGLang counts it (in GiB, which it calls GB); newer versions report graphs by kind."""
    if isinstance(value, Mapping):
        parts = [part for part in value.values() if isinstance(part, int | float)]
        return round(float(sum(parts)), 3) if parts else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
