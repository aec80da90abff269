"""Checks of CUDA graphs: captured, large enough, replayed."""

from __future__ import annotations

from deployer.inspect.doctor.base import COMPARE, Answer, Fine, Hit, Theme, Unknown, try_profile
from deployer.inspect.doctor.evidence import Evidence
from deployer.sglang.log.changed_values import reason
from deployer.sglang.rules.base import Severity

THEME = Theme("CUDA graphs")


@THEME.check(
    "graphs-off",
    Severity.WARNING,
    "CUDA graphs are off",
    trips="no decode graph was captured: a flag turned them off, or SGLang did",
    next="capture them and measure: without graphs every step is launched kernel by kernel. On eight "
    "PCIe GPUs a forgotten "
    "--disable-cuda-graph (and nothing in flight) gave 25 tok/s alone, with graphs and depth 8 it was 34",
    measure=COMPARE,
)
def graphs_off(e: Evidence) -> Answer:
    sizes = e.computed.graph_sizes if e.computed else None
    if sizes is None:
        return Unknown("neither the server nor its log tells which graphs were captured")
    if sizes:
        return Fine(f"{len(sizes)} decode graphs, up to batches of {sizes[-1]}")
    if e.argument("device") == "cpu":
        return Fine("the engine runs on a CPU, which has none")
    words = e.state.running.argv if e.state.running else ()
    flags = [word for word in words if "disable" in word and "cuda-graph" in word]
    share = [_eager_share(e)] if e.batches.decodes else []
    shown = [e.largest] if e.largest else []
    if not flags:
        told = reason("disable_cuda_graph", [line.text for line in e.lines if line.engine])
        why = f"SGLang says: {told}" if told else "its log may say why"
        evidence = ("no flag asks for it: SGLang itself turned them off", why, *share, *shown)
        return Hit(
            "SGLang captured no decode graph", evidence, measure="deployer history {number} --defaults"
        )
    name = e.other_profile(lambda profile: profile.cuda_graph.enabled and profile.parallelism.pp == e.pp)
    evidence = (f"the command line has {' '.join(flags)}", *share, *shown)
    measure = try_profile(e, name, "[cuda_graph] enabled = true")
    return Hit("no decode graph was captured", evidence, measure=measure)


@THEME.check(
    "graph-too-small",
    Severity.WARNING,
    "batches are larger than the largest graph",
    trips="decode lines with `cuda graph: False` whose batch is larger than any captured size",
    next="capture up to the micro-batch cap and measure: larger batches run without a graph",
    measure=COMPARE,
)
def graph_too_small(e: Evidence) -> Answer:
    sizes = e.computed.graph_sizes if e.computed else None
    if not sizes:
        return Unknown("no graphs, or not known which")
    if not e.batches.decodes:
        return Unknown("no decode line in the last minutes")
    large = [batch.running for batch in e.batches.eager if batch.running > sizes[-1]]
    if not large:
        return Fine(f"batches up to {max(e.batches.sizes)}, graphs up to {sizes[-1]}")
    change = f"[cuda_graph] max_batch_size = {max(large)}"
    text = (
        f"{len(large)} of {len(e.batches.decodes)} decode lines have batches of {min(large)} to "
        f"{max(large)}; graphs end at {sizes[-1]}"
    )
    return Hit(
        text, (_eager_share(e), *([e.largest] if e.largest else [])), measure=try_profile(e, None, change)
    )


@THEME.check(
    "graphs-unused",
    Severity.WARNING,
    "captured graphs are not replayed",
    trips="decode lines with `cuda graph: False` although a graph of that size or a larger one was captured",
    next="something makes SGLang fall back (padding turned off, an unusual sampling option, a fault): "
    "the log may name it",
    measure="deployer logs -n 500; deployer history {number} --defaults",
)
def graphs_unused(e: Evidence) -> Answer:
    sizes = e.computed.graph_sizes if e.computed else None
    if not sizes or not e.batches.decodes:
        return Unknown("no graphs, or no decode line in the last minutes")
    unused = [batch for batch in e.batches.eager if batch.running <= sizes[-1]]
    if not unused:
        return Fine(_eager_share(e))
    padding = e.argument("disable_cuda_graph_padding")
    evidence = [_eager_share(e), f"captured: {list(sizes)[:12]}{' ...' if len(sizes) > 12 else ''}"]
    evidence += ["disable_cuda_graph_padding is on: only exact sizes are replayed"] if padding else []
    return Hit(f"{len(unused)} of {len(e.batches.decodes)} decode lines", tuple(evidence))


def _eager_share(e: Evidence) -> str:
    return (
        f"`cuda graph: False` in {len(e.batches.eager)} of {len(e.batches.decodes)} decode lines of "
        f"{e.window / 60:g} min"
    )


@THEME.check(
    "graph-too-large",
    Severity.ADVICE,
    "graphs are captured that no batch can reach",
    trips="under a pipeline, graphs for batches larger than the micro-batch cap: SGLang does not divide "
    "their sizes by the stages",
    next="set cuda_graph.max_batch_size to the cap: it saves start time and memory, and no speed is lost",
    measure=COMPARE,
)
def graph_too_large(e: Evidence) -> Answer:
    sizes, cap = (e.computed.graph_sizes, e.computed.micro_batch_cap) if e.computed else (None, None)
    if e.slots == 1 or not sizes or not cap:
        return Fine("no pipeline, or no graphs")
    beyond = [size for size in sizes if size > cap]
    # One size above the cap is needed where the cap itself has no graph.
    if len(beyond) <= (cap not in sizes):
        return Fine(f"graphs up to {sizes[-1]}, micro-batches up to {cap}")
    memory = f", {e.computed.graphs_gib:.2f} GiB a GPU in all" if e.computed and e.computed.graphs_gib else ""
    text = (
        f"{len(beyond)} of {len(sizes)} graphs are for batches of {beyond[0]} to {sizes[-1]}; a "
        f"micro-batch has {cap} at most"
    )
    return Hit(text, (text + memory,), measure=try_profile(e, None, f"[cuda_graph] max_batch_size = {cap}"))
