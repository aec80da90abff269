"""How a server ends: stopped by us until nothing of it is left, or by its own death."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from deployer.deploy.launch_failure import log_tail
from deployer.deploy.reporter import Reporter, follow
from deployer.deploy.session import Session
from deployer.errors import AgentError, CandidateRejected
from deployer.records.answers import Started, Stopped
from deployer.records.failure import Failure
from deployer.records.host import ServiceState, UnitState
from deployer.records.step import Step
from deployer.sglang.log.failures import classify


def stop_unit(session: Session, state: ServiceState, reporter: Reporter) -> Stopped:
    """Stop what runs under the service's unit, wait until it is really gone, and return how it went.

    Raise CandidateRejected if something of it stays.
    """
    endpoint = session.endpoint(state.release(state.running_name))
    with _until_gone(), session.client.unit_stop(endpoint, session.limits) as stream:
        return follow(stream, reporter)


def stop_others(session: Session, state: ServiceState, reporter: Reporter) -> tuple[str, ...]:
    """Stop and disable the services that the transition has recorded as exclusive; return the names.

    Raise CandidateRejected if something of one stays.
    """
    if state.transition is None or not state.transition.exclusive:
        return ()
    with _until_gone(), session.client.unit_exclude(session.service.name) as stream:
        return follow(stream, reporter).stopped


@contextmanager
def _until_gone() -> Iterator[None]:
    try:
        yield
    except AgentError as error:
        if error.code != "not-gone":
            raise
        stuck = ", ".join(map(str, error.detail.get("uninterruptible") or ()))
        remedy = (
            f"process {stuck} is stuck in the kernel (state D): only a reboot of the host helps"
            if stuck
            else "see which process holds the port or the GPU memory (`deployer status`), and end it"
        )
        raise CandidateRejected(Failure("not-gone", error.message, Step.STOP, remedy)) from error


def explain_death(session: Session, started: Started, unit: UnitState, step: Step) -> Failure:
    """Return what the log says about a server that died after it was ready."""
    lines = [entry.text for entry in session.log(cursor=started.cursor) if not entry.piece]
    cause = classify(lines, {"result": unit.result, "exec_code": unit.exec_code, "exec_status": unit.exec_status})
    return Failure(
        signature=cause.signature,
        cause=f"the server died while it served ({unit.active}, {unit.result}): {cause.cause}",
        phase=step,
        remedy=cause.remedy,
        log_tail=tuple(log_tail(lines)),
        evidence=tuple(cause.evidence),
    )
