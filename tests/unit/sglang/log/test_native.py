# ruff: noqa: E501  lines of logs are as long as they are
"""Errors of native code, without a Python traceback: none of them is "no failure", and none loses to a rank's end."""

from __future__ import annotations

import pytest

from deployer.sglang.log.diagnosis import diagnose
from deployer.sglang.log.failures import UNKNOWN
from deployer.sglang.log.text import read
from tests.unit.sglang.log.builders import AT, QUIT, trace, until

BAR = "Capturing batches (bs=8 avail_mem=15.00 GB):   0%|          | 0/4 [00:00<?, ?it/s]"
LOOP = "managers/scheduler.py:run_event_loop:dispatch_event_loop(self)"

#: (signature, words of the cause, the lines)
ERRORS = [
    ("no_kernel_image", "no kernel image", ["CUDA error (/s/k.h:10): no kernel image is available for execution"]),
    ("no_kernel_image", "no kernel image", [f"{BAR}CUDA error (/s/k.h:10): no kernel image is available"]),
    ("illegal_memory_access", "illegal", ["CUDA error (/s/k.cuh:3): an illegal memory access was encountered"]),
    ("cuda_error", "invalid argument", ["CUDA error: invalid argument"]),
    (UNKNOWN, "invalid argument", ["gpu-a:717:1686 [0] [FATAL ERROR]: HIP failure: 'invalid argument'"]),
    (UNKNOWN, "unhandled", ["HIP error at /s/x.cpp:12: unhandled things"]),
    (UNKNOWN, "some message", ["terminate called after throwing an instance of 'c10::Error'", "  what():  some message"]),
    ("native_crash", "terminate called", ["terminate called without an active exception"]),
    (UNKNOWN, "ring.cc:7", ["F0101 10:00:00.000000 1234 ring.cc:7] Check failed: a == b (1 vs. 2) "]),
    (UNKNOWN, "engine.cc", ["F0000 00:00:1767261600.123456 77 engine.cc:9] the port is gone"]),
    (UNKNOWN, "row < rows", ["/s/kernel.cu:12: void run(): block: [0,0,0], thread: [1,0,0] Assertion `row < rows` failed."]),
    ("triton_compile", "Cannot select", ["LLVM ERROR: Cannot select: intrinsic %llvm.nvvm.x"]),
    (UNKNOWN, "sm_121", ["ptxas fatal   : Value 'sm_121x' is not what it knows"]),
    (UNKNOWN, "identifier", ['/c/gen.cu(12): error: identifier "foo" is undefined', "ninja: build stopped: subcommand failed."]),
    (UNKNOWN, "index out of bounds", ["thread '<unnamed>' panicked at src/tree.rs:10:5:", "index out of bounds: the len is 3"]),
    (UNKNOWN, "Memory access fault", ["Memory access fault by GPU node-2 (Agent handle: 0x1) on address 0x7f. Reason: Unknown."]),
    ("rank_killed", "killed", ["Killed"]),
    ("native_crash", "native code", ["Segmentation fault (core dumped)"]),
    ("host_oom", "OOM", ["[123.456] Out of memory: Killed process 77 (python3) total-vm:1kB"]),
]  # fmt: skip
DEAD = f"[{AT}40] Rank 0 scheduler is dead. Please check if there are relevant logs."


@pytest.mark.parametrize(("signature", "words", "lines"), ERRORS, ids=[lines[0][:40] for _, _, lines in ERRORS])
@pytest.mark.parametrize("end", [[], [DEAD], QUIT], ids=["the log ends", "the rank is dead", "sigquit"])
def test_an_error_of_native_code_is_the_cause(signature: str, words: str, lines: list[str], end: list[str]) -> None:
    cause = diagnose(read("\n".join([*until("capture", "TP0"), *lines, *end]))).cause
    assert cause is not None
    assert cause.signature == signature
    assert words in f"{cause.cause} {cause.quote}"


def test_a_kernels_assertion_beats_the_general_exception_after_it() -> None:
    line = "/p/TensorCompare.cu:112: _assert_async: Assertion `probability tensor contains either `inf`, `nan`` failed."
    cause = diagnose(
        read("\n".join([*until("ready"), line, *trace("torch.AcceleratorError: CUDA error: x", LOOP)]))
    ).cause
    assert cause is not None
    assert (cause.signature, cause.evidence[0][:7]) == ("nan_logits", "/p/Tens")


def test_native_lines_before_a_known_exception_are_its_evidence() -> None:
    hip = "gpu-a:717:1686 [0] [FATAL ERROR]: HIP failure: 'invalid argument'"
    cause = diagnose(
        read("\n".join([hip, "RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO)"]))
    ).cause
    assert cause is not None
    assert cause.signature == "nccl_error"
    assert hip in cause.evidence


@pytest.mark.parametrize("line", [
    "gpu-a:1:2 [0] NCCL WARN Missing an optional thing",
    "CUDA error handling is enabled",
    "Assertions are on; nothing failed.",
])  # fmt: skip
def test_a_server_that_works_has_no_native_error(line: str) -> None:
    lines = [*until("load", "TP0"), line, *until("ready")[-3:]]
    assert diagnose(read("\n".join(lines))).outcome == "no-failure"
