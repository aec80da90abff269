"""The host's long operations: followed to their end, and their events in words."""

from __future__ import annotations

from typing import TypeVar

from deployer.deploy.reporter import Reporter
from deployer.host.streams import Events
from deployer.records.codec import Json
from deployer.records.events import StopEvent

Answer = TypeVar("Answer")


def follow(stream: Events[StopEvent, Answer], reporter: Reporter) -> Answer:
    """Follow `unit_stop` or `converge` to its end and return the answer."""
    for event in stream.until_end(1.0):
        if event:
            reporter.progress(describe_host_event(event))
    return stream.result


def describe_host_event(event: StopEvent) -> str:
    """Return one event of `unit_stop` or `converge` in words."""
    if event.action:
        return event.action
    if event.stage == "draining":
        return f"draining: {event.inflight} requests in flight"
    if event.stage == "stopping":
        return "stopping it (SIGTERM)"
    if event.stage == "killing":
        return "it did not stop in time; killing it (SIGKILL)"
    holders = []
    if event.pids:
        holders.append(f"{len(event.pids)} processes")
    if event.port:
        holders.append("the port")
    if event.gpu_memory:
        holders.append(f"{event.gpu_memory / 1024**3:.1f} GiB of GPU memory")
    return "waiting for " + (", ".join(holders) or "it") + " to be gone"


def describe_bench_event(event: Json) -> str:
    """Return one progress event of the load client in words."""
    kind = event.get("event")
    if kind == "note":
        return str(event.get("text"))
    done, total = event.get("done"), event.get("total")
    counted = f" {done}/{total}" if done is not None and total is not None else ""
    speed = f", {event['tok_s']:.0f} tok/s so far" if event.get("tok_s") else ""
    level = f" C={event['concurrency']}" if event.get("concurrency") else ""
    return f"{kind}{level}{counted}{speed}"
