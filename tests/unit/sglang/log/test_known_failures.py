# ruff: noqa: E501  lines of logs are as long as they are
"""Every known signature in a log as it would be, and in the forms in which logs reach us."""

from __future__ import annotations

import pytest

from deployer.sglang.log.diagnosis import NONE, diagnose
from deployer.sglang.log.failures import STOPPED, UNKNOWN, find
from deployer.sglang.log.launch_file import CONSEQUENCE
from deployer.sglang.log.signatures import any_of, found_in, signatures, telling
from deployer.sglang.log.text import read, read_lines
from tests.paths import DOCS
from tests.unit.sglang.log.builders import AT, QUIT, trace, until
from tests.unit.sglang.log.corpus import Case, cases
from tools.reference.failures import render

PAGE = DOCS / "failures.md"
LOAD = "model_executor/model_runner.py:load_model:self.model = get_model("
CAPTURE = "model_executor/model_runner.py:init_cuda_graphs:self.graph_runner = CudaGraphRunner(self)"
POOL = "model_executor/model_runner.py:init_memory_pool:raise RuntimeError("
LOOP = "managers/scheduler.py:run_scheduler_process:scheduler.event_loop_overlap()"
DIST = "model_executor/model_runner.py:init_torch_distributed:init_distributed_environment("


def at(phase: str, *more: str) -> list[str]:
    return [*until(phase, "TP0"), *more]


#: name of the known failure, the signature expected, its phase, the log.
KNOWN: list[tuple[str, str, str, list[str]]] = [
    (
        "cuda_oom_load",
        "cuda_oom_load",
        "load",
        at("load", *trace("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", LOAD), *QUIT),
    ),
    (
        "capture_oom",
        "capture_oom",
        "capture",
        at("capture", *trace("Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate", CAPTURE)),
    ),
    (
        "capture_fail_generic",
        "capture_fail_generic",
        "capture",
        at("capture", *trace("Exception: Capture cuda graph failed: the kernel says no\nPossible solutions:", CAPTURE)),
    ),
    (
        "not_enough_mem",
        "not_enough_mem",
        "kv-pool",
        at("kv-pool", *trace("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", POOL)),
    ),
    (
        "kv_negative",
        "kv_negative",
        "kv-pool",
        at(
            "kv-pool",
            f"[{AT}20 TP0] max_total_tokens=131072 is larger than the profiled value -561981. "
            "Use the profiled value instead.",
            *trace("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", POOL),
        ),
    ),
    (
        "mem_unbalanced",
        "mem_unbalanced",
        "dist-init",
        at(
            "dist-init",
            *trace("ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes.", DIST),
        ),
    ),
    (
        "nccl_shm",
        "nccl_shm",
        "dist-init",
        at(
            "dist-init",
            "h:1:2 [0] include/shm.h:42 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-abc (size 9637888)",
            *trace("RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)", DIST),
        ),
    ),
    (
        "nccl_timeout",
        "nccl_timeout",
        "load",
        at(
            "load",
            "[rank1]:[E101 10:10:30.1 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=1, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600003 milliseconds before timing out.",
            *QUIT,
        ),
    ),
    ("custom_ar_peer", NONE, "ready", [
        *until("dist-init", "TP0"),
        f"[{AT}03 TP0] Setup Custom allreduce failed with CUDART error: peer access is not supported between these two "
        "devices. To silence this warning, specify --disable-custom-all-reduce explicitly.",
        *until("ready", "TP0"),
    ]),
    (
        "custom_ar_capture",
        "custom_ar_capture",
        "capture",
        at(
            "capture",
            *trace(
                "RuntimeError: invalid argument",
                CAPTURE,
                "distributed/device_communicators/custom_all_reduce.py:register_graph_buffers:ops.register_graph_buffers(",
            ),
        ),
    ),
    (
        "http_port_busy",
        "http_port_busy",
        "http-up",
        at(
            "http-up",
            f"[{AT}20] ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 30000): "
            "address already in use",
        ),
    ),
    (
        "dist_port_busy",
        "dist_port_busy",
        "dist-init",
        at(
            "dist-init",
            *trace(
                "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
                "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
                DIST,
            ),
        ),
    ),
    (
        "no_kernel_image",
        "no_kernel_image",
        "capture",
        at(
            "capture",
            *trace("RuntimeError: CUDA error: no kernel image is available for execution on the device", CAPTURE),
        ),
    ),
    (
        "tllmgen_arch",
        "tllmgen_arch",
        "capture",
        at(
            "capture",
            *trace(
                "RuntimeError: Error in function 'TllmGenFmhaRunner' at include/fmhaRunner.cuh:30: Unsupported architecture",
                CAPTURE,
            ),
        ),
    ),
    (
        "triton_smem",
        "triton_smem",
        "capture",
        at(
            "capture",
            *trace(
                "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 108544, "
                "Hardware limit: 101376. Reducing block sizes or `num_stages` may help.",
                CAPTURE,
            ),
        ),
    ),
    (
        "jit_no_nvcc",
        "jit_no_nvcc",
        "capture",
        at(
            "capture",
            *trace("RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist", CAPTURE),
        ),
    ),
    (
        "jit_headers",
        "jit_headers",
        "capture",
        at(
            "capture",
            "/root/.cache/flashinfer/x.cu:3:10: fatal error: curand_kernel.h: No such file or directory",
            *trace(
                "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.", CAPTURE
            ),
        ),
    ),
    (
        "sgl_kernel_import",
        "sgl_kernel_import",
        "launch",
        [
            "Traceback (most recent call last):",
            '  File "/srv/venv/lib/python3.12/site-packages/sgl_kernel/load_utils.py", line 188, in _load',
            "    raise ImportError(error_msg)",
            "ImportError: ",
            "[sgl_kernel] CRITICAL: Could not load any common_ops library!",
            "Error details: libnuma.so.1: cannot open shared object file",
        ],
    ),
    (
        "sgl_kernel_abi",
        "sgl_kernel_abi",
        "launch",
        [
            "Traceback (most recent call last):",
            '  File "/srv/venv/lib/python3.12/site-packages/sgl_kernel/__init__.py", line 5, in <module>',
            "    from sgl_kernel import common_ops",
            "ImportError: /srv/venv/lib/python3.12/site-packages/sgl_kernel/common_ops.abi3.so: undefined symbol: _ZN3c1011",
        ],
    ),
    (
        "pkg_version",
        "pkg_version",
        "launch",
        [
            "Traceback (most recent call last):",
            '  File "/srv/venv/lib/python3.12/site-packages/sglang/srt/entrypoints/engine.py", line 1950, in _set_envs',
            "    assert_pkg_version(",
            "Exception: flashinfer_python is installed with version 0.2.5, which is less than the minimum required "
            "version 0.6.11. Please uninstall the old version and reinstall the latest version",
        ],
    ),
    (
        "model_path",
        "model_path",
        "launch",
        [
            "Traceback (most recent call last):",
            '  File "/srv/venv/lib/python3.12/site-packages/sglang/srt/server_args.py", line 5, in prepare_server_args',
            "    x()",
            "OSError: /m is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'",
        ],
    ),
    (
        "hf_gated",
        "hf_gated",
        "launch",
        [
            "Traceback (most recent call last):",
            '  File "/srv/venv/lib/python3.12/site-packages/transformers/utils/hub.py", line 5, in cached_files',
            "    x()",
            "OSError: You are trying to access a gated repo.",
            "Cannot access gated repo for url https://huggingface.co/x/resolve/main/config.json.",
        ],
    ),
    (
        "trust_remote",
        "trust_remote",
        "launch",
        [
            "Traceback (most recent call last):",
            '  File "/srv/venv/lib/python3.12/site-packages/transformers/dynamic_module_utils.py", line 5, in resolve',
            "    raise ValueError(",
            "ValueError: Loading /m requires you to execute the tokenizer file in that repo on your local machine.",
        ],
    ),
    (
        "pp_triton_index",
        "pp_triton_index",
        "kv-pool",
        [
            *until("kv-pool", "PP1"),
            *trace(
                "IndexError: list index out of range",
                "layers/attention/triton_backend.py:__init__:self.v_head_dim = pool.get_value_buffer(0).shape[-1]",
                rank="PP1",
            ),
        ],
    ),
    (
        "pp_unsupported_model",
        "pp_unsupported_model",
        "kv-pool",
        [
            *until("kv-pool", "PP1"),
            *trace("ValueError: Pipeline Parallel is not compatible with this model.", rank="PP1"),
        ],
    ),
    (
        "pp_index_glm",
        "pp_index_glm",
        "ready",
        [
            *until("ready", "PP0"),
            *trace(
                "AttributeError: 'NoneType' object has no attribute 'x'", LOOP, "layers/attention/dsa_backend.py:forward:x", rank="PP1"
            ),
        ],
    ),
    (
        "pp_warmup_hang",
        "pp_warmup_hang",
        "warm-up",
        [
            *until("warm-up", "PP1"),
            f"[{AT}40 PP1 TP0] Scheduler debug info:",
            "self.cur_batch.batch_size()=1",
            f"[{AT}41 PP1 TP0] Watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
            *QUIT,
        ],
    ),
    ("pp_async_wrong", NONE, "ready", until("ready")),
    (
        "watchdog",
        "watchdog",
        "ready",
        at("ready", f"[{AT}50 TP3] Watchdog timeout (self.watchdog_timeout=300)", *QUIT, "Killed"),
    ),
    ("sched_exception", UNKNOWN, "load", at("load", *trace("ZeroDivisionError: division by zero", LOAD), *QUIT)),
    ("sigquit_child", UNKNOWN, "load", at("load", *QUIT)),
    (
        "subproc_crash",
        "native_crash",
        "load",
        at(
            "load",
            f"[{AT}20] Subprocess scheduler_0 (pid=13864) crashed with exit code -11. Triggering SIGQUIT for cleanup...",
        ),
    ),
    (
        "rank_killed",
        "rank_killed",
        "load",
        at(
            "load",
            "Traceback (most recent call last):",
            '  File "/srv/venv/lib/python3.12/site-packages/sglang/srt/entrypoints/engine.py", line 9, in wait',
            "    raise _scheduler_died_error(i, scheduler_procs[i])",
            "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a "
            "common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.",
        ),
    ),
    (
        "load_straggler",
        "load_straggler",
        "load",
        at(
            "load",
            *trace(
                "ValueError: TP rank 0 could finish the model loading, but there are other ranks that didn't finish loading.",
                LOAD,
            ),
        ),
    ),
    ("orphans", NONE, "ready", at("ready", "|    0   N/A  N/A   12345      C   sglang::scheduler_TP0         84000MiB |")),
    ("kill9_restart_hang", NONE, "ready", until("ready")),
    (
        "deepep_p2p",
        "deepep_p2p",
        "load",
        at(
            "load",
            *trace("RuntimeError: Failed: CUDA error /DeepEP/csrc/deep_ep.cpp:206 'peer access is not supported'", LOAD),
        ),
    ),
    (
        "ep_shape",
        "ep_shape",
        "load",
        at(
            "load",
            *trace(
                "RuntimeError: The size of tensor a (384) must match the size of tensor b (48) at non-singleton dimension 0",
                LOAD,
                "layers/moe/fused_moe_triton/layer.py:_load_w13:expert_data.copy_(loaded_weight)",
            ),
        ),
    ),
    (
        "moe_block",
        "moe_block",
        "load",
        at("load", *trace("ValueError: For quantized MoE models, please make sure ($moe_intermediate_size=768", LOAD)),
    ),
    (
        "nvml_mismatch",
        "nvml_mismatch",
        "launch",
        at("launch", "Failed to initialize NVML: Driver/library version mismatch", "NVML library version: 580.95"),
    ),
    (
        "xid",
        "xid",
        "ready",
        at(
            "ready",
            "Jan  1 10:00:40 gpu1 kernel: NVRM: Xid (PCI:0000:01:00): 79, pid=1234, GPU has fallen off the bus.",
            *QUIT,
        ),
    ),
    (
        "memlock",
        "memlock",
        "dist-init",
        at("dist-init", *trace("RuntimeError: ibv_reg_mr failed: Cannot allocate memory", DIST)),
    ),
    ("nofile", NONE, "ready", [f"[{AT}00] Fail to set RLIMIT_NOFILE: current limit exceeds maximum limit", *until("ready")]),
    (
        "argparse",
        "argparse",
        "launch",
        [
            "usage: launch_server.py [-h] --model-path MODEL_PATH",
            "launch_server.py: error: ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode",
        ],
    ),
    (
        "health_fail",
        "health_fail",
        "ready",
        at(
            "ready",
            f"[{AT}50] Health check failed. Server couldn't get a response from detokenizer for last 20 seconds. "
            "tic start time: 10:00:30. last_heartbeat time: 10:00:20",
        ),
    ),
    (
        "warmup_fail",
        "warmup_fail",
        "warm-up",
        at(
            "warm-up",
            f"[{AT}50] Initialization failed. warmup error: Traceback (most recent call last):",
            '  File "/srv/venv/lib/python3.12/site-packages/sglang/srt/entrypoints/http_server.py", line 9, in _execute_server_warmup',
            "    assert res.status_code == 200, f'{res.text}'",
            "AssertionError: Internal Server Error",
            "",
        ),
    ),
    ("kimi_garbled", NONE, "ready", until("ready")),
    (
        "cpu_vllm",
        "cpu_vllm",
        "load",
        at(
            "load",
            *trace(
                "ModuleNotFoundError: No module named 'vllm'",
                LOAD,
                "layers/rotary_embedding/base.py:__init__:from vllm import x",
            ),
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "signature", "phase", "log"), KNOWN, ids=[case[0] for case in KNOWN])
def test_known_failures(name: str, signature: str, phase: str, log: list[str]) -> None:
    found = diagnose(list(read_lines(log)))
    assert (found.as_dict()["signature"], found.phase) == (signature, phase), name
    assert found.verdict
    if found.cause:
        assert found.cause.remedy
        assert found.cause.evidence
        assert signature == UNKNOWN or not any("sigquit" in line for line in found.cause.evidence)
        assert len(found.cause.evidence) == len(found.cause.numbers)


@pytest.mark.parametrize(
    "case", [*cases("threads"), *cases("held-out"), *cases("practice")], ids=lambda case: case.source
)
def test_posted_failures(case: Case) -> None:
    found = diagnose(read(case.text))
    assert (found.cause.signature if found.cause else NONE) == case.signature
    assert case.phase in ("any", found.phase)


@pytest.mark.parametrize("case", cases("batches"), ids=lambda case: case.source)
def test_published_logs(case: Case) -> None:
    found = find(read(case.text))
    assert (found.signature if found else "none") == case.signature
    assert case.phase == "any" or (found and found.phase == case.phase)


#: What may stand in front of every line.
FRONTS = [
    "Nov 29 17:44:43 gpu1 python3[123]: ",
    "Nov 29 17:44:43.123456 gpu1 python3[123]: ",
    "2026-11-29T17:44:43+0000 gpu1 sglang[12]: ",
    "Sun 2026-11-29 17:44:43 UTC gpu1 python[1]: ",
    "1764460580.123456 gpu1 python[1]: ",
    "[  123.456789] gpu1 python[1]: ",
    "2026-11-29T17:44:43.123456789Z ",
    "2026-11-29T17:44:43.123456789+02:00 stderr F ",
    "[pod/sglang-0/engine] 2026-11-29T17:44:43.123Z ",
    "sglang-1  | ",
    "[sglang]     | ",
    "   63.816 N ",
    "  27.119    ",
    "\x1b[36m(SGLangEngine pid=123, ip=10.0.0.1)\x1b[0m ",
    "2025-07-02 16:41:32 | ERROR | stderr | ",
    "2025-03-08 02:04:48,693 - __main__ - INFO - ",
    "[2025-11-06T02:08:27.278Z] ",
    "04-20 13:32:25.784 ",
    "\x1b[31m",
]


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize(
    "name", ["cuda_oom_load", "http_port_busy", "moe_block", "argparse", "rank_killed", "jit_headers"]
)
def test_what_stands_in_front_of_lines_changes_nothing(front: str, name: str) -> None:
    _, signature, phase, log = next(case for case in KNOWN if case[0] == name)
    for end in ("\n",) if name != "argparse" else ("\n", "\r\n"):
        found = diagnose(read(end.join(front + line for line in log)))
        assert (found.as_dict()["signature"], found.phase) == (signature, phase)


def test_the_first_cause_wins_by_its_time_not_by_its_place() -> None:
    late = trace("torch.OutOfMemoryError: CUDA out of memory.", LOAD, rank="TP1", second=40)
    early = trace("OSError: [Errno 28] No space left on device", LOAD, rank="TP0", second=35)
    found = find(list(read_lines([*until("load", "TP0"), *late, *early])))
    assert found is not None
    assert (found.signature, found.rank) == ("disk_full", "TP0")


def test_a_server_that_was_up_died_while_it_was_up() -> None:
    log = [*until("ready", "TP0"), *trace("RuntimeError: CUDA error: misaligned address", LOOP)]
    found = find(list(read_lines(log)))
    assert found is not None
    assert (found.signature, found.phase) == ("illegal_memory_access", "ready")


def test_a_stop_makes_what_follows_no_failure() -> None:
    log = [
        *until("ready"),
        f"[{AT}40] SIGTERM received. signum=None frame=None. Draining requests and shutting down...",
        *trace("RuntimeError: CUDA error: driver shutting down", LOOP, second=41),
        f"[{AT}42] kill_process_tree called: parent_pid=1, include_parent=True, pid=1",
    ]
    found = diagnose(list(read_lines(log)), {"result": "signal", "exec_code": 2, "exec_status": 9})
    assert (found.outcome, found.phase) == ("stopped", "ready")


def test_a_failure_before_the_stop_stays_one() -> None:
    log = [
        *until("load", "TP0"),
        *trace("torch.OutOfMemoryError: CUDA out of memory.", LOAD),
        f"[{AT}40] SIGTERM received. signum=None frame=None. Draining requests and shutting down...",
    ]
    assert diagnose(list(read_lines(log))).as_dict()["signature"] == "cuda_oom_load"


def test_the_kernel_names_whom_it_killed() -> None:
    kernel = list(
        read_lines(
            [
                "Jan  1 10:00:20 gpu1 kernel: Out of memory: Killed process 4711 (sglang::schedul) total-vm:1kB, anon-rss:2kB"
            ]
        )
    )
    found = find(list(read_lines([*until("load", "TP0"), *QUIT])), None, kernel=kernel)
    assert found is not None
    assert found.signature == "host_oom"
    assert "4711, sglang::schedul" in found.cause


def test_a_gpu_fault_explains_a_cuda_error() -> None:
    log = [*until("ready"), *trace("torch.AcceleratorError: CUDA error: unspecified launch failure", LOOP)]
    kernel = list(read_lines(["[ 99.123456] NVRM: Xid (PCI:0000:9a:00): 79, pid=1, GPU has fallen off the bus."]))
    alone, with_kernel = find(list(read_lines(log))), find(list(read_lines(log)), kernel=kernel)
    assert alone is not None
    assert alone.signature == "illegal_memory_access"
    assert with_kernel is not None
    assert with_kernel.signature == "xid"


def test_only_the_last_start_counts_and_the_others_are_named() -> None:
    failed = [*until("load", "TP0"), *trace("torch.OutOfMemoryError: CUDA out of memory.", LOAD), *QUIT]
    found = diagnose(list(read_lines([*failed, *failed, *until("ready")])))
    assert found.outcome == "no-failure"
    assert found.starts == 3
    assert found.earlier == ("cuda_oom_load", "cuda_oom_load")


def test_systemds_own_lines_part_starts_and_tell_how_they_ended() -> None:
    front = "Nov 29 17:44:43 gpu1 systemd[1]: "
    log = [
        f"{front}Started sglang-kimi.service.",
        "Nov 29 17:44:43 gpu1 python[1]: hello",
        f"{front}sglang-kimi.service: Main process exited, code=exited, status=1/FAILURE",
        f"{front}Started sglang-kimi.service.",
        f"{front}sglang-kimi.service: Main process exited, code=exited, status=203/EXEC",
        f"{front}sglang-kimi.service: Failed with result 'exit-code'.",
    ]
    found = diagnose(list(read_lines(log)))
    assert found.starts == 2
    assert found.as_dict()["signature"] == "unit_exec"


UNIT = "sglang-kimi.service - SGLang kimi"
BEGUN = [f"systemd[1]: Starting {UNIT}...", f"systemd[1]: Started {UNIT}."]
KILLED = [
    "systemd[1]: sglang-kimi.service: Main process exited, code=killed, status=9/KILL",
    "systemd[1]: sglang-kimi.service: Failed with result 'signal'.",
]
AGAIN = [
    "systemd[1]: sglang-kimi.service: Scheduled restart job, restart counter is at 1.",
    f"systemd[1]: Stopped {UNIT}.",
]
ASKED = [f"systemd[1]: Stopping {UNIT}...", f"systemd[1]: Stopped {UNIT}."]
FAILING = ["python[7]: " + line for line in at("load", *trace("torch.OutOfMemoryError: CUDA out of memory.", LOAD))]
SERVING = ["python[7]: " + line for line in until("ready")]


@pytest.mark.parametrize(
    ("log", "signature", "starts"),
    [
        ([*BEGUN, *FAILING, *KILLED, *AGAIN, *BEGUN, *FAILING, *KILLED], "cuda_oom_load", 2),
        ([*BEGUN, *SERVING, *KILLED, *AGAIN, *BEGUN, *FAILING, *KILLED], "cuda_oom_load", 2),
        ([*BEGUN, *FAILING, *KILLED, *AGAIN, *BEGUN], "cuda_oom_load", 1),
        ([*BEGUN, *SERVING, *KILLED, *AGAIN], UNKNOWN, 1),
        ([*BEGUN, *SERVING, *KILLED], UNKNOWN, 1),
        ([*BEGUN, *SERVING, *ASKED], STOPPED, 1),
        ([*BEGUN, *FAILING, *KILLED, *AGAIN, *BEGUN, *SERVING], NONE, 2),
    ],
)
def test_what_systemd_stops_on_the_way_to_a_restart_was_not_asked_to_stop(
    log: list[str], signature: str, starts: int
) -> None:
    found = diagnose(list(read_lines([f"Nov 29 17:44:43 gpu1 {line}" for line in log])))
    assert (found.as_dict()["signature"], found.starts) == (signature, starts)


@pytest.mark.parametrize("name", ["batches", "practice", "threads"])
def test_the_first_look_passes_over_nothing_that_counts(name: str) -> None:
    """Every line that a signature is in, or a consequence, has one of the words of the first look."""
    marks = [any_of("line"), any_of("secondary"), any_of("warning"), CONSEQUENCE]
    lines = {line for case in cases(name) for line in case.text.split("\n")}
    found = {line for line in lines if any(mark.search(line, 0, 2000) for mark in marks)}
    assert len(found) > 10
    assert not [line for line in found if not telling(line)]


def test_no_harmless_warning_is_a_failure() -> None:
    for one in found_in("warning"):
        assert not any(other.regex.pattern == one.regex.pattern for other in found_in("line"))


def test_the_reference_is_made_from_the_data() -> None:
    assert PAGE.read_text("utf-8") == render(), "run python -m tools.reference.failures > docs/failures.md"


def test_every_signature_is_in_the_reference() -> None:
    text = PAGE.read_text("utf-8")
    assert not [one.id for one in signatures() if f"`{one.id}`" not in text]
