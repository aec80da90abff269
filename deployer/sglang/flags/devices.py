"""Which of the GPUs that a server sees its ranks take. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

_Gpu = TypeVar("_Gpu")


#: No host has as many GPUs.
MOST = 4096


def rank_places(*, tp: int, pp: int, replicas: int = 1, base: int = 0, step: int = 1) -> list[int]:
    """The place of each rank's GPU in the list of those that the server sees, by replica, stage and tensor rank.

    Empty for more ranks than any host has GPUs.

    ``base`` and ``step`` are --base-gpu-id and --gpu-id-step: the step is between tensor parallel ranks and between
    replicas; pipeline stages follow each other tp GPUs apart.
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
    """The place of the last rank's GPU."""
    return base + (pp - 1) * tp + ((replicas - 1) * tp * pp + tp - 1) * step


def taken(visible: Sequence[_Gpu], places: Sequence[int]) -> tuple[_Gpu, ...]:
    """The GPUs at these places, without those that are not there; all, where none of them is."""
    wanted = set(places)
    found = tuple(gpu for place, gpu in enumerate(visible) if place in wanted)
    return found or tuple(visible)
