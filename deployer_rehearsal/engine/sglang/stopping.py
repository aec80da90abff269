"""What the stand-in does at SIGTERM and SIGINT: SGLang's own drain, and uvicorn's, whichever is done first."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable

Work = Callable[[], Awaitable[None]]


class Stopping:
    """The signals of one server from now on: uvicorn handles them before its first line. ``deaf``: no SIGTERM."""

    def __init__(self, *, deaf: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._signals: asyncio.Queue[int] = asyncio.Queue()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._begun: list[asyncio.Task[None]] = []
        self.forced = False
        """Whether it was the second SIGINT, at which answers under way are left."""
        self._loop.add_signal_handler(signal.SIGINT, self._signals.put_nowait, int(signal.SIGINT))
        if deaf:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        else:
            self._loop.add_signal_handler(signal.SIGTERM, self._signals.put_nowait, int(signal.SIGTERM))

    async def end(self, drain: Work, shut: Work) -> int:
        """Return the signal by which the server ends.

        At SIGTERM SGLang waits until it has no request (``drain``), but goes on taking new ones. SIGINT is uvicorn's:
        it takes no new ones and waits for the answers under way (``shut``), which it leaves at the second.
        """
        heeding = self._loop.create_task(self._heed({signal.SIGTERM: drain, signal.SIGINT: shut}))
        try:
            return await self._ended
        finally:
            for task in (heeding, *self._begun):
                task.cancel()

    async def _heed(self, work: dict[signal.Signals, Work]) -> None:
        while True:
            number = signal.Signals(await self._signals.get())
            if begin := work.pop(number, None):
                self._begun.append(self._loop.create_task(self._done(number, begin())))
            elif number == signal.SIGINT:
                self.forced = True
                self._settle(number)

    async def _done(self, number: int, work: Awaitable[None]) -> None:
        await work
        self._settle(number)

    def _settle(self, number: int) -> None:
        if not self._ended.done():
            self._ended.set_result(number)
