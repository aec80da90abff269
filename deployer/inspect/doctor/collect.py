"""One look at a running service and its host, without disturbing either, within a time that is known beforehand.

Asked of the server: ``/health`` once (SGLang generates one token for it), ``/server_info`` once, ``/v1/loads`` a few
times, ``/metrics`` once. Read on the host: unit and releases, the newest lines of this start's log; GPUs, connections,
memory and disks for some seconds. Nothing is changed, no lease is taken, no completion is asked for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Generic, TypeVar

from deployer.config.profile import Profile
from deployer.deploy.service_log import entries
from deployer.deploy.session import Health, Session
from deployer.deploy.verify import in_effect, server_info
from deployer.errors import AgentError, ChannelLost
from deployer.inspect.doctor.evidence import Evidence, LogLine
from deployer.inspect.status import drift, stored_unit
from deployer.metrics import parse_loads, totals
from deployer.records.endpoint import Endpoint
from deployer.records.host import ServiceState
from deployer.records.release import Release
from deployer.sglang.log.text import ROUTINE
from deployer.sglang.server.effect import Computed

#: How many lines of the running start's log are read, from its end; and how many where time is short.
LINES = 10_000
FEWER_LINES = 2_000
#: Seconds that the whole command may take beyond those that the GPUs are watched for.
BUDGET = 9.0
#: Those of them that judging and printing may need.
RESERVE = 2.0
#: The GPUs are watched for so many seconds at least.
SHORTEST = 1.0
#: Seconds that nvidia-smi has to say whose memory is on the GPUs.
GPU_SECONDS = 5.0
#: Seconds that the host has to say how the service is.
HOST_SECONDS = 30.0
#: Seconds that /health may take.
HEALTH_SECONDS = 8.0
#: How often /v1/loads is asked: under a pipeline each answer is about another micro-batch.
LOOKS = 6
Found = TypeVar("Found")
#: What doctor does, in words for its report.
ASKED = (
    "/health once (SGLang generates one token for it)",
    "/server_info once",
    f"/v1/loads {LOOKS} times",
    "/metrics once",
    f"the newest {LINES} lines of this start's log",
    "nvidia-smi, open connections, memory, swap and disks",
)


class Beside(Generic[Found]):
    """A question to the host that is asked in a thread beside the others, and given up when its time is over."""

    def __init__(self, ask: Callable[[], Found]) -> None:
        self._ask = ask
        self._found: Found | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._found = self._ask()
        except Exception as error:
            self._error = error

    def result(self, until: float) -> Found | None:
        """The answer; None where the host could not give it, or not by ``until`` (monotonic). A connection that broke
        is raised."""
        self._thread.join(max(0.0, until - time.monotonic()))
        error = self._error
        if isinstance(error, AgentError) or (isinstance(error, ChannelLost) and "timeout" in error.detail):
            return None
        if error is not None:
            raise error
        return self._found


def watched_for(seconds: float, spent: float) -> float:
    """How many of the ``seconds`` that were wished GPUs and connections are watched, after ``spent`` seconds of the
    command went by. On a busy machine the start alone takes some; what the budget is over it is watched less."""
    return min(seconds, max(SHORTEST, seconds + BUDGET - RESERVE - spent))


def collect(
    session: Session, *, seconds: float, profiles: Sequence[Profile] = (), spent: float = 0.0
) -> Evidence:
    """Look once; the GPUs are watched for ``seconds``. HostError where the host cannot be asked.

    All of it is to be over `BUDGET` seconds after that, of which the command has ``spent`` some before. What does not
    answer in time is left out, and the checks that need it say so.
    """
    began = time.monotonic() - spent
    observed = session.client.observe({session.service.name: session.service.port}, timeout=HOST_SECONDS)
    state = observed.services[session.service.name]
    endpoint = session.endpoint(state.release(state.running_name))
    watched = watched_for(seconds, time.monotonic() - began)
    sampling = Beside(lambda: session.client.sample(watched, endpoint=endpoint))
    holders = Beside(lambda: session.client.observe({}, gpus=True, patience=GPU_SECONDS))
    ends = time.monotonic() + watched
    until = max(began + seconds + BUDGET - RESERVE, ends + 1.0)
    newest = LINES if watched == seconds else FEWER_LINES
    log = Beside(lambda: _lines(session, state, newest))
    # It always has its time: to be called unhealthy for the hurry of the asker would be wrong.
    health = session.health(state, HEALTH_SECONDS) if state.running else Health(False, "refused", 0.0)
    evidence = Evidence(
        service=session.service.name,
        host=session.host_config.name,
        state=state,
        observed=observed,
        health=health,
        now=0.0,
        drift=tuple(drift(session.service.name, state, stored_unit(session, state))),
        profiles=tuple(profiles),
        gpus=None if session.service.gpus is None else tuple(session.service.gpus),
        watched=watched,
    )
    if health.ok:
        endpoint = session.endpoint(state.release(state.running_name), key=True)
        evidence = _ask(session, evidence, endpoint, ends=ends, until=until)
    lines = log.result(until) or ()
    if evidence.info is not None:
        evidence = _in_effect(session, replace(evidence, lines=lines), endpoint)
    seen, sampled = holders.result(until), sampling.result(until)
    return replace(
        evidence,
        lines=lines,
        cut=len(lines) >= newest,
        observed=replace(
            observed,
            gpus=seen.gpus if seen else None,
            gpu_processes=seen.gpu_processes if seen else (),
            gpu_problem=seen.gpu_problem if seen else None,
        ),
        sampled=sampled,
        now=sampled.now if sampled else session.client.hello().now,
    )


def _lines(session: Session, state: ServiceState, newest: int) -> tuple[LogLine, ...]:
    if state.running is None or not state.unit.invocation_id:
        return ()
    return tuple(
        LogLine(line.t or 0.0, line.text, line.source == "engine")
        for line in entries(session, lines=newest, invocation_id=state.unit.invocation_id)
        if not line.piece
    )


def _ask(session: Session, evidence: Evidence, endpoint: Endpoint, *, ends: float, until: float) -> Evidence:
    """What the server says of itself; its loads are looked at until ``ends``, nothing is waited for after ``until``."""

    def get(path: str) -> str | None:
        patience = min(3.0, until - time.monotonic())
        return _get(session, endpoint, path, patience) if patience > 0 else None

    info, _ = server_info(session.client, endpoint, timeout=min(5.0, max(1.0, until - time.monotonic())))
    metrics = get("/metrics")
    return replace(
        evidence,
        info=info,
        metrics=None if metrics is None else totals(metrics),
        loads=tuple(_loads(lambda: get("/v1/loads"), ends)),
    )


def _in_effect(session: Session, evidence: Evidence, endpoint: Endpoint) -> Evidence:
    """What is in effect of what the release requested."""
    # No line about batches says why SGLang changed an argument, and there are thousands of them.
    texts = [line.text for line in evidence.lines if not ROUTINE.match(line.text)]
    release = evidence.record or Release(evidence.service, "")
    verification = in_effect(
        release, evidence.info or {}, secrets=endpoint.secrets, learned=session.learned, lines=texts
    )
    return replace(
        evidence,
        effective=verification.effective,
        computed=_completed(verification.computed, release.in_effect),
        checks=verification.checks,
        allowed=verification.allowed,
    )


def _completed(now: Computed | None, kept: Any) -> Computed | None:
    """What is computed now; what the log no longer tells (the start is long ago) as it was when it was verified."""
    before = (kept or {}).get("computed") if isinstance(kept, dict) else None
    if now is None or not before:
        return now
    told = {name: value for name, value in now.as_dict().items() if value is not None}
    return Computed.from_dict({**before, **told})


def _loads(ask: Callable[[], str | None], ends: float) -> Iterable[dict[str, Any]]:
    """The answers of /v1/loads, spread over the time that is left; each summed over data-parallel ranks."""
    for look in range(LOOKS):
        if look:
            time.sleep(max(0.05, min(0.7, (ends - time.monotonic()) / (LOOKS - look))))
        text = ask()
        found = parse_loads(text) if text is not None else None
        if found is None:
            return
        yield found


def _get(session: Session, endpoint: Endpoint, path: str, patience: float) -> str | None:
    with suppress(AgentError):
        answer = session.client.http("GET", path, endpoint, timeout=patience)
        return answer.body if answer.status == 200 else None
    return None
