"""CUDA graphs: whether they are on, and which sizes are captured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from deployer.sglang.rules.base import Hit, Severity, Theme
from deployer.sglang.rules.facts import Facts

THEME = Theme("graphs", "CUDA graphs")


def capture_sizes(largest: int) -> list[int]:
    """Batch sizes captured up to ``largest``, without speculative decoding (PR 21005; 0.5.12.post1, 0.5.23)."""
    sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, max(512, largest) + 1, 32)]
    return sorted({*(size for size in sizes if size <= largest), largest})


def turned_off(facts: Facts) -> tuple[str, tuple[str, ...]] | None:
    """What turns graphs for decoding off, and where; None where nothing does."""
    if not facts.profile.cuda_graph.enabled:
        return "found false", ("cuda_graph", "enabled")
    for option in ("--disable-cuda-graph", "--disable-decode-cuda-graph"):
        if facts.on(option):
            return f"{option} is given", facts.at(option)
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
    """Whether nothing is captured for decoding: it is turned off, or the engine is one for the CPU."""
    return facts.on_cpu or turned_off(facts) is not None


def largest_needed(facts: Facts) -> tuple[int, str] | None:
    """The largest batch a rank decodes, and what it comes from; None where nobody limits it."""
    if facts.cap is not None:
        return facts.cap, "a micro-batch"
    if facts.running is None:
        return None
    if facts.profile.parallelism.dp > 1:
        return max(
            1, facts.running // facts.profile.parallelism.dp
        ), "a dp rank's share of max_running_requests"
    return facts.running, "limits.max_running_requests"


@THEME.rule(
    "graphs-off",
    Severity.WARNING,
    "CUDA graphs are off",
    about="""Without graphs every step of decoding launches its kernels one by one from Python; for a single
    stream that is most of the time. It is what is left over from debugging: on 8 PCIe GPUs pp8 with a forgotten
    --disable-cuda-graph and nothing in flight gave 25 tok/s alone, and 34 with graphs and depth 8. SGLang has
    several spellings: --disable-cuda-graph, --disable-decode-cuda-graph, --cuda-graph-backend-decode disabled,
    --cuda-graph-config; and DeepEP in its normal mode turns them off by itself.""",
    remedy="set cuda_graph.enabled = true and remove the flag, unless it is meant as a comparison",
    references=["measured: 8 PCIe GPUs, pp8: 25 tok/s without graphs at depth 0, 34 with graphs at depth 8"],
)
def graphs_off(facts: Facts) -> Iterator[Hit]:
    found = turned_off(facts)
    if found and not facts.on_cpu:
        yield Hit(f"{found[0]}: every decoding step is launched kernel by kernel", found[1])


@THEME.rule(
    "graphs-above-cap",
    Severity.ADVICE,
    "graphs are captured that no micro-batch can use",
    about="""A stage never sees more requests than one micro-batch holds, but SGLang does not divide the sizes
    to capture by pp: pp8 with 64 running requests captures up to 64 while a micro-batch holds 8. Each size
    takes start time and memory (first capture on a cold machine: 63.6 s; up to 1334 s were reported for one
    host).""",
    remedy="set cuda_graph.max_batch_size to the micro-batch cap",
    references=["0.5.12.post1:srt/server_args.py", "PR 21005", "issue 4233"],
)
def graphs_above_cap(facts: Facts) -> Iterator[Hit]:
    if without_graphs(facts) or facts.cap is None:
        return
    asked = facts.profile.cuda_graph.max_batch_size
    largest = asked or facts.running or (512 if facts.tp >= 4 else 256)
    if largest > facts.cap:
        captured = capture_sizes(min(largest, facts.running or largest))
        used = [size for size in captured if size < facts.cap] + [facts.cap]
        yield Hit(
            f"captures go up to {captured[-1]} ({len(captured)} sizes), but a micro-batch holds {facts.cap}: "
            f"{len(used)} sizes would do",
            ("cuda_graph", "max_batch_size"),
        )


@THEME.rule(
    "graphs-below-cap",
    Severity.WARNING,
    "larger batches decode without a graph",
    about="""A batch above the largest captured size runs kernel by kernel (`cuda graph: False` in the log);
    between two sizes it is padded up to the next.""",
    remedy="raise cuda_graph.max_batch_size to the number of requests a rank can hold",
    references=["0.5.12.post1:srt/model_executor/cuda_graph_runner.py"],
)
def graphs_below_cap(facts: Facts) -> Iterator[Hit]:
    asked, need = facts.profile.cuda_graph.max_batch_size, largest_needed(facts)
    if not without_graphs(facts) and asked and need and asked < need[0]:
        yield Hit(
            f"found {asked}, but a batch can have {need[0]} requests ({need[1]}): "
            f"from {asked + 1} on they decode without a graph",
            ("cuda_graph", "max_batch_size"),
        )


@THEME.rule(
    "graph-padding-off",
    Severity.WARNING,
    "only exactly captured sizes use a graph",
    about="""A batch is padded up to the next captured size. With --disable-cuda-graph-padding every other size
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
            yield Hit(
                f"of the batch sizes 1 to {largest}, {missed} have no graph of their own",
                facts.at("--disable-cuda-graph-padding"),
            )
