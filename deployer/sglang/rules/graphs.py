"""CUDA graphs: whether they are on, and which batch sizes are captured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from deployer.sglang.rules.base import Hit, Severity, Theme
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
        return "false", ("cuda_graph", "enabled")
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


@THEME.rule(
    "graphs-off",
    Severity.WARNING,
    "CUDA graphs are off",
    about="""Without graphs every step of decoding launches its kernels one by one from Python; for a single
    stream that takes most of the time. It is a typical remnant of debugging: on 8 PCIe GPUs pp8 with a
    forgotten --disable-cuda-graph and nothing in flight reached 25 tok/s alone, and 34 with graphs and depth 8.
    SGLang has several spellings: --disable-cuda-graph, --disable-decode-cuda-graph, --cuda-graph-backend-decode
    disabled, --cuda-graph-config; and DeepEP in its normal mode turns them off by itself.""",
    remedy="set cuda_graph.enabled = true and remove the flag, unless it is meant as a comparison",
    references=["measured: 8 PCIe GPUs, pp8: 25 tok/s without graphs at depth 0, 34 with graphs at depth 8"],
)
def graphs_off(facts: Facts) -> Iterator[Hit]:
    off = turned_off(facts)
    if off and not facts.on_cpu:
        yield Hit(f"{off[0]}: every decoding step is launched kernel by kernel", off[1])


@THEME.rule(
    "graphs-above-cap",
    Severity.ADVICE,
    "graphs are captured that no micro-batch can use",
    about="""A stage never sees more requests than one micro-batch holds, but SGLang does not divide the sizes
    to capture by pp: pp8 with 64 running requests captures up to 64 while a micro-batch holds 8. Each size
    costs start time and memory (first capture on a cold machine: 63.6 s; up to 1334 s were reported for one
    host).""",
    remedy="set cuda_graph.max_batch_size to the micro-batch cap",
    references=["0.5.12.post1:srt/server_args.py", "PR 21005", "issue 4233"],
)
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


@THEME.rule(
    "graphs-below-cap",
    Severity.WARNING,
    "larger batches decode without a graph",
    about="""A batch above the largest captured size runs kernel by kernel (`cuda graph: False` in the log); one
    between two sizes is padded to the next.""",
    remedy="raise cuda_graph.max_batch_size to the number of requests a rank can hold",
    references=["0.5.12.post1:srt/model_executor/cuda_graph_runner.py"],
)
def graphs_below_cap(facts: Facts) -> Iterator[Hit]:
    largest, needed = facts.profile.cuda_graph.max_batch_size, largest_needed(facts)
    if not without_graphs(facts) and largest and needed and largest < needed[0]:
        yield Hit(
            f"{largest}, but a batch can have {needed[0]} requests ({needed[1]}): from {largest + 1} on they decode "
            "without a graph",
            _LARGEST,
        )


@THEME.rule(
    "graph-padding-off",
    Severity.WARNING,
    "only exactly captured sizes use a graph",
    about="""A batch is padded to the next captured size. With --disable-cuda-graph-padding every other size
    (13, 17, 33 ...) decodes kernel by kernel.""",
    remedy="leave extra_args.disable-cuda-graph-padding out",
    references=["0.5.12.post1:srt/model_executor/cuda_graph_runner.py"],
)
def graph_padding_off(facts: Facts) -> Iterator[Hit]:
    if facts.on("--disable-cuda-graph-padding") and not without_graphs(facts):
        most = (largest_needed(facts) or (256, ""))[0]
        largest = min(facts.profile.cuda_graph.max_batch_size or most, most)
        missed = largest - len(capture_sizes(largest))
        if missed > 0:
            text = f"{missed} of the batch sizes 1 to {largest} have no graph of their own"
            yield Hit(text, facts.at("--disable-cuda-graph-padding"))
