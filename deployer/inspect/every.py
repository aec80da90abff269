"""Every service at once: their hosts side by side, one connection each; a dead host costs only its own answers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar, cast

from deployer.config.inventory import HostConfig, ServiceConfig
from deployer.deploy.session import Connector, Session
from deployer.errors import ChannelLost, DeployerError, worst
from deployer.host.beside import Beside
from deployer.host.protocol import Host
from deployer.records.codec import Json
from deployer.records.host import Hold

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Look(Generic[T]):
    """What was learned about one service: an answer, or the error there was instead."""

    service: ServiceConfig
    answer: T | None = None
    error: DeployerError | None = None

    def either(self, of_answer: Callable[[T], R], of_error: Callable[[DeployerError], R]) -> R:
        """Return what is made of the answer, or of the error."""
        if self.error is not None:
            return of_error(self.error)
        return of_answer(cast(T, self.answer))

    def as_json(self, document: Callable[[T], Json]) -> Json:
        """Return the answer's document, or one that has the error in its place."""
        place = {"service": self.service.name, "host": self.service.host}
        return self.either(document, lambda error: {**place, "error": error.as_dict(), "exit_code": error.exit_code})


def exit_code(looks: Iterable[Look[T]], code: Callable[[T], int]) -> int:
    """Return the worst exit code of all; ``code`` is that of an answer."""
    return worst(look.either(code, lambda error: error.exit_code) for look in looks)


@dataclass(eq=False, repr=False)
class Fleet:
    """Services with their hosts, which are connected at the first look and stay connected until the end.

    A host that was lost or could not be reached is tried again at the next look.
    """

    services: Sequence[ServiceConfig]
    host: Callable[[str], HostConfig]
    connect: Connector
    _: KW_ONLY
    command: str
    templates: Sequence[Path] | None = None
    learned: Path | None = None
    holds: dict[str, Hold] = field(default_factory=dict)
    """The hosts that are on hold, by name, as the last look saw them."""

    def __post_init__(self) -> None:
        self._connected: dict[str, Host] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for closing in [Beside(host.close) for host in list(self._connected.values())]:
            with contextlib.suppress(ChannelLost):
                closing.wait()

    def look(self, work: Callable[[Session], T]) -> list[Look[T]]:
        """Do ``work`` for every service side by side; return what came of each, in the order of the services."""
        self.holds = {}
        names = dict.fromkeys(service.host for service in self.services)
        hosts = [Beside(lambda name=name: self._on_host(name, work)) for name in names]  # type: ignore[misc]
        looks = {look.service.name: look for host in hosts for look in host.wait()}
        return [looks[service.name] for service in self.services]

    def _on_host(self, name: str, work: Callable[[Session], T]) -> list[Look[T]]:
        services = [service for service in self.services if service.host == name]
        try:
            if name not in self._connected:
                self._connected[name] = self.connect(self.host(name))
        except DeployerError as error:
            return [Look(service, error=error) for service in services]
        host = self._connected[name]
        looks = [Beside(lambda service=service: self._look(service, host, work)) for service in services]  # type: ignore[misc]
        answers = [look.wait() for look in looks]
        if any(isinstance(look.error, ChannelLost) for look in answers):
            del self._connected[name]
            with contextlib.suppress(ChannelLost):
                host.close(bye=False)
        return answers

    def _look(self, service: ServiceConfig, host: Host, work: Callable[[Session], T]) -> Look[T]:
        session = Session(
            service,
            self.host(service.host),
            lambda _: host,
            command=self.command,
            templates=self.templates,
            learned=self.learned,
            rivals=[item for item in self.services if item.name in service.exclusive_with],
        )
        try:
            answer = work(session.open())  # never closed: the connection is not the session's own
        except DeployerError as error:
            return Look(service, error=error)
        if session.hold is not None:
            self.holds[service.host] = session.hold
        return Look(service, answer)
