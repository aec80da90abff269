"""What would change: desired against observed, as data. Pure: no host is asked here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from deployer.deploy.changes import argument_changes, differing, engine_changes, unit_only_changes
from deployer.records.drift import Change, Difference
from deployer.records.host import ServiceState
from deployer.records.outcome import Plan
from deployer.records.release import Release
from deployer.units.text import comparable


def release_changes(live: Release | None, candidate: Release) -> list[Change]:
    """Return what differs between the live release and the candidate in ways that need a restart."""
    if live is None:
        live = Release(
            candidate.service,
            "",
            restart_keys=candidate.restart_keys,
            sglang=candidate.sglang,
            model=candidate.model,
        )
    changes = argument_changes(comparable(live.argv), comparable(candidate.argv))
    for kind, old, new in (
        ("environment", live.variables, candidate.variables),
        ("unit", live.restart_keys, candidate.restart_keys),
    ):
        changes += differing(kind, old, new, sorted({**old, **new}))
    if live.sglang != candidate.sglang:
        changes.append(Change("engine", "sglang", live.sglang, candidate.sglang))
    elif live.engine and candidate.engine:
        changes += engine_changes(live.engine, candidate.engine)
    for key in ("path", "fingerprint"):
        before, after = getattr(live.model, key), getattr(candidate.model, key)
        if before != after:
            changes.append(Change("model", key, before, after))
    return changes


def unit_diff(before: str | None, after: str, *, before_name: str, after_name: str) -> str:
    """Return a unified diff of two unit texts; empty if they are equal."""
    import difflib

    lines = difflib.unified_diff(
        (before or "").splitlines(keepends=True),
        after.splitlines(keepends=True),
        before_name,
        after_name,
        n=2,
    )
    return "".join(lines)


def expected_downtime(releases: Iterable[Release], profile: str, stop_seconds: float = 5.0) -> tuple[float | None, str]:
    """Return the seconds from stopping the old server to the candidate being ready, by earlier starts, and by which."""
    starts = [
        (item.profile, seconds)
        for item in releases
        if item.was_live and (seconds := sum(phase.seconds for phase in item.timeline)) > 0
    ]
    same = [seconds for name, seconds in starts if name == profile]
    if same:
        return same[-1] + stop_seconds, f"the last start of {profile}"
    if starts:
        return starts[-1][1] + stop_seconds, f"the last start of this service ({starts[-1][0]})"
    return None, "no earlier start of this service is on record"


def make_plan(
    state: ServiceState,
    candidate: Release,
    *,
    healthy: bool,
    differences: Sequence[Difference] = (),
    displaces: Sequence[str] = (),
    host: str = "",
) -> Plan:
    """Decide what an apply has to do.

    ``healthy``: the live server answers /health with 200 from its own unit; ``differences``: of the ``host`` from its
    live release; ``displaces``: services that run and have to make room, for which there is a way back only in a
    deployment.
    """
    live = state.live_release
    changes = release_changes(live, candidate)
    serves = healthy and state.running_name == state.live_name and state.unit.ok
    deploys = bool(changes) or live is None or bool(displaces)
    restart = deploys or not serves or any(item.restart for item in differences)
    mends = restart or any(item.converges for item in differences)
    action = "deploy" if deploys else "converge" if mends else "nothing"
    downtime, basis = expected_downtime(state.releases, candidate.profile)
    plan = Plan(
        service=candidate.service,
        profile=candidate.profile,
        action=action,
        live=state.live_name,
        release=state.live_name or candidate.release,
        host=host,
        restart=restart,
        changes=tuple(changes),
        differences=tuple(differences),
        displaces=tuple(displaces),
        strays=state.strays if restart else (),
        interrupts=restart and (bool(displaces) or not state.at_rest),
        downtime=downtime,
        downtime_basis=basis,
    )
    if action != "deploy":
        return plan
    before = state.live.text if state.live else None
    return replace(
        plan,
        release=candidate.release,
        unit_only=tuple(unit_only_changes(before, candidate.unit, changes)),
        unit_diff=unit_diff(
            before,
            candidate.unit,
            before_name=f"live ({state.live_name})" if state.live_name else "nothing",
            after_name=f"candidate ({candidate.release})",
        ),
    )


def rollback_target(state: ServiceState, to: int | None) -> tuple[Release | None, str]:
    """Return the release to go back to, or None and the reason why there is none.

    Without ``to`` it is the release that the live one replaced (or, if that is gone, the next older one in the chain),
    so that going back twice goes further back, never to and fro.
    """
    proven = {item.release: item for item in state.releases if item.was_live}
    if to is not None:
        chosen = next((item for item in state.releases if item.number == to), None)
        offers = ", ".join(f"{item.number} ({item.profile})" for item in proven.values()) or "none"
        if chosen is None:
            return None, f"there is no release {to}; releases that were live: {offers}"
        if chosen.state == "corrupt":
            return None, f"the manifest of release {to} is damaged; releases that were live: {offers}"
        if not chosen.was_live:
            return None, f"release {to} ({chosen.profile}) was never live; releases that were live: {offers}"
        if chosen.release == state.live_name:
            return None, f"release {to} ({chosen.profile}) is live already"
        return chosen, ""
    live = state.live_name
    if live is None:
        return None, "nothing is live"
    seen = {live}
    release = state.live_release
    while release is not None and release.previous is not None and release.previous not in seen:
        if release.previous in proven:
            return proven[release.previous], ""
        seen.add(release.previous)
        release = state.release(release.previous)
    return None, f"{live} is the first release that went live; there is none before it"
