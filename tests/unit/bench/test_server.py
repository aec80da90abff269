"""What the server did during a level: samples, the log's batch lines, and one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.bench.load.server import summary
from deployer.bench.server import sentence, sentences, with_server
from deployer.records.bench import BenchRun, Level, ServerUse, Spread
from tests.unit.bench.load.test_server import SAMPLES

EIGHT = Spread(8, 8, 8)


def use(spans: Sequence[tuple[float, float]]) -> ServerUse:
    """What the load client saw in these spans."""
    seen = summary(SAMPLES, spans)
    assert seen is not None
    return ServerUse.from_json(seen)


def line(t: float, batch: int, queued: int, graph: bool = True) -> tuple[float, str]:
    return t, (
        f"[2026-11-29 17:46:24 PP0] Decode batch, #running-req: {batch}, #token: 900, token usage: 0.01, "
        f"cuda graph: {graph}, gen throughput (token/s): 96.00, #queue-req: {queued}"
    )


def level(concurrency: int, server: ServerUse | None = None) -> Level:
    """A level with one pass, whose steady time is from 10 to 20 s."""
    passes = [{"started_s": 10.0, "wall_s": 10.0, "ramp_s": 0.0, "steady_s": 10.0}]
    return Level.from_json(
        {"concurrency": concurrency, "passes": passes, "server": None if server is None else server.as_json()}
    )


def seen(one: Level, lines: Sequence[tuple[float, str]], slots: int = 16) -> ServerUse:
    """The level's server after the log was read."""
    found = with_server(BenchRun(levels=(one,)), lines, slots=slots, began=0.0).levels[0].server
    assert found is not None
    return found


def log(batches: Sequence[int], queued: int, graphs: Sequence[bool] = ()) -> list[tuple[float, str]]:
    each = [*graphs, *[True] * (len(batches) - len(graphs))]
    return [
        line(11.0 + n / 10, batch, queued, graph) for n, (batch, graph) in enumerate(zip(batches, each, strict=True))
    ]


def test_samples_alone_give_a_sentence() -> None:
    found = seen(level(32, use([(1.0, 2.0), (7.0, 8.0)])), [])
    assert found.sentence == "C=32: 8 in flight, 23 queued, GPUs 40-100 % busy at 310 W of 600 W"


def test_looks_that_fell_between_the_requests_say_nothing_of_what_ran() -> None:
    idle = Spread(0, 0, 0)
    assert sentence(ServerUse(running=idle, queued=idle), 1) == "C=1: none queued"


def test_the_log_shows_slots_and_graphs() -> None:
    base = use([(1.0, 2.0)])
    found = seen(level(32, base), log([8] * 3, 24))
    assert found.slots is not None
    assert (found.slots.seen, found.slots.of, found.slots.batch) == (1, 16, EIGHT)
    assert found.sentence is not None
    assert found.sentence.startswith("C=32: 8 in flight in 1 of 16 slots, 24 queued, GPUs")
    few = seen(level(8, base), log([1], 0))
    assert few.sentence is not None
    assert few.sentence.startswith("C=8: 8 in flight, none queued"), "a line is of one micro-batch, perhaps the odd one"
    uneven = seen(level(8, base), log([7, 1] * 2, 0))
    assert uneven.slots is not None
    assert uneven.slots.seen == 2
    assert seen(level(32, base), []).slots is None
    spread = seen(level(32), log([2] * 4, 0, [True, False] * 2))
    assert spread.slots is not None
    assert spread.slots.seen == 16
    assert spread.sentence == "C=32: 32 in flight in 16 of 16 slots, none queued, 50% of steps by a captured graph"


@given(
    st.integers(1, 4096),
    st.lists(st.integers(0, 512), min_size=1, max_size=9),
    st.integers(0, 9999),
    st.integers(1, 64),
)
def test_whatever_the_log_says_gives_slots_that_can_be(
    concurrency: int, batches: list[int], queued: int, slots: int
) -> None:
    found = seen(level(concurrency), log(batches, queued), slots)
    assert found.slots is not None
    assert 1 <= (found.slots.seen or 1) <= slots
    assert found.slots.seen or len(batches) < 3
    assert found.sentence is not None
    assert found.sentence.startswith(f"C={concurrency}: ")


def test_nothing_seen_says_so() -> None:
    assert sentence(ServerUse(), 8) == "C=8: nothing was observed"
    unseen = with_server(BenchRun(levels=(level(8),)), [], slots=1, began=0.0)
    assert unseen.levels[0].server is None
    assert sentences(unseen) == []


def windowed(one: dict[str, Any], lines: Sequence[tuple[float, str]]) -> ServerUse:
    bench = BenchRun.from_json({"levels": [{"concurrency": 32, **one}]})
    found = with_server(bench, lines, slots=16, began=1000.0).levels[0].server
    assert found is not None
    return found


def test_log_lines_belong_to_the_passes_in_which_they_came() -> None:
    passes: list[dict[str, Any]] = [{"started_s": 10.0, "wall_s": 5.0}, {"started_s": 30.0, "wall_s": None}]
    lines = [
        line(1009.0, 1, 0),
        line(1011.0, 8, 24),
        line(1013.0, 7, 24),
        line(1014.0, 6, 24),
        line(1016.0, 1, 0),
    ]
    found = windowed({"passes": passes}, lines)
    assert found.slots is not None
    assert found.slots.batch == Spread(7, 6, 8)
    assert found.graph_share == pytest.approx(1.0)
    assert found.sentence == "C=32: 8 in flight in 1 of 16 slots, 24 queued"
    found = windowed({"passes": [{"started_s": 9.0, "wall_s": 7.0, "ramp_s": 1.5, "steady_s": 2.0}]}, lines)
    assert found.slots is not None
    assert found.slots.batch == EIGHT, "only while every stream was busy"


def test_a_server_that_queues_is_looked_at_while_all_requests_are_there() -> None:
    """32 requests, 8 at a time, 4 s each: after the first 4 s fewer than 32 are with the server, so fewer wait."""
    samples = [
        {"pass": 0, "index": n, "start_s": 0.1 if n < 31 else 0.5, "seconds": 4.0 * (n // 8 + 1)} for n in range(32)
    ]
    passes = [{"repeat": 0, "started_s": 10.0, "wall_s": 16.1, "steady_s": None, "ramp_s": None}]
    queue = [
        (0.3, 1),
        *((at, 24 - 8 * int(at // 4)) for at in (1.0, 2.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0)),
    ]
    lines = [line(1010.0 + at, 8, queued) for at, queued in queue]
    found = windowed({"passes": passes, "samples": samples}, lines)
    assert found.sentence == "C=32: 8 in flight in 1 of 16 slots, 24 queued"
    found = windowed({"passes": passes, "samples": [{**one, "seconds": None} for one in samples]}, lines)
    assert found.queued is not None
    assert found.queued.min == 0, "without the requests' times all of the pass"
