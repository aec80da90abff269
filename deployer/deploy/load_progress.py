"""How much of the checkpoint the server's processes have read. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deployer.sglang.log.launch import PHASES

_LOAD = PHASES.index("load")
#: Reading less than this part of the checkpoint is reading nothing: configuration and tokenizer are small.
_NOTHING = 0.01
#: Memory that grew by this part of the checkpoint shows that weights arrive all the same.
_ARRIVES = 0.05


@dataclass
class LoadProgress:
    """Bytes that were read from storage since the weights began to load, against the checkpoint's size.

    ``total`` is None where the model's size is not known. The figures are `watch`'s: what the service's processes have
    read (`read_bytes`; the page cache does not count), resident memory and GPU memory.
    """

    total: int | None = None
    _before: Mapping[str, Any] | None = None
    _now: Mapping[str, Any] = field(default_factory=dict)

    def take(self, figures: Mapping[str, Any], phase: str) -> None:
        """New figures, in ``phase``."""
        if PHASES.index(phase) < _LOAD:
            self._before = figures
        self._now = figures

    def _grown(self, *names: str) -> int:
        before = self._before or {}
        return sum(int(self._now.get(name) or 0) - int(before.get(name) or 0) for name in names)

    @property
    def read(self) -> int:
        """Bytes read from storage since loading began."""
        return max(0, self._grown("read_bytes"))

    @property
    def cached(self) -> bool:
        """Whether the weights come out of the page cache: memory fills, and next to nothing is read from storage."""
        if not self.total or self._before is None:
            return False
        return self.read < _NOTHING * self.total and self._grown("rss", "gpu_memory") > _ARRIVES * self.total

    @property
    def fraction(self) -> float | None:
        """The part of the checkpoint that was read, up to 1; None where that tells nothing."""
        if not self.total or self.cached or not self.read:
            return None
        return min(1.0, self.read / self.total)
