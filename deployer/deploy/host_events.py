"""Following the host's long operations to their end, and their events in words."""

from __future__ import annotations

from deployer.deploy.model import Json
from deployer.deploy.reporter import Reporter
from deployer.deploy.session import Session
from deployer.host.protocol import Stream
from deployer.records.host import ServiceState


def converge_arguments(session: Session, state: ServiceState) -> Json:
    """What `converge` needs to know about a service whose live release listens where it was started to."""
    service = session.service
    address, port = session.endpoint(state, state.live.release if state.live else None)
    return {
        "service": service.name,
        "port": port,
        "address": address,
        "drain": service.deadlines.drain,
        "stop_timeout": service.deadlines.stop,
        "ready_timeout": service.deadlines.start,
        "gpus": service.gpus,
        "start": True,
    }


def drain(stream: Stream, reporter: Reporter) -> Json:
    """Follow a stream of `unit.stop` or `converge` to its end and return the answer."""
    while True:
        try:
            event = stream.next(timeout=1.0)
        except StopIteration:
            result: Json = stream.result
            return result
        if event:
            reporter.progress(describe_host_event(event))


def describe_host_event(event: Json) -> str:
    """One event of `unit.stop` or `converge` in words."""
    if "action" in event:
        return str(event["action"])
    stage = event.get("stage")
    if stage == "draining":
        return f"draining: {event.get('inflight')} requests in flight"
    if stage == "stopping":
        return "asked it to stop (SIGTERM)"
    if stage == "killing":
        return "it did not stop in time; killing it (SIGKILL)"
    holders = []
    if event.get("pids"):
        holders.append(f"{len(event['pids'])} processes")
    if event.get("port"):
        holders.append("the port")
    if event.get("gpu_memory"):
        holders.append(f"{event['gpu_memory'] / 1024**3:.1f} GiB of GPU memory")
    return "waiting for " + (", ".join(holders) or "it") + " to be gone"


def describe_bench_event(event: Json) -> str:
    """One progress event of the load client in words."""
    kind = event.get("event")
    if kind == "note":
        return str(event.get("text"))
    done, total = event.get("done"), event.get("total")
    counted = f" {done}/{total}" if done is not None and total is not None else ""
    speed = f", {event['tok_s']:.0f} tok/s so far" if event.get("tok_s") else ""
    level = f" C={event['concurrency']}" if event.get("concurrency") else ""
    return f"{kind}{level}{counted}{speed}"
