from __future__ import annotations

import pytest

from deployer.deploy.launch_progress import Estimate, LoadProgress, estimate
from deployer.records.events import ProcEvent
from deployer.records.failure import PhaseTime
from deployer.records.release import Release
from tests.unit.deploy import builders

GIB = 1 << 30


def release(number: int, profile: str, *phases: str) -> Release:
    return builders.release(number, profile, timeline=[PhaseTime(name, number).as_json() for name in phases])


def test_the_last_start_of_the_profile_that_became_ready() -> None:
    releases = [
        release(1, "tp8", "load", "ready"),
        release(2, "pp8", "load", "ready"),
        release(3, "tp8", "load", "ready"),
        release(4, "tp8", "load"),
        release(5, "tp8"),
    ]
    assert estimate(releases, "tp8") == Estimate({"load": 3.0, "ready": 3.0}, "0003-tp8")


def test_another_profile_if_this_one_never_started() -> None:
    releases = [release(1, "tp8", "load", "ready"), release(2, "pp8", "load")]
    assert estimate(releases, "pp8") == Estimate({"load": 1.0, "ready": 1.0}, "0001-tp8")
    assert estimate([release(2, "pp8", "load")], "pp8") is None


def test_what_remains_is_this_phase_and_those_after_it() -> None:
    earlier = Estimate({"launch": 5.0, "load": 60.0, "capture": 20.0}, "0001-tp8")
    assert earlier.remaining("load", 50.0) == pytest.approx(30.0)
    assert earlier.remaining("load", 90.0) == pytest.approx(20.0)


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
    assert not made.cached


def test_weights_from_the_page_cache_are_not_nought_per_cent() -> None:
    made = progress(figures(read=2.1, gpu=40), before=figures(read=2))
    assert made.cached


def test_a_load_that_has_not_begun_to_move_is_not_cached() -> None:
    assert not progress(figures(read=2, rss=4), before=figures(read=2, rss=3)).cached


def test_a_wait_that_is_taken_up_later_knows_no_cache() -> None:
    assert not progress(figures(rss=40)).cached


def test_without_a_size_nothing_is_cached() -> None:
    made = progress(figures(read=5), before=figures(), total=None)
    assert (made.read, made.cached) == (5 * GIB, False)
