from __future__ import annotations

from typing import Any

import pytest

from deployer.deploy.figures import earlier_start
from deployer.deploy.load_progress import LoadProgress

GIB = 1 << 30


def figures(read: float = 0, rss: float = 0, gpu: float = 0) -> dict[str, Any]:
    return {"read_bytes": int(read * GIB), "rss": int(rss * GIB), "gpu_memory": int(gpu * GIB)}


def progress(
    *loading: dict[str, Any], before: dict[str, Any] | None = None, total: float | None = 100
) -> LoadProgress:
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


def manifest(number: int, profile: str, *names: str) -> dict[str, Any]:
    spans = [{"name": name, "seconds": float(number)} for name in names]
    return {"release": f"{number:04}-{profile}", "profile": profile, "timeline": spans or None}


def test_an_estimate_comes_from_the_last_start_of_the_profile_that_became_ready() -> None:
    releases = [
        manifest(1, "tp8", "load", "ready"),
        manifest(2, "pp8", "load", "ready"),
        manifest(3, "tp8", "load", "ready"),
        manifest(4, "tp8", "load"),
        manifest(5, "tp8"),
    ]
    timeline, source = earlier_start(releases, "tp8") or ([], "")
    assert (timeline[0]["seconds"], source) == (3.0, "0003-tp8")


def test_an_estimate_comes_from_another_profile_where_this_one_never_started() -> None:
    timeline, source = earlier_start(
        [manifest(1, "tp8", "load", "ready"), manifest(2, "pp8", "load")], "pp8"
    ) or ([], "")
    assert (timeline[0]["seconds"], source) == (1.0, "0001-tp8")
    assert earlier_start([manifest(2, "pp8", "load")], "pp8") is None
