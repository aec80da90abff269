"""How a server ends: stopped by us until nothing of it is left, or by its own death."""

from __future__ import annotations

from deployer.deploy import service_log as logs
from deployer.deploy.host_events import drain
from deployer.deploy.launch_failure import log_tail
from deployer.deploy.model import Json, Step, TrialFailed, count_of, failure_document
from deployer.deploy.reporter import Reporter
from deployer.deploy.session import Session
from deployer.errors import AgentError
from deployer.records.host import ServiceState, UnitState
from deployer.sglang.log.failures import classify


def stop_unit(session: Session, state: ServiceState, reporter: Reporter) -> str:
    """Stop what runs under the service's unit, wait until it is really gone, and say how it went.

    Raises TrialFailed where something of it stays.
    """
    service = session.service
    address, port = session.endpoint(state, state.running.release if state.running else None)
    try:
        with session.client.unit_stop(
            service=service.name,
            port=port,
            address=address,
            drain=service.deadlines.drain,
            stop_timeout=service.deadlines.stop,
            gpus=service.gpus,
        ) as stream:
            answer = drain(stream, reporter)
    except AgentError as error:
        if error.code != "not-gone":
            raise
        stuck = error.detail.get("uninterruptible") or []
        remedy = (
            f"process {', '.join(map(str, stuck))} is stuck in the kernel (state D): only a reboot of the host helps"
            if stuck
            else "see which process holds the port or the GPU memory (`deployer status`), and end it"
        )
        raise TrialFailed(failure_document("not-gone", error.message, phase="stop", remedy=remedy)) from error
    inflight = answer.get("inflight")
    said = f"stopped in {answer['seconds']:.1f} s"
    if inflight:
        # Under a pipeline SGLang counts only the micro-batch whose turn it is.
        said += f", at least {count_of(inflight, 'request')} in flight"
    return said + (" (SIGKILL was needed)" if answer.get("killed") else "")


def explain_death(session: Session, started: Json, unit: UnitState, step: Step) -> Json:
    """What the log says about a server that died after it was ready."""
    lines = [
        str(entry["text"])
        for entry in logs.entries(session, cursor=started["cursor"])
        if not entry.get("piece")
    ]
    found = classify(
        lines, {"result": unit.result, "exec_code": unit.exec_code, "exec_status": unit.exec_status}
    )
    return failure_document(
        found.signature,
        f"the server died while it served ({unit.active}, {unit.result}): {found.cause}",
        phase=str(step),
        remedy=found.remedy,
        log_tail=log_tail(lines),
        evidence=found.evidence,
    )
