from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.deploy.verify import in_effect
from deployer.records.effect import Computed
from deployer.records.release import Release, Requested
from deployer.sglang.flags.versions import defaults
from deployer.sglang.log.changed_values import reason
from deployer.sglang.server.effect import computed
from deployer.sglang.server.info import compare, defaulted
from tests.paths import DATA

SERVER_INFO = DATA / "server_info"
OLDER = json.loads((SERVER_INFO / "0.5.11-pp2-async2.json").read_text())
NEWER = json.loads((SERVER_INFO / "0.5.23-tp2.json").read_text())
LOG = [
    "[2026-11-29 17:45:53] Pipeline parallelism is incompatible with overlap schedule.",
    "[2026-11-29 17:45:53] Attention backend not specified. Use triton backend by default.",
    "[2026-11-29 17:45:55] server_args=ServerArgs(model_path='/srv/m', disable_overlap_schedule=True)",
    "[2026-11-29 17:46:20 PP0] Capture cuda graph bs [1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64]",
    "[2026-11-29 17:46:22 PP0] max_total_num_tokens=1018242, chunked_prefill_size=8192, max_prefill_tokens=16384, "
    "max_running_requests=64, context_len=4096, available_gpu_mem=68.93 GB",
    "[2026-11-29 17:46:22 PP1] max_total_num_tokens=1018242, chunked_prefill_size=8192, max_prefill_tokens=16384, "
    "max_running_requests=64, context_len=4096, available_gpu_mem=68.18 GB",
]


def test_what_an_older_server_computed() -> None:
    found = computed(OLDER, LOG)
    assert found == Computed(
        slots=4,
        micro_batch_cap=32,
        kv_tokens=1018242,
        max_running=64,
        graph_sizes=(1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64),
        context_length=4096,
        attention_backend="triton",
        weights_gib=7.01,
        kv_gib=62.15,
        graphs_gib=0.09,
        free_gib=68.18,
    )
    assert found.capacity == 64
    assert Computed.from_json(json.loads(json.dumps(found.as_json()))) == found
    words = "; ".join(found.sentences())
    assert "4 micro-batches in turn of at most 32 requests" in words
    assert "free 68.2" in words


def test_what_a_newer_server_computed() -> None:
    found = computed(NEWER)
    assert (found.slots, found.kv_tokens, found.max_running, found.graph_sizes) == (1, 8192, 2048, ())
    assert (found.weights_gib, found.kv_gib, found.graphs_gib, found.free_gib) == (0.0, 0.008, 0.0, None)
    assert found.context_length is None
    assert computed(NEWER, ["max_total_num_tokens=1, context_len=8192, available_cpu_mem=2.5 GB"]).free_gib == 2.5


@pytest.mark.parametrize(
    ("info", "sizes"),
    [
        ({"disable_cuda_graph": True, "cuda_graph_bs": [1, 2]}, ()),
        ({"cuda_graph_config": {"decode": {"backend": "disabled", "bs": [1]}}}, ()),
        ({"cuda_graph_config": {"decode": {"backend": "full", "bs": [1, 2]}}}, (1, 2)),
        ({"internal_states": [{"decode_cuda_graph_bs": [4, 1]}]}, (1, 4)),
        (
            {
                "cuda_graph_bs": [1, 8, 64, 80],
                "internal_states": [{"effective_max_running_requests_per_dp": 48}],
            },
            (1, 8, 48),
        ),
        ({}, None),
    ],
)
def test_graphs_in_every_shape(info: dict[str, Any], sizes: Any) -> None:
    assert computed(info).graph_sizes == sizes


def test_the_smaller_of_slots_and_requests_is_the_capacity() -> None:
    assert computed({"pp_size": 4, "internal_states": [{"pp_max_micro_batch_size": 2}]}).capacity == 8
    assert computed({}).capacity is None


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=9) | st.booleans(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "internal_states",
                        "server_args",
                        "memory_usage",
                        "graph",
                        "cuda_graph_config",
                        "decode",
                        "bs",
                        "pp_size",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
    ),
    st.lists(st.text(max_size=60) | st.sampled_from(LOG), max_size=4),
)
def test_any_shape_is_read(info: Any, lines: list[str]) -> None:
    shape = info if isinstance(info, dict) else {"internal_states": info}
    assert computed(shape, lines).slots >= 0
    requested = Requested({"pp_size": 2, "max_running_requests": 4})
    release = Release("kimi", "0001-tp8", requested=requested)
    json.dumps(in_effect(release, shape, lines=lines).in_effect.as_json())


@pytest.mark.parametrize(
    ("argument", "line"),
    [
        ("disable_overlap_schedule", "Pipeline parallelism is incompatible with overlap schedule."),
        ("attention_backend", "Attention backend not specified. Use triton backend by default."),
        ("attention_backend", "FlashAttention3 only supports fp8_e4m3; Setting attention backend to triton."),
        ("chunked_prefill_size", "DP attention is enabled. The chunked prefill size is adjusted to 4096."),
        ("ep_size", "deepep MoE is enabled. The expert parallel size is adjusted from 1 to 8."),
        ("max_running_requests", "max_running_requests is capped to 200 by the mamba state cache"),
        ("page_size", "FlashMLA only supports a page_size of 64, change page_size to 64."),
        ("disable_cuda_graph", "Cuda graph is disabled because of using torch native attention backend"),
        ("moe_runner_backend", "Use flashinfer_trtllm as MoE runner backend on Blackwell: overriding auto"),
        ("disable_shared_experts_fusion", "TRTLLM MoE: --disable-shared-experts-fusion is automatically set."),
        ("kv_cache_dtype", "Setting KV cache dtype to fp8_e4m3 for DeepseekV4ForCausalLM."),
    ],
)  # fmt: skip
def test_the_log_gives_reasons(argument: str, line: str) -> None:
    log = [*LOG[2:], f"[2026-11-29 17:45:53 TP0] {line}", "something else"]
    assert reason(argument, log) == line
    assert reason("tp_size", log) is None


@given(st.text(max_size=200), st.sampled_from(["tp_size", "attention_backend", "x"]))
def test_a_reason_is_a_line_or_nothing(line: str, argument: str) -> None:
    found = reason(argument, [line])
    assert found is None or found in line


def test_a_change_has_its_reason_and_no_secret() -> None:
    lines = ["[2026-11-29 17:45:53] page_size is set to 64 for sk-secret-9"]
    (check,) = compare({"page_size": 16}, {"page_size": 64}, ["sk-secret-9"], lines)
    assert (check.verdict, check.reason) == ("changed", "page_size is set to 64 for ***")


def test_one_rank_that_differs_is_a_change() -> None:
    info = {"internal_states": [{"page_size": 16}, {"page_size": 64}]}
    (check,) = compare({"page_size": 16}, info)
    assert (check.verdict, check.effective) == ("changed", 64)


def test_what_nobody_asked_for_is_defaulted() -> None:
    found = {check.argument: check for check in defaulted({"tp_size": 1}, OLDER, defaults("0.5.12.post1"), (), LOG)}
    assert "tp_size" not in found
    assert {check.verdict for check in found.values()} == {"defaulted"}
    overlap = found["disable_overlap_schedule"]
    assert (overlap.requested, overlap.effective) == (False, True)
    assert overlap.reason == "Pipeline parallelism is incompatible with overlap schedule."
    assert found["schedule_policy"].reason is None
    assert len(found) > 200


def test_secrets_that_nobody_asked_for_are_hidden_too() -> None:
    (check,) = defaulted({}, {"admin_api_key": "sk-1"}, {"admin_api_key": None})
    assert check.effective == "***"


def test_an_alias_that_was_asked_for_is_not_a_default() -> None:
    assert not defaulted({"ep_size": 2}, {"expert_parallel_size": 2}, {"expert_parallel_size": 1})
