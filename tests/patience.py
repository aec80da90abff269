"""How tests wait, so that no machine is too busy for them: for a condition, with far more patience than it needs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

#: How long to wait for what must happen, in seconds.
PATIENCE = 120.0


def until(condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Wait for a condition to become true; return its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"did not happen within {seconds} s"
        time.sleep(0.02)
    return value


def one_right(attempt: Callable[[], None], tries: int = 5) -> None:
    """Fail unless one of several attempts passes its assertions: a machine that does other work may disturb some."""
    for number in range(1, tries + 1):
        try:
            return attempt()
        except AssertionError:
            if number == tries:
                raise
    return None


def one_within(limit: float, measure: Callable[[int], float], tries: int = 5) -> None:
    """Fail unless one of several measurements is below a limit: a machine that does other work may disturb some.

    ``measure`` is given its number, from 1.
    """
    taken: list[float] = []
    while not taken or taken[-1] >= limit:
        assert len(taken) < tries, f"never below {limit}: {taken}"
        taken.append(measure(len(taken) + 1))
