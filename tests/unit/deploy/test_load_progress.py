from __future__ import annotations

import pytest

from deployer.deploy.load_progress import LoadProgress
from deployer.records.events import ProcEvent

GIB = 1 << 30


def figures(read: float = 0, rss: float = 0, gpu: float = 0) -> ProcEvent:
    return ProcEvent(read_bytes=int(read * GIB), rss=int(rss * GIB), gpu_memory=int(gpu * GIB))


def progress(*loading: ProcEvent, before: ProcEvent | None = None, total: float | None = 100) -> LoadProgress:
    made = LoadProgress(int(total * GIB) if total else None)
    if before is not None:
        made.take(before, "launch")
    for one in loading:
        made.take(one, "load")
    return made


def test_bytes_count_from_the_beginning_of_the_load() -> None:
    made = progress(figures(read=27, gpu=25), before=figures(read=2, rss=3))
    assert made.read == 25 * GIB
    assert made.fraction == pytest.approx(0.25)
    assert not made.cached


def test_weights_from_the_page_cache_are_not_nought_per_cent() -> None:
    made = progress(figures(read=2.1, gpu=40), before=figures(read=2))
    assert made.cached
    assert made.fraction is None


def test_a_load_that_has_not_begun_to_move_is_not_cached() -> None:
    assert not progress(figures(read=2, rss=4), before=figures(read=2, rss=3)).cached


def test_a_wait_that_is_taken_up_later_knows_no_cache() -> None:
    assert not progress(figures(rss=40)).cached


def test_more_than_everything_is_everything() -> None:
    assert progress(figures(read=250), before=figures()).fraction == 1.0


def test_without_a_size_there_is_no_part() -> None:
    made = progress(figures(read=5), before=figures(), total=None)
    assert (made.read, made.fraction, made.cached) == (5 * GIB, None, False)
