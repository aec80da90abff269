"""Which earlier starts a candidate is compared with. Pure.

Only proven starts (`Release.proven`) are a baseline. Two starts are of one configuration if command line,
environment, SGLang and model are the same, but for what names the release and what has no part in the speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deployer.records.release import Release
from deployer.units.text import comparable, grouped_arguments

#: Flags that change what a server is called, where it listens and how answers are parsed, and not how fast it is.
WITHOUT_SPEED = frozenset(
    {"--host", "--port", "--served-model-name", "--tool-call-parser", "--reasoning-parser", "--log-level"}
)
#: Inconclusive starts of the candidate's configuration that count together with it, the newest ones.
MOST_EARLIER = 2
#: The newest starts from which the noise is learnt; the machine may have changed since older ones.
MOST_LEARNT = 12


@dataclass(frozen=True)
class Baseline:
    """Releases by name, the newest first.

    ``starts`` are compared with, and ``name`` says of what they are; ``earlier`` are inconclusive starts of the
    candidate's own configuration; from each of the ``groups``, one configuration each, the noise is learnt. ``beside``
    is the live release if it is not among ``starts``: it is compared with, and decides nothing.
    """

    starts: tuple[str, ...] = ()
    name: str = ""
    earlier: tuple[str, ...] = ()
    groups: tuple[tuple[str, ...], ...] = ()
    beside: str | None = None

    @property
    def releases(self) -> set[str]:
        """All releases whose benchmarks have to be read."""
        names = {*self.starts, *self.earlier, *(name for group in self.groups for name in group)}
        return names | ({self.beside} if self.beside else set())


def configuration(release: Release) -> tuple[Any, ...]:
    """Return what decides a server's speed, in a form that is equal for equal configurations."""
    pairs = grouped_arguments(comparable(release.argv))
    return (
        tuple(pair for pair in pairs if pair[0] not in WITHOUT_SPEED),
        tuple(sorted(release.variables.items())),
        release.sglang,
        release.model.path,
        release.model.fingerprint,
    )


def noise_groups(releases: Sequence[Release]) -> tuple[tuple[str, ...], ...]:
    """Return the newest measured starts, grouped by configuration."""
    measured = [item for item in reversed(releases) if item.proven or _undecided(item)]
    groups: dict[tuple[Any, ...], list[str]] = {}
    for item in sorted(measured, key=lambda item: item.number, reverse=True)[:MOST_LEARNT]:
        groups.setdefault(configuration(item), []).append(item.release)
    return tuple(tuple(group) for group in groups.values())


def choose(
    releases: Sequence[Release],
    candidate: Release,
    live: str | None,
    *,
    baseline: str = "profile",
    starts: int = 5,
) -> Baseline:
    """Choose for ``candidate`` among all of a service's ``releases``, the oldest first.

    ``baseline`` and ``starts`` are as in `deployer.config.bench.RelativeGate`.
    """
    others = [item for item in reversed(releases) if item.release != candidate.release]
    proven = [item for item in others if item.proven]
    reference = _reference(proven, candidate, live, baseline)
    if reference is None:
        like, earlier = [], []
    else:
        like = _alike(proven, reference)[:starts]
        undecided = _alike([item for item in others if _undecided(item)], candidate)
        earlier = [item.release for item in undecided if item.number > reference.number]
    names = tuple(item.release for item in like)
    return Baseline(
        starts=names,
        name=reference.profile if reference else "",
        earlier=tuple(earlier[:MOST_EARLIER]),
        groups=noise_groups([item for item in releases if item.release != candidate.release]),
        beside=live if live not in names and any(item.release == live for item in proven) else None,
    )


def _reference(proven: Sequence[Release], candidate: Release, live: str | None, baseline: str) -> Release | None:
    """Return the release whose configuration is the baseline: the live one if it fits, else the profile's newest."""
    if baseline == "none":
        return None
    current = next((item for item in proven if item.release == live), None)
    if baseline == "live" or (current and current.profile == candidate.profile):
        return current
    return next((item for item in proven if item.profile == candidate.profile), None)


def _alike(releases: Sequence[Release], reference: Release) -> list[Release]:
    """Return the releases of the reference's configuration, the reference itself first."""
    same = [item for item in releases if configuration(item) == configuration(reference)]
    return sorted(same, key=lambda item: item.release != reference.release)


def _undecided(release: Release) -> bool:
    """Whether a start was measured soundly and only the comparison could not decide."""
    verdict = release.verdict
    if release.state != "inconclusive" or verdict is None or verdict.relative is None:
        return False
    compared = verdict.relative.effect is not None and verdict.relative.result == "inconclusive"
    return compared and all(check.result == "pass" for check in verdict.checks)
