"""CUDA graphs: whether they are on, and which batch sizes are captured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from deployer.sglang.rules.base import Hit, Theme
from deployer.sglang.rules.facts import Facts

THEME = Theme("graphs", "CUDA graphs")

_LARGEST = ("cuda_graph", "max_batch_size")


def capture_sizes(largest: int) -> list[int]:
    """Return the batch sizes captured up to ``largest`` without speculative decoding (0.5.12.post1, 0.5.23)."""
    sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, max(512, largest) + 1, 32)]
    return sorted({*(size for size in sizes if size <= largest), largest})


def turned_off(facts: Facts) -> tuple[str, tuple[str, ...]] | None:
    """Return what turns graphs for decoding off, and where; None if nothing does."""
    if not facts.profile.cuda_graph.enabled:
        return "enabled = false", ("cuda_graph", "enabled")
    for option in ("--disable-cuda-graph", "--disable-decode-cuda-graph"):
        if facts.on(option):
            return f"{option} is set", facts.at(option)
    if facts.word("--cuda-graph-backend-decode") == "disabled":
        return "--cuda-graph-backend-decode is disabled", facts.at("--cuda-graph-backend-decode")
    config = facts.flag("--cuda-graph-config")
    decode: Any = config.get("decode") if isinstance(config, dict) else None
    if isinstance(decode, dict) and decode.get("backend") == "disabled":
        return "--cuda-graph-config disables the decode backend", facts.at("--cuda-graph-config")
    deepep = "deepep" in (facts.profile.moe.a2a_backend, facts.word("--moe-a2a-backend"))
    if deepep and facts.word("--deepep-mode") == "normal":
        return "--deepep-mode normal turns them off", facts.at("--deepep-mode")
    return None


def without_graphs(facts: Facts) -> bool:
    """Return whether nothing is captured for decoding: graphs are off, or the engine runs on the CPU."""
    return facts.on_cpu or turned_off(facts) is not None


def largest_needed(facts: Facts) -> tuple[int, str] | None:
    """Return the largest batch that a rank decodes, and what limits it; None without a limit."""
    dp = facts.profile.parallelism.dp
    if facts.cap is not None:
        return facts.cap, "a micro-batch"
    if facts.running is None:
        return None
    if dp > 1:
        return max(1, facts.running // dp), "a dp rank's share of max_running_requests"
    return facts.running, "limits.max_running_requests"


@THEME.rule("graphs-off")
def graphs_off(facts: Facts) -> Iterator[Hit]:
    off = turned_off(facts)
    if off and not facts.on_cpu:
        yield Hit(f"CUDA graphs are off ({off[0]}): every decoding step is launched kernel by kernel", off[1])


@THEME.rule("graphs-above-cap")
def graphs_above_cap(facts: Facts) -> Iterator[Hit]:
    if without_graphs(facts) or facts.cap is None:
        return
    largest = facts.profile.cuda_graph.max_batch_size or facts.running or (512 if facts.tp >= 4 else 256)
    if largest > facts.cap:
        captured = capture_sizes(min(largest, facts.running or largest))
        useful = sum(size < facts.cap for size in captured) + 1
        yield Hit(
            f"captures go up to {captured[-1]} ({len(captured)} sizes), but a micro-batch holds {facts.cap}: "
            f"{useful} sizes are enough",
            _LARGEST,
        )


@THEME.rule("graphs-below-cap")
def graphs_below_cap(facts: Facts) -> Iterator[Hit]:
    largest, needed = facts.profile.cuda_graph.max_batch_size, largest_needed(facts)
    if not without_graphs(facts) and largest and needed and largest < needed[0]:
        yield Hit(
            f"{largest}, but a batch can have {needed[0]} requests ({needed[1]}): from {largest + 1} on they decode "
            "without a graph",
            _LARGEST,
        )


@THEME.rule("graph-padding-off")
def graph_padding_off(facts: Facts) -> Iterator[Hit]:
    if facts.on("--disable-cuda-graph-padding") and not without_graphs(facts):
        most = (largest_needed(facts) or (256, ""))[0]
        largest = min(facts.profile.cuda_graph.max_batch_size or most, most)
        missed = largest - len(capture_sizes(largest))
        if missed > 0:
            text = f"{missed} of the batch sizes 1 to {largest} have no graph of their own"
            yield Hit(text, facts.at("--disable-cuda-graph-padding"))
