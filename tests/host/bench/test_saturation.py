"""How late the client's own event loop runs, in real time."""

from __future__ import annotations

import asyncio
import time

import pytest

from deployer.bench.load.saturation import Saturation
from tests.patience import one_within


@pytest.mark.alone
def test_a_blocked_loop_shows_as_lag_and_an_idle_one_does_not() -> None:
    async def run(block: float, pause: float) -> float:
        saturation = Saturation()
        watcher = asyncio.ensure_future(saturation.watch())
        for _ in range(20):
            time.sleep(block)
            await asyncio.sleep(pause)
        watcher.cancel()
        found = saturation.summary()
        assert found["samples"] > 5
        assert found["cpu"] < 0.7, "sleeping is not work"
        return float(found["lag_p50_s"])

    assert asyncio.run(run(0.04, 0.002)) > 0.01
    one_within(0.005, lambda _: asyncio.run(run(0.0, 0.03)))
