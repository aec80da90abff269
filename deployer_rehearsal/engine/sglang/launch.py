"""What a start prints and when, computed beforehand: phases, ranks, bars, and the requested failures. Pure.

Times are seconds at scale 1. A K2.6-like start (61 shards, 12 graph sizes) takes about 8 s::

    args 0.5   dist-init 1.0   load 0.05 a shard   kv-pool 0.3   capture 0.5 + 0.12 a size   http-up 0.1   warm-up 0.8
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from typing import Any

from .faults import Fault
from .lines import Rank, capture_bar, ranks, scheduler_exception, server_arguments, shard_bar
from .resolve import Plan

SHARD_SECONDS = 0.05
GRAPH_SECONDS = 0.12
CAPTURE_SECONDS = 0.5
CONTEXT_GIB = 0.97


@dataclasses.dataclass(frozen=True)
class Step:
    """An event ``at`` seconds after the start.

    ``text`` is a record (with ``rank``) or, if ``raw``, written as it is. ``memory`` is the GiB that the rank (None:
    every rank) holds from now on. ``end`` ends the start: ``crash`` (a scheduler died; the server kills itself) or
    ``hang``.
    """

    at: float
    text: str = ""
    rank: Rank | None = None
    raw: bool = False
    memory: float | None = None
    end: str | None = None


@dataclasses.dataclass
class _Clock:
    now: float = 0.0

    def after(self, seconds: float) -> float:
        self.now += seconds
        return self.now


def timeline(plan: Plan, faults: dict[str, Fault] | None = None) -> list[Step]:
    """Return all steps until every scheduler is ready, in order; then the HTTP server starts."""
    active = faults or {}
    steps: list[Step] = []
    clock = _Clock()
    spread = random.Random(plan.settings.seed)
    group = ranks(plan.tp, plan.pp, plan.ep)
    for phase in (_arguments, _distributed, _load, _pool, _capture, _limits):
        for step in phase(plan, active, clock, spread, group):
            steps.append(step)
        steps.sort(key=lambda step: step.at)
        ends = [number for number, step in enumerate(steps) if step.end]
        if ends:
            return steps[: ends[0] + 1]
    return steps


def _rank_of(fault: Fault, group: list[Rank]) -> Rank:
    return group[int(fault.options.get("rank", len(group) - 1)) % len(group)]


def _crash(at: float, rank: Rank, kind: str, message: str, where: str) -> Step:
    return Step(at, scheduler_exception(kind, message, where), rank, end="crash")


def _exception(fault: Fault, default: str) -> tuple[str, str]:
    kind, _, message = str(fault.options.get("exception", default)).partition(": ")
    return kind, message


def _out_of_memory(plan: Plan, rank: Rank, free: float) -> str:
    return (
        f"CUDA out of memory. Tried to allocate 448.00 MiB. GPU {plan.gpus[rank.index]} has a total capacity of "
        f"{plan.memory_total:.2f} GiB of which {max(free, 0.0) * 1024:.2f} MiB is free. Including non-PyTorch memory, "
        f"this process has {plan.memory_start - free:.2f} GiB memory in use."
    )


Phase = Iterator[Step]


def _arguments(plan: Plan, faults: dict[str, Fault], clock: _Clock, spread: random.Random, group: list[Rank]) -> Phase:
    yield Step(
        clock.after(0.05),
        "/opt/sglang/lib/python3/site-packages/sglang/launch_server.py:54: UserWarning: "
        "'python -m sglang.launch_server' is still supported, but 'sglang serve' is the recommended entrypoint.\n"
        "  Example: sglang serve --model-path <model> [options]\n  warnings.warn(\n",
        raw=True,
    )
    if plan.model.mla and not any(word.startswith("--attention-backend") for word in plan.argv):
        yield Step(clock.after(0.05), "Attention backend not specified. Use triton backend by default.")
    if plan.pp > 1:
        yield Step(clock.after(0.05), "Pipeline parallelism is incompatible with overlap schedule.")
    yield Step(clock.after(0.1), "Fail to set RLIMIT_NOFILE: current limit exceeds maximum limit")
    yield Step(clock.after(0.02), server_arguments(plan.fields, plan.modern))
    yield Step(clock.after(0.1), "Using default HuggingFace chat template with detected content format: openai")


def _distributed(
    plan: Plan, faults: dict[str, Fault], clock: _Clock, spread: random.Random, group: list[Rank]
) -> Phase:
    clock.after(0.2)
    begin = "Init parallel begin." if plan.modern else "Init torch distributed begin."
    starts = {rank: clock.now + spread.uniform(0.0, 0.25) for rank in group}
    for rank, at in starts.items():
        yield Step(at, begin, rank)
    clock.after(0.3)
    if plan.world > 1:
        for rank in group:
            if rank.leads_stage and (plan.tp > 1 or rank.pp == 0):
                yield Step(clock.now + 0.02, "sglang is using nccl==2.28.9", rank)
    if "hang-in-dist" in faults:
        yield Step(clock.after(0.1), end="hang")
        return
    if max(plan.gpus) >= len(plan.settings.visible):
        rank = group[-1]
        yield _crash(clock.after(0.1), rank, "RuntimeError", "CUDA error: invalid device ordinal", "start")
        return
    clock.after(0.4)
    for rank in group:
        elapsed = (clock.now - starts[rank]) * plan.settings.scale
        ends = "Init parallel ends." if plan.modern else "Init torch distributed ends."
        usage = "" if plan.modern else f", mem usage={CONTEXT_GIB:.2f} GB"
        yield Step(clock.now, f"{ends} elapsed={elapsed:.2f} s{usage}", rank, memory=CONTEXT_GIB)
        if plan.modern:
            yield Step(clock.now + 0.01, f"Memory baseline taken. mem usage={CONTEXT_GIB:.2f} GB", rank)
    clock.after(0.05)


def _load(plan: Plan, faults: dict[str, Fault], clock: _Clock, spread: random.Random, group: list[Rank]) -> Phase:
    begins = {rank: clock.now + spread.uniform(0.0, 0.1) for rank in group}
    for rank, at in begins.items():
        yield Step(at, f"Load weight begin. avail mem={plan.memory_start:.2f} GB", rank)
    begin = clock.after(0.15)
    if plan.model.missing:
        missing = list(plan.model.missing)
        text = (
            f"model.safetensors.index.json references {len(missing)} shard file(s) missing from {plan.model.path} "
            f"(incomplete download?): {missing}"
        )
        yield _crash(clock.now, group[0], "RuntimeError", text, "load")
        return
    crash, stuck = faults.get("crash-in-load"), faults.get("hang-in-load")
    memory = faults.get("oom-in-load")
    fault = crash or stuck or memory
    total = plan.shards
    stop = int(total * float(fault.options.get("at", 0.5))) if fault else None
    fits = plan.weight_gib < plan.memory_start
    if stop is None and not fits:
        stop = int(total * max(plan.memory_start, 0.0) / plan.weight_gib)
    scale = plan.settings.scale
    name = "Multi-thread loading shards" if plan.modern else "Loading safetensors checkpoint shards"
    for done in range(total + 1):
        held = CONTEXT_GIB + plan.weight_gib * done / total
        yield Step(clock.now, shard_bar(name, done, total, (clock.now - begin) * scale), raw=True, memory=held)
        if stop is not None and done >= stop:
            break
        clock.after(SHARD_SECONDS)
    if stop is not None:
        rank = _rank_of(fault, group) if fault else group[0]
        if stuck:
            yield Step(clock.after(0.02), end="hang")
        elif crash:
            kind, message = _exception(crash, "RuntimeError: start (64) + length (32) exceeds dimension size (64).")
            yield _crash(clock.after(0.05), rank, kind, message, "load")
        else:
            free = plan.memory_start - plan.weight_gib * stop / total
            yield _crash(
                clock.after(0.05),
                rank,
                "torch.OutOfMemoryError",
                _out_of_memory(plan, rank, min(free, 0.3)),
                "load",
            )
        return
    for rank in group:
        at = clock.now + spread.uniform(0.0, 0.15)
        avail = plan.memory_start - plan.weight_gib
        yield Step(
            at,
            f"Load weight end. elapsed={(at - begins[rank]) * scale:.2f} s, type={plan.model.architecture}, "
            f"avail mem={avail:.2f} GB, mem usage={plan.weight_gib:.2f} GB.",
            rank,
        )
    clock.after(0.2)


def _pool(plan: Plan, faults: dict[str, Fault], clock: _Clock, spread: random.Random, group: list[Rank]) -> Phase:
    if plan.max_total_tokens <= 0:
        text = (
            "Not enough memory. Please try to increase --mem-fraction-static. Current value: "
            f"self.server_args.mem_fraction_static={plan.fields['mem_fraction_static']}"
        )
        yield _crash(clock.after(0.05), group[0], "RuntimeError", text, "pool")
        return
    avail = plan.memory_start - plan.weight_gib - plan.kv_gib
    kind = "dtype: torch.bfloat16, " if plan.modern else ""
    if plan.model.mla:
        size = f"KV size: {plan.kv_gib:.2f} GB"
    else:
        size = f"K size: {plan.kv_gib / 2:.2f} GB, V size: {plan.kv_gib / 2:.2f} GB"
    for rank in group:
        at = clock.now + spread.uniform(0.0, 0.12)
        if not plan.modern:
            yield Step(at, "Using KV cache dtype: torch.bfloat16", rank)
        yield Step(
            at + 0.02,
            f"KV Cache is allocated. {kind}#tokens: {plan.max_total_tokens}, {size}",
            rank,
            memory=CONTEXT_GIB + plan.weight_gib + plan.kv_gib,
        )
        yield Step(at + 0.03, f"Memory pool end. avail mem={avail:.2f} GB", rank)
    clock.after(0.25)


def _capture(plan: Plan, faults: dict[str, Fault], clock: _Clock, spread: random.Random, group: list[Rank]) -> Phase:
    sizes = sorted(plan.graph_sizes, reverse=True)
    if not sizes:
        return
    avail = plan.memory_start - plan.weight_gib - plan.kv_gib - 0.1
    begin = clock.now
    scale = plan.settings.scale
    for rank in group:
        at = begin + spread.uniform(0.0, 0.02)
        if plan.modern:
            yield Step(
                at,
                f"Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, avail mem={avail:.2f} GB",
                rank,
            )
            continue
        yield Step(
            at,
            f"Capture cuda graph begin. This can take up to several minutes. avail mem={avail:.2f} GB",
            rank,
        )
        if rank.leads_stage:
            yield Step(at, f"Capture cuda graph bs {sorted(sizes)}", rank)
    first = clock.after(CAPTURE_SECONDS * 0.6)
    per_size = GRAPH_SECONDS
    fault = faults.get("oom-in-capture")
    stop = len(sizes) // 2 if fault else len(sizes)
    held = CONTEXT_GIB + plan.weight_gib + plan.kv_gib
    for rank in group:
        if not rank.leads_stage:
            continue
        offset = spread.uniform(0.0, per_size / 2)
        yield Step(first + offset, capture_bar(None, avail, 0, len(sizes), 0.0), raw=True)
        for done, size in enumerate(sizes[: stop + 1] if fault else sizes):
            at = first + offset + per_size * done
            left = avail - plan.graph_gib * done / len(sizes)
            yield Step(
                at + 0.01,
                capture_bar(size, left, done, len(sizes), (at - first) * scale),
                raw=True,
                memory=held + 0.1,
            )
            if fault and done >= stop:
                break
            yield Step(
                at + per_size,
                capture_bar(size, left, done + 1, len(sizes), (at + per_size - first) * scale),
                raw=True,
            )
    clock.now = first + per_size * stop + per_size
    if fault:
        rank = _rank_of(fault, group)
        limit = "--cuda-graph-max-bs-decode" if plan.modern else "--cuda-graph-max-bs"
        text = (
            f"Capture cuda graph failed: {_out_of_memory(plan, rank, 0.2)}\nPossible solutions:\n"
            "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)\n"
            f"2. set {limit} to a smaller value (e.g., 16)\n"
            "3. disable torch compile by not using --enable-torch-compile\n"
            "4. disable CUDA graph by --disable-cuda-graph. (Not recommended. Huge performance loss)\n"
            "Open an issue on GitHub https://github.com/sgl-project/sglang/issues/new/choose "
        )
        yield _crash(clock.after(0.1), rank, "Exception", text, "capture")
        return
    for rank in group:
        at = clock.now + spread.uniform(0.0, 0.15)
        rest = avail - plan.graph_gib
        if plan.modern:
            text = (
                f"Capture target decode CUDA graph end. bs={sorted(sizes)}, elapsed={(at - begin) * scale:.2f} s, "
                f"mem usage={plan.graph_gib:.2f} GB, avail mem={rest:.2f} GB"
            )
        else:
            text = (
                f"Capture cuda graph end. Time elapsed: {(at - begin) * scale:.2f} s. "
                f"mem usage={plan.graph_gib:.2f} GB. avail mem={rest:.2f} GB."
            )
        yield Step(at, text, rank, memory=held + plan.graph_gib)
    clock.after(CAPTURE_SECONDS * 0.4)


def _limits(plan: Plan, faults: dict[str, Fault], clock: _Clock, spread: random.Random, group: list[Rank]) -> Phase:
    fault = faults.get("crash-after-capture")
    if fault:
        kind, message = _exception(fault, "RuntimeError: CUDA error: an illegal memory access was encountered")
        yield _crash(clock.after(0.05), _rank_of(fault, group), kind, message, "start")
        return
    avail = plan.memory_start - plan.weight_gib - plan.kv_gib - plan.graph_gib - (0.1 if plan.graph_sizes else 0.0)
    for rank in group:
        if rank.leads_stage:
            yield Step(
                clock.now + spread.uniform(0.0, 0.03),
                f"max_total_num_tokens={plan.max_total_tokens}, "
                f"chunked_prefill_size={plan.fields['chunked_prefill_size']}, "
                f"max_prefill_tokens={plan.fields['max_prefill_tokens']}, max_running_requests={plan.max_running}, "
                f"context_len={plan.context}, available_gpu_mem={avail:.2f} GB",
                rank,
            )
    clock.after(0.05)
    if plan.modern:
        for rank in group:
            yield Step(
                clock.now,
                "Tree cache initialized: source=default impl=UnifiedRadixCache hybrid_swa=False hybrid_ssm=False "
                "hicache_attached=False",
                rank,
            )
        yield Step(clock.after(0.02), _timings(plan, clock.now * plan.settings.scale))


def _timings(plan: Plan, now: float) -> str:
    times = startup_seconds(plan)
    graphs = ", ".join(f"{name}={value:.2f}" for name, value in times["cuda_graph"].items())
    return (
        f"Engine startup timings (s): load_weight={times['load_weight']:.2f}, "
        f"kv_cache_allocation={times['kv_cache_allocation']:.2f}, scheduler_e2e={now:.2f}, cuda_graph={{{graphs}}}, "
        f"tokenizer_e2e={now + 0.3:.2f}"
    )


def startup_seconds(plan: Plan) -> dict[str, Any]:
    """Return the durations that 0.5.23 reports of a start, in seconds."""
    scale = plan.settings.scale
    names = ("prefill", "decode", "target_verify", "draft_prefill", "draft_decode", "draft_extend")
    graphs = dict.fromkeys(names, 0.0)
    if plan.graph_sizes:
        graphs["decode"] = (CAPTURE_SECONDS + GRAPH_SECONDS * len(plan.graph_sizes)) * scale
    return {
        "load_weight": SHARD_SECONDS * plan.shards * scale,
        "kv_cache_allocation": 0.25 * scale,
        "cuda_graph": graphs,
    }
