"""`status`: what is live, whether it is healthy, how fast it is, and how the host differs from it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from deployer.deploy.session import Health, Session
from deployer.reach import unit_name
from deployer.records.codec import encode
from deployer.records.host import HostState, Lease, ServiceState

#: What is shown of a GPU.
_GPU = ("index", "name", "memory_used", "memory_total", "utilization", "power_w", "power_limit_w")


@dataclass(frozen=True)
class StatusReport:
    """One service on its host at one moment (``now``, epoch seconds). ``drift`` is how the host differs, in words."""

    service: str
    host: str
    observed: HostState
    health: Health
    drift: tuple[str, ...]
    now: float

    @property
    def state(self) -> ServiceState:
        """The service as the host knows it."""
        return self.observed.services[self.service]

    @property
    def lease(self) -> Lease | None:
        """The host's lease while somebody holds it."""
        return self.observed.held_lease

    @property
    def ok(self) -> bool:
        """Whether the service is live and healthy, and nobody is changing it."""
        return self.state.live is not None and self.health.ok and self.state.transition is None

    @property
    def changing_for(self) -> float:
        """Seconds since the transition began; 0 without one."""
        return max(0.0, self.now - self.state.transition.started) if self.state.transition else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the document of ``status --json`` (docs/cli.md)."""
        state, lease, change = self.state, self.lease, self.state.transition
        release, candidate = state.live_release, state.candidate
        entry = {
            "host": self.host,
            "live": state.live
            and {
                "release": state.live.release,
                "profile": release.profile if release else None,
                "since": release.promoted if release else None,
                "sglang": release.sglang if release else None,
                "bench": encode(release.bench_summary) if release else None,
                "verdict": release.verdict_text if release else None,
                "in_effect": encode(release.in_effect) if release else None,
            },
            "candidate": candidate
            and {
                "release": candidate.release,
                "profile": tried.profile if (tried := state.release(candidate.release)) else None,
            },
            "transition": change
            and {
                "from": change.from_,
                **_part(change, "to", "profile", "step", "grace"),
                "seconds": round(self.changing_for, 1),
            },
            "unit": {
                "name": unit_name(self.service),
                **_part(state.unit, "active", "sub", "result", "restarts"),
                "since": state.unit.active_since,
                "running": state.running_name,
            },
            "health": {**_part(self.health, "ok", "status"), "seconds": round(self.health.seconds, 3)},
            "lease": lease
            and {
                "owner": str(lease.owner),
                **_part(lease, "service", "reason"),
                "since": lease.acquired,
                "expires_in": round(lease.expires_in, 1),
                "held_for": lease.held_for,
                "step": lease.step,
            },
            "hold": encode(self.observed.hold),
            "guard": state.guard.active,
            "drift": list(self.drift),
            "gpus": [_part(gpu, *_GPU) for gpu in self.observed.gpus or ()],
        }
        return {"service": self.service, "hosts": [entry], "ok": self.ok}


def _part(record: object, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def status(session: Session) -> StatusReport:
    """Observe the host and report the service's status."""
    health = session.health_probe()
    observed = session.observe(facts=True)
    state = observed.services[session.service.name]
    differences = drift(session.service.name, state, stored_unit(session, state))
    if state.live:
        actual, configured = session.endpoint(state.live_release), session.configured
        if actual != configured:
            differences.append(
                f"the live release listens on {actual}, the inventory has {configured}: the next apply moves it"
            )
    service, host = session.service.name, session.host_config.name
    return StatusReport(service, host, observed, health.result(state), tuple(differences), time.time())


def stored_unit(session: Session, state: ServiceState) -> str | None:
    """Return the unit text that the live release keeps, None if its folder is gone (`drift` reports that)."""
    if not state.live_name:
        return None
    return session.client.release_file(session.service.name, state.live_name, "unit")


def drift(service: str, state: ServiceState, stored_unit: str | None) -> list[str]:
    """Return how the host differs from its live release, in words."""
    differences = [*state.problems, *(f"{path} changes or replaces the unit" for path in state.shadows)]
    live = state.live_name
    if live and state.release(live) is None:
        differences.append(f"the folder of the live release {live} is gone: apply makes a new one")
    if lost := state.lost_live:
        differences.append(
            f"the unit file of {lost.release} is gone although it was live: `deployer rollback --to` restores it"
        )
    if state.live and stored_unit is not None and state.live.text != stored_unit:
        differences.append(f"{state.live.path} was edited by hand: it differs from the unit kept in release {live}")
    if state.transition is None:
        if state.candidate is not None:
            differences.append(
                f"a candidate unit is left at {state.candidate.path} although nobody is changing the service"
            )
        if live and state.running and state.running.release != live:
            differences.append(f"{state.running.release or 'an unknown release'} is running while {live} is live")
        if live and state.running is None:
            how = ", ".join(word for word in (state.unit.active, state.unit.result) if word)
            differences.append(f"the live service is not running ({how})")
        if live and not state.enabled:
            differences.append(f"{unit_name(service)} is not enabled: it will not start at boot")
        if state.unit.needs_reload:
            differences.append("the unit files changed since systemd last read them (daemon-reload)")
    if state.unit.restarts:
        differences.append(f"the service restarted {state.unit.restarts} times since it was started")
    return differences
