"""The client's own part in what it measures."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest

from deployer.bench.saturation import Saturation, limited, no_collection


@pytest.mark.parametrize(
    ("cpu", "lag", "found"),
    [
        (0.35, 0.0006, False),
        (0.71, 0.0006, True),
        (0.35, 0.006, True),
        (0.69, 0.0049, False),
        (0.1, None, False),
        (0.9, None, True),
    ],
)
def test_either_sign_is_enough(cpu: float, lag: float | None, found: bool) -> None:
    assert limited(cpu, lag) is found


def test_a_blocked_loop_shows_as_lag_and_an_idle_one_does_not() -> None:
    async def run(block: float, pause: float) -> float:
        saturation = Saturation()
        watcher = asyncio.ensure_future(saturation.watch())
        for _ in range(12):
            time.sleep(block)
            await asyncio.sleep(pause)
        watcher.cancel()
        found = saturation.summary()
        assert found["samples"] > 5
        assert found["cpu"] < 0.7, "sleeping is not work"
        return float(found["lag_p50_s"])

    assert asyncio.run(run(0.04, 0.002)) > 0.01
    assert asyncio.run(run(0.0, 0.03)) < 0.005


def test_no_garbage_is_collected_inside_and_the_setting_returns() -> None:
    assert gc.isenabled()
    with no_collection():
        assert not gc.isenabled()
        assert gc.get_freeze_count() > 0
    assert gc.isenabled()
    gc.disable()
    try:
        with no_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
