"""What the server did meanwhile: what it says, what nvidia-smi says, what the log says, and one sentence."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.bench.load.sampler import read_loads, read_metrics, read_smi
from deployer.bench.load.server import MOST_ROWS, over_time, sentence, summary, with_log
from deployer.bench.log_windows import with_batches

MIB = 1024 * 1024


def test_loads_of_all_ranks_together() -> None:
    rank = {"num_running_reqs": 3, "num_waiting_reqs": 2, "token_usage": 0.25}
    assert read_loads({"loads": [rank, {**rank, "token_usage": 0.5}]}) == {
        "running": 6,
        "queued": 4,
        "kv_use": 0.5,
    }


@pytest.mark.parametrize("other", [None, 7, {}, {"loads": []}, {"loads": [{"a": 1}, 5]}])
def test_loads_that_say_nothing(other: Any) -> None:
    assert read_loads(other) is None


def test_metrics_of_ranks_that_repeat_one_another() -> None:
    text = "\n".join(
        [
            "# HELP sglang:num_running_reqs x",
            'sglang:num_running_reqs{tp_rank="0",dp_rank="0"} 3.0',
            'sglang:num_running_reqs{tp_rank="1",dp_rank="0"} 3.0',
            'sglang:num_running_reqs{tp_rank="0",dp_rank="1"} 4.0',
            'sglang:num_queue_reqs{tp_rank="0"} 1.0',
            "sglang:token_usage 0.125",
        ]
    )
    assert read_metrics(text) == {"running": 7, "queued": 1, "kv_use": 0.125}
    assert read_metrics("sglang:token_usage 0.1") is None


@pytest.mark.parametrize("number", ["NaN", "+Inf", "1e400", "1e300", "-5.0"])
def test_numbers_that_count_nothing_are_passed_over(number: str) -> None:
    text = f"sglang:num_running_reqs {number}\n"
    assert read_metrics(text) is None
    assert read_metrics(text + f"sglang:token_usage {number}\nsglang:num_running_reqs 3") == {
        "running": 3,
        "queued": 0,
        "kv_use": None,
    }
    assert read_smi(f"0, {number}, 300, 600, {number}, 9", None)[0]["power_w"] == 300


def test_more_than_the_whole_pool_is_no_share_of_it() -> None:
    seen = read_loads({"loads": [{"num_running_reqs": 3, "token_usage": 7}]})
    assert seen == {"running": 3, "queued": 0, "kv_use": None}


@given(st.text())
def test_anything_a_server_says_is_read_or_not(text: str) -> None:
    read_metrics(text)
    read_smi(text, None)


def test_gpus_as_nvidia_smi_tells_them() -> None:
    text = "0, 97, 310.25, 600.00, 86016, 97887, 2100\n1, [N/A], [N/A], 600.00, 1, 97887, 2100\nsome words\n"
    first, second = read_smi(text, None)
    assert first == {
        "index": 0,
        "utilization": 97.0,
        "power_w": 310.25,
        "power_limit_w": 600.0,
        "memory_used": 86016 * MIB,
        "memory_total": 97887 * MIB,
        "sm_clock_mhz": 2100.0,
    }
    assert (second["utilization"], second["power_w"]) == (None, None)
    assert [gpu["index"] for gpu in read_smi(text, [1])] == [1]


def gpu(index: int, busy: float, power: float) -> dict[str, Any]:
    memory = {"memory_used": 80 * 1024 * MIB, "memory_total": 96 * 1024 * MIB}
    return {"index": index, "utilization": busy, "power_w": power, "power_limit_w": 600.0, **memory}


SAMPLES: list[dict[str, Any]] = [
    {"t": 0.5, "running": 99, "queued": 99, "kv_use": 0.9},
    {"t": 1.5, "running": 8, "queued": 24, "kv_use": 0.1},
    {"t": 1.6, "gpus": [gpu(0, 40.0, 300.0), gpu(1, 100.0, 320.0)]},
    {"t": 7.5, "running": 8, "queued": 22, "kv_use": 0.2},
    {"t": 5.0, "running": 99, "queued": 99, "kv_use": 0.9},
]


def test_over_time_is_a_row_for_each_second_in_which_something_was_seen() -> None:
    rows = over_time(SAMPLES, 0.0)
    assert [row["t_s"] for row in rows] == [0.5, 1.5, 5.5, 7.5]
    assert rows[1] == {
        "t_s": 1.5, "running": 8.0, "queued": 24.0, "kv_use": 0.1, "utilization": 70.0, "power_w": 310.0
    }  # fmt: skip
    assert (rows[0]["utilization"], rows[0]["power_w"]) == (None, None)
    assert over_time([], 0.0) == []


@given(st.lists(st.floats(0, 1e5), min_size=1, max_size=50), st.floats(0, 1e5))
def test_a_long_run_has_no_more_rows_than_a_page_can_draw(moments: list[float], origin: float) -> None:
    rows = over_time([{"t": moment, "running": 1, "queued": 0, "kv_use": None} for moment in moments], origin)
    assert 1 <= len(rows) <= MOST_ROWS + 1
    assert [row["t_s"] for row in rows] == sorted({row["t_s"] for row in rows})
    assert all(row["running"] == 1 for row in rows)


def test_only_what_was_seen_within_the_passes_counts() -> None:
    found = summary(SAMPLES, [(1.0, 2.0), (7.0, 8.0)], 32)
    assert found is not None
    assert found["samples"] == 3
    assert found["running"] == {"mean": 8, "min": 8, "max": 8}
    assert found["queued"] == {"mean": 23, "min": 22, "max": 24}
    assert found["gpus"][0]["power_w"] == {"mean": 300, "min": 300, "max": 300}
    assert found["gpus"][1]["sm_clock_mhz"] is None
    assert found["sentence"] == "C=32: 8 in flight, 23 queued, GPUs 40-100 % busy at 310 W of 600 W"
    assert summary(SAMPLES, [(90.0, 95.0)], 32) is None


def test_looks_that_fell_between_the_requests_say_nothing_of_what_ran() -> None:
    looks = [{"t": float(second), "running": 0, "queued": 0, "kv_use": None} for second in range(3)]
    found = summary(looks, [(0.0, 3.0)], 1)
    assert found is not None
    assert found["sentence"] == "C=1: none queued"


def test_the_log_tells_slots_and_graphs() -> None:
    base = summary(SAMPLES, [(1.0, 2.0)], 32)
    found = with_log(base, 32, batches=[8] * 3, queued=[24] * 3, graphs=[True] * 3, slots=16)
    assert found is not None
    assert found["slots"] == {"seen": 1, "of": 16, "batch": {"mean": 8, "min": 8, "max": 8}}
    assert found["sentence"].startswith("C=32: 8 in flight in 1 of 16 slots, 24 queued, GPUs")
    few = with_log(base, 8, batches=[1], queued=[0], graphs=[True], slots=16)
    assert few is not None
    assert few["sentence"].startswith("C=8: 8 in flight, none queued"), (
        "a line tells of one micro-batch, perhaps the odd one"
    )
    uneven = with_log(base, 8, batches=[7, 1] * 2, queued=[0] * 4, graphs=[True] * 4, slots=16)
    assert uneven is not None
    assert uneven["slots"]["seen"] == 2
    assert with_log(base, 32, batches=[], queued=[], graphs=[], slots=16) == base
    spread = with_log(None, 32, batches=[2] * 4, queued=[0] * 4, graphs=[True, False] * 2, slots=16)
    assert spread is not None
    assert spread["slots"]["seen"] == 16
    assert (
        spread["sentence"]
        == "C=32: 32 in flight in 16 of 16 slots, none queued, 50% of steps by a captured graph"
    )


@given(
    st.integers(1, 4096),
    st.lists(st.integers(0, 512), min_size=1, max_size=9),
    st.lists(st.integers(0, 9999), max_size=9),
    st.lists(st.booleans(), max_size=9),
    st.integers(1, 64),
)
def test_whatever_the_log_says_gives_slots_that_can_be(
    concurrency: int, batches: list[int], queued: list[int], graphs: list[bool], slots: int
) -> None:
    found = with_log(None, concurrency, batches=batches, queued=queued, graphs=graphs, slots=slots)
    assert found is not None
    assert 1 <= (found["slots"]["seen"] or 1) <= slots
    assert found["slots"]["seen"] or len(batches) < 3
    assert found["sentence"].startswith(f"C={concurrency}: ")


def test_nothing_seen_says_so() -> None:
    assert sentence({"slots": None, "queued": None, "running": None}, 8) == "C=8: nothing to be seen"


def test_log_lines_belong_to_the_passes_in_which_they_came() -> None:
    def line(t: float, batch: int, queued: int) -> tuple[float, str]:
        return t, (
            f"[2026-11-29 17:46:24 PP0] Decode batch, #running-req: {batch}, #token: 900, token usage: 0.01, "
            f"cuda graph: True, gen throughput (token/s): 96.00, #queue-req: {queued}"
        )

    level = {
        "concurrency": 32,
        "server": None,
        "passes": [{"started_s": 10.0, "wall_s": 5.0}, {"started_s": 30.0, "wall_s": None}],
    }
    lines = [
        line(1009.0, 1, 0),
        line(1011.0, 8, 24),
        line(1013.0, 7, 24),
        line(1014.0, 6, 24),
        line(1016.0, 1, 0),
    ]
    found = with_batches({"levels": [level]}, lines, slots=16, began=1000.0)["levels"][0]["server"]
    assert found["slots"]["batch"] == {"mean": 7, "min": 6, "max": 8}
    assert found["graph_share"] == pytest.approx(1.0)
    assert found["sentence"] == "C=32: 8 in flight in 1 of 16 slots, 24 queued"
    level["passes"] = [{"started_s": 9.0, "wall_s": 7.0, "ramp_s": 1.5, "steady_s": 2.0}]
    found = with_batches({"levels": [level]}, lines, slots=16, began=1000.0)["levels"][0]["server"]
    assert found["slots"]["batch"] == {"mean": 8, "min": 8, "max": 8}, "only while every stream was busy"


def test_a_server_that_queues_is_looked_at_while_all_requests_are_there() -> None:
    """32 requests, 8 at a time, 4 s each: after the first 4 s fewer than 32 are with the server, so fewer wait."""
    samples = [
        {"pass": 0, "index": n, "start_s": 0.1 if n < 31 else 0.5, "seconds": 4.0 * (n // 8 + 1)}
        for n in range(32)
    ]
    level: dict[str, Any] = {
        "concurrency": 32,
        "server": None,
        "samples": samples,
        "passes": [{"repeat": 0, "started_s": 10.0, "wall_s": 16.1, "steady_s": None, "ramp_s": None}],
    }
    queue = [
        (0.3, 1),
        *((at, 24 - 8 * int(at // 4)) for at in (1.0, 2.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0)),
    ]
    lines = [
        (
            1010.0 + at,
            f"[x PP0] Decode batch, #running-req: 8, #token: 9, cuda graph: True, #queue-req: {queued}",
        )
        for at, queued in queue
    ]
    found = with_batches({"levels": [level]}, lines, slots=16, began=1000.0)["levels"][0]["server"]
    assert found["sentence"] == "C=32: 8 in flight in 1 of 16 slots, 24 queued"
    level["samples"] = [{**sample, "seconds": None} for sample in samples]
    found = with_batches({"levels": [level]}, lines, slots=16, began=1000.0)["levels"][0]["server"]
    assert found["queued"]["min"] == 0, "without the requests' times all of the pass"
