"""Which of the GPUs that a server sees its ranks use. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

_Gpu = TypeVar("_Gpu")
#: More GPUs than any host has.
MOST = 4096


def rank_places(*, tp: int, pp: int, replicas: int = 1, base: int = 0, step: int = 1) -> list[int]:
    """Return the position of each rank's GPU among those the server sees, by replica, stage and tensor parallel rank.

    Empty for more ranks than any host has GPUs. ``base`` and ``step`` are --base-gpu-id and --gpu-id-step: the step is
    between tensor parallel ranks and between replicas; pipeline stages follow each other tp GPUs apart.
    """
    if tp * pp * replicas > MOST:
        return []
    return [
        base + stage * tp + (replica * tp * pp + rank) * step
        for replica in range(replicas)
        for stage in range(pp)
        for rank in range(tp)
    ]


def last_place(*, tp: int, pp: int, replicas: int = 1, base: int = 0, step: int = 1) -> int:
    """Return the position of the last rank's GPU."""
    return base + (pp - 1) * tp + ((replicas - 1) * tp * pp + tp - 1) * step


def taken(visible: Sequence[_Gpu], places: Sequence[int]) -> tuple[_Gpu, ...]:
    """Return the GPUs at these positions, as far as they exist; all GPUs if none of them does."""
    wanted = set(places)
    return tuple(gpu for place, gpu in enumerate(visible) if place in wanted) or tuple(visible)
