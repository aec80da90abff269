"""A connection to one host on behalf of one service: observing, the lease with its heartbeat, reconnecting."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar, Unpack

from deployer.config.inventory import HostConfig, ServiceConfig
from deployer.errors import (
    AgentError,
    ChannelLost,
    DeployerError,
    HostError,
    HostUnreachable,
    LeaseHeld,
    LeaseLost,
    OnHold,
)
from deployer.host.beside import Beside
from deployer.host.client import HostClient, JournalPart, Limits
from deployer.host.heartbeat import Heartbeat
from deployer.host.protocol import Host
from deployer.reach import HEALTH_TIMEOUT, config_key, secret_variables, serves, unit_name
from deployer.records.answers import LeaseGrant
from deployer.records.endpoint import Endpoint
from deployer.records.events import LogLine
from deployer.records.hardware import Listener
from deployer.records.host import Exclusive, Hold, HostState, Owner, ServiceState
from deployer.records.release import Release
from deployer.text import age
from deployer.units.text import argument, argument_endpoint

if TYPE_CHECKING:
    from tenacity import RetryCallState

Connector = Callable[[HostConfig], Host]
Answer = TypeVar("Answer")
#: How often a command begins anew whose connection was lost before anything was changed.
_TRIES = 3
#: Seconds between two tries to take a lease that somebody else holds.
POLL = 1.0


@dataclass(frozen=True)
class Health:
    """What the service's /health answered, asked on the host itself. ``ours``: by a process of the service's unit."""

    ok: bool
    status: str
    seconds: float
    ours: bool = True

    @property
    def answers(self) -> bool:
        """Whether there was an answer: its status is an HTTP status code."""
        return self.status.isdigit()


@dataclass(eq=False, repr=False)
class Session:
    """One service on one connected host. Opens on entry; on exit gives the lease back and closes.

    ``command`` is the reason that others see who wait for the lease.
    """

    service: ServiceConfig
    host_config: HostConfig
    connect: Connector
    _: KW_ONLY
    command: str
    templates: Sequence[Path] | None = None
    learned: Path | None = None
    patience: float = 0.0
    """Seconds to wait for the lease, or for the end of a hold; may be ``inf``."""
    rivals: Sequence[ServiceConfig] = ()
    """The services of the host that must not run beside this one."""

    def __post_init__(self) -> None:
        #: Whether anything on the host may have been changed by now.
        self.changing = False
        #: The host's hold, as it was observed last.
        self.hold: Hold | None = None
        self.client: HostClient = None  # type: ignore[assignment]  # set by open(), before anything else is called
        self._heartbeat: Heartbeat | None = None
        self._grant: LeaseGrant | None = None
        self._secrets: dict[str, Endpoint] = {}
        self._probe: HealthProbe | None = None

    def open(self) -> Self:
        """Connect. Raise HostError if that fails."""
        self._probe = None
        self.client = HostClient(self.connect(self.host_config))
        return self

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self, *, bye: bool = True) -> None:
        """Give the lease back and close; without ``bye`` leave it as if this process had died (grace begins)."""
        self._stop_beating()
        if self.client is not None:
            self.client.close(bye=bye)

    @property
    def unit(self) -> str:
        return unit_name(self.service.name)

    @property
    def limits(self) -> Limits:
        """How long stopping and starting the service may take."""
        deadlines = self.service.deadlines
        return Limits(deadlines.drain, deadlines.stop, deadlines.start, self.service.gpus)

    @property
    def exclusive(self) -> tuple[Exclusive, ...]:
        """The services that must not run beside this one, as a transition records them."""
        return tuple(
            Exclusive(item.name, item.port, item.deadlines.drain, item.deadlines.stop, item.deadlines.start)
            for item in self.rivals
        )

    def displaced(self) -> tuple[str, ...]:
        """Return the names of those of `rivals` that run now."""
        if not self.rivals:
            return ()
        states = self.client.observe({item.name: item.port for item in self.rivals}).services
        return tuple(name for name, state in states.items() if not state.at_rest)

    def beside(self, service: ServiceConfig) -> Session:
        """Return a session with another service of the host, over the same connection and lease."""
        other = replace(self, service=service, rivals=())
        other.client, other.changing = self.client, self.changing
        return other

    def with_secrets(self, endpoint: Endpoint, release: str) -> Endpoint:
        """Return a server with the API key and the other secrets that its release was staged with.

        The inventory's may be newer. Without them if the release's folder is gone: a server that wants a key says so.
        """
        if release not in self._secrets:
            try:
                _, files = self.client.release_read(self.service.name, release, ["config.yaml", "env"])
            except AgentError:
                return endpoint
            key, hidden = config_key(files["config.yaml"] or ""), secret_variables(files["env"] or "")
            self._secrets[release] = replace(self.configured, api_key=key, hidden=tuple(hidden.values()))
        known = self._secrets[release]
        return replace(endpoint, api_key=known.api_key, hidden=known.hidden)

    # -- looking ------------------------------------------------------------------------------------------------

    def observe(self, *, facts: bool = False, patience: float | None = None) -> HostState:
        """Return the host as it is now; with ``facts`` the engine's environment, the model and the GPUs too.

        ``patience``: seconds that nvidia-smi has for all questions together.
        """
        service = self.service
        observed = self.client.observe(
            {service.name: service.port},
            engine=service.engine.python if facts else None,
            model=service.model if facts and service.model.startswith("/") else None,
            gpus=facts,
            patience=patience,
        )
        self.hold = observed.hold
        return observed

    def model_bytes(self, release: Release | None) -> int | None:
        """Return the size of the model that a release loads, None if it is not on the host."""
        path = (argument(release.argv, "--model-path") if release else None) or self.service.model
        if not path.startswith("/"):
            return None
        model = self.client.observe({self.service.name: self.service.port}, model=path).model
        return (model.weight_bytes or model.bytes) if model is not None and model.exists else None

    def state(self) -> ServiceState:
        """Return the service's part of `observe`."""
        return self.observe().services[self.service.name]

    @property
    def configured(self) -> Endpoint:
        """The endpoint as the inventory has it now; a release that runs may listen elsewhere."""
        return Endpoint(self.service.name, self.service.bind, self.service.port)

    def endpoint(self, release: Release | None, *, key: bool = False) -> Endpoint:
        """Return where a release listens: as it was started, else as configured. ``key``: with its secrets."""
        endpoint = argument_endpoint(release.argv if release else (), self.configured)
        return self.with_secrets(endpoint, release.release) if key and release else endpoint

    def health(self, state: ServiceState, timeout: float = HEALTH_TIMEOUT) -> Health:
        """Ask /health of what runs, once and on the host, and see whether it is our unit that answers."""
        return self.health_at(self.endpoint(state.release(state.running_name)), timeout)

    def health_at(self, endpoint: Endpoint, timeout: float = HEALTH_TIMEOUT) -> Health:
        """Ask /health of a server that listens there, as `health` does."""
        health = self.ask_health(endpoint, timeout)
        return self.answered(health, endpoint, self.client.listeners(endpoint.port)) if health.answers else health

    def begin_health(self) -> None:
        """Ask /health at once, for the next `health_probe`: the earlier, the less is waited for."""
        self._probe = self._probe or HealthProbe(self)

    def health_probe(self) -> HealthProbe:
        """Return the request for /health that is under way, else a new one."""
        self.begin_health()
        probe, self._probe = self._probe, None
        assert probe is not None, "it has just begun"
        return probe

    def ask_health(self, endpoint: Endpoint, timeout: float = HEALTH_TIMEOUT) -> Health:
        """Ask /health of whoever listens there."""
        started = time.monotonic()
        try:
            answer = self.client.http("GET", "/health", endpoint, timeout=timeout)
        except AgentError as error:
            if error.code != "http":
                raise
            return Health(False, str(error.detail.get("state") or "refused"), time.monotonic() - started)
        return Health(answer.status == 200, str(answer.status), answer.seconds)

    def answered(self, health: Health, endpoint: Endpoint, listeners: Sequence[Listener]) -> Health:
        """Return the health that ``endpoint`` answered as that of our unit: good only if our unit listens there."""
        ours = any(item.unit == self.unit for item in listeners if serves(item.address, endpoint.address))
        return replace(health, ok=health.ok and ours, ours=ours)

    def log(self, **part: Unpack[JournalPart]) -> Generator[LogLine, None, None]:
        """Yield the service's journal (see `HostClient.journal`), with secrets taken out."""
        from deployer.sglang.server.info import redact  # most commands read no log

        state = self.state()
        names = {item.release for item in state.releases if item.state in ("live", "candidate")}
        started = [self.with_secrets(self.configured, name) for name in {*names, state.running_name} if name]
        secrets = [secret for endpoint in started for secret in endpoint.secrets]
        with self.client.journal(self.service.name, **part) as stream:
            for entry in stream.until_end():
                if entry is not None:
                    yield replace(entry, text=redact(entry.text, secrets))

    # -- the lease ----------------------------------------------------------------------------------------------

    @property
    def owner(self) -> Owner:
        """Who we are, as others see it who wait for us."""
        return Owner(getpass.getuser(), socket.gethostname(), os.getpid(), self.command)

    def acquire(self, *, wait: float = 0.0) -> None:
        """Take the lease, or take ours back after a lost connection, and keep it alive.

        Raise LeaseHeld if somebody else has it, OnHold if nobody may have it.
        """
        self._stop_beating()
        try:
            self._grant = self._granted(wait)
        except LeaseLost:
            if self.changing:
                raise
            self._grant = None  # nothing hung on it yet: a new one is as good
            self._grant = self._granted(wait)
        self._heartbeat = Heartbeat(self.client, self.service.deadlines.lease)
        self._heartbeat.start()

    def _granted(self, wait: float) -> LeaseGrant:
        return self.client.lease_acquire(
            owner=self.owner,
            service=self.service.name,
            reason=self.command,
            ttl=self.service.deadlines.lease,
            reclaim=self._grant,
            wait=wait,
        )

    def take_lease(self, on_wait: Callable[[str], None]) -> None:
        """Take the lease as `acquire` does, but within ``patience`` seconds; ``on_wait`` hears what is waited for."""
        from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

        def waiting(retry: RetryCallState) -> None:
            error = retry.outcome.exception() if retry.outcome else None
            self._probe = None  # whoever is at work may change what answers
            on_wait(f"waiting, {age(retry.seconds_since_start or 0.0)} so far: {error}")

        if not self.patience:
            return self.acquire()
        retrying = Retrying(
            retry=retry_if_exception_type((LeaseHeld, OnHold)),
            stop=stop_after_delay(self.patience),
            wait=wait_fixed(POLL),
            before_sleep=waiting,
            reraise=True,
        )
        return retrying(self.acquire)

    def persist(self, work: Callable[[], Answer], on_try: Callable[[str], None]) -> Answer:
        """Do ``work``; where the connection is lost before anything was changed, connect again and do it anew."""
        for _ in range(_TRIES):
            try:
                return work()
            except ChannelLost as lost:
                if self.changing:
                    raise
                on_try(f"{lost.message}; nothing was changed, trying again")
            self.reconnect(on_try)
        return work()

    def _stop_beating(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.stop()
            self._heartbeat = None

    def reconnect(self, on_try: Callable[[str], None]) -> None:
        """After a lost connection: connect again and take our lease back, until the grace ends.

        Raise HostUnreachable when the grace is over, LeaseHeld or LeaseLost if somebody else (or the guard) has taken
        over meanwhile.
        """
        from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential_jitter

        self._stop_beating()
        self._drop()
        limit = self.service.deadlines.grace + self.service.deadlines.lease
        retrying = Retrying(
            retry=retry_if_exception_type(HostError),
            stop=stop_after_delay(limit),
            wait=wait_exponential_jitter(multiplier=0.5, max=5.0),
            before_sleep=lambda retry: on_try(
                f"connection lost; trying again ({retry.seconds_since_start:.0f} s of {limit:.0f} s)"
            ),
            reraise=True,
        )
        try:
            retrying(self._reopen)
        except (LeaseHeld, LeaseLost, OnHold):
            raise
        except DeployerError as error:
            what = "its guard restores the last live release by itself" if self.changing else "nothing was changed"
            raise HostUnreachable(
                f"{self.host_config.name} could not be reached again within {limit:.0f} s ({error.message}); {what}",
                remedy="run `deployer status` when the host can be reached again",
            ) from error

    def _reopen(self) -> None:
        self._drop()
        self.open()
        if self._grant is not None:
            self.acquire(wait=2.0)

    def _drop(self) -> None:
        with contextlib.suppress(ChannelLost):  # it was lost already, which is why we are here
            self.client.close(bye=False)


class HealthProbe:
    """/health at the configured endpoint, requested beside whatever follows: SGLang takes a second to answer."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._endpoint = session.configured
        self._health = Beside(lambda: session.ask_health(self._endpoint))

    def result(self, state: ServiceState) -> Health:
        """Return the health of the server that runs; ask again if it listens elsewhere."""
        if state.running is None:
            return Health(False, "refused", 0.0)
        if self._session.endpoint(state.release(state.running_name)) != self._endpoint:
            return self._session.health(state)
        health = self._health.wait()
        return self._session.answered(health, self._endpoint, state.listeners) if health.answers else health
