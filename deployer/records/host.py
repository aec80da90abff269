"""The state of a host and its services, typed, as `observe` answers it. Shapes: ``docs/architecture.md``.

Times are epoch seconds unless a name ends in ``_boottime``; sizes are bytes; a percentage is 0 to 100.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from deployer.records.hardware import EngineFacts, Gpu, GpuProcess, Listener, ModelFacts

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds (or held) a lease."""

    user: str = ""
    host: str = ""
    pid: int = 0
    command: str = ""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            user=str(data.get("user", "")),
            host=str(data.get("host", "")),
            pid=int(data.get("pid") or 0),
            command=str(data.get("command", "")),
        )

    def as_json(self) -> Json:
        return {"user": self.user, "host": self.host, "pid": self.pid, "command": self.command}

    def __str__(self) -> str:
        who = f"{self.user}@{self.host}" if self.host else self.user or "somebody"
        return f"{who} ({self.command}, pid {self.pid})" if self.command else who


@dataclass(frozen=True, slots=True)
class Lease:
    """The exclusive right to change a host, as the host records it. ``expires_in`` may be negative."""

    generation: int
    owner: Owner
    service: str | None
    reason: str
    acquired: float
    boot_id: str
    expires_boottime: float
    expires_in: float
    valid: bool
    state: str
    """``held``, ``abandoned`` (the connection ended without farewell) or ``released``."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            generation=int(data["generation"]),
            owner=Owner.from_json(data.get("owner") or {}),
            service=data.get("service"),
            reason=str(data.get("reason") or ""),
            acquired=float(data.get("acquired") or 0.0),
            boot_id=str(data.get("boot_id") or ""),
            expires_boottime=float(data.get("expires_boottime") or 0.0),
            expires_in=float(data.get("expires_in") or 0.0),
            valid=bool(data.get("valid")),
            state=str(data.get("state") or "released"),
        )


@dataclass(frozen=True, slots=True)
class UnitFile:
    """A live or candidate unit file. ``release`` is its ``[X-Deployer] Release=``, None in a file that has none."""

    release: str | None
    text: str
    path: str

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(data.get("release"), str(data["text"]), str(data["path"]))


@dataclass(frozen=True, slots=True)
class Transition:
    """A change from one release to another that is under way (``from_`` is None at the first deployment)."""

    from_: str | None
    to: str
    profile: str
    step: str
    grace: float
    """Seconds an abandoned transition waits for an operator to come back."""
    port: int
    stop_timeout: float
    gpus: tuple[int, ...] | None
    boot_id: str
    started: float
    updated: float
    raw: Json = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        gpus = data.get("gpus")
        return cls(
            from_=data.get("from"),
            to=str(data["to"]),
            profile=str(data.get("profile") or ""),
            step=str(data.get("step") or ""),
            grace=float(data.get("grace") or 0.0),
            port=int(data.get("port") or 0),
            stop_timeout=float(data.get("stop_timeout") or 0.0),
            gpus=None if gpus is None else tuple(int(index) for index in gpus),
            boot_id=str(data.get("boot_id") or ""),
            started=float(data.get("started") or 0.0),
            updated=float(data.get("updated") or 0.0),
            raw=dict(data),
        )


@dataclass(frozen=True, slots=True)
class UnitState:
    """systemd's view of the service's unit. The names are systemd's properties."""

    active: str
    sub: str
    result: str
    restarts: int
    invocation_id: str
    main_pid: int
    exec_status: int
    exec_code: int
    load: str
    file_state: str
    fragment: str
    drop_ins: tuple[str, ...]
    active_since: float | None
    inactive_since: float | None
    changed: float | None
    restart: str
    needs_reload: bool

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            active=str(data.get("ActiveState") or "inactive"),
            sub=str(data.get("SubState") or "dead"),
            result=str(data.get("Result") or ""),
            restarts=int(data.get("NRestarts") or 0),
            invocation_id=str(data.get("InvocationID") or ""),
            main_pid=int(data.get("MainPID") or 0),
            exec_status=int(data.get("ExecMainStatus") or 0),
            exec_code=int(data.get("ExecMainCode") or 0),
            load=str(data.get("LoadState") or "not-found"),
            file_state=str(data.get("UnitFileState") or ""),
            fragment=str(data.get("FragmentPath") or ""),
            drop_ins=tuple(data.get("DropInPaths") or ()),
            active_since=data.get("ActiveEnterTimestamp"),
            inactive_since=data.get("InactiveEnterTimestamp"),
            changed=data.get("StateChangeTimestamp"),
            restart=str(data.get("Restart") or ""),
            needs_reload=bool(data.get("NeedDaemonReload")),
        )

    @property
    def ok(self) -> bool:
        """Running or on its way up."""
        return self.active in ("active", "activating", "reloading")


@dataclass(frozen=True, slots=True)
class Running:
    """The unit's main process as ``/proc`` shows it; ``release`` is ``DEPLOYER_RELEASE`` of its environment."""

    pid: int
    release: str | None
    argv: tuple[str, ...]
    started: float
    pids: tuple[int, ...]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            pid=int(data["pid"]),
            release=data.get("release"),
            argv=tuple(data.get("argv") or ()),
            started=float(data.get("started") or 0.0),
            pids=tuple(data.get("pids") or ()),
        )


@dataclass(frozen=True, slots=True)
class GuardState:
    """The guard unit of a service: systemd's ActiveState and Result."""

    active: str
    result: str

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(str(data.get("active") or "inactive"), str(data.get("result") or ""))


@dataclass(frozen=True, slots=True)
class ServiceState:
    """Everything the host knows about one service. ``releases`` are the manifests, by number."""

    live: UnitFile | None
    candidate: UnitFile | None
    transition: Transition | None
    unit: UnitState
    running: Running | None
    releases: tuple[Json, ...]
    guard: GuardState
    recover_enabled: bool
    enabled: bool
    listeners: tuple[Listener, ...]
    shadows: tuple[str, ...]
    problems: tuple[str, ...] = ()
    """What could not be read: damaged state files, witnesses that did not answer."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        live, candidate = data.get("live"), data.get("candidate")
        transition, running = data.get("transition"), data.get("running")
        return cls(
            live=UnitFile.from_json(live) if live else None,
            candidate=UnitFile.from_json(candidate) if candidate else None,
            transition=Transition.from_json(transition) if transition else None,
            unit=UnitState.from_json(data.get("unit") or {}),
            running=Running.from_json(running) if running else None,
            releases=tuple(data.get("releases") or ()),
            guard=GuardState.from_json(data.get("guard") or {}),
            recover_enabled=bool(data.get("recover_enabled")),
            enabled=bool(data.get("enabled")),
            listeners=tuple(Listener.from_json(item) for item in data.get("listeners") or ()),
            shadows=tuple(data.get("shadows") or ()),
            problems=tuple(data.get("problems") or ()),
        )

    def manifest(self, release: str | None) -> Json | None:
        """The manifest of a release by name, or None."""
        return next((item for item in self.releases if item.get("release") == release), None)

    @property
    def at_rest(self) -> bool:
        """Whether nothing of the service runs or is about to: also not between two automatic restarts."""
        return self.running is None and self.unit.active in ("inactive", "failed")

    @property
    def next_number(self) -> int:
        """The number the next release gets (0 is kept for an adopted unit)."""
        return max((int(item.get("number") or 0) for item in self.releases), default=0) + 1


@dataclass(frozen=True, slots=True)
class HostState:
    """What ``observe`` answers. ``gpus`` is None where there is no ``nvidia-smi``, it was not asked for, or it is in
    trouble: ``gpu_problem`` says which."""

    boot_id: str
    lease: Lease | None
    services: dict[str, ServiceState]
    gpus: tuple[Gpu, ...] | None
    gpu_processes: tuple[GpuProcess, ...]
    disk_free: int
    engine: EngineFacts | None
    model: ModelFacts | None
    memory_total: int | None = None
    gpu_problem: str | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        lease, gpus = data.get("lease"), data.get("gpus")
        engine, model = data.get("engine"), data.get("model")
        return cls(
            boot_id=str(data["boot_id"]),
            lease=Lease.from_json(lease) if lease else None,
            services={name: ServiceState.from_json(item) for name, item in data["services"].items()},
            gpus=None if gpus is None else tuple(Gpu.from_json(item) for item in gpus),
            gpu_processes=tuple(GpuProcess.from_json(item) for item in data.get("gpu_processes") or ()),
            disk_free=int(data.get("disk_free") or 0),
            engine=EngineFacts.from_json(engine) if engine else None,
            model=ModelFacts.from_json(model) if model else None,
            memory_total=data.get("memory_total"),
            gpu_problem=data.get("gpu_problem"),
        )
