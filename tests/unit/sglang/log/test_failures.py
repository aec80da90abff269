from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.sglang.log.failures import UNKNOWN, classify, fatal_patterns
from deployer.sglang.log.launch import PHASES
from deployer.sglang.log.signatures import WHERE, signatures
from deployer.sglang.log.text import read_lines
from deployer.sglang.log.tracebacks import tracebacks
from tests.unit.sglang.log.logs import FAILED, HEALTHY, failure, launch

EXPECTED = {
    "bad_config": ("model_config_invalid", "launch"),
    "bad_tokenizer": ("tokenizer_invalid", "launch"),
    "bad_value": ("argparse", "launch"),
    "import_sgl_kernel": ("module_missing", "launch"),
    "max_total_tokens_1": ("no_room_for_requests", "kv-pool"),
    "mem_fraction_5": ("rank_killed", "kv-pool"),
    "missing_shard": ("weights_missing", "load"),
    "model_hubid": ("model_path", "launch"),
    "model_path": ("model_path", "launch"),
    "no_weights": ("weights_missing", "load"),
    "port_in_use": ("http_port_busy", "http-up"),
    "pp_mb0": ("args_rejected", "launch"),
    "rlimit_as": ("native_crash", "dist-init"),
    "tp2_numa": ("cpu_binding", "dist-init"),
    "tp3": ("shards_do_not_divide", "load"),
    "trunc_shard": ("weights_corrupt", "load"),
    "unk_modeltype": ("model_type_unknown", "launch"),
    "unknown_flag": ("argparse", "launch"),
}

TRACE = [
    "Traceback (most recent call last):",
    '  File "/srv/x/scheduler.py", line 1, in run_scheduler_process',
    "    scheduler = Scheduler()",
]


def trace(error: str, rank: str = "TP0") -> list[str]:
    head, *frames = TRACE
    return [f"[2026-01-01 00:00:00 {rank}] Scheduler hit an exception: {head}", *frames, error, ""]


def test_every_real_failure_has_an_expectation() -> None:
    assert set(EXPECTED) == set(FAILED)


@pytest.mark.parametrize("name", FAILED)
def test_real_failures(name: str) -> None:
    found = classify(failure(name))
    assert (found.signature, found.phase) == EXPECTED[name]
    assert found.evidence
    assert not any("sigquit" in line for line in found.evidence)


@pytest.mark.parametrize("name", HEALTHY)
def test_good_logs_have_no_fatal_line(name: str) -> None:
    patterns = [re.compile(pattern) for pattern in fatal_patterns()]
    for _, _, text in launch(name):
        assert not [pattern.pattern for pattern in patterns if pattern.search(text)], text


@pytest.mark.parametrize(
    "line",
    [
        "[2026-01-01 00:00:00 PP3 TP1] Scheduler hit an exception: Traceback (most recent call last):",
        "[2026-01-01 00:00:00] ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 1): "
        "address already in use",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate",
        "launch_server.py: error: unrecognized arguments: --x",
        "sglang serve: error: ambiguous option: --cuda-graph-max-bs could match --a, --b",
        "sglang serve: error: argument --tp-size/--tensor-parallel-size: invalid int value: 'two'",
        "[2026-01-01 00:00:00] Received sigquit from a child process. It usually means the child failed.",
        "[2026-01-01 00:00:00] Initialization failed. warmup error: Traceback (most recent call last):",
    ],
)
def test_fatal_lines_are_seen(line: str) -> None:
    assert [pattern for pattern in fatal_patterns() if re.search(pattern, line)]


@pytest.mark.parametrize("name", sorted(set(FAILED) - {"bad_config", "bad_tokenizer", "import_sgl_kernel"}))
def test_failures_inside_sglang_show_a_fatal_line(name: str) -> None:
    """Those left out end their process by themselves: the unit tells."""
    alone = {"model_path", "model_hubid", "pp_mb0", "unk_modeltype"}
    matched = [line for line in failure(name) for pattern in fatal_patterns() if re.search(pattern, line)]
    assert bool(matched) == (name not in alone)


def test_first_rank_is_the_cause_and_lost_peers_are_not() -> None:
    lines = [
        *trace("RuntimeError: NCCL error: remote process exited or there was a network error", "TP1"),
        *trace("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "TP0"),
        *trace("AssertionError: something of the sort", "TP2"),
        "[2026-01-01 00:00:01] Received sigquit from a child process. It usually means the child failed.",
    ]
    assert classify(lines).signature == "cuda_oom_load"


@pytest.mark.parametrize(
    ("error", "signature"),
    [
        (
            "ImportError: libnuma.so.1: cannot open shared object file: No such file or directory",
            "shared_library_missing",
        ),
        (
            "RuntimeError: The NVIDIA driver on your system is too old (found version 12040).",
            "driver_too_old",
        ),
        ("RuntimeError: No CUDA GPUs are available", "no_gpu"),
        ("torch.AcceleratorError: CUDA error: invalid device ordinal", "gpu_index"),
        (
            "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
            "illegal_memory_access",
        ),
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "not_enough_mem"),
        (
            "ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes.",
            "mem_unbalanced",
        ),
        (
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            "no_kernel_image",
        ),
        (
            "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 108544, "
            "Hardware limit: 101376",
            "triton_smem",
        ),
        (
            "RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist",
            "jit_no_nvcc",
        ),
        ("ValueError: Pipeline Parallel is not compatible with this model.", "pp_unsupported_model"),
        ("AssertionError: 64 is not divisible by 7", "shards_do_not_divide"),
        ("OSError: [Errno 28] No space left on device", "disk_full"),
        ("PermissionError: [Errno 13] Permission denied: '/models/x/config.json'", "permission"),
        ("RuntimeError: [Errno 24] Too many open files", "too_many_files"),
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
            "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
            "dist_port_busy",
        ),
        ("Exception: Capture cuda graph failed: CUDA error: unspecified", "capture_fail_generic"),
    ],
)
def test_known_messages(error: str, signature: str) -> None:
    assert classify(trace(error)).signature == signature


def test_native_code_that_gives_up_says_why() -> None:
    lines = [
        "terminate called after throwing an instance of 'std::runtime_error'",
        "  what():  CUDA error: invalid device ordinal",
        "Fatal Python error: Aborted",
    ]
    assert classify(lines).signature == "gpu_index"


def test_systemd_says_out_of_memory() -> None:
    lines = ["sglang-kimi.service: A process of this unit has been killed by the OOM killer."]
    assert classify(lines).signature == "host_oom"


def test_interleaved_tracebacks_of_two_ranks() -> None:
    first, second = (
        trace("torch.OutOfMemoryError: CUDA out of memory.", "TP0"),
        trace("torch.OutOfMemoryError: x", "TP1"),
    )
    mixed = [line for pair in zip(first, second, strict=True) for line in pair]
    assert classify(mixed).signature == "cuda_oom_load"


def test_chained_capture_failure_names_capture() -> None:
    lines = [
        "[2026-01-01 00:00:00 TP0] Capture cuda graph begin. avail mem=1.00 GB",
        f"[2026-01-01 00:00:00 TP0] Scheduler hit an exception: {TRACE[0]}",
        *TRACE[1:],
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        *TRACE,
        "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "Possible solutions:",
        "",
    ]
    found = classify(lines)
    assert (found.signature, found.phase) == ("capture_oom", "capture")
    assert len(tracebacks(list(read_lines(lines)))) == 1
    assert len(tracebacks(list(read_lines(lines)))[0].errors) == 2


def test_unknown_exception_stays_unknown_with_the_innermost_one() -> None:
    lines = [
        f"[2026-01-01 00:00:00 TP0] Scheduler hit an exception: {TRACE[0]}",
        *TRACE[1:],
        "ZeroDivisionError: division by zero",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        *TRACE,
        "RuntimeError: it did not work",
        "",
    ]
    found = classify(lines)
    assert found.signature == UNKNOWN
    assert found.cause == "ZeroDivisionError: division by zero"
    assert "RuntimeError: it did not work" in found.evidence
    assert any("scheduler.py" in line for line in found.evidence)


def test_traceback_cut_short_is_still_a_failure() -> None:
    found = classify([f"[2026-01-01 00:00:00 TP0] Scheduler hit an exception: {TRACE[0]}", TRACE[1]])
    assert found.signature == UNKNOWN


def test_systemd_words_where_the_log_is_silent() -> None:
    assert classify([], {"result": "exit-code", "exec_status": 203}).signature == "unit_exec"
    assert classify(["x"], {"result": "oom-kill"}).signature == "host_oom"
    assert classify([], {"result": "signal", "exec_status": 9}).signature == UNKNOWN
    stopped = ["[2026-01-01 00:00:00] SIGTERM received. signum=None frame=None. Draining requests"]
    assert classify(stopped).signature == "stopped"
    ended = ["[2026-01-01 00:00:01] INFO:     Shutting down", "Traceback (most recent call last):", "KeyboardInterrupt"]
    assert classify(stopped + ended).signature == "stopped", "SIGINT besides, at which it refuses new requests"


def test_stall_in_nccl() -> None:
    lines = [
        "[2026-01-01 00:00:00 TP0] Init torch distributed begin.",
        "[2026-01-01 00:00:00 TP0] sglang is using nccl==2.28.9",
    ]
    assert classify(lines, stalled="dist-init").signature == "nccl_p2p_hang"
    assert classify(lines, stalled="kv-pool").signature == "stalled"


def test_warnings_of_good_launches_are_no_cause() -> None:
    for name in HEALTHY:
        assert classify([text for _, _, text in launch(name)], {"result": "exit-code"}).signature == UNKNOWN


def test_data_is_well_formed() -> None:
    known = signatures()
    assert len({(one.id, one.where, one.regex.pattern) for one in known}) == len(known)
    for one in known:
        assert one.where in WHERE
        assert one.phase is None or one.phase in PHASES
        assert one.cause
        assert one.remedy
        assert not one.regex.search("")


@given(
    st.lists(
        st.one_of(
            st.sampled_from(
                [
                    *TRACE,
                    *trace("ValueError: x"),
                    "During handling of the above exception, another exception occurred:",
                ]
            ),
            st.text(max_size=20),
        ),
        max_size=20,
    )
)
def test_any_text_is_classified(lines: list[str]) -> None:
    found = classify(lines)
    assert found.signature
    assert found.cause
