"""One look at a running service and its host, without disturbing either.

Asked of the server: ``/health`` once (SGLang generates one token for it), ``/server_info`` once, ``/v1/loads`` a few
times, ``/metrics`` once. Read on the host: unit and releases, the newest lines of this start's log; GPUs, connections,
memory and disks for some seconds. Nothing is changed, no lease is taken, no completion is asked for.
"""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from deployer.config.profile import Profile
from deployer.deploy.doctor.evidence import Evidence, LogLine
from deployer.deploy.logs import entries
from deployer.deploy.session import Health, Session
from deployer.deploy.status import drift
from deployer.deploy.verify import in_effect, server_info
from deployer.errors import AgentError, DeployerError
from deployer.host.agent.loads import summed
from deployer.host.sampled import Sampled
from deployer.host.state import ServiceState
from deployer.sglang.effect import Computed

#: How many lines of the running start's log are read, from its end.
LINES = 10_000
#: Seconds that /health may take.
HEALTH_SECONDS = 8.0
#: How often /v1/loads is asked: under a pipeline each answer is about another micro-batch.
LOOKS = 6
_METRIC = re.compile(r"^sglang:(\w{1,80})(?:\{[^}\n]{0,1000}\})? ([-+0-9.eE]{1,30}|NaN)$", re.M | re.ASCII)
#: What doctor does, in words for its report.
ASKED = (
    "/health once (SGLang generates one token for it)",
    "/server_info once",
    f"/v1/loads {LOOKS} times",
    "/metrics once",
    f"the newest {LINES} lines of this start's log",
    "nvidia-smi, open connections, memory, swap and disks",
)


class _Sampling:
    """The host's sampling, in a thread beside the other questions."""

    def __init__(self, session: Session, seconds: float, address: str, port: int) -> None:
        self.session, self.seconds, self.address, self.port = session, seconds, address, port
        self.found: Sampled | None = None
        self.error: DeployerError | None = None
        self.thread = threading.Thread(target=self._run, name="sampling", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.found = self.session.client.sample(self.seconds, port=self.port, address=self.address)
        except DeployerError as error:
            self.error = error

    def result(self) -> Sampled | None:
        """What was sampled; None where the host could not. ChannelLost and the like are raised."""
        self.thread.join()
        if self.error is not None and not isinstance(self.error, AgentError):
            raise self.error
        return self.found


def collect(session: Session, *, seconds: float, profiles: Sequence[Profile] = ()) -> Evidence:
    """Look once; the GPUs are watched for ``seconds``. HostError where the host cannot be asked."""
    observed = session.client.observe({session.service.name: session.service.port}, gpus=True)
    state = observed.services[session.service.name]
    release = state.running.release if state.running else None
    address, port = session.endpoint(state, release)
    sampling = _Sampling(session, seconds, address, port)
    began = time.monotonic()
    health = session.health(state, HEALTH_SECONDS) if state.running else Health(False, "refused", 0.0)
    evidence = Evidence(
        service=session.service.name,
        host=session.host_config.name,
        state=state,
        observed=observed,
        health=health,
        now=0.0,
        drift=tuple(_drift(session, state)),
        lines=_lines(session, state),
        profiles=tuple(profiles),
        gpus=None if session.service.gpus is None else tuple(session.service.gpus),
    )
    evidence = replace(evidence, cut=len(evidence.lines) >= LINES)
    if health.ok:
        evidence = _ask(session, evidence, release, address, port, until=began + seconds)
    sampled = sampling.result()
    return replace(evidence, sampled=sampled, now=sampled.now if sampled else session.client.hello().now)


def _drift(session: Session, state: ServiceState) -> list[str]:
    stored = None
    if state.live and state.live.release:
        with suppress(AgentError):
            stored = session.client.release_read(session.service.name, state.live.release, ["unit"]).files[
                "unit"
            ]
    return drift(session.service.name, state, stored)


def _lines(session: Session, state: ServiceState) -> tuple[LogLine, ...]:
    if state.running is None or not state.unit.invocation_id:
        return ()
    with suppress(AgentError):
        found = entries(session, lines=LINES, invocation_id=state.unit.invocation_id)
        return tuple(
            LogLine(float(item["t"]), item["text"], item["source"] == "engine")
            for item in found
            if not item.get("piece")
        )
    return ()


def _ask(
    session: Session, evidence: Evidence, release: str | None, address: str, port: int, *, until: float
) -> Evidence:
    """What the server says of itself."""
    key = session.api_key(release)
    resolved = evidence.manifest.get("resolved") or {}
    info, _ = server_info(session.client.host, port, address, key)
    if info is not None:
        texts = [line.text for line in evidence.lines]
        found = in_effect(
            resolved.get("requested") or {},
            info,
            secrets=[key] if key else [],
            allow_changed=resolved.get("allow_changed") or (),
            version=evidence.manifest.get("sglang"),
            learned=session.learned,
            lines=texts,
        )
        evidence = replace(
            evidence,
            effective=found.effective,
            computed=_completed(found.computed, evidence.manifest.get("in_effect")),
            checks=found.checks,
            allowed=found.allowed,
        )
    metrics = _get(session, address, port, "/metrics", key)
    loads = list(_loads(session, address, port, key, until))
    return replace(evidence, metrics=None if metrics is None else parse_metrics(metrics), loads=tuple(loads))


def _completed(now: Computed | None, kept: Any) -> Computed | None:
    """What is computed now; what the log no longer tells (the start is long ago) as it was when it was verified."""
    before = (kept or {}).get("computed") if isinstance(kept, dict) else None
    if now is None or not before:
        return now
    told = {name: value for name, value in now.as_dict().items() if value is not None}
    return Computed.from_dict({**before, **told})


def _loads(
    session: Session, address: str, port: int, key: str | None, until: float
) -> Iterable[dict[str, Any]]:
    """The answers of /v1/loads, spread over the time that is left; each summed over data-parallel ranks."""
    for look in range(LOOKS):
        if look:
            time.sleep(max(0.05, min(0.7, (until - time.monotonic()) / (LOOKS - look))))
        text = _get(session, address, port, "/v1/loads", key)
        summed = parse_loads(text) if text is not None else None
        if summed is None:
            return
        yield summed


def _get(session: Session, address: str, port: int, path: str, key: str | None) -> str | None:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with suppress(AgentError):
        answer = session.client.http("GET", path, port=port, address=address, headers=headers, timeout=3.0)
        return answer.body if answer.status == 200 else None
    return None


def parse_loads(text: str) -> dict[str, Any] | None:
    """An answer of /v1/loads, as `deployer.host.agent.loads.summed` has it; None if it is none."""
    try:
        return summed(json.loads(text))
    except (ValueError, RecursionError):
        return None


def parse_metrics(text: str) -> dict[str, float]:
    """SGLang's metrics by name, summed over their labels."""
    found: dict[str, float] = {}
    for name, value in _METRIC.findall(text):
        with suppress(ValueError):
            number = float(value)
            if not math.isnan(number):
                found[name] = found.get(name, 0.0) + number
    return found
