"""Symptoms of CUDA graphs: captured, large enough, replayed."""

from __future__ import annotations

from deployer.inspect.doctor.evidence import Evidence
from deployer.inspect.doctor.symptom import Absent, Answer, Present, Theme, Unclear, try_profile
from deployer.sglang.log.changed_values import reason

THEME = Theme("CUDA graphs")


@THEME.symptom("graphs-off")
def graphs_off(e: Evidence) -> Answer:
    sizes = e.computed.graph_sizes
    if sizes is None:
        return Unclear("neither the server nor its log shows which graphs were captured")
    if sizes:
        return Absent(f"{len(sizes)} decode graphs, up to batches of {sizes[-1]}")
    if e.argument("device") == "cpu":
        return Absent("the engine runs on a CPU, which has none")
    argv = e.state.running.argv if e.state.running else ()
    flags = [word for word in argv if "disable" in word and "cuda-graph" in word]
    shown = (*([_eager_share(e)] if e.batches.decodes else []), *e.largest)
    if not flags:
        log = reason("disable_cuda_graph", e.engine_lines)
        why = f"SGLang says: {log}" if log else "its log may say why"
        return Present(
            "SGLang captured no decode graph",
            ("no flag requests it: SGLang itself turned them off", why, *shown),
            measure="deployer history {number} --defaults",
        )
    evidence = (f"the command line has {' '.join(flags)}", *shown)
    measure = try_profile(
        e,
        "[cuda_graph] enabled = true",
        lambda profile: profile.cuda_graph.enabled and profile.parallelism.pp == e.pp,
    )
    return Present("no decode graph was captured", evidence, measure=measure)


@THEME.symptom("graph-too-small")
def graph_too_small(e: Evidence) -> Answer:
    sizes, decodes = e.computed.graph_sizes, e.batches.decodes
    if not sizes or not decodes:
        return _no_graphs_or_no_lines(e)
    large = [batch.running for batch in e.batches.eager if batch.running > sizes[-1]]
    if not large:
        return Absent(f"batches up to {max(e.batches.sizes)}, graphs up to {sizes[-1]}")
    reach = f"have batches of {min(large)} to {max(large)}; graphs end at {sizes[-1]}"
    return Present(
        f"{len(large)} of {len(decodes)} decode lines {reach}",
        (_eager_share(e), *e.largest),
        measure=try_profile(e, f"[cuda_graph] max_batch_size = {max(large)}"),
    )


@THEME.symptom("graphs-unused")
def graphs_unused(e: Evidence) -> Answer:
    sizes, decodes = e.computed.graph_sizes, e.batches.decodes
    if not sizes or not decodes:
        return _no_graphs_or_no_lines(e)
    unused = [batch for batch in e.batches.eager if batch.running <= sizes[-1]]
    if not unused:
        return Absent(_eager_share(e))
    evidence = [_eager_share(e), f"captured: {list(sizes)[:12]}{' ...' if len(sizes) > 12 else ''}"]
    if e.argument("disable_cuda_graph_padding"):
        evidence.append("disable_cuda_graph_padding is on: only exact sizes are replayed")
    return Present(f"{len(unused)} of {len(decodes)} decode lines", tuple(evidence))


def _no_graphs_or_no_lines(e: Evidence) -> Unclear:
    return Unclear(
        "no decode line in the last minutes"
        if e.computed.graph_sizes
        else "no graphs were captured, or it is not known which"
    )


def _eager_share(e: Evidence) -> str:
    share = f"{len(e.batches.eager)} of {len(e.batches.decodes)} decode lines"
    return f"`cuda graph: False` in {share} of {e.window / 60:g} min"


@THEME.symptom("graph-too-large")
def graph_too_large(e: Evidence) -> Answer:
    sizes, cap = e.computed.graph_sizes, e.computed.micro_batch_cap
    if e.computed.slots == 1 or not sizes or not cap:
        return Absent("no pipeline, or no graphs")
    beyond = [size for size in sizes if size > cap]
    # One size above the cap is needed if the cap itself has no graph.
    if len(beyond) <= (cap not in sizes):
        return Absent(f"graphs up to {sizes[-1]}, micro-batches up to {cap}")
    memory = f", {e.computed.graphs_gib:.2f} GiB per GPU in all" if e.computed.graphs_gib else ""
    reach = f"batches of {beyond[0]} to {sizes[-1]}; a micro-batch has at most {cap}"
    text = f"{len(beyond)} of {len(sizes)} graphs are for {reach}"
    return Present(text, (text + memory,), measure=try_profile(e, f"[cuda_graph] max_batch_size = {cap}"))
