"""How far a launch is: by an earlier one, and by what was read of the checkpoint. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from deployer.records.events import ProcEvent
from deployer.records.release import Release
from deployer.sglang.log.launch import PHASES

_LOAD = PHASES.index("load")
#: Reading less than this part of the checkpoint is reading nothing: configuration and tokenizer are small.
_NOTHING = 0.01
#: Memory that grew by this part of the checkpoint shows that weights arrive all the same.
_ARRIVES = 0.05


@dataclass(frozen=True)
class Estimate:
    """An earlier launch: its seconds by phase, and the release whose launch it was."""

    seconds: Mapping[str, float]
    release: str

    def remaining(self, phase: str, elapsed: float) -> float:
        """Return the seconds left after ``elapsed`` seconds of ``phase``."""
        later = PHASES[PHASES.index(phase) + 1 :]
        here = max(0.0, self.seconds.get(phase, 0.0) - elapsed)
        return here + sum(self.seconds.get(name, 0.0) for name in later)


def estimate(releases: Sequence[Release], profile: str) -> Estimate | None:
    """Return the last launch of this profile that became ready, else of this service; None if there is none.

    A launch that failed on its way says nothing about how long one takes.
    """
    ready = [item for item in releases if item.became_ready]
    same = [item for item in ready if item.profile == profile]
    if not ready:
        return None
    latest = (same or ready)[-1]
    return Estimate({phase.name: phase.seconds for phase in latest.timeline}, latest.release)


@dataclass
class LoadProgress:
    """Bytes that were read from storage since the weights began to load, against the checkpoint's size.

    ``total`` is None if the model's size is not known. What the page cache answers does not count as read.
    """

    total: int | None = None
    _before: ProcEvent | None = None
    _now: ProcEvent = field(default_factory=ProcEvent)

    def take(self, figures: ProcEvent, phase: str) -> None:
        """Take new figures of the service's processes, in ``phase``."""
        if PHASES.index(phase) < _LOAD:
            self._before = figures
        self._now = figures

    @property
    def read(self) -> int:
        """Bytes read from storage since loading began."""
        return max(0, self._now.read_bytes - (self._before.read_bytes if self._before else 0))

    @property
    def cached(self) -> bool:
        """Whether the weights come out of the page cache: memory fills, and next to nothing is read from storage."""
        if not self.total or self._before is None:
            return False
        grown = _memory(self._now) - _memory(self._before)
        return self.read < _NOTHING * self.total and grown > _ARRIVES * self.total


def _memory(figures: ProcEvent) -> int:
    return figures.rss + (figures.gpu_memory or 0)
