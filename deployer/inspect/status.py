"""`status` and `history`: what is live, is it healthy, how fast is it; what was tried before. Shaping is pure."""

from __future__ import annotations

import json
import time
from contextlib import suppress

from deployer.deploy.plan import lost_live
from deployer.deploy.session import Health, Session
from deployer.errors import Refused
from deployer.records.codec import Json, encode
from deployer.records.host import HostState, ServiceState


def status(session: Session) -> Json:
    """The service's status document (its shape is a contract; see docs/cli.md)."""
    observed = session.observe(facts=True)
    state = observed.services[session.service.name]
    health = session.health(state) if state.running else Health(False, "refused", 0.0)
    stored = stored_unit(session, state)
    document = status_document(
        session.service.name, session.host_config.name, observed, health, stored, now=time.time()
    )
    if state.live:
        actual, configured = session.endpoint(state.live_release), session.configured
        if actual != configured:
            document["hosts"][0]["drift"].append(
                f"the live release listens on {actual}, the inventory says {configured}: the next apply moves it"
            )
    return document


def stored_unit(session: Session, state: ServiceState) -> str | None:
    """Return the unit text that the live release keeps, None if its folder is gone (`drift` reports that)."""
    return (
        session.client.release_file(session.service.name, state.live_name, "unit")
        if state.live_name
        else None
    )


def status_document(
    service: str, host: str, observed: HostState, health: Health, stored_unit: str | None, *, now: float
) -> Json:
    """Shape what was observed into the status document."""
    state = observed.services[service]
    live = live_document(state)
    lease = observed.lease
    entry: Json = {
        "host": host,
        "live": live,
        "candidate": _candidate(state),
        "transition": _transition(state, now),
        "unit": {
            "name": f"sglang-{service}.service",
            "active": state.unit.active,
            "sub": state.unit.sub,
            "result": state.unit.result,
            "restarts": state.unit.restarts,
            "since": state.unit.active_since,
            "running": state.running.release if state.running else None,
        },
        "health": {"ok": health.ok, "status": health.status, "seconds": round(health.seconds, 3)},
        "lease": None
        if lease is None or not lease.valid
        else {
            "owner": str(lease.owner),
            "service": lease.service,
            "reason": lease.reason,
            "since": lease.acquired,
            "expires_in": round(lease.expires_in, 1),
        },
        "guard": state.guard.active,
        "drift": drift(service, state, stored_unit),
        "gpus": [
            {
                "index": gpu.index,
                "name": gpu.name,
                "memory_used": gpu.memory_used,
                "memory_total": gpu.memory_total,
                "utilization": gpu.utilization,
                "power_w": gpu.power_w,
                "power_limit_w": gpu.power_limit_w,
            }
            for gpu in observed.gpus or ()
        ],
    }
    return {"service": service, "hosts": [entry], "ok": bool(live) and health.ok and state.transition is None}


def live_document(state: ServiceState) -> Json | None:
    """The live release: what it is, since when, and how fast it was when it was proven."""
    if state.live is None:
        return None
    release = state.live_release
    return {
        "release": state.live.release,
        "profile": release.profile if release else None,
        "since": release.promoted if release else None,
        "sglang": release.sglang if release else None,
        "bench": encode(release.bench_summary) if release else None,
        "verdict": (release.verdict or {}).get("summary") if release else None,
        "in_effect": release.in_effect if release else None,
    }


def _candidate(state: ServiceState) -> Json | None:
    if state.candidate is None:
        return None
    release = state.release(state.candidate.release)
    return {"release": state.candidate.release, "profile": release.profile if release else None}


def _transition(state: ServiceState, now: float) -> Json | None:
    transition = state.transition
    if transition is None:
        return None
    return {
        "from": transition.from_,
        "to": transition.to,
        "profile": transition.profile,
        "step": transition.step,
        "seconds": round(max(0.0, now - transition.started), 1),
        "grace": transition.grace,
    }


def drift(service: str, state: ServiceState, stored_unit: str | None) -> list[str]:
    """In what the host differs from its live release, in words."""
    found = [*state.problems, *(f"{path} changes or replaces the unit" for path in state.shadows)]
    live = state.live.release if state.live else None
    if live and state.release(live) is None:
        found.append(f"the folder of the live release {live} is gone: apply makes a new one")
    lost = lost_live(state)
    if lost:
        found.append(
            f"the unit file of {lost.release} is gone although it was live: `deployer rollback --to` puts it back"
        )
    if state.live and stored_unit is not None and state.live.text != stored_unit:
        found.append(f"{state.live.path} was edited by hand: it differs from the unit kept in release {live}")
    if state.transition is None:
        if state.candidate is not None:
            found.append(f"a candidate unit is left at {state.candidate.path} without a change under way")
        if live and state.running and state.running.release != live:
            found.append(f"{state.running.release or 'an unknown release'} is running while {live} is live")
        if live and state.running is None:
            how = ", ".join(word for word in (state.unit.active, state.unit.result) if word)
            found.append(f"the live service is not running ({how})")
        if live and not state.enabled:
            found.append(f"sglang-{service}.service is not enabled: it will not start at boot")
        if state.unit.needs_reload:
            found.append("systemd has not read the unit files since they changed (daemon-reload)")
    if state.unit.restarts:
        found.append(f"the service restarted {state.unit.restarts} times since it was started")
    return found


_FIGURES = (
    "release",
    "number",
    "profile",
    "state",
    "was_live",
    "previous",
    "created",
    "promoted",
    "operator",
    "sglang",
    "verdict",
    "failure",
    "bench_summary",
    "benches",
    "in_effect",
    "timeline",
)


def history_document(service: str, state: ServiceState) -> Json:
    """All releases of a service, the newest first."""
    releases: list[Json] = []
    for release in reversed(state.releases):
        kept = release.as_json()
        entry = {key: kept.get(key) for key in _FIGURES}
        entry["live"] = release.release == state.live_name
        if entry["live"]:
            entry["state"] = "live"
        elif entry["state"] == "live":
            entry["state"] = "superseded"
        releases.append(entry)
    return {"service": service, "live": state.live_name, "releases": releases}


def release_document(session: Session, number: int) -> Json:
    """One release with what was in effect when it was verified, argument by argument. Refused where there is none."""
    state = session.state()
    document = history_document(session.service.name, state)
    entry = next((item for item in document["releases"] if item["number"] == number), None)
    if entry is None:
        raise Refused(f"there is no release {number}", remedy="`deployer history` lists them")
    details: Json = {}
    text = session.client.release_file(session.service.name, entry["release"], "in_effect.json")
    with suppress(ValueError):  # a release from before this was kept, or whose folder is gone
        details = json.loads(text or "{}")
    return {"service": document["service"], **entry, "arguments": details.get("arguments") or []}
