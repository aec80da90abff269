"""From arguments to what is in effect: ServerArgs and its checks, the memory plan, the scheduler's limits. Pure."""

from __future__ import annotations

import copy
import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from .model import LaunchError, Model
from .settings import Settings
from .speeds import Speeds

GRAPH_SIZES = [
    1,
    2,
    4,
    8,
    12,
    *range(16, 257, 8),
    *range(272, 512, 16),
    *range(512, 1025, 32),
]  # without speculative decoding
GIB = 1024.0**3
_CONTEXT_GIB = 0.97  # CUDA context and communication buffers of one rank
_REDACTED = ("watermark_config", "watermark_key", "watermark_key_b")
# Fields that no flag value decides and that SGLang fills in by itself.
_FILLED: dict[str, Any] = {
    "tokenizer_path": None,
    "chunked_prefill_size": 8192,
    "page_size": 1,
    "device": "cuda",
    "load_balance_method": "round_robin",
    "sampling_backend": "flashinfer",
    "grammar_backend": "xgrammar",
    "speculative_moe_runner_backend": "auto",
    "expert_distribution_recorder_buffer_size": 1000,
    "mamba_scheduler_strategy": "no_buffer",
    "kt_method": "AMXINT4",
    "kt_threadpool_count": 2,
    "uvicorn_access_log_exclude_prefixes": [],
    "encoder_urls": [],
    "encoder_register_urls": [],
    "allowed_media_domains": [],
    "custom_weight_loader": [],
    "mm_process_config": {},
    "pre_warm_nccl": False,
    "enable_tf32_matmul": False,
    "enable_tp_lm_head_all_to_all": False,
    "prefill_decode_interval": 0,
    "swa_full_tokens_ratio": 0.8,
    "dcp_comm_backend": "ag_rs",
    "grpc_worker_threads": 4,
    "boundary_reduction": "ar",
    "speculative_boundary_reduction": "ar",
    "_speculative_draft_quantization_explicitly_set": False,
    "_swa_full_tokens_ratio_explicitly_set": False,
    "mamba_full_memory_ratio": 0.9,
    "hicache_ratio": 2.0,
    "mm_enable_dp_encoder": False,
    "mm_feature_transport": "cuda_ipc",
    "encoder_transfer_backend": "zmq_to_scheduler",
}


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of one start. Memory is in GiB per rank; ``gpus``: each rank's index among the GPUs that CUDA shows."""

    settings: Settings
    argv: tuple[str, ...]
    fields: dict[str, Any]
    model: Model
    tp: int
    pp: int
    ep: int
    depth: int
    gpus: tuple[int, ...]
    graph_sizes: tuple[int, ...]
    max_running: int
    cap: int
    max_total_tokens: int
    context: int
    shards: int
    memory_total: float
    memory_start: float
    weight_gib: float
    kv_gib: float
    graph_gib: float

    @property
    def world(self) -> int:
        return self.tp * self.pp

    @property
    def modern(self) -> bool:
        return self.settings.modern

    @property
    def api_key(self) -> str | None:
        value = self.fields.get("api_key")
        return None if value is None else str(value)

    @property
    def launch_command(self) -> str:
        return shlex.join(self.argv)

    def physical(self, rank: int) -> int | None:
        """Return the host's own index of a rank's GPU, as in ``nvidia-smi``; None if there is no such GPU."""
        index = self.gpus[rank]
        return self.settings.visible[index] if index < len(self.settings.visible) else None

    def layers_of(self, stage: int) -> int:
        """Return the layers of a pipeline stage; the later stages get the remainder."""
        share, rest = divmod(self.model.layers, self.pp)
        return share + (1 if stage >= self.pp - rest else 0)

    def speeds(self, slow_percent: float = 0.0, graphs_lost: bool = False) -> Speeds:
        """Return the step-time model of this configuration."""
        settings = self.settings
        size = self.model.layers / 61.0 if settings.size is None else settings.size
        return Speeds(
            tp=self.tp,
            pp=self.pp,
            ep=self.ep,
            depth=self.depth,
            cap=self.cap,
            graph_max=0 if graphs_lost else max(self.graph_sizes, default=0),
            size=size / settings.speed,
            slow_percent=slow_percent,
            noise=settings.noise,
            start_noise=settings.start_noise,
            seed=settings.seed,
        )


def check_arguments(fields: Mapping[str, Any]) -> None:
    """Check parsed arguments as SGLang does. Raise LaunchError like its AssertionError."""
    tp, pp, nodes = int(fields["tp_size"]), int(fields["pp_size"]), int(fields["nnodes"])
    if (tp * pp) % nodes:
        raise LaunchError("AssertionError", "tp_size must be divisible by number of nodes")
    cap = fields.get("pp_max_micro_batch_size")
    if cap is not None and cap < 1:
        raise LaunchError(
            "AssertionError",
            f"pp_max_micro_batch_size must be a positive integer or None (for auto-compute). Got: {cap}",
        )
    if ":" in str(fields.get("served_model_name") or ""):
        raise LaunchError("AssertionError", "served_model_name cannot contain a colon (':') character")
    if int(fields["base_gpu_id"]) < 0:
        raise LaunchError("AssertionError", "base_gpu_id must be non-negative")
    if int(fields["gpu_id_step"]) < 1:
        raise LaunchError("AssertionError", "gpu_id_step must be positive")
    size, page = int(fields.get("chunked_prefill_size") or 8192), int(fields.get("page_size") or 1)
    if size > 0 and size % page:
        raise LaunchError("AssertionError", "chunked_prefill_size must be divisible by page_size")


def graph_sizes(fields: Mapping[str, Any], modern: bool, max_running: int) -> list[int]:
    """Return the batch sizes whose decode graph is captured, ascending; none if graphs are off."""
    suffix = "_decode" if modern else ""
    if fields.get("disable_cuda_graph") or (modern and fields.get("disable_decode_cuda_graph")):
        return []
    if modern and fields.get("cuda_graph_backend_decode") == "disabled":
        return []
    given = fields.get(f"cuda_graph_bs{suffix}")
    limit = fields.get(f"cuda_graph_max_bs{suffix}")
    requested = fields.get("max_running_requests")
    if limit is None:
        limit = max(given) if given else (256 if int(fields["tp_size"]) < 4 else 512)
        limit = min(limit, requested) if requested else limit
    sizes = {size for size in (given or GRAPH_SIZES) if size <= limit} | (set() if given else {limit})
    return sorted({min(size, max_running) for size in sizes})


def resolve(
    asked: Mapping[str, Any],
    model: Model,
    settings: Settings,
    argv: Sequence[str],
    held_mib: Mapping[int, int] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Plan:
    """Return the plan of a start. ``held_mib`` is what others hold of each GPU; ``overrides`` replace arguments."""
    fields = copy.deepcopy(dict(asked)) | dict(overrides or {})
    modern = settings.modern
    tp, pp = int(fields["tp_size"]), int(fields["pp_size"])
    for name, value in _FILLED.items():
        if name in fields and (fields[name] is None or fields[name] == "auto"):
            fields[name] = copy.copy(value)
    fields["tokenizer_path"] = fields["tokenizer_path"] or model.path
    fields["served_model_name"] = fields["served_model_name"] or model.path
    fields["attention_backend"] = fields["attention_backend"] or ("triton" if model.mla else "flashinfer")
    if fields["mem_fraction_static"] is None:
        fields["mem_fraction_static"] = 0.88
    if fields["random_seed"] is None:
        fields["random_seed"] = settings.seed % 10**9
    if pp > 1:
        fields["disable_overlap_schedule"] = True
    if fields.get("moe_a2a_backend") == "deepep":
        fields["ep_size"] = tp
    for name in _REDACTED:
        if name in fields:
            fields[name] = "<redacted>"
    context = int(fields["context_length"] or model.context)

    total = settings.gpu_memory_mib / 1024.0
    first, stride = int(fields["base_gpu_id"]), int(fields["gpu_id_step"])
    gpus = tuple(first + stride * rank for rank in range(tp * pp))
    shown = settings.visible
    held = max((held_mib or {}).get(shown[gpu], 0) if gpu < len(shown) else 0 for gpu in gpus) / 1024.0
    weights = model.weight_bytes / GIB / (tp * pp) if model.weight_bytes else 0.72 * total
    if not settings.strict_memory:
        weights = min(weights, 0.8 * float(fields["mem_fraction_static"]) * total)
    start = total - _CONTEXT_GIB - held
    static = start * (1.0 - float(fields["mem_fraction_static"]))
    kv = start - weights - static
    stage_layers = -(-model.layers // pp)
    per_token = model.kv_bytes_per_layer * stage_layers / (1 if model.mla else tp)
    tokens = max(int(kv * GIB / per_token), -1)
    if fields["max_total_tokens"] is not None and tokens > 0:
        tokens = min(tokens, int(fields["max_total_tokens"]))
        kv = tokens * per_token / GIB
    running = fields["max_running_requests"]
    if running is None:
        running = min(max(int(tokens / context * 512), 2048), 4096)
    running = max(1, min(int(running), max(tokens // 2, 1)))
    cap = int(fields["pp_max_micro_batch_size"] or max(running // pp, 1))
    sizes = graph_sizes(fields, modern, running)
    _fill_graph_fields(fields, modern, sizes)
    return Plan(
        settings=settings,
        argv=tuple(argv),
        fields=fields,
        model=model,
        tp=tp,
        pp=pp,
        ep=int(fields["ep_size"]),
        depth=int(fields["pp_async_batch_depth"]) if pp > 1 else 0,
        gpus=gpus,
        graph_sizes=tuple(sizes),
        max_running=running,
        cap=cap,
        max_total_tokens=tokens,
        context=context,
        shards=model.shards or settings.shards,
        memory_total=total,
        memory_start=start,
        weight_gib=weights,
        kv_gib=max(kv, 0.0),
        graph_gib=round(0.04 + 0.012 * len(sizes), 2) if sizes else 0.0,
    )


def _fill_graph_fields(fields: dict[str, Any], modern: bool, sizes: list[int]) -> None:
    if not modern:
        fields["cuda_graph_bs"] = list(sizes) or None
        fields["cuda_graph_max_bs"] = max(sizes, default=fields["cuda_graph_max_bs"])
        return
    rest = {
        "tc_compiler": "eager",
        "max_context_size": None,
        "full_prefill_max_req": None,
        "full_prefill_prefix_chunk_tokens": None,
        "max_seq_len": None,
    }
    fields["cuda_graph_config"] = {
        "decode": {
            "backend": "full" if sizes else "disabled",
            "max_bs": max(sizes, default=0),
            "bs": list(sizes),
            **rest,
        },
        "prefill": {"backend": "disabled", "max_bs": int(fields["chunked_prefill_size"]), "bs": [], **rest},
    }
