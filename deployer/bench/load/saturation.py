"""The client's own part in what it measures: how busy it was, and no garbage collection meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Iterator

from deployer.bench.load.spec import Json
from deployer.bench.load.stats import SAMPLES_FOR_P99, percentile

#: A client that uses more of one core, or whose event loop is later than this in the median, measures itself.
CPU_LIMIT = 0.7
LAG_LIMIT = 0.005
#: Seconds between two looks at the lag: a look wakes an idle client, and every 10 ms was felt.
#: On average; each wait is another, because an even beat would fall into step with what blocks the loop.
LAG_PERIOD = 0.04
_GOLDEN = 0.618034


class Saturation:
    """How busy the client itself was: its share of one core, and how late its event loop ran."""

    def __init__(self) -> None:
        self._lags: list[float] = []
        self._wall = time.perf_counter()
        self._cpu = time.thread_time()

    async def watch(self) -> None:
        """Sample the loop's lag until cancelled."""
        loop = asyncio.get_running_loop()

        alarm: asyncio.TimerHandle | None = None

        def look(due: float | None) -> None:
            nonlocal alarm
            now = time.perf_counter()
            if due is not None:
                self._lags.append(max(0.0, now - due))
            wait = LAG_PERIOD * (0.5 + len(self._lags) * _GOLDEN % 1.0)
            alarm = loop.call_later(wait, look, now + wait)

        look(None)
        try:
            await loop.create_future()
        finally:
            if alarm is not None:
                alarm.cancel()

    def summary(self) -> Json:
        """``{cpu, lag_p50_s, lag_p99_s, samples, client_limited}``; cpu 1.0 is one whole core."""
        wall = time.perf_counter() - self._wall
        cpu = (time.thread_time() - self._cpu) / wall if wall > 0 else 0.0
        lags = sorted(self._lags)
        p50 = percentile(lags, 50) if lags else None
        return {
            "cpu": round(cpu, 4),
            "lag_p50_s": None if p50 is None else round(p50, 6),
            "lag_p99_s": round(percentile(lags, 99), 6) if len(lags) >= SAMPLES_FOR_P99 else None,
            "samples": len(lags),
            "client_limited": limited(cpu, p50),
        }


def limited(cpu: float, lag_p50: float | None) -> bool:
    """Whether a client that busy, or that late, measures itself rather than the server."""
    return cpu > CPU_LIMIT or (lag_p50 is not None and lag_p50 > LAG_LIMIT)


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """No garbage collection inside: a pause of it is a latency of nobody's."""
    enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()
