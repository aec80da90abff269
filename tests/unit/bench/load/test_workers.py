"""How a level is spread over processes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.bench.load.drive import Job
from deployer.bench.load.workers import MOST, processes_for, shares


def job(width: int, total: int) -> Job:
    return Job("level", width, total, 8, 16, 0, "salt", 10.0, list(range(width)))


@pytest.mark.parametrize(
    ("width", "rate", "cores", "found"),
    [
        (1, None, 16, 1),
        (64, 3_000.0, 16, 1),
        (129, 3_000.0, 16, 2),
        (512, None, 16, 4),
        (256, None, 2, 2),
        (32, 30_000.0, 16, 4),
        (2, 1e9, 16, 2),
        (4096, 1e9, 64, MOST),
        (4096, 1e9, 1, 1),
    ],
)
def test_more_processes_for_more_streams_or_tokens(width: int, rate: float | None, cores: int, found: int) -> None:
    assert processes_for(width, rate, cores) == found


@given(st.integers(1, 300), st.integers(1, 5), st.integers(1, 8))
def test_every_stream_is_somebodys_and_nobody_has_many_more(width: int, waves: int, processes: int) -> None:
    parts = shares(job(width, width * waves), processes, 5.0)
    assert sorted(stream for part in parts for stream in part.streams) == list(range(width))
    sizes = [len(part.streams) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert {part.start_at for part in parts} == {5.0}
    assert {(part.width, part.total, part.label) for part in parts} == {(width, width * waves, "level")}
