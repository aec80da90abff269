"""What the server did meanwhile: what it reports and what nvidia-smi does, as samples and figures."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.bench.load.sampler import read_loads, read_metrics, read_smi
from deployer.bench.load.server import MOST_ROWS, over_time, summary

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
    found = summary(SAMPLES, [(1.0, 2.0), (7.0, 8.0)])
    assert found is not None
    assert found["samples"] == 3
    assert found["running"] == {"mean": 8, "min": 8, "max": 8}
    assert found["queued"] == {"mean": 23, "min": 22, "max": 24}
    assert found["gpus"][0]["power_w"] == {"mean": 300, "min": 300, "max": 300}
    assert found["gpus"][1]["sm_clock_mhz"] is None
    assert summary(SAMPLES, [(90.0, 95.0)]) is None
