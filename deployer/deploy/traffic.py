"""Requests in flight: how many a server has before it is stopped, and what its stop does to them."""

from __future__ import annotations

from dataclasses import replace

from deployer import metrics
from deployer.deploy.session import Session
from deployer.draining import COUNT_TIMEOUT, cannot_refuse
from deployer.errors import AgentError
from deployer.records.endpoint import Endpoint
from deployer.records.host import ServiceState
from deployer.records.outcome import Plan, Traffic


def with_traffic(session: Session, plan: Plan, state: ServiceState) -> Plan:
    """Return a plan with the requests of each server that it stops; as it is if it interrupts nothing."""
    if not plan.interrupts:
        return plan
    found = [] if state.running is None else [traffic(session, state)]
    for other in (item for item in session.rivals if item.name in plan.displaces):
        beside = session.beside(other)
        found.append(traffic(beside, beside.state()))
    return replace(plan, traffic=tuple(found))


def traffic(session: Session, state: ServiceState) -> Traffic:
    """Return the requests of the server that runs, and how they end at its stop."""
    running, deadlines = state.running, session.service.deadlines
    endpoint = session.endpoint(state.release(state.running_name), key=True)
    return Traffic(
        service=session.service.name,
        in_flight=requests_in_flight(session, endpoint),
        why_not=cannot_refuse(running.argv, running.environment or {}) if running else "",
        drain=deadlines.drain,
        stop=deadlines.stop,
    )


def requests_in_flight(session: Session, endpoint: Endpoint) -> int | None:
    """Return the requests that a server counts, running and waiting; None if it does not say."""

    def get(path: str) -> str:
        try:
            answer = session.client.http("GET", path, endpoint, timeout=COUNT_TIMEOUT)
        except AgentError as error:
            if error.code != "http":
                raise
            return ""
        return answer.body if answer.status == 200 else ""

    return metrics.requests_in_flight(get)
