"""For every rule one case that trips it and one that is as near as can be and does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.unit.sglang.rules.builders import DENSE, GIB, H200, KIMI, env, extra, gpus, pp, tp

Case = dict[str, Any]

BLOCKS = replace(KIMI, block_n=128)
MOE_96 = replace(KIMI, moe_intermediate=1408, block_n=128)
DP_ATTENTION = {"parallelism": {"tp": 8, "dp": 8, "dp_attention": True}}
SMALL = {"model": DENSE, "weight_bytes": 60 * GIB}
GRAPHS = {"limits": {"max_running_requests": 64}}
SPECULATIVE = extra(speculative_algorithm="EAGLE", speculative_num_steps=3, speculative_eagle_topk=4)

#: rule -> what trips it, what does not.
CASES: Mapping[str, tuple[Case, Case]] = {
    # sizes
    "one-host-only": ({"profile": {"parallelism": {"nnodes": 2}}}, {}),
    "ep-divides-tp": (
        {"profile": {"parallelism": {"tp": 8, "ep": 3}}},
        {"profile": {"parallelism": {"tp": 8, "ep": 4}}},
    ),
    "dp-attention-groups": (
        {"profile": {"parallelism": {"tp": 8, "dp": 3, "dp_attention": True}}},
        {"profile": DP_ATTENTION},
    ),
    "dp-meaning": ({"profile": {"parallelism": {"tp": 2, "dp": 4}}}, {"profile": DP_ATTENTION}),
    "too-few-gpus": ({"profile": tp(), "service": {"gpus": [0, 1]}}, {"profile": tp()}),
    "gpus-unused": ({"profile": tp(4)}, {"profile": tp(8)}),
    "below-the-least": (
        {"profile": {"extra_args": {"page-size": 0}}},
        {"profile": {"extra_args": {"page-size": 1, "schedule-conservativeness": 0.0}}},
    ),
    "base-gpu-id": (
        {"profile": tp(4), "service": extra(base_gpu_id=5)},
        {"profile": tp(4), "service": extra(base_gpu_id=4)},
    ),
    # the model
    "heads-divide-tp": ({"profile": tp(6), "model": KIMI}, {"profile": tp(8), "model": KIMI}),
    "kv-heads-divide-tp": (
        {"profile": tp(6), "model": replace(DENSE, heads=48)},
        {"profile": tp(4), "model": DENSE},
    ),
    "kv-heads-replicated": ({"profile": tp(16), "model": DENSE}, {"profile": tp(8), "model": DENSE}),
    "mla-kv-on-every-rank": ({"profile": tp(8), "model": KIMI}, {"profile": pp(8), "model": KIMI}),
    "layers-at-least-pp": ({"profile": pp(33), "model": DENSE}, {"profile": pp(32), "model": DENSE}),
    "uneven-layers": ({"profile": pp(8), "model": KIMI}, {"profile": pp(8), "model": DENSE}),
    "layer-partition": (
        {"profile": pp(2), "service": env(SGLANG_PP_LAYER_PARTITION="15,16"), "model": DENSE},
        {"profile": pp(2), "service": env(SGLANG_PP_LAYER_PARTITION="15,17"), "model": DENSE},
    ),
    "context-above-model": (
        {"profile": {"limits": {"context_length": 40_000}}, "model": DENSE},
        {"profile": {"limits": {"context_length": 32_768}}, "model": DENSE},
    ),
    "pp-unsupported-model": (
        {"profile": pp(8), "model": KIMI, "version": "0.5.9"},
        {"profile": pp(8), "model": KIMI, "version": "0.5.10.post1"},
    ),
    "trust-remote-code": (
        {"model": replace(KIMI, own_code=True)},
        {"model": replace(KIMI, own_code=True), "service": extra(trust_remote_code=True)},
    ),
    # memory
    "weights-fit": (
        {"profile": tp(2), "gpus": gpus(), "weight_bytes": 550 * GIB},
        {"profile": tp(8), "gpus": gpus(), "weight_bytes": 550 * GIB},
    ),
    "kv-room": (
        {"profile": tp(8), "gpus": gpus(), "model": KIMI, "weight_bytes": 550 * GIB},
        {"profile": tp(8), "gpus": gpus(), "model": KIMI, "weight_bytes": 800 * GIB},
    ),
    "mem-fraction-high": (
        {"profile": {"memory": {"mem_fraction_static": 0.97}}},
        {"profile": {"memory": {"mem_fraction_static": 0.94}}},
    ),
    "mem-fraction-low": (
        {"profile": {"memory": {"mem_fraction_static": 0.3}}},
        {"profile": {"memory": {"mem_fraction_static": 0.8}}},
    ),
    "tokens-below-context": (
        {"profile": {"limits": {"max_total_tokens": 8192, "context_length": 16_384}}},
        {"profile": {"limits": {"max_total_tokens": 16_384, "context_length": 16_384}}},
    ),
    "running-capped-by-tokens": (
        {"profile": {"limits": {"max_total_tokens": 100, "max_running_requests": 51}}},
        {"profile": {"limits": {"max_total_tokens": 100, "max_running_requests": 50}}},
    ),
    "chunk-page-size": (
        {"profile": {"memory": {"chunked_prefill_size": 4100}}, "service": extra(page_size=64)},
        {"profile": {"memory": {"chunked_prefill_size": 4096}}, "service": extra(page_size=64)},
    ),
    "dp-attention-chunk": (
        {"profile": {**DP_ATTENTION, "memory": {"chunked_prefill_size": 8192}}},
        {"profile": {**tp(8), "memory": {"chunked_prefill_size": 8192}}},
    ),
    "host-memory": (
        {"memory": 500 * GIB, "weight_bytes": 550 * GIB},
        {"memory": 600 * GIB, "weight_bytes": 550 * GIB},
    ),
    # pipeline
    "depth-without-pipeline": (
        {"profile": {"pipeline": {"async_batch_depth": 2}}},
        {"profile": pp(2, pipeline={"async_batch_depth": 2})},
    ),
    "micro-batch-above-limit": (
        {"profile": pp(2, pipeline={"max_micro_batch_size": 65}, **GRAPHS)},
        {"profile": pp(2, pipeline={"max_micro_batch_size": 64}, **GRAPHS)},
    ),
    "depth-zero": ({"profile": pp(8)}, {"profile": pp(8, pipeline={"async_batch_depth": 8})}),
    "async-depth": ({"profile": pp(8, pipeline={"async_batch_depth": 8})}, {"profile": pp(8)}),
    "async-depth-output": (
        {"profile": pp(8, pipeline={"async_batch_depth": 2})},
        {"profile": pp(8, pipeline={"async_batch_depth": 1})},
    ),
    "micro-batch-cap": ({"profile": pp(8, **GRAPHS)}, {"profile": tp(8, **GRAPHS)}),
    "micro-batch-cap-large": (
        {"profile": pp(8, pipeline={"max_micro_batch_size": 64}, **GRAPHS)},
        {"profile": pp(8, pipeline={"max_micro_batch_size": 8}, **GRAPHS)},
    ),
    "pp-overlap-schedule": (
        {"profile": pp(8)},
        {"profile": pp(8), "service": extra(disable_overlap_schedule=True)},
    ),
    "pp-speculative": (
        {"profile": pp(8), "service": extra(speculative_algorithm="EAGLE")},
        {"profile": tp(8), "service": extra(speculative_algorithm="EAGLE")},
    ),
    "pp-mixed-chunk": (
        {"profile": pp(8), "service": extra(enable_mixed_chunk=True)},
        {"profile": tp(8), "service": extra(enable_mixed_chunk=True)},
    ),
    "decode-log-interval": (
        {"profile": pp(8), "service": extra(decode_log_interval=40)},
        {"profile": pp(8), "service": extra(decode_log_interval=41)},
    ),
    "pp-unsupported-flag": (
        {"profile": pp(8), "service": extra(moe_dp_size=2)},
        {"profile": pp(8), "service": extra(moe_dp_size=1)},
    ),
    # graphs
    "graphs-off": (
        {"profile": {"cuda_graph": {"enabled": False}}},
        {"profile": {"cuda_graph": {"enabled": True}}},
    ),
    "graphs-above-cap": (
        {"profile": pp(8, cuda_graph={"max_batch_size": 64}, **GRAPHS)},
        {"profile": pp(8, cuda_graph={"max_batch_size": 8}, **GRAPHS)},
    ),
    "graphs-below-cap": (
        {"profile": tp(8, cuda_graph={"max_batch_size": 32}, **GRAPHS)},
        {"profile": tp(8, cuda_graph={"max_batch_size": 64}, **GRAPHS)},
    ),
    "graph-padding-off": (
        {"profile": tp(8, **GRAPHS), "service": extra(disable_cuda_graph_padding=True)},
        {
            "profile": tp(8, limits={"max_running_requests": 2}),
            "service": extra(disable_cuda_graph_padding=True),
        },
    ),
    # attention
    "triton-pp": (
        {"profile": pp(8, attention={"backend": "triton"}), "version": "0.5.16"},
        {"profile": pp(8, attention={"backend": "triton"}), "version": "0.5.23"},
    ),
    "mla-default-pp": (
        {"profile": pp(8), "model": KIMI, "gpus": gpus()},
        {"profile": pp(8), "model": KIMI, "gpus": gpus(name=H200)},
    ),
    "trtllm-mla-sm120": (
        {"profile": tp(8, attention={"backend": "trtllm_mla"}), "gpus": gpus()},
        {"profile": tp(8, attention={"backend": "trtllm_mla"}), "gpus": gpus(name="NVIDIA B200")},
    ),
    "fa3-hardware": (
        {"profile": tp(8, attention={"backend": "fa3"}), "gpus": gpus()},
        {"profile": tp(8, attention={"backend": "fa3"}), "gpus": gpus(name=H200)},
    ),
    "kv-cache-fp8": (
        {"profile": {"memory": {"kv_cache_dtype": "fp8_e4m3"}}},
        {"profile": {"memory": {"kv_cache_dtype": "bf16"}}},
    ),
    # experts
    "a2a-sets-ep": (
        {"profile": {"parallelism": {"tp": 8, "ep": 4}, "moe": {"a2a_backend": "mooncake"}}},
        {"profile": {"parallelism": {"tp": 8, "ep": 8}, "moe": {"a2a_backend": "mooncake"}}},
    ),
    "experts-divide-ep": (
        {"profile": {"parallelism": {"tp": 10, "ep": 5}}, "model": KIMI},
        {"profile": {"parallelism": {"tp": 8, "ep": 8}}, "model": KIMI},
    ),
    "ep-without-experts": (
        {"profile": {"parallelism": {"tp": 8, "ep": 8}}, "model": DENSE},
        {"profile": {"parallelism": {"tp": 8, "ep": 8}}, "model": KIMI},
    ),
    "moe-block": (
        {"profile": {"parallelism": {"tp": 8, "ep": 1}}, "model": MOE_96},
        {"profile": {"parallelism": {"tp": 8, "ep": 1}}, "model": BLOCKS},
    ),
    "deepep-pcie": (
        {"profile": {"parallelism": {"tp": 8, "ep": 8}, "moe": {"a2a_backend": "deepep"}}, "gpus": gpus()},
        {
            "profile": {"parallelism": {"tp": 8, "ep": 8}, "moe": {"a2a_backend": "deepep"}},
            "gpus": gpus(name=H200),
        },
    ),
    "moe-runner-ep": (
        {"profile": {"parallelism": {"tp": 8, "ep": 8}, "moe": {"runner_backend": "triton_kernel"}}},
        {"profile": {"parallelism": {"tp": 8, "ep": 8}, "moe": {"runner_backend": "triton"}}},
    ),
    # speculative
    "speculative-parameters": (
        {"service": extra(speculative_algorithm="EAGLE", speculative_num_steps=3)},
        {"service": extra(speculative_algorithm="NGRAM", speculative_num_draft_tokens=3)},
    ),
    "spec-v2-topk": (
        {"service": SPECULATIVE | env(SGLANG_ENABLE_SPEC_V2="1"), "version": "0.5.9"},
        {"service": SPECULATIVE, "version": "0.5.9"},
    ),
    # hardware
    "nccl-p2p": (
        {"profile": tp(8), "gpus": gpus()},
        {"profile": tp(8), "gpus": gpus(), "service": env(NCCL_P2P_DISABLE="1")},
    ),
    "nccl-p2p-disabled": (
        {"gpus": gpus(name=H200), "service": env(NCCL_P2P_DISABLE="1")},
        {"gpus": gpus(), "service": env(NCCL_P2P_DISABLE="1")},
    ),
    "custom-all-reduce-pcie": (
        {"profile": tp(8), "gpus": gpus()},
        {"profile": tp(8), "gpus": gpus(), "service": extra(disable_custom_all_reduce=True)},
    ),
    "mixed-gpus": (
        {"profile": tp(8), "gpus": gpus(4) + gpus(4, name=H200)},
        {"profile": tp(8), "gpus": gpus(8)},
    ),
    "cuda-device-order": (
        {"gpus": gpus(4) + gpus(4, name=H200)},
        {"gpus": gpus(4) + gpus(4, name=H200), "service": env(CUDA_DEVICE_ORDER="PCI_BUS_ID")},
    ),
    "sm120-old-build": (
        {"gpus": gpus(), "version": "0.4.6.post5"},
        {"gpus": gpus(), "version": "0.5.2"},
    ),
    # environment
    "cpu-engine": (
        {"service": env(SGLANG_USE_CPU_ENGINE="1")},
        {"service": env(SGLANG_USE_CPU_ENGINE="1"), "host": {"gpus": 0}},
    ),
    "health-timeout": (
        {"service": env(SGLANG_HEALTH_CHECK_TIMEOUT="60")},
        {"service": env(SGLANG_HEALTH_CHECK_TIMEOUT="15")},
    ),
    "health-without-generation": (
        {"service": env(SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION="false")},
        {"service": env(SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION="true")},
    ),
    "sglang-variable": (
        {"service": env(SGLANG_PP_LAYER_PARTITON="1")},
        {"service": env(SGLANG_SOMETHING_OF_ITS_OWN="1", NCCL_DEBUG="INFO")},
    ),
    "warmup-timeout": (
        {"service": env(SGLANG_WARMUP_TIMEOUT="60")},
        {"service": env(SGLANG_WARMUP_TIMEOUT="-1")},
    ),
    "version-check-skipped": (
        {"service": env(SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK="1")},
        {"service": env(SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK="0")},
    ),
    # kind
    "no-generation": (
        {"service": extra(is_embedding=True)},
        {"model": KIMI},
    ),
    "half-a-server": (
        {"service": extra(disaggregation_mode="prefill")},
        {"service": extra(disaggregation_mode="null")},
    ),
    "cannot-be-asked": (
        {"service": extra(skip_tokenizer_init=True)},
        {"service": extra(skip_tokenizer_init=False)},
    ),
    # serving
    "running-below-levels": (
        {"profile": {"limits": {"max_running_requests": 7}}},
        {"profile": {"limits": {"max_running_requests": 8}}},
    ),
    "served-name-colon": (
        {"service": {"served_model_name": "kimi:k2"}},
        {"service": {"served_model_name": "kimi-k2"}},
    ),
    "open-without-key": (
        {"service": {"bind": "0.0.0.0"}},
        {"service": {"bind": "0.0.0.0", "api_key": {"env": "KEY"}}},
    ),
    "api-key-shown": ({"service": {"api_key": {"env": "KEY"}}}, {}),
    "secret-argument": (
        {"service": extra(admin_api_key="x")},
        {"service": extra(tool_call_parser="kimi_k2")},
    ),
    "metrics-off": ({"service": extra(enable_metrics=False)}, {"service": extra(enable_metrics=True)}),
    "skip-server-warmup": (
        {"service": extra(skip_server_warmup=True)},
        {"service": extra(skip_server_warmup=False)},
    ),
    "watchdog-short": ({"service": extra(watchdog_timeout=60.0)}, {"service": extra(watchdog_timeout=600)}),
    "start-deadline": (
        {"service": {"deadlines": {"start": 300.0}}, "weight_bytes": 550 * GIB},
        {"service": {"deadlines": {"start": 900.0}}, "weight_bytes": 550 * GIB},
    ),
    "hub-download": ({"service": {"model": "moonshotai/Kimi-K2.6"}}, {}),
    "hub-offline": (
        {"service": {"model": "moonshotai/Kimi-K2.6", **env(HF_HUB_OFFLINE="1")}},
        {"service": env(HF_HUB_OFFLINE="1")},
    ),
    # benchmark and gate; the service's only level is 8, with two passes
    "gate-not-measured": (
        {"profile": {"gate": {"aggregate_tok_s@16": 1.0}}},
        {"profile": {"gate": {"aggregate_tok_s@8": 1.0, "single_stream_tok_s": 1.0, "itl_p95_s@8": 1.0}}},
    ),
    "threshold-idle": (
        {"profile": {"gate": {"tpot_p50_s@8": 0.1}}, "service": {"gate": {"tpot_p95_s@8": 0.1}}},
        {"profile": {"gate": {"tpot_p50_s@8": 0.1}}, "service": {"gate": {"tpot_p95_s@8": 0.11}}},
    ),
    "level-loss-below-loss": (
        {"profile": {"relative_gate": {"max_loss": 0.15}}},
        {"profile": {"relative_gate": {"max_loss": 0.12}}},
    ),
    "budget-short": (
        {"profile": {"gate": {"aggregate_tok_s@8": 3.0}}},
        {"profile": {"gate": {"aggregate_tok_s@8": 3.2}}},
    ),
    "timeout-below-threshold": (
        {"profile": {"gate": {"single_stream_tok_s": 1.0}, "bench": {"request_timeout": 127.0}}},
        {"profile": {"gate": {"single_stream_tok_s": 1.0}, "bench": {"request_timeout": 128.0}}},
    ),
    # versions
    "rendering": ({"profile": {"attention": {"backend": "x"}}}, {}),
    "abbreviated-flag": ({"service": extra(mem_frac=0.9)}, {"service": extra(page_size=64)}),
    "deprecated-flag": (
        {"service": extra(enable_piecewise_cuda_graph=True)},
        {"service": extra(enable_piecewise_cuda_graph=False)},
    ),
    "flag-gone-later": ({"service": extra(stream_output=True)}, {"service": extra(page_size=64)}),
    "flags-inexact": ({"version": "0.5.14"}, {"version": "0.5.12.post1"}),
    "package-pins": (
        {"packages": {"torch": "2.8.0+cu128", "transformers": "5.6.0"}},
        {"packages": {"torch": "2.11.0+cu130", "transformers": "5.6.0"}},
    ),
    "python-version": (
        {"packages": {"torch": "2.14.1"}, "python": "3.10.12", "version": "0.5.23"},
        {"packages": {"torch": "2.14.1"}, "python": "3.11.2", "version": "0.5.23"},
    ),
}
