from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.sglang.log.launch import PHASES, Count, LaunchLog, LaunchState, finish_timeline, noteworthy
from tests.unit.sglang.log.logs import launch


def read(name: str, until: str | None = None) -> LaunchLog:
    log = LaunchLog()
    for t, piece, text in launch(name):
        log.feed(text, t, piece)
        if until and until in text:
            break
    return log


def names(state: LaunchState) -> list[str]:
    return [span.name for span in state.spans]


def test_pipeline_with_captures() -> None:
    state = read("0.5.11-pp2").state
    assert names(state) == ["launch", "dist-init", "load", "kv-pool", "capture", "http-up", "ready"]
    assert state.dialect == "0.5.12"
    assert [rank.rank for rank in state.ranks] == ["PP0", "PP1"]
    assert [rank.captures for rank in state.ranks] == [Count(12, 12), Count(12, 12)]
    assert state.values["pp_size"] == 2
    assert state.values["nccl"] == "2.28.9"
    assert state.values["max_total_num_tokens"] == 1018242
    assert state.values["max_running_requests"] == 64
    spans = {span.name: span for span in state.spans}
    assert spans["launch"].seconds == pytest.approx(38.983)
    assert spans["dist-init"].seconds == pytest.approx(44.236 - 38.983)
    assert spans["load"].seconds == pytest.approx(44.345 - 44.236)
    assert spans["capture"].seconds == pytest.approx(46.428 - 44.488)


def test_bars_of_two_stages_are_told_apart_by_their_free_memory() -> None:
    log = read("0.5.11-pp2", until="(bs=1 avail_mem=69.18 GB): 100%")
    first, second = log.state.ranks
    assert (first.rank, first.captures) == ("PP0", Count(10, 12))
    assert (second.rank, second.captures) == ("PP1", Count(12, 12))
    assert log.state.captures == Count(10, 12)
    assert log.state.waiting_for.startswith("captures 10/12")


def test_tensor_parallel_ranks_wait_for_the_last_one_to_load() -> None:
    early = read("0.5.11-tp2", until="TP1] Load weight end")
    assert early.state.phase == "load"
    assert early.state.waiting_for == "weights: TP0"
    assert read("0.5.11-tp2", until="TP0] Load weight end").state.phase == "kv-pool"


def test_only_the_first_tensor_parallel_rank_draws_captures() -> None:
    ranks = read("0.5.11-tp2").state.ranks
    assert [(rank.rank, rank.captures) for rank in ranks] == [("TP0", Count(12, 12)), ("TP1", None)]


def test_second_capture_starts_to_count_anew() -> None:
    state = read("0.5.11-cold").state
    assert state.phase == "capture"
    assert state.captures == Count(0, 58)
    assert state.waiting_for == "captures 0/58 (batch size 8192)"


def test_first_capture_on_a_cold_machine_names_the_size() -> None:
    log = read("0.5.11-cold", until="bs=40 avail_mem=97.22 GB):  33%")
    assert log.state.captures == Count(4, 12)
    assert log.state.waiting_for == "captures 4/12 (batch size 40)"


@pytest.mark.parametrize("name", ["0.5.23-cpu", "0.5.23-cpu-tp2", "0.5.23-cpu-pp2"])
def test_without_graphs_there_is_no_capture_phase(name: str) -> None:
    state = read(name).state
    assert names(state) == ["launch", "dist-init", "load", "kv-pool", "http-up", "warm-up", "ready"]
    assert state.dialect == "0.5.23"
    assert state.shards == Count(6, 6)
    assert state.captures is None


def test_bar_glued_to_the_next_record() -> None:
    log = read("0.5.23-cpu-pp2", until="lm_head.weight not found")
    assert log.state.shards == Count(0, 6)
    log = LaunchLog()
    log.feed("[2026-01-01 00:00:00 PP0] Load weight begin. avail mem=1.00 GB", 1.0)
    log.feed(
        "Multi-thread loading shards: 100% Completed | 6/6 [00:00<00:00, 9.1it/s][2026-01-01 00:00:01 PP0] "
        "Load weight end. elapsed=1 s, type=X, avail mem=1.00 GB, mem usage=2.50 GB.",
        2.0,
    )
    assert log.state.phase == "kv-pool"
    assert log.state.shards == Count(6, 6)
    assert log.state.values["weights_gb"] == 2.5


def test_several_bars_in_one_piece() -> None:
    log = LaunchLog()
    log.feed(
        "Loading safetensors checkpoint shards:   0% Completed | 0/163 [00:00<?, ?it/s]"
        "Loading safetensors checkpoint shards:  12% Completed | 20/163 [00:10<01:10,  2.01it/s]",
        3.0,
    )
    assert log.state.phase == "load"
    assert log.state.waiting_for == "shards 20/163"


def test_eight_stages_capture_side_by_side_with_equal_memory() -> None:
    log = LaunchLog()
    for rank in range(8):
        log.feed(f"[2026-01-01 00:00:00 PP{rank}] Capture cuda graph begin. avail mem=9.00 GB", 1.0)
    for done, size in enumerate((8, 4, 2, 1)):
        for _ in range(8 if done < 3 else 7):
            log.feed(
                f"Capturing batches (bs={size} avail_mem=9.00 GB):  25%|##5  | {done}/4 [00:01<00:03, 1it/s]",
                2.0,
            )
    counts = sorted(rank.captures.done for rank in log.state.ranks if rank.captures)
    assert counts == [2, 3, 3, 3, 3, 3, 3, 3]
    assert log.state.captures == Count(2, 4)


def test_newer_dialect_of_capture() -> None:
    log = LaunchLog()
    log.feed(
        "[2026-01-01 00:00:00 PP0] Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1",
        1.0,
    )
    log.feed("Capturing batches (bs=8 avail_mem=9.00 GB):  50%|#####     | 2/4 [00:01<00:01, 2it/s]", 2.0)
    assert log.state.waiting_for == "captures 2/4 (batch size 8): PP0"
    log.feed(
        "[2026-01-01 00:00:09 PP0] Capture target decode CUDA graph end. bs=[1, 8], elapsed=2.00 s, mem usage=1 GB",
        9,
    )
    assert log.state.ranks[0].captures == Count(4, 4)


def test_another_witness_may_be_ahead_of_the_log() -> None:
    log = read("0.5.23-cpu", until="Load weight begin")
    log.reached("warm-up", 40.0)
    log.feed("[2026-01-01 00:00:00] Memory pool end. avail mem=1.00 GB", 41.0)
    assert log.state.phase == "warm-up"


def test_timeline_sums_up_to_the_end() -> None:
    state = read("0.5.11-pp2").state
    timeline = finish_timeline(state, 50.0)
    assert sum(item["seconds"] for item in timeline) == pytest.approx(50.0, abs=0.01)
    assert set(timeline[0]) == {"name", "seconds"}


def test_health_probes_are_no_progress() -> None:
    assert not noteworthy(
        '[2026-01-01 00:00:00] INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 503 Service Unavailable'
    )
    assert noteworthy('[2026-01-01 00:00:00] INFO:     127.0.0.1:1 - "GET /model_info HTTP/1.1" 200 OK')
    assert not noteworthy("  ")


_WORDS = st.sampled_from(
    [
        "[2026-01-01 00:00:00 PP1 TP0] ",
        "[2026-01-01 00:00:00] ",
        "Init torch distributed begin.",
        "Init parallel ends. elapsed=",
        "Load weight begin. avail mem=",
        "Load weight end.",
        "Loading safetensors checkpoint shards:  50% Completed | 3/6 [",
        "Capturing batches (bs=8 avail_mem=1.2.3 GB):  5%|# | 9/4 [",
        "Capture cuda graph begin. avail mem=",
        "Capture cuda graph bs [1, 2",
        "Capture cuda graph end.",
        "KV Cache is allocated. #tokens: ",
        "max_total_num_tokens=",
        "server_args={'tp_size': ",
        "INFO:     Uvicorn running on ",
        "The server is fired up and ready to roll!",
        "\r",
        "\n",
        "9" * 40,
        "\u0663",
    ]
)


@given(st.lists(st.lists(st.one_of(_WORDS, st.text(max_size=12)), max_size=8).map("".join), max_size=20))
def test_any_lines_never_raise_and_the_phase_never_goes_back(lines: list[str]) -> None:
    log = LaunchLog()
    last = 0
    for number, line in enumerate(lines):
        log.feed(line, float(number))
        here = PHASES.index(log.state.phase)
        assert here >= last
        last = here
    assert [span.name for span in log.state.spans] == sorted(names(log.state), key=PHASES.index)
    assert all(span.seconds >= 0 for span in log.state.spans)
