"""Progress beside a stage, as events."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

from deployer.bench.load.spec import Json

_REPORTED_FAILURES = 5


class Progress:
    """Progress of one stage: ``counts`` gives ``{done, failed, chunks, kinds}`` so far.

    ``kinds`` has (number of the request, kind) of those that failed; the first five are reported one by one.
    """

    def __init__(
        self, emit: Callable[[Json], None], name: str, width: int, total: int, counts: Callable[[], Json]
    ) -> None:
        self._emit = emit
        self._name = name
        self._width = width
        self._total = total
        self._counts = counts
        self._began = time.perf_counter()
        self._reported: set[int] = set()

    def report(self, *, ended: bool) -> None:
        """Emit one event, and notes for new failures."""
        counts = self._counts()
        for index, kind in counts.pop("kinds"):
            if index not in self._reported and len(self._reported) < _REPORTED_FAILURES:
                self._reported.add(index)
                text = f"{self._name} C={self._width}: request {index} failed ({kind})"
                self._emit({"event": "note", "text": text})
        seconds = time.perf_counter() - self._began
        chunks = counts.pop("chunks")  # not tokens: usage comes last
        self._emit(
            {
                "event": self._name,
                "concurrency": self._width,
                **counts,
                "total": self._total,
                "tok_s": round(chunks / seconds, 1) if seconds > 0 else 0.0,
                "seconds": round(seconds, 1),
                "ended": ended,
            }
        )

    @contextlib.asynccontextmanager
    async def every(self, interval: float) -> AsyncIterator[None]:
        """Report every ``interval`` seconds inside, and at the end."""

        async def ticker() -> None:
            while True:
                await asyncio.sleep(interval)
                self.report(ended=False)

        beside = asyncio.ensure_future(ticker())
        try:
            yield
        finally:
            beside.cancel()
            self.report(ended=True)
