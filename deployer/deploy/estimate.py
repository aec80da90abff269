"""How long a launch will take, by an earlier one. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deployer.records.release import Release
from deployer.sglang.log.launch import PHASES


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
