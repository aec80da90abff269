"""The server's answers about itself: /server_info, /model_info, /v1/models, /v1/loads and /metrics. Pure data."""

from __future__ import annotations

import datetime
import json
import time
from typing import Any

from .engine import Engine
from .launch import startup_seconds
from .resolve import Plan


def server_info(engine: Engine) -> dict[str, Any]:
    """GET /server_info: arguments in effect, the limits, and the schedulers' own view."""
    plan = engine.plan
    common = {
        "status": "ready",
        "max_total_num_tokens": plan.max_total_tokens,
        "max_req_input_len": min(plan.context, plan.max_total_tokens) - 6,
    }
    info = dict(plan.fields)
    if not plan.modern:
        return {
            **info,
            **common,
            "internal_states": [_internal_old(engine)],
            "version": plan.settings.version,
        }
    times = startup_seconds(plan)
    scheduler = sum((times["load_weight"], times["kv_cache_allocation"], times["cuda_graph"]["decode"]))
    return {
        **info,
        "launch_command": plan.launch_command,
        **common,
        "startup_time": {**times, "scheduler_e2e": scheduler + 0.7, "tokenizer_e2e": scheduler + 1.4},
        "hicache_object_layout": {
            "enabled": False,
            "backend": None,
            "page_size": plan.fields["page_size"],
            "hicache_object_layout": {"pools": []},
            "reason": "Hierarchical cache is disabled",
        },
        "kv_events": None,
        "internal_states": [_internal_modern(engine, {**times, "scheduler_e2e": scheduler})],
        "version": plan.settings.version,
        "frontend": "python",
    }


def _live_fields(engine: Engine) -> dict[str, Any]:
    return {
        **engine.plan.fields,
        "pp_max_micro_batch_size": engine.scheduler.cap,
        "disable_chunked_prefix_cache": True,
    }


def _internal_old(engine: Engine) -> dict[str, Any]:
    plan = engine.plan
    backend = plan.fields["attention_backend"]
    return {
        **_live_fields(engine),
        "decode_attention_backend": backend,
        "prefill_attention_backend": backend,
        "use_mla_backend": plan.model.mla,
        "last_gen_throughput": round(engine.last_throughput, 2),
        "memory_usage": {
            "weight": round(plan.weight_gib, 2),
            "kvcache": round(plan.kv_gib, 2),
            "token_capacity": plan.max_total_tokens,
            "graph": plan.graph_gib,
        },
        "effective_max_running_requests_per_dp": plan.max_running,
    }


def _internal_modern(engine: Engine, times: dict[str, Any]) -> dict[str, Any]:
    plan = engine.plan
    live = _live_fields(engine)
    live.pop("custom_sigquit_handler", None)
    graphs = dict.fromkeys(times["cuda_graph"], 0.0)
    return {
        **live,
        "world_size": plan.world,
        "startup_time": times,
        "effective_max_running_requests_per_dp": plan.max_running,
        "last_gen_throughput": round(engine.last_throughput, 2),
        "memory_usage": {
            "weight": round(plan.weight_gib, 3),
            "kvcache": round(plan.kv_gib, 3),
            "startup_available": round(plan.memory_start, 3),
            "token_capacity": plan.max_total_tokens,
            "token_capacity_swa": None,
            "graph": graphs | {"decode": plan.graph_gib},
        },
        "decode_cuda_graph_bs": list(plan.graph_sizes),
        "decode_cuda_graph_memory_gb": plan.graph_gib,
    }


def model_info(plan: Plan) -> dict[str, Any]:
    """GET /model_info."""
    info: dict[str, Any] = {
        "model_path": plan.model.path,
        "tokenizer_path": plan.fields["tokenizer_path"],
        "is_generation": True,
        "preferred_sampling_params": plan.fields["preferred_sampling_params"],
        "weight_version": plan.fields.get("weight_version", "default"),
        "has_image_understanding": plan.model.vision,
        "has_audio_understanding": False,
        "model_type": plan.model.model_type,
        "architectures": [plan.model.architecture],
    }
    if plan.modern:
        info |= {
            "served_model_name": plan.fields["served_model_name"],
            "load_format": plan.fields["load_format"],
            "reasoning_parser": plan.fields["reasoning_parser"],
            "tool_call_parser": plan.fields["tool_call_parser"],
            "disaggregation_mode": plan.fields["disaggregation_mode"],
            "embedding": _EMBEDDING,
        }
    return info


# What 0.5.23 says to a model that is not for embeddings.
_EMBEDDING: dict[str, Any] = {
    **dict.fromkeys(("family", "task", "execution", "attention", "postprocessor"), "none"),
    "pooling": "model_defined",
    "tokenizer_special_tokens": "model_default",
    "bcg_eligibility": "disabled",
    **dict.fromkeys(
        (
            "normalize",
            "supports_dimensions",
            "supports_token_embeddings",
            "supports_multimodal",
            "requires_embedding_flag",
            "auto_enable_embedding",
            "safe_disable_kv_cache",
            "safe_disable_radix_cache",
            "safe_disable_chunked_prefill",
            "enabled",
        ),
        False,
    ),
    "matryoshka_dimensions": [],
    "bcg": {
        "prefill_backend": "disabled",
        "enabled": False,
        "capture_token_budget": 4096,
        "capture_batch_sizes": [4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096],
    },
    "cache": dict.fromkeys(("kv_cache_disabled", "radix_cache_disabled", "chunked_prefill_disabled"), False),
}
# What 0.5.23 says of disaggregated serving where there is none.
_NOT_DISAGGREGATED: dict[str, Any] = {
    "mode": "null",
    "prefill_bootstrap_queue_reqs": 0,
    "prefill_inflight_queue_reqs": 0,
    "decode_prealloc_queue_reqs": 0,
    "decode_transfer_queue_reqs": 0,
    "decode_retracted_queue_reqs": 0,
    "kv_transfer_speed_gb_s": 0.0,
    "kv_transfer_latency_ms": 0.0,
}


def models(engine: Engine) -> dict[str, Any]:
    """GET /v1/models."""
    name = engine.plan.fields["served_model_name"]
    card = {
        "id": name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "sglang",
        "root": name,
        "parent": None,
        "max_model_len": engine.plan.context,
    }
    return {"object": "list", "data": [card]}


def loads(engine: Engine) -> dict[str, Any]:
    """GET /v1/loads."""
    plan, scheduler = engine.plan, engine.scheduler
    used = scheduler.used_tokens
    # As SGLang counts it: under a pipeline its running batch is the micro-batch whose turn it is.
    running, waiting = scheduler.in_turn, len(scheduler.queue)
    moment = datetime.datetime.now(datetime.UTC).isoformat()
    queues = {"waiting": waiting, "grammar": 0, "paused": 0, "retracted": 0}
    more: dict[str, Any] = {}
    if plan.modern:
        queues["prealloc_ready"] = 0
        more = {
            "num_active_tokens": used,
            "num_prealloc_ready_tokens": 0,
            "total_prefill_uncached_tokens": engine.prompt_tokens,
            "total_prefill_busy_us": 0,
            "decode_moments": [0.0] * 6,
            "disaggregation": dict(_NOT_DISAGGREGATED),
        }
    return {
        "timestamp": moment,
        "version": plan.settings.version,
        "accelerator": "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        "num_accelerators": plan.world,
        "loads": [
            {
                "timestamp": time.time(),
                "dp_rank": 0,
                "num_running_reqs": running,
                "num_waiting_reqs": waiting,
                "num_waiting_uncached_tokens": sum(request.prompt_tokens for request in scheduler.queue),
                "num_used_tokens": used,
                "num_total_tokens": used,
                "max_total_num_tokens": plan.max_total_tokens,
                "max_running_requests": plan.max_running,
                "token_usage": round(used / plan.max_total_tokens, 4),
                "gen_throughput": round(engine.last_throughput, 2),
                "cache_hit_rate": 0.0,
                "utilization": round(running / plan.max_running, 4),
                "memory": {
                    "weight_gb": round(plan.weight_gib, 3),
                    "kv_cache_gb": round(plan.kv_gib, 3),
                    "graph_gb": plan.graph_gib,
                    "token_capacity": plan.max_total_tokens,
                },
                "queues": queues,
                **more,
            }
        ],
    }


def metrics(engine: Engine) -> str:
    """GET /metrics, in Prometheus' text format."""
    plan, scheduler = engine.plan, engine.scheduler
    name = json.dumps(plan.fields["served_model_name"])
    rank = f'engine_type="unified",model_name={name},moe_ep_rank="0",pp_rank="0",tp_rank="0"'
    streams = f'engine_type="unified",is_streaming="true",model_name={name}'
    usage = scheduler.used_tokens / plan.max_total_tokens
    rows: list[tuple[str, str, str, float]] = [
        ("max_total_num_tokens", "gauge", rank, plan.max_total_tokens),
        ("weight_memory_usage_gb", "gauge", rank, round(plan.weight_gib, 3)),
        ("kv_cache_memory_usage_gb", "gauge", rank, round(plan.kv_gib, 3)),
        ("graph_memory_usage_gb", "gauge", rank, plan.graph_gib),
        ("num_running_reqs", "gauge", rank, scheduler.in_turn),
        ("num_queue_reqs", "gauge", rank, len(scheduler.queue)),
        ("gen_throughput", "gauge", rank, round(engine.last_throughput, 2)),
        ("token_usage", "gauge", rank, round(usage, 4)),
        ("num_used_tokens", "gauge", rank, scheduler.used_tokens),
        ("cache_hit_rate", "gauge", rank, 0.0),
        ("is_cuda_graph", "gauge", rank, float(engine.last_graph)),
        ("num_retracted_reqs", "gauge", rank, 0),
        ("prompt_tokens_total", "counter", streams, engine.prompt_tokens),
        ("generation_tokens_total", "counter", streams, scheduler.generated),
        ("num_requests_total", "counter", streams, engine.finished),
    ]
    lines = []
    for metric, kind, labels, value in rows:
        lines.append(f"# TYPE sglang:{metric} {kind}")
        lines.append(f"sglang:{metric}{{{labels}}} {float(value)}")
    return "\n".join(lines) + "\n"
