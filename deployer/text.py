"""Numbers in English: counts, times, sizes."""

from __future__ import annotations

from datetime import datetime


def count_of(number: int, noun: str) -> str:
    """Return ``number`` and a noun that has a regular plural, such as ``1 change`` or ``2 changes``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return a measured time: ``4.2 s``, ``3 min 05 s``, ``1 h 02 min``."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    if seconds < 3599.5:
        return f"{round(seconds) // 60} min {round(seconds) % 60:02d} s"
    return f"{int(seconds) // 3600} h {int(seconds) % 3600 // 60:02d} min"


def age(seconds: float) -> str:
    """Return how long something has lasted, roughly: ``45 s``, ``12 min``, ``5.0 h``, ``3 days``."""
    seconds = max(0.0, seconds)
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172800:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.0f} days"


def moment(epoch: float | None) -> str:
    """Return a point in time as local time, to the minute; empty without one."""
    return datetime.fromtimestamp(epoch).strftime("%Y-%m-%d %H:%M") if epoch else ""


def size(count: int) -> str:
    """Return bytes in MiB or GiB."""
    return f"{count / 2**30:.1f} GiB" if count >= 1 << 30 else f"{count / 2**20:.0f} MiB"
