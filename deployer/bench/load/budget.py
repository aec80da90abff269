"""The time of a run, and what fits into it. It decides what is left out, never what is reported."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

#: A server on which nothing at all has moved for this long when the time is up is hung, not slow; in seconds.
HUNG = 60.0
#: Nothing moving for this long is more than a slow server's pause, and less than a proof: a kernel may be compiled.
STALLED = 10.0
#: A wave that is not counted has to leave this much more time than is expected to be needed.
DOUBT = 1.5


class Pace:
    """Output tokens a second by concurrency, as far as measured; else a cautious guess."""

    def __init__(self) -> None:
        self._known: dict[int, float] = {}

    def learn(self, concurrency: int, rate: float | None) -> None:
        """Take in the rate that a stage of this concurrency gave."""
        if rate is not None and rate > 0:
            self._known[concurrency] = rate

    def rate(self, concurrency: int) -> float | None:
        """Return tokens a second: the nearest measured level below, grown with the square root of the concurrency.

        Batching gains more than that on a server with room (26 tok/s alone and 578 with 32 in flight) and
        less on one that queues; a guess is replaced as soon as the level was run. None when nothing is known.
        """
        below = [known for known in self._known if known <= concurrency]
        if not below:
            return min(self._known.values(), default=None)
        nearest = max(below)
        return self._known[nearest] * sqrt(concurrency / nearest)

    def seconds(self, concurrency: int, tokens: float) -> float:
        """Return how long ``tokens`` take at this concurrency; 0 if nothing is known yet."""
        rate = self.rate(concurrency)
        return tokens / rate if rate else 0.0


def discard_fits(pace: Pace, wave: tuple[int, float], passes: Sequence[tuple[int, float]], left: float) -> bool:
    """Return whether a wave that is not counted leaves time for the first pass of this and all later levels.

    ``wave`` and ``passes`` are (concurrency, output tokens).
    """
    needed = pace.seconds(*wave) + sum(pace.seconds(*item) for item in passes)
    return needed * DOUBT <= left


def what_to_leave_out(pace: Pace, concurrency: int, tokens: float, left: float, grace: float) -> str | None:
    """Return why a pass may not begin; None if it may. A first pass may use the grace (0 for a repeat)."""
    if left <= 0:
        return "the time was used up"
    needed = pace.seconds(concurrency, tokens)
    if needed > left + grace:
        return f"it takes about {needed:.0f} s and {left:.0f} s were left"
    return None


def kind_of_cut(moved: Sequence[float], moment: float) -> tuple[str, float]:
    """Return the kind of a request that the end of the time cuts off, and for how many seconds nothing had moved.

    ``moved``: when requests were sent and text arrived. ``cut`` shows nothing about the server, ``stalled``
    casts doubt on it, ``timeout`` is its failure.
    """
    silent = moment - max(moved, default=moment)
    return ("timeout" if silent > HUNG else "stalled" if silent > STALLED else "cut"), silent
