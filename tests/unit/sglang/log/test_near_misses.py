"""What looks like a known failure and is another one: it stays unknown, with its own exception."""

from __future__ import annotations

import pytest

from deployer.sglang.log.components import tracker_search
from deployer.sglang.log.diagnosis import diagnose
from deployer.sglang.log.failures import UNKNOWN, Cause, find
from deployer.sglang.log.text import read, read_lines
from tests.unit.sglang.log.builders import AT, QUIT, trace, until

LOAD = "model_executor/model_runner.py:load_model:self.model = get_model("
LOADER = "models/qwen3.py:load_weights:weight_loader(param, loaded_weight)"
LOOP = "managers/scheduler.py:run_event_loop:dispatch_event_loop(self)"
ARGS = "/v/sglang/srt/server_args.py:get_global_server_args:raise ValueError("
LORA = "lora/lora_manager.py:init_lora_adapters:self.load(x)"
DRAFT = "managers/scheduler.py:maybe_init_draft_worker:self.draft_worker = DraftWorkerClass("
TOKENIZER = "utils/hf_transformers/tokenizer.py:get_tokenizer:AutoTokenizer.from_pretrained("
MM = "/opt/multimodal/lib/sglang/srt/x.py:get_processor:x()"
DSV2 = "models/deepseek_v2.py:forward:x = self.layers[i]"
WARM = "entrypoints/http_server.py:build:x()"

#: (what was raised, the frames below the scheduler's)
NEAR = [
    ("ValueError: Global server args is not set yet!", [LOAD, ARGS]),
    ("ZeroDivisionError: integer modulo by zero", [LOAD, "arg_groups/x.py:_handle_x:a % b"]),
    ("RuntimeError: expected scalar type Half but found BFloat16", [LOAD, LORA]),
    ("torch._C.Foo: something else", [DRAFT]),
    ("AttributeError: 'Qwen9ForCausalLM' object has no attribute 'embed_tokens'", [LOAD]),
    ("AttributeError: 'ModelConfig' object has no attribute 'is_new_thing'", [LOAD]),
    ("IndexError: list index out of range", [LOOP, DSV2]),
    ("KeyError: 'num_attention_heads'", [LOAD]),
    ("KeyError: 'head_dim'", [LOAD, LOADER]),
    ("AssertionError", [LOAD, LOADER]),
    ("AssertionError: Only 1 nextn layer is supported", [LOAD, "models/glm4_moe.py:load_weights:assert n == 1"]),
    ("RuntimeError: The size of tensor a (7) must match the size of tensor b (8)", [LOOP]),
    ("AssertionError: page_size must be multiple of 128 for compressed attention", [LOAD]),
    ("ValueError: image (7, 7) not divisible by (7, 7)", [LOOP]),
    ("AssertionError", ["x/y.py:f:assert max_num_tokens % max_bs == 0"]),
    ("zmq.error.Again: Resource temporarily unavailable", [LOOP]),
    ("BlockingIOError: [Errno 11] write could not complete without blocking", [LOOP]),
    ("PermissionError: [Errno 1] Operation not permitted", [LOOP]),
    ("OSError: [Errno 107] Transport endpoint is not connected", [LOOP]),
    ("_pickle.UnpicklingError: Weights only load failed. Re-running", [LOAD]),
    ("safetensors_rust.SafetensorError: File does not contain tensor a.b", [LOAD]),
    ("ValueError: shm_open is mentioned", [LOAD]),
    ("RuntimeError: The tokenizer says no", [TOKENIZER]),
    ("ValueError: anything about a processor", [MM]),
    ("ValueError: Unsupported architecture: LlamaForCausalLM2", [LOAD]),
    ("RuntimeError: Failed to compile the graph of things", [LOAD]),
    ("ValueError: Model architectures in this registry are sorted", [LOAD]),
    ("RuntimeError: Initialize the TransferEngine first", [LOAD]),
    ("RuntimeError: Squid is an animal, and Proxy a pattern", [WARM]),
    ("RuntimeError: a nvcc of version 12 was expected", [LOAD]),
    ("ValueError: backend of the moe is not nice", [LOAD]),
    ("RuntimeError: cannot find something during CUDA graph capture of nothing", [LOAD]),
]  # fmt: skip


def found(log: list[str]) -> Cause | None:
    return find(list(read_lines(log)))


@pytest.mark.parametrize(("error", "frames"), NEAR, ids=[error[:50] for error, _ in NEAR])
def test_a_near_miss_stays_unknown(error: str, frames: list[str]) -> None:
    failure = found([*until("load", "TP0"), *trace(error, *frames), *QUIT])
    assert failure is not None
    assert failure.signature == UNKNOWN
    assert failure.cause == error or (error == "AssertionError" and failure.cause.startswith("AssertionError at `"))


@pytest.mark.parametrize(
    ("error", "frames", "part"),
    [
        ("KeyError: 'head_dim'", [LOAD, LOADER], "the weight loader, pipeline stage 3"),
        (
            "RuntimeError: the draft says no",
            [DRAFT, LOAD],
            "the draft worker of speculative decoding, pipeline stage 3",
        ),
        (
            "KeyError: 'nothing'",
            [LOAD, "layers/quantization/x.py:load_weights:a[b]"],
            "the loader of quantized weights",
        ),
        ("RuntimeError: it says no", [TOKENIZER], "the tokenizer"),
    ],
)
def test_an_unknown_cause_names_its_part_and_a_search(error: str, frames: list[str], part: str) -> None:
    failure = found([*until("load", "PP3"), *trace(error, *frames, rank="PP3"), *QUIT])
    assert failure is not None
    assert (failure.signature, failure.rank) == (UNKNOWN, "PP3")
    assert failure.component.startswith(part)
    assert failure.search.startswith("repo:sgl-project/sglang ")
    assert failure.search in failure.remedy


def test_the_line_that_tells_is_evidence_of_a_general_exception() -> None:
    telling = f"[{AT}29 TP0] The foo backend requires page_size 64, please set --page-size"
    failure = found([*until("load", "TP0"), telling, *trace("RuntimeError: it says no", LOAD), *QUIT])
    assert failure is not None
    assert failure.signature == UNKNOWN
    assert telling in failure.evidence


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: Failed: Assertion error /s/DeepEP/csrc/deep_ep.cpp:99 'hidden % 512 == 0'",
        "RuntimeError: Mooncake says that a segment is odd",
        "RuntimeError: FlashInfer asserts that the plan is odd",
        "huggingface_hub.errors.StrictDataclassClassValidationError: Class validation error for validator 'x'",
    ],
)
def test_no_signature_covers_all_that_a_library_asserts(error: str) -> None:
    failure = found([*until("load", "TP0"), *trace(error, LOAD), *QUIT])
    assert failure is not None
    assert (failure.signature, failure.cause) == (UNKNOWN, error)


def test_a_search_has_nothing_of_this_host() -> None:
    assert tracker_search('ValueError: /srv/models/m has 12345 of "0xdead" things', 'File "x", line 3, in get_it') == (
        "repo:sgl-project/sglang ValueError: has of things get_it"
    )


#: Each is its neighbour's error in the wrong place, or the other way round.
NEIGHBOURS = [
    ("weights_shape", "RuntimeError: start (0) + length (320) exceeds dimension size (256).", [LOAD, LOADER]),
    ("shards_do_not_divide", "RuntimeError: start (64) + length (32) exceeds dimension size (64).", [LOAD, LOADER]),
    ("quantization", "ValueError: Cannot find the config file for awq", [LOAD]),
    ("tokenizer_invalid", "ValueError: Tokenizer class Foo does not exist or is not currently imported.", [TOKENIZER]),
    ("model_config_invalid", "ValueError: Unrecognized model in /m. Should have a `model_type` key in its config.json",
     [LOAD]),
    ("hub_missing", "RepositoryNotFoundError: 401 Client Error. Repository Not Found for url: "
     "https://huggingface.co/api/models/x", [LOAD]),
    ("nccl_shm", "RuntimeError: posix_fallocate failed : No space left on device", [LOAD]),
    ("module_missing", "ImportError: The hpc_ops attention backend requires the `hpc` package", [LOAD]),
    ("args_rejected", "AssertionError", ["arg_groups/parallel_hook.py:handle_elastic_ep:assert a == b"]),
    ("args_rejected", "AssertionError: tp_size must be divisible by number of nodes",
     ["arg_groups/validation_hook.py:check_server_args:assert a"]),
    ("dist_port_busy", "OSError: [Errno 98] Address already in use", [LOAD]),
    ("shards_do_not_divide", "AssertionError", ["models/x.py:__init__:assert self.total_num_heads % tp_size == 0"]),
    ("weights_shape", "AssertionError", [LOAD, "layers/linear.py:weight_loader:assert param.shape == loaded.shape"]),
    ("model_type_unknown", "ValueError: XForCausalLM has no SGlang implementation and", [LOAD]),
]  # fmt: skip


@pytest.mark.parametrize(("signature", "error", "frames"), NEIGHBOURS, ids=[row[1][:50] for row in NEIGHBOURS])
def test_neighbours_are_told_apart(signature: str, error: str, frames: list[str]) -> None:
    failure = found([*until("load", "TP0"), *trace(error, *frames), *QUIT])
    assert failure is not None
    assert failure.signature == signature


REQUEST_ERROR = [
    f"[{AT}40] Error in request: got an unexpected keyword argument 'reasoning_effort'",
    "Traceback (most recent call last):",
    '  File "/v/sglang/srt/entrypoints/openai/serving_chat.py", line 223, in _apply_jinja_template',
    "    prompt_ids = self.tokenizer_manager.tokenizer.apply_chat_template(",
    "TypeError: got an unexpected keyword argument 'reasoning_effort'",
]


def test_an_error_of_one_request_is_no_failure_of_the_server() -> None:
    assert diagnose(list(read_lines([*until("ready"), *REQUEST_ERROR]))).outcome == "no-failure"


def test_a_traceback_that_the_launch_survived_is_no_failure() -> None:
    log = [*until("load"), *REQUEST_ERROR[1:], *until("ready")[-6:]]
    assert diagnose(list(read_lines(log))).outcome == "no-failure"


def test_the_end_of_a_log_that_begins_inside_a_traceback() -> None:
    log = trace("KeyError: 'model.layers.55.mlp.gate_up_proj.input_scale'", LOAD, LOADER)[3:]
    for front in ("", "> "):
        failure = found([front + line for line in log])
        assert failure is not None
        assert failure.signature == "weights_names"


def test_a_lone_exception_is_a_failure_and_one_in_good_service_is_not() -> None:
    failure = found(["ImportError: cannot import name 'ServerArgs' from 'sglang' (unknown location)"])
    assert failure is not None
    assert failure.signature == "module_missing"
    assert found([*until("ready"), "ValueError: of a request"]) is None


def test_the_newest_line_first() -> None:
    log = [*until("load", "TP0"), *trace("KeyError: 'lm_head.weight'", LOAD, LOADER), *QUIT]
    text = [f"ERROR 2025-04-07T19:13:{number:02}.5Z {line}" for number, line in enumerate(log)]
    failure = find(read("\n".join(reversed(text))))
    assert failure is not None
    assert (failure.signature, failure.phase) == ("weights_names", "load")


def test_lines_of_two_ranks_that_say_whose_they_are_are_untangled() -> None:
    ranks = []
    for number, error in enumerate(("torch.OutOfMemoryError: CUDA out of memory.", "ValueError: of the other")):
        lines = trace(error, LOAD, LOADER, rank=f"TP{number}", second=30 + number)
        ranks.append([f"(Worker pid={7 + number}) {line}" for line in lines if line])
    mixed = [line for pair in zip(*ranks, strict=True) for line in pair]
    failure = found(mixed)
    assert failure is not None
    assert (failure.signature, failure.rank) == ("cuda_oom_load", "TP0")
    assert not any("of the other" in line for line in failure.evidence)


def test_what_a_log_quotes_is_no_cause() -> None:
    quoted = "No space left on device; Too many open files; CUDA out of memory; [Errno 98]"
    log = [
        f"[{AT}00] server_args=ServerArgs(model_path='/m', chat_template='{quoted}')",
        *until("load", "TP0"),
        *trace("ZeroDivisionError: division by zero"),
    ]
    failure = found(log)
    assert failure is not None
    assert failure.signature == UNKNOWN
    assert diagnose(read(log[0] + "\n" + "\n".join(until("ready")))).outcome == "no-failure"


def test_a_kill_is_not_called_out_of_memory() -> None:
    died = f"[{AT}30] Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9"
    failure = found([*until("load", "TP0"), died])
    assert failure is not None
    assert failure.signature == "rank_killed"


FOOT = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable "
    "device-side assertions."
)


@pytest.mark.parametrize(
    ("error", "signature"),
    [
        ("CUDA error: invalid argument", "cuda_error"),
        ("CUDA error: peer access is not supported between these two devices", "cuda_error"),
        ("CUDA error: operation not permitted", "cuda_error"),
        ("CUDA error: device-side assert triggered", "illegal_memory_access"),
        ("CUDA error: an illegal memory access was encountered", "illegal_memory_access"),
        ("CUDA driver error (layout.hpp:72): 719 (CUDA_ERROR_LAUNCH_FAILED)", "illegal_memory_access"),
        ("CUDA driver error (handle.hpp:141): 200 (CUDA_ERROR_INVALID_IMAGE)", "cuda_error"),
        ("CUDA error: out of memory", "cuda_oom_load"),
        ("Triton Error [CUDA]: out of memory", "cuda_oom_load"),
        ("Triton Error [CUDA]: invalid argument", "cuda_error"),
        ("Triton Error [CUDA]: device kernel image is invalid", "triton_compile"),
        ("Triton Error [CUDA]: an illegal memory access was encountered", "illegal_memory_access"),
        ("CUDA error: no kernel image is available for execution on the device", "no_kernel_image"),
        ("CUDA error: system not yet initialized", "fabric_manager"),
    ],
)
def test_what_torch_says_under_every_error_of_cuda_names_none(error: str, signature: str) -> None:
    failure = found([*until("load", "TP0"), *trace(f"RuntimeError: {error}{FOOT}", LOAD)])
    assert failure is not None
    assert failure.signature == signature


@pytest.mark.parametrize(
    ("library", "symbol", "signature"),
    [
        ("vllm/_C.abi3.so", "cuTensorMapEncodeTiled", "driver_too_old"),
        ("sgl_kernel/common_ops.abi3.so", "cuGreenCtxCreate", "driver_too_old"),
        ("sgl_kernel/common_ops.abi3.so", "_ZN3c104cuda9SetDeviceEa", "sgl_kernel_abi"),
        ("flash_attn_2_cuda.so", "cudaGetDriverEntryPointByVersion", "extension_abi"),
    ],
)
def test_a_symbol_of_the_driver_is_the_drivers(library: str, symbol: str, signature: str) -> None:
    failure = found([*until("launch"), *trace(f"ImportError: /v/{library}: undefined symbol: {symbol}")])
    assert failure is not None
    assert failure.signature == signature


#: What a server that serves may say, and what it is where it is the last word: passed over where the server goes on.
WORKS = f"[{AT}59 TP0] Decode batch, #running-req: 3, #token: 90, gen throughput (token/s): 40.1, #queue-req: 0"
PASSING = [
    ("ConnectionResetError: [Errno 104] Connection reset by peer", "peer_lost"),
    ("BrokenPipeError: [Errno 32] Broken pipe", "peer_lost"),
    ("[rank3]:[W1129 TCPStore.cpp:125] [c10d] recvValue failed: failed to recv, got 0 bytes", "peer_lost"),
    (f"[{AT}40] Scheduler watchdog timeout (self.watchdog_timeout=60, self.soft=True)", None),
    (f"[{AT}40] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)", "watchdog"),
]


@pytest.mark.parametrize(("line", "signature"), PASSING)
def test_a_consequence_that_the_server_went_on_after_is_no_failure(line: str, signature: str | None) -> None:
    ended = diagnose(list(read_lines([*until("ready"), line])))
    assert (ended.cause.signature if ended.cause else None) == signature
    went_on = diagnose(list(read_lines([*until("ready"), line, WORKS, WORKS])))
    assert went_on.outcome == ("failed" if signature == "watchdog" else "no-failure")


@pytest.mark.parametrize(
    ("before", "frames", "phase"),
    [
        ([WORKS], [], "ready"),
        (
            [f"[{AT}59 TP0] Prefill batch, #new-seq: 1, #new-token: 7, #running-req: 0, #queue-req: 0"],
            [],
            "warm-up",
        ),
        (
            [f"[{AT}59 TP0] Prefill batch, #new-seq: 1, #new-token: 7, #running-req: 12, #queue-req: 0"],
            [],
            "ready",
        ),
        ([], [LOAD], "load"),
        ([], ["managers/tokenizer_manager.py:handle_loop:x()"], "warm-up"),
        ([], [], None),
    ],
)
def test_the_phase_of_a_log_without_its_start(before: list[str], frames: list[str], phase: str | None) -> None:
    failure = found([*before, *trace("ZeroDivisionError: division by zero", *frames), *QUIT])
    assert failure is not None
    assert (failure.signature, failure.phase) == (UNKNOWN, phase)


def test_what_follows_an_exception_without_a_blank_line_is_not_of_it() -> None:
    for told in (
        "RuntimeError: Rank 0 scheduler died during initialization (exit code: -3)",
        "[07-01 15:20:44] Rank 0 scheduler is dead. Please check if there are relevant logs.",
    ):
        failure = found([*until("load", "TP0"), *trace("KeyError: 'of its own'", LOAD)[:-1], told])
        assert failure is not None
        assert (failure.signature, failure.cause) == (UNKNOWN, "KeyError: 'of its own'")
