"""The way to a host, and to the server on it that a command asks about."""

from __future__ import annotations

from dataclasses import dataclass, fields

from deployer.records.codec import Record


@dataclass(frozen=True, slots=True)
class Destination(Record):
    """How a host is reached: the part of its configuration that a connection needs (docs/configuration.md)."""

    name: str
    transport: str
    address: str
    port: int
    user: str | None
    identity_file: str | None
    ssh_config: str | None
    proxy_jump: str | None
    host_keys: str
    known_hosts: str | None
    host_key: str | None
    sudo: str
    python: str
    connect_timeout: float
    keepalive: int


FIELDS = tuple(item.name for item in fields(Destination) if item.name != "extra")
