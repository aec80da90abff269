"""Metrics of a service: what has ended is counted, and written at each change for a textfile collector."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, List, Optional

from deployer.exposition import OUTCOMES, Sample, exposition

from .base import Call, Fail, Json, operation
from .files import Shape, read_intact, remove_file, write_new
from .lease import Session
from .service import Service

#: ``changes`` counts ends by outcome, ``guard`` what the guard did ("guard converge ok").
COUNTS: Shape = {"changes": dict, "guard": dict}
#: Who acts on the host without an operator, and what each does.
GUARDS = (("guard", "converge"), ("guard", "forget"), ("recover", "converge"), ("assess", "try"))


def counts_path(service: Service) -> str:
    return os.path.join(service.folder, "counts.json")


def count(service: Service, facts: Json, *, change: Optional[str] = None, deed: Optional[str] = None) -> None:
    """Count a change (by its outcome) or a deed of the guard that has ended, and write the metrics; under the lock.

    ``facts``: ``healthy`` (true, false, null), if that was seen or is not known any more. No failure stops the caller.
    """
    with contextlib.suppress(Fail, OSError, TypeError, ValueError):
        counts = read_intact(counts_path(service), COUNTS) or {"changes": {}, "guard": {}}
        for kind, name in (("changes", change), ("guard", deed)):
            if name:
                counts[kind][name] = int(counts[kind].get(name) or 0) + 1
        service.machine.write_json(counts_path(service), dict(counts, t=round(time.time(), 3), **facts))
        write_metrics(service)


def outcome(service: Service, transition: Optional[Json], promoted: bool) -> Optional[str]:
    """How a transition that is being ended has ended, None without one."""
    if transition is None:
        return None
    state = "live" if promoted else None
    if not promoted:
        with contextlib.suppress(Fail):
            state = service.manifest(transition["to"]).get("state")
    return state if state in OUTCOMES and (promoted or state != "live") else "undone"


def number(value: Any) -> Optional[float]:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def part(manifest: Json, key: str) -> Json:
    value = manifest.get(key)
    return value if isinstance(value, dict) else {}


def samples(service: Service) -> List[Sample]:
    """The metrics of a service as it is now. What cannot be read is left out."""
    own, live = {"service": service.name}, service.live_release()
    manifests = service.manifests()
    found: List[Sample] = []

    def add(name: str, value: Any, **labels: Any) -> None:
        if number(value) is not None:
            texts = {label: str("" if text is None else text) for label, text in labels.items()}
            found.append(Sample("deployer_" + name, dict(own, **texts), float(value)))

    if live:
        manifest: Json = next((item for item in manifests if item["release"] == live), {})
        add("live_release_info", 1, release=live, profile=manifest.get("profile"), sglang=manifest.get("sglang"))
        add("live_since_timestamp_seconds", manifest.get("promoted"))
        speed = part(manifest, "bench_summary")
        add("proven_tokens_per_second", speed.get("single_stream_tok_s"), concurrency=1)
        for level, rate in part(speed, "levels").items():
            add("proven_tokens_per_second", rate, concurrency=level)
    judged = [item for item in manifests if part(item, "verdict").get("result")]
    for item in judged[-1:]:
        result = part(item, "verdict")["result"]
        add("last_verdict_info", 1, release=item["release"], profile=item.get("profile"), result=result)
    counts: Json = read_intact(counts_path(service), COUNTS) or {"changes": {}, "guard": {}}
    healthy = counts.get("healthy")
    add("healthy", int(healthy) if isinstance(healthy, bool) else None)
    add("last_change_timestamp_seconds", counts.get("t"))
    for name in OUTCOMES:
        add("changes_total", counts["changes"].get(name, 0), outcome=name)
    for by, what in GUARDS:
        for result in ("ok", "failed"):
            add("guard_actions_total", counts["guard"].get(f"{by} {what} {result}", 0), by=by, what=what, result=result)
    return found


def metrics_file(service: Service, settings: Optional[Json]) -> Optional[str]:
    """Where a service's metrics are written, None if they are not."""
    folder = (settings or {}).get("metrics_dir")
    return os.path.join(folder, f"deployer-{service.name}.prom") if folder else None


def write_metrics(service: Service) -> Optional[str]:
    """Write the metrics, if that is wanted; return why they could not be written, None if they were.

    Others may write in that folder, so it has to be where it seems to be.
    """
    path = metrics_file(service, service.hooks())
    if path is None:
        return None
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        return f"metrics_dir {folder} is not a folder on the host"
    if os.path.realpath(folder) != os.path.normpath(folder):
        return f"metrics_dir {folder} leads over a link; name the folder {os.path.realpath(folder)} itself"
    try:
        write_new(path, exposition(samples(service)), 0o644)
    except OSError as error:
        return f"{path} could not be written: {error.strerror}"
    return None


def remove_metrics(service: Service, settings: Optional[Json]) -> None:
    """Remove the metrics that were written by other settings."""
    path = metrics_file(service, settings)
    if path is not None and path != metrics_file(service, service.hooks()):
        with contextlib.suppress(OSError):
            remove_file(path)


@operation("metrics")
def metrics(session: Session, args: Json, call: Call) -> Json:
    """The metrics of a service, as they are written."""
    found = samples(Service(session.machine, args["service"]))
    return {"metrics": [{"name": name, "labels": dict(labels), "value": value} for name, labels, value in found]}


@operation("settle", audited=True)
def settled(session: Session, args: Json, call: Call) -> Json:
    """Keep whether the live release is healthy, as the operator has seen it at the end of a restoration."""
    with session.holding():
        count(Service(session.machine, args["service"]), {"healthy": bool(args["healthy"])})
    return {}
