"""The launch lines: every phase, in order, in the dialect of each version, as real logs have them."""

from __future__ import annotations

import re

import pytest

from deployer_rehearsal.engine.sglang.faults import Fault
from deployer_rehearsal.engine.sglang.launch import Step, timeline
from deployer_rehearsal.engine.sglang.lines import record

from .conftest import PlanFor

OLD, NEW = "0.5.12.post1", "0.5.23"
PREFIX = (
    r"^\[(?P<ts>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.\d{3})?(?: DP\d+)?(?: PP(?P<pp>\d+))?(?: ATTN_CP\d+)?"
    r"(?: MOE_DP\d+)?(?: TP(?P<tp>\d+))?(?: EP(?P<ep>\d+))?\] "
)
COMMON = {
    "load begin": r"Load weight begin\. avail mem=([\d.]+) GB",
    "load end": r"Load weight end\.( elapsed=([\d.]+) s,)? type=(\w+),.* avail mem=([\d.]+) GB, mem usage=([\d.]+) GB",
    "pool": r"Memory pool end\. avail mem=([\d.]+) GB",
    "bar": r"Capturing batches \(bs=(\d+) avail_mem=([\d.]+) GB\):\s+(\d+)%.*\| (\d+)/(\d+) \[",
    "limits": (
        r"max_total_num_tokens=(\d+), chunked_prefill_size=(-?\d+), max_prefill_tokens=(\d+), "
        r"max_running_requests=(\d+), context_len=(\d+), available_(gpu|cpu)_mem=([\d.]+) GB"
    ),
}
DIALECT = {
    OLD: {
        "args": r"server_args=ServerArgs\(",
        "dist begin": r"Init torch distributed begin\.",
        "dist end": r"Init torch distributed ends\.( elapsed=([\d.]+) s,)? mem usage=([\d.]+) GB",
        "shards": r"Loading safetensors checkpoint shards:\s+(\d+)% Completed \| (\d+)/(\d+) \[",
        "kv": r"KV Cache is allocated\. #tokens: (\d+), (KV size|K size): ([\d.]+) GB",
        "capture begin": r"Capture cuda graph begin\. This can take up to several minutes\. avail mem=",
        "capture sizes": r"Capture cuda graph bs \[([\d, ]+)\]",
        "capture end": (
            r"Capture cuda graph end\. Time elapsed: ([\d.]+) s\. mem usage=([\d.]+) GB\. avail mem=([\d.]+) GB\."
        ),
    },
    NEW: {
        "args": r"server_args=\{",
        "dist begin": r"Init parallel begin\.",
        "dist end": r"Init parallel ends\. elapsed=([\d.]+) s",
        "baseline": r"Memory baseline taken\. mem usage=",
        "shards": r"Multi-thread loading shards:\s+(\d+)% Completed \| (\d+)/(\d+) \[",
        "kv": r"KV Cache is allocated\. dtype: \S+, #tokens: (\d+), (KV size|K size): ([\d.]+) GB",
        "capture begin": r"Capture target decode CUDA graph begin\. backend=(\w+), num_tokens_per_req=",
        "capture end": r"Capture target \w+ CUDA graph end\. bs=\[[\d, ]+\].*elapsed=([\d.]+) s, mem usage=",
        "timings": r"Engine startup timings \(s\): load_weight=",
    },
}
ORDER = [
    "args",
    "dist begin",
    "dist end",
    "load begin",
    "shards",
    "load end",
    "kv",
    "pool",
    "capture begin",
    "bar",
    "capture end",
    "limits",
]


def pieces(steps: list[Step]) -> list[tuple[float, str]]:
    """What is printed, split as a reader of the log would split it."""
    return [
        (step.at, piece)
        for step in steps
        for piece in re.split(r"[\r\n]+", step.text if step.raw else record(step.text, step.rank))
        if piece and step.text
    ]


def matches(steps: list[Step], pattern: str) -> list[str]:
    return [text for _, text in pieces(steps) if re.search(pattern, text)]


def ranks_of(lines: list[str], part: str) -> set[str | None]:
    found = [re.match(PREFIX, line) for line in lines]
    return {match[part] for match in found if match}


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("parallel", [["--tp-size", "8"], ["--pp-size", "8"], ["--tp-size", "2", "--pp-size", "2"], []])
def test_every_phase_in_order(plan_for: PlanFor, version: str, parallel: list[str]) -> None:
    steps = timeline(plan_for(version, *parallel, "--max-running-requests", "64"))
    patterns = COMMON | DIALECT[version]
    first = {}
    for name, pattern in patterns.items():
        times = [at for at, text in pieces(steps) if re.search(pattern, text)]
        assert times, f"no line for {name}"
        first[name] = min(times)
    assert [first[name] for name in ORDER] == sorted(first[name] for name in ORDER)
    assert [step.at for step in steps] == sorted(step.at for step in steps)
    assert 5.0 < steps[-1].at < 9.0


@pytest.mark.parametrize("version", [OLD, NEW])
def test_ranks_of_tensor_parallelism(plan_for: PlanFor, version: str) -> None:
    steps = timeline(plan_for(version, "--tp-size", "8", "--max-running-requests", "64"))
    eight = {str(number) for number in range(8)}
    for name in ("load begin", "load end", "pool"):
        assert ranks_of(matches(steps, COMMON[name]), "tp") == eight
    assert ranks_of(matches(steps, COMMON["limits"]), "tp") == {"0"}
    assert ranks_of(matches(steps, COMMON["limits"]), "pp") == {None}
    assert ranks_of(matches(steps, r"sglang is using nccl"), "tp") == {"0"}


def test_ranks_of_pipelines_have_no_tp_part(plan_for: PlanFor) -> None:
    steps = timeline(plan_for(OLD, "--pp-size", "8", "--max-running-requests", "64"))
    lines = matches(steps, COMMON["limits"])
    assert ranks_of(lines, "pp") == {str(number) for number in range(8)}
    assert ranks_of(lines, "tp") == {None}


def test_both_parts_and_the_expert_rank(plan_for: PlanFor) -> None:
    both = timeline(plan_for(OLD, "--tp-size", "2", "--pp-size", "2"))
    assert ranks_of(matches(both, COMMON["load end"]), "pp") == {"0", "1"}
    assert ranks_of(matches(both, COMMON["load end"]), "tp") == {"0", "1"}
    experts = timeline(plan_for(OLD, "--tp-size", "8", "--ep-size", "8"))
    assert ranks_of(matches(experts, COMMON["load end"]), "ep") == {str(number) for number in range(8)}


def test_every_stage_draws_its_own_capture_bar_largest_first(plan_for: PlanFor) -> None:
    plan = plan_for(OLD, "--pp-size", "4", "--cuda-graph-max-bs", "8", "--max-running-requests", "64")
    steps = timeline(plan)
    bars = [match for _, text in pieces(steps) if (match := re.match(COMMON["bar"], text))]
    assert [int(bar[1]) for bar in bars].index(8) < [int(bar[1]) for bar in bars].index(1)
    assert sum(bar[4] == bar[5] for bar in bars) == 4
    assert matches(steps, r"PP3\] Capture cuda graph bs \[1, 2, 4, 8\]")
    raw = [step.text for step in steps if "Capturing" in step.text]
    assert all(text.startswith("\r") for text in raw)
    assert sum(text.endswith("\n") for text in raw) == 4


def test_shards_count_up_on_one_rank(plan_for: PlanFor) -> None:
    steps = timeline(plan_for(OLD, "--pp-size", "8", config={"shards": 61}))
    counts = [
        int(match[2]) for _, text in pieces(steps) if (match := re.match(DIALECT[OLD]["shards"], text)) is not None
    ]
    assert counts == list(range(62))


def test_capture_takes_longer_with_more_sizes_and_none_without_graphs(plan_for: PlanFor) -> None:
    few = timeline(plan_for(OLD, "--pp-size", "8", "--cuda-graph-max-bs", "8"))
    many = timeline(plan_for(OLD, "--pp-size", "8", "--cuda-graph-max-bs", "256"))
    none = timeline(plan_for(OLD, "--pp-size", "8", "--disable-cuda-graph"))
    assert none[-1].at < few[-1].at < many[-1].at - 2
    assert not matches(none, r"Capture (cuda|target)|Capturing")


def test_bars_read_as_the_real_ones(plan_for: PlanFor) -> None:
    """Lines taken from real logs, with figures blanked, must be shapes that the stand-in prints."""
    steps = timeline(plan_for(OLD, "--pp-size", "2", "--cuda-graph-max-bs", "64", "--max-running-requests", "64"))
    real = [
        "Capturing batches (bs=64 avail_mem=69.00 GB):   0%|          | 0/12 [00:00<?, ?it/s]",
        "Capturing batches (bs=1 avail_mem=69.18 GB): 100%|██████████| 12/12 [00:00<00:00, 12.10it/s]",
        "Loading safetensors checkpoint shards:   0% Completed | 0/6 [00:00<?, ?it/s]",
        "Loading safetensors checkpoint shards: 100% Completed | 6/6 [00:00<00:00, 30.82it/s]",
        "  0%|          | 0/12 [00:00<?, ?it/s]",
        "[2026-11-29 17:46:22 PP1] max_total_num_tokens=1018242, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        "max_running_requests=64, context_len=4096, available_gpu_mem=69.18 GB",
        "[2026-11-29 17:46:20 PP1] Capture cuda graph begin. This can take up to several minutes. avail mem=69.27 GB",
        "[2026-11-29 17:46:22 PP0] Capture cuda graph end. Time elapsed: 1.88 s. mem usage=0.09 GB. "
        "avail mem=68.93 GB.",
        "[2026-11-29 17:46:18 PP0] Init torch distributed ends. elapsed=1.66 s, mem usage=0.97 GB",
    ]

    def shape(text: str) -> str:
        return re.sub(r"\d+", "9", text)

    printed = {shape(text) for _, text in pieces(steps)}
    assert [line for line in real if shape(line) not in printed] == []


def test_the_api_key_leaks_as_it_really_does(plan_for: PlanFor) -> None:
    for version in (OLD, NEW):
        steps = timeline(plan_for(version, "--api-key", "sesame"))
        assert len(matches(steps, r"server_args=.*api_key'?[=:] ?'sesame'")) == 1


def fault(name: str, **options: object) -> dict[str, Fault]:
    return {name: Fault(name, {"name": name, **options})}


def test_crash_in_load_is_a_scheduler_exception(plan_for: PlanFor) -> None:
    steps = timeline(
        plan_for(OLD, "--pp-size", "4"),
        fault("crash-in-load", at=0.25, rank=2, exception="ValueError: no such thing"),
    )
    assert steps[-1].end == "crash"
    assert re.match(
        PREFIX + r"Scheduler hit an exception: Traceback \(most recent call last\):",
        record(steps[-1].text, steps[-1].rank),
    )
    assert steps[-1].rank is not None
    assert steps[-1].rank.pp == 2
    assert steps[-1].text.rstrip().endswith("\nValueError: no such thing")
    assert not matches(steps, COMMON["load end"])


def test_out_of_memory_in_capture(plan_for: PlanFor) -> None:
    for version, flag in ((OLD, "--cuda-graph-max-bs"), (NEW, "--cuda-graph-max-bs-decode")):
        steps = timeline(plan_for(version, "--tp-size", "8"), fault("oom-in-capture"))
        assert steps[-1].end == "crash"
        assert re.search(r"Capture cuda graph failed: CUDA out of memory\. Tried to allocate", steps[-1].text)
        assert f"set {flag} to a smaller value" in steps[-1].text
        assert matches(steps, COMMON["pool"])
        assert not matches(steps, COMMON["limits"])


def test_crash_after_capture_and_hangs(plan_for: PlanFor) -> None:
    plan = plan_for(OLD, "--tp-size", "2")
    late = timeline(plan, fault("crash-after-capture"))
    assert late[-1].end == "crash"
    assert matches(late, DIALECT[OLD]["capture end"])
    assert timeline(plan, fault("hang-in-load"))[-1].end == "hang"
    silent = timeline(plan, fault("hang-in-dist"))
    assert silent[-1].end == "hang"
    assert re.search("sglang is using nccl", pieces(silent)[-1][1])


def test_memory_held_by_others_is_out_of_memory_in_load(plan_for: PlanFor) -> None:
    plan = plan_for(OLD, "--tp-size", "8", held={3: 80_000})
    steps = timeline(plan)
    assert steps[-1].end == "crash"
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate" in steps[-1].text


def test_too_small_a_memory_fraction(plan_for: PlanFor) -> None:
    steps = timeline(plan_for(OLD, "--tp-size", "8", "--mem-fraction-static", "0.5", config={"strict_memory": True}))
    assert steps[-1].end == "crash"
    assert "Not enough memory. Please try to increase --mem-fraction-static" in steps[-1].text


def test_more_ranks_than_gpus(plan_for: PlanFor) -> None:
    steps = timeline(plan_for(OLD, "--tp-size", "8", config={"gpus": 4}))
    assert steps[-1].end == "crash"
    assert "invalid device ordinal" in steps[-1].text
