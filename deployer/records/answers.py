"""What the other operations answer, typed. Shapes: ``docs/architecture.md``.

Times are epoch seconds unless a name ends in ``_boottime``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Hello:
    """Who answers: the agent and the machine it runs on."""

    schema: int
    agent: str
    python: str
    uid: int
    hostname: str
    boot_id: str
    systemd: int | None
    now: float
    now_boottime: float

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(**{name: data[name] for name in cls.__slots__})


@dataclass(frozen=True, slots=True)
class LeaseGrant:
    """What ``lease.acquire`` answers. ``token`` proves ownership when it is reclaimed."""

    generation: int
    token: str
    expires_in: float

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(int(data["generation"]), str(data["token"]), float(data["expires_in"]))


@dataclass(frozen=True, slots=True)
class ReleaseFiles:
    """What ``release.read`` answers; a file that does not exist is None."""

    manifest: Json
    files: dict[str, str | None]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(dict(data["manifest"]), dict(data.get("files") or {}))


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """One HTTP exchange made on the host itself."""

    status: int
    headers: dict[str, str]
    body: str
    seconds: float

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            int(data["status"]), dict(data.get("headers") or {}), str(data["body"]), float(data["seconds"])
        )


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """How systemd understands a unit text: ``systemd-analyze verify`` and what it reads back over D-Bus."""

    verify_status: int
    verify_lines: tuple[str, ...]
    argv: tuple[str, ...]
    properties: Json
    load_error: str | None
    drop_ins: tuple[Json, ...] = ()
    """Drop-ins of the real unit that set what deployer decides: ``{path, keys}``."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            verify_status=int(data["verify"]["status"]),
            verify_lines=tuple(data["verify"]["lines"]),
            argv=tuple(data.get("argv") or ()),
            properties=dict(data.get("properties") or {}),
            load_error=data.get("load_error"),
            drop_ins=tuple(data.get("drop_ins") or ()),
        )


@dataclass(frozen=True, slots=True)
class Stopped:
    """What ``unit.stop`` answers. ``inflight`` is None where the server does not tell."""

    seconds: float
    inflight: int | None
    killed: bool

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(float(data["seconds"]), data.get("inflight"), bool(data.get("killed")))


@dataclass(frozen=True, slots=True)
class Started:
    """What ``unit.start`` answers: what ``watch`` needs to follow this start and no other."""

    invocation_id: str
    cursor: str
    started_boottime: float

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(str(data["invocation_id"]), str(data["cursor"]), float(data["started_boottime"]))


@dataclass(frozen=True, slots=True)
class Converged:
    """What ``converge`` answers. ``serving``: /health answered 200 from a process of the unit."""

    live: str | None
    actions: tuple[str, ...]
    started: bool
    invocation_id: str | None
    cursor: str | None
    serving: bool
    started_boottime: float | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            live=data.get("live"),
            actions=tuple(data.get("actions") or ()),
            started=bool(data.get("started")),
            invocation_id=data.get("invocation_id"),
            cursor=data.get("cursor"),
            serving=bool(data.get("serving")),
            started_boottime=data.get("started_boottime"),
        )
