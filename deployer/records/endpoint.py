"""Where a server is reached, and as what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from deployer.reach import HEALTH_TIMEOUT, key_header, unit_name
from deployer.records.codec import Json


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A service's server: where it listens on the host, and the key it wants (None without one).

    ``hidden`` are the other secrets that it was given, in its environment.
    """

    service: str
    address: str
    port: int
    api_key: str | None = field(default=None, repr=False)
    hidden: tuple[str, ...] = field(default=(), repr=False)

    @property
    def unit(self) -> str:
        """The name of its systemd unit."""
        return unit_name(self.service)

    @property
    def headers(self) -> dict[str, str]:
        """The headers that its API wants."""
        return key_header(self.api_key)

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be shown or logged."""
        return (*((self.api_key,) if self.api_key else ()), *self.hidden)

    def request(
        self,
        method: str,
        path: str,
        *,
        body: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = HEALTH_TIMEOUT,
    ) -> Json:
        """Return an HTTP request to it as the agent's operation ``http`` takes it."""
        return {
            "method": method,
            "path": path,
            "port": self.port,
            "address": self.address,
            "body": body,
            "headers": {**self.headers, **(headers or {})},
            "timeout": timeout,
        }

    def __str__(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}"
