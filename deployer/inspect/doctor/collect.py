"""One look at a running service and its host, without disturbing either, within a time that is known beforehand.

The server answers ``/health`` once (SGLang generates one token for it), ``/server_info`` once, ``/v1/loads`` a few
times and ``/metrics`` once. The host reports unit and releases, the newest lines of this start's log, and for some
seconds its GPUs, connections, memory and disks. Nothing is changed, no lease is taken, no completion is requested.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from deployer.config.profile import Profile
from deployer.deploy.drift import differences
from deployer.deploy.session import Health, Session
from deployer.deploy.verify import Verification, in_effect, server_info
from deployer.errors import AgentError
from deployer.host.beside import Beside
from deployer.inspect.doctor.evidence import LINES, LOOKS, NOT_SAMPLED, NOT_VERIFIED, Evidence, Load
from deployer.inspect.status import drift
from deployer.metrics import parse_loads, totals
from deployer.records.effect import Computed
from deployer.records.endpoint import Endpoint
from deployer.records.events import LogLine
from deployer.records.host import ServiceState
from deployer.records.release import Release
from deployer.sglang.log.text import ROUTINE

#: How many lines of the log are read if time is short.
FEWER_LINES = 2_000
#: Seconds that the whole command may take beyond those for which the GPUs are watched.
BUDGET = 9.0
#: Those of them that judging and printing may need.
RESERVE = 2.0
#: The GPUs are watched for at least so many seconds.
SHORTEST = 1.0
#: Seconds for nvidia-smi to report whose memory is on the GPUs.
GPU_SECONDS = 5.0
#: Seconds for the host to report the service's state.
HOST_SECONDS = 30.0
#: Seconds that /health may take.
HEALTH_SECONDS = 8.0
T = TypeVar("T")


def watched_for(seconds: float, spent: float) -> float:
    """Return for how many of the requested ``seconds`` GPUs and connections are watched, after ``spent`` seconds.

    On a busy machine the command's own start takes some; what exceeds the budget shortens the watch.
    """
    return min(seconds, max(SHORTEST, seconds + BUDGET - RESERVE - spent))


def collect(session: Session, *, seconds: float, profiles: Sequence[Profile] = (), spent: float = 0.0) -> Evidence:
    """Look once; the GPUs are watched for ``seconds``. Raise HostError if the host does not answer.

    All of it ends within `BUDGET` seconds after that, of which the command has ``spent`` some before. What does not
    answer in time is left out, and the symptoms that need it are unclear.
    """
    began = time.monotonic() - spent
    client, service = session.client, session.service
    observed = client.observe({service.name: service.port}, timeout=HOST_SECONDS)
    state = observed.services[service.name]
    running = state.release(state.running_name)
    endpoint = session.endpoint(running)
    watched = watched_for(seconds, time.monotonic() - began)
    sampling = Beside(lambda: client.sample(watched, endpoint=endpoint))
    holders = Beside(lambda: session.observe(facts=True, patience=GPU_SECONDS))
    ends = time.monotonic() + watched
    until = max(began + seconds + BUDGET - RESERVE, ends + 1.0)
    newest = LINES if watched == seconds else FEWER_LINES
    log = Beside(lambda: _lines(session, state, newest))
    # It always has its full time: a command in a hurry must not call a healthy server unhealthy.
    health = session.health(state, HEALTH_SECONDS) if state.running else Health(False, "refused", 0.0)
    info, metrics = None, None
    loads: tuple[Load, ...] = ()
    if health.ok:
        endpoint = session.endpoint(running, key=True)
        patience = min(5.0, max(1.0, until - time.monotonic()))
        info, _ = server_info(client, endpoint, timeout=patience)
        metrics = _get(session, endpoint, "/metrics", until)
        loads = tuple(_loads(lambda: _get(session, endpoint, "/v1/loads", until), ends))
    lines, verification = log.result(until) or (), NOT_VERIFIED
    if info is not None:
        # No line about batches says why SGLang changed an argument, and there are thousands of them.
        texts = [line.text for line in lines if not ROUTINE.match(line.text)]
        release = running or Release(service.name)
        verification = in_effect(release, info, secrets=endpoint.secrets, learned=session.learned, lines=texts)
        verification = _completed(verification, release)
    if whole := holders.result(until):
        parts = ("gpus", "gpu_processes", "units", "gpu_problem", "engine", "model")
        observed = replace(observed, **{name: getattr(whole, name) for name in parts})
    sampled = sampling.result(until)
    return Evidence(
        service=service.name,
        host=session.host_config.name,
        state=state,
        observed=observed,
        health=health,
        now=sampled.now if sampled else client.hello().now,
        drift=tuple(drift(state, differences(service.name, observed))),
        verification=verification,
        loads=loads,
        metrics=None if metrics is None else totals(metrics),
        lines=lines,
        cut=len(lines) >= newest,
        sampled=sampled or NOT_SAMPLED,
        profiles=tuple(profiles),
        gpus=None if service.gpus is None else tuple(service.gpus),
        watched=watched,
    )


def _lines(session: Session, state: ServiceState, newest: int) -> tuple[LogLine, ...]:
    if state.running is None or not state.unit.invocation_id:
        return ()
    log = session.log(lines=newest, invocation_id=state.unit.invocation_id)
    return tuple(line for line in log if not line.piece)


def _completed(verification: Verification, release: Release) -> Verification:
    """Return it with what the log no longer shows (the start is long ago) as it was when the release was verified."""
    now, before = verification.in_effect.computed, release.in_effect and release.in_effect.computed
    if now is None or before is None:
        return verification
    known = {name: value for name, value in now.as_json().items() if value is not None}
    computed = Computed.from_json({**before.as_json(), **known})
    return replace(verification, in_effect=replace(verification.in_effect, computed=computed))


def _loads(request: Callable[[], str | None], ends: float) -> Iterator[Load]:
    """Yield the answers of /v1/loads, spread over the time that is left."""
    for look in range(LOOKS):
        if look:
            time.sleep(max(0.05, min(0.7, (ends - time.monotonic()) / (LOOKS - look))))
        text = request()
        loads = parse_loads(text) if text is not None else None
        if loads is None:
            return
        running, waiting = (int(loads.get(f"num_{kind}_reqs", 0)) for kind in ("running", "waiting"))
        yield Load(running, waiting, loads.get("token_usage"))


def _get(session: Session, endpoint: Endpoint, path: str, until: float) -> str | None:
    patience = min(3.0, until - time.monotonic())
    if patience <= 0:
        return None
    with suppress(AgentError):
        answer = session.client.http("GET", path, endpoint, timeout=patience)
        return answer.body if answer.status == 200 else None
    return None
