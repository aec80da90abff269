"""The lines about batches, as real versions print them, and as nobody does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.sglang.log.batches import Batch, parse_batch, read_batches, visible_slots
from tests.paths import DATA

BATCHES = DATA / "batches"


def real(name: str) -> list[tuple[float, str]]:
    rows = (line.split("\t", 1) for line in (BATCHES / name).read_text().splitlines())
    return [(float(t), text) for t, text in rows]


def parsed(line: str) -> Batch:
    batch = parse_batch(line)
    assert batch is not None
    return batch


LINES = {
    "0.5.11": (
        "[2026-11-29 17:46:24 PP1] Decode batch, #running-req: 3, #token: 83, token usage: 0.25, cuda graph: True, "
        "gen throughput (token/s): 4.93, #queue-req: 7",
        (True, 1, 3, 7, 83, 0.25, True, 4.93),
    ),
    "0.4.6": (
        "[2025-05-01 10:00:00 TP0] Decode batch. #running-req: 1, #token: 206, token usage: 0.00, "
        "gen throughput (token/s): 656.23, #queue-req: 2, ",
        (True, None, 1, 2, 206, 0.0, None, 656.23),
    ),
    "queue first": (
        "[2025-08-01 10:00:00] Decode batch. #running-req: 2, #queue-req: 0, #token: 5, token usage: 0.10, "
        "cuda graph: False, gen throughput (token/s): 6",
        (True, None, 2, 0, 5, 0.1, False, 6.0),
    ),
    "hybrid": (
        "[2026-09-30 08:30:35] Decode batch, #running-req: 9, #full token: 11584, full token usage: 0.01, "
        "mamba num: 36, mamba usage: 0.60, cuda graph: True, gen throughput (token/s): 22.40, #queue-req: 1",
        (True, None, 9, 1, 11584, 0.6, True, 22.4),
    ),
    "cpu": (
        "[2026-11-29 17:28:10 PP0] Decode batch, #running-req: 1, #token: 22, token usage: 0.00, cpu graph: False, "
        "gen throughput (token/s): 1.65, #queue-req: 0",
        (True, 0, 1, 0, 22, 0.0, False, 1.65),
    ),
    "prefill": (
        "[2026-11-29 17:45:30 PP0 TP0 EP0] Prefill batch, #new-seq: 32, #new-token: 2359, #cached-token: 41, "
        "token usage: 0.00, #running-req: 4, #queue-req: 5, #pending-token: 74, cuda graph: False, "
        "input throughput (token/s): 13616.49",
        (False, 0, 4, 5, None, 0.0, False, 13616.49),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LINES)
def test_every_dialect(name: str) -> None:
    line, expected = LINES[name]
    batch = parsed(line)
    found = (
        batch.decode,
        batch.pp,
        batch.running,
        batch.queued,
        batch.tokens,
        batch.usage,
        batch.graph,
        batch.throughput,
    )
    assert found == expected


def test_a_prefill_tells_what_is_new_and_what_was_cached() -> None:
    batch = parsed(LINES["prefill"][0])
    assert (batch.new_requests, batch.new_tokens, batch.cached_tokens) == (32, 2359, 41)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Decode batch",
        "[2026-11-29 17:46:24] Capturing batches (bs=8 avail_mem=1.00 GB):  50%",
        "[2026-11-29 17:46:24] Decode batch, #token: 5",
        "[2026-11-29 17:46:24] Decode batch, #running-req: many",
        "[2026-11-29 17:46:24] server_args={'decode_log_interval': 40}",
        "Decode batch, #running-req: 1" + " " * 3000,
    ],
)
def test_other_lines_are_none(line: str) -> None:
    assert parse_batch(line) is None


PIECE = st.sampled_from(
    ["[2026-11-29 17:46:24 PP0] ", "Decode batch, ", "Prefill batch. ", "#running-req: 8, ", "#token: ", "usage: ",
     "cuda graph: True", "9" * 30, "-1", "#queue-req: -4, ", "gen throughput (token/s): True, ", "usage: inf, ", ": , "]
)  # fmt: skip


@given(st.lists(PIECE | st.text(max_size=12), max_size=14).map("".join))
def test_no_line_is_too_odd(line: str) -> None:
    batch = parse_batch(line, 1.0)
    if batch is not None:
        assert batch.running >= 0
        assert batch.queued is None or batch.queued >= 0
    assert len(read_batches([(0.0, line), (1.0, line)], 40).sizes) in (0, 2)


@given(
    st.integers(0, 10**6), st.integers(0, 10**9), st.integers(0, 10**6), st.booleans(), st.integers(0, 63),
    st.permutations(range(5)),
)  # fmt: skip
def test_the_order_of_fields_does_not_matter(
    running: int, tokens: int, queued: int, graph: bool, stage: int, order: list[int]
) -> None:
    fields = [
        f"#running-req: {running}",
        f"#token: {tokens}",
        f"#queue-req: {queued}",
        f"cuda graph: {graph}",
        "token usage: 0.50",
    ]
    batch = parsed(f"[2026-11-29 17:46:24 PP{stage} TP0] Decode batch, {', '.join(fields[index] for index in order)}")
    assert (batch.running, batch.tokens, batch.queued, batch.graph, batch.usage) == (
        running,
        tokens,
        queued,
        graph,
        0.5,
    )
    assert (batch.pp, batch.leading) == (stage, stage == 0)


@pytest.mark.parametrize(("interval", "loop", "seen"), [(40, 4, 1), (40, 16, 2), (41, 16, 16), (40, 1, 1), (40, 3, 3)])
def test_how_many_slots_a_log_shows(interval: int, loop: int, seen: int) -> None:
    assert visible_slots(interval, loop) == seen


def test_a_real_log_that_shows_one_slot_only() -> None:
    """32 requests under pp 2 and depth 2, split 1 + 31: an interval of 40 shows one of the two only."""
    found = read_batches(real("0.5.11-pp2-async2-32.tsv"), 40)
    assert len(found.decodes) > 10
    assert found.sizes == [1] * len(found.sizes)
    assert found.mean_size == 16
    assert not found.eager
    assert found.queued
    assert max(found.queued) == 0


def test_a_real_log_of_a_cpu() -> None:
    found = read_batches(real("0.5.23-cpu-pp2-depth2.tsv"), 5)
    assert {batch.pp for batch in found.decodes} == {0}
    assert len(found.eager) == len(found.decodes) > 50
    assert set(found.sizes) <= {1, 2}
    assert found.cached_share is not None


def test_nothing_is_known_of_nothing() -> None:
    found = read_batches([], 40)
    assert (found.sizes, found.mean_size, found.usage, found.cached_share, found.queued) == (
        [],
        None,
        None,
        None,
        [],
    )
