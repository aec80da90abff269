"""How much of the checkpoint the server's processes have read. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from deployer.records.events import ProcEvent
from deployer.sglang.log.launch import PHASES

_LOAD = PHASES.index("load")
#: Reading less than this part of the checkpoint is reading nothing: configuration and tokenizer are small.
_NOTHING = 0.01
#: Memory that grew by this part of the checkpoint shows that weights arrive all the same.
_ARRIVES = 0.05


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

    @property
    def fraction(self) -> float | None:
        """The part of the checkpoint that was read, up to 1; None if that says nothing."""
        if not self.total or self.cached or not self.read:
            return None
        return min(1.0, self.read / self.total)


def _memory(figures: ProcEvent) -> int:
    return figures.rss + (figures.gpu_memory or 0)
