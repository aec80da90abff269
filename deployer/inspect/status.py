"""`status`: what is live, whether it is healthy, how fast it is, and how the host differs from it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from deployer.deploy.drift import differences
from deployer.deploy.session import Health, Session
from deployer.reach import unit_name
from deployer.records.codec import encode
from deployer.records.drift import Difference
from deployer.records.host import HostState, Lease, ServiceState

#: What is shown of a GPU.
_GPU = ("index", "name", "memory_used", "memory_total", "utilization", "power_w", "power_limit_w")


@dataclass(frozen=True)
class StatusReport:
    """One service on its host at one moment (``now``, epoch seconds). ``drift`` is all that is wrong, in words."""

    service: str
    host: str
    observed: HostState
    health: Health
    drift: tuple[str, ...]
    now: float
    differences: tuple[Difference, ...] = ()
    gave_way: tuple[str, ...] = ()
    """The services that run in its place, on the same GPUs or port, while it is down and disabled for them."""

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
    def unattended(self) -> bool:
        """Whether a change is under way that neither an operator nor the guard finishes."""
        held = self.lease is not None and self.lease.owner.command != "guard"
        return self.state.transition is not None and not held and not self.state.guard.watching

    @property
    def this_boot(self) -> bool:
        """Whether the last assessment was that of the boot that the host runs since."""
        return self.state.boot is not None and self.state.boot.boot_id == self.observed.boot_id

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
            "last_guard": encode(state.guard.last),
            "last_boot": state.boot and {**state.boot.as_json(), "this_boot": self.this_boot},
            "unattended": self.unattended,
            "gave_way": list(self.gave_way),
            "drift": list(self.drift),
            "differences": encode(self.differences),
            "gpus": [_part(gpu, *_GPU) for gpu in self.observed.gpus or ()],
        }
        return {"service": self.service, "hosts": [entry], "ok": self.ok}


def _part(record: object, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def status(session: Session) -> StatusReport:
    """Observe the host and report the service's status."""
    health = session.health_probe()
    observed = session.observe(facts=True)
    service, host = session.service.name, session.host_config.name
    state = observed.services[service]
    found = differences(service, observed)
    away = state.at_rest and not state.enabled and state.transition is None
    gave_way = session.displaced() if away else ()
    if gave_way:  # which is why it neither runs nor would be started
        rest = state.recover_enabled and state.assess_enabled
        expected = ("process", "enablement") if rest else ("process",)
        found = tuple(item for item in found if item.kind not in expected)
    words = drift(state, found)
    if state.live:
        actual, configured = session.endpoint(state.live_release), session.configured
        if actual != configured:
            words.append(
                f"the live release listens on {actual}, the inventory has {configured}: the next apply moves it"
            )
    return StatusReport(service, host, observed, health.result(state), tuple(words), time.time(), found, gave_way)


def drift(state: ServiceState, found: Iterable[Difference]) -> list[str]:
    """Return how the host differs from its live release, what could not be read, and restarts, in words."""
    words = [*state.problems, *map(str, found)]
    if state.unit.restarts:
        words.append(f"the service restarted {state.unit.restarts} times since it was started")
    return words
