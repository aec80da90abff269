"""Which earlier starts a candidate is compared with. Pure.

A start is proven when its release was live and has a benchmark. Two starts are of one configuration when command line,
environment, SGLang and model are the same, but for what names the release and what has no part in the speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deployer.deploy.model import Json
from deployer.deploy.plan import grouped_arguments
from deployer.units.bundle import comparable

#: Flags that change what a server is called, where it listens and how answers are parsed, and not how fast it is.
WITHOUT_SPEED = frozenset(
    {"--host", "--port", "--served-model-name", "--tool-call-parser", "--reasoning-parser", "--log-level"}
)
_OWN_VARIABLE = "DEPLOYER_RELEASE"
#: Inconclusive starts of the candidate's configuration that count together with it, the newest ones.
MOST_EARLIER = 2
#: The newest starts from which the noise is learnt; older ones tell of a machine that may have changed.
MOST_LEARNT = 12


@dataclass(frozen=True)
class Choice:
    """Releases, the newest first. ``name`` says in words of what the baseline's starts are; empty without one."""

    baseline: tuple[str, ...] = ()
    name: str = ""
    earlier: tuple[str, ...] = ()
    #: Groups of one configuration each, from which the noise is learnt.
    groups: tuple[tuple[str, ...], ...] = ()
    #: The live release, where it is none of the baseline's: compared with, without deciding.
    beside: str | None = None

    @property
    def releases(self) -> set[str]:
        """All whose benchmarks have to be read."""
        found = {*self.baseline, *self.earlier, *(name for group in self.groups for name in group)}
        return found | ({self.beside} if self.beside else set())


def configuration(manifest: Json) -> tuple[Any, ...]:
    """What decides a server's speed, in a form that is equal for equal configurations."""
    pairs = grouped_arguments(comparable(manifest.get("argv") or []))
    environment = manifest.get("environment") or {}
    model = manifest.get("model") or {}
    return (
        tuple(pair for pair in pairs if pair[0] not in WITHOUT_SPEED),
        tuple(sorted((name, value) for name, value in environment.items() if name != _OWN_VARIABLE)),
        manifest.get("sglang"),
        model.get("path"),
        model.get("fingerprint"),
    )


def choose(
    manifests: Sequence[Json],
    candidate: Json,
    live: str | None,
    *,
    baseline: str = "profile",
    starts: int = 5,
) -> Choice:
    """Choose for ``candidate`` (a manifest) among all of a service's ``manifests``, the oldest first.

    ``baseline`` and ``starts`` are as in `deployer.config.bench.RelativeGate`.
    """
    name = candidate.get("release")
    others = [item for item in reversed(manifests) if item.get("release") != name]
    proven = [item for item in others if item.get("was_live") and item.get("bench_summary")]
    unclear = [item for item in others if _undecided(item)]
    reference = _reference(proven, candidate, live, baseline)
    like = [] if reference is None else _alike(proven, reference)[:starts]
    earlier = [item for item in _alike(unclear, candidate) if _newer(item, reference)] if like else []
    known = sorted([*proven, *unclear], key=_age, reverse=True)[:MOST_LEARNT]
    groups: dict[tuple[Any, ...], list[str]] = {}
    for item in known:
        groups.setdefault(configuration(item), []).append(str(item["release"]))
    used = [str(item["release"]) for item in like]
    measured = {item.get("release") for item in proven}
    return Choice(
        baseline=tuple(used),
        name=str(reference.get("profile")) if reference else "",
        earlier=tuple(str(item["release"]) for item in earlier[:MOST_EARLIER]),
        groups=tuple(tuple(group) for group in groups.values()),
        beside=live if live in measured and live not in used else None,
    )


def _reference(proven: Sequence[Json], candidate: Json, live: str | None, baseline: str) -> Json | None:
    """The release whose configuration is the baseline: the live one where it fits, else the profile's newest."""
    if baseline == "none":
        return None
    current = next((item for item in proven if item.get("release") == live), None)
    if baseline == "live" or (current and current.get("profile") == candidate.get("profile")):
        return current
    return next((item for item in proven if item.get("profile") == candidate.get("profile")), None)


def _alike(items: Sequence[Json], reference: Json) -> list[Json]:
    wanted = configuration(reference)
    found = [item for item in items if configuration(item) == wanted]
    first = [item for item in found if item.get("release") == reference.get("release")]
    return [*first, *(item for item in found if item not in first)]


def _undecided(manifest: Json) -> bool:
    """Whether a start was measured soundly and only the comparison could not decide."""
    verdict = manifest.get("verdict") or {}
    relative = verdict.get("relative") or {}
    checks = verdict.get("checks") or []
    sound = relative.get("effect") is not None and all(check.get("result") == "pass" for check in checks)
    return manifest.get("state") == "inconclusive" and relative.get("result") == "inconclusive" and sound


def _age(manifest: Json) -> int:
    return int(manifest.get("number") or 0)


def _newer(manifest: Json, reference: Json | None) -> bool:
    return reference is not None and _age(manifest) > _age(reference)
