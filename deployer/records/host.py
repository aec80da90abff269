"""A host and its services, as ``observe`` answers. Shapes: ``docs/architecture.md``.

Times are epoch seconds unless a name ends in ``_boottime``; sizes are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from deployer.records.answers import DropIn
from deployer.records.codec import Record, Tolerant, named
from deployer.records.failure import PhaseTime
from deployer.records.hardware import EngineFacts, Gpu, GpuProcess, Listener, ModelFacts, Process, UnitOwner
from deployer.records.release import Release
from deployer.text import age, moment


@dataclass(frozen=True, slots=True)
class Owner(Tolerant):
    """Who holds (or held) a lease."""

    user: str = ""
    host: str = ""
    pid: int = 0
    command: str = ""

    def __str__(self) -> str:
        who = f"{self.user}@{self.host}" if self.host else self.user or "somebody"
        return f"{who} ({self.command}, pid {self.pid})" if self.command else who


@dataclass(frozen=True, slots=True)
class Lease(Tolerant):
    """The exclusive right to change a host, as the host records it. ``expires_in`` may be negative."""

    generation: int
    owner: Owner = field(default_factory=Owner)
    service: str | None = None
    reason: str = ""
    acquired: float = 0.0
    boot_id: str = ""
    expires_boottime: float = 0.0
    expires_in: float = 0.0
    valid: bool = False
    state: str = "released"
    """``held``, ``abandoned`` (the connection ended without a farewell) or ``released``."""
    held_for: float = 0.0
    step: str | None = None
    """The step of the change that its service is in; None before the first irreversible one, or if nothing changes."""

    def __str__(self) -> str:
        what = f"in use for {self.service}" if self.service else "in use"
        since = f", begun {age(self.held_for)} ago" if self.held_for else ""
        step = f", at the step '{self.step}'" if self.step else ""
        end = f"the lease ends in {age(self.expires_in)} if nothing more is heard of them"
        return f"{what} by {self.owner}{since}{step}; {end}"


@dataclass(frozen=True, slots=True)
class Hold(Tolerant):
    """A host that operators may not change until ``until`` (None: until it is released)."""

    reason: str = ""
    owner: Owner = field(default_factory=Owner)
    since: float = 0.0
    until: float | None = None

    def __str__(self) -> str:
        until = f" until {moment(self.until)}" if self.until else ""
        return f"on hold since {moment(self.since)}{until} by {self.owner}: {self.reason}"


@dataclass(frozen=True, slots=True)
class UnitFile(Record):
    """A live or candidate unit file. ``release`` is its ``[X-Deployer] Release=``, None if the file has none.

    Of the live one ``kept`` is the text that its release keeps, None if that is gone.
    """

    release: str | None
    text: str
    path: str
    mode: int | None = None
    modified: float | None = None
    kept: str | None = None


@dataclass(frozen=True, slots=True)
class Exclusive(Tolerant):
    """A service that must not run beside the one that is changed, how it is stopped, and what it was before."""

    service: str = ""
    port: int = 0
    drain: float = 0.0
    stop_timeout: float = 0.0
    ready_timeout: float = 0.0
    was_active: bool = False
    was_enabled: bool = False


@dataclass(frozen=True, slots=True)
class Transition(Tolerant):
    """A change from one release to another that is under way (``from_`` is None at the first deployment).

    ``grace`` is how long an abandoned transition waits for an operator to come back, and ``lease`` how long the guard's
    lease lives, in seconds. ``invocation_id`` and ``cursor`` name the candidate's start, once there is one;
    ``timeline`` is its launch, once it was ready; ``proven``: the release was live before, so it is not benchmarked
    again.
    """

    to: str
    from_: str | None = named("from", default=None)
    profile: str = ""
    step: str = ""
    grace: float = 0.0
    lease: float | None = None
    port: int = 0
    address: str | None = None
    drain: float = 0.0
    stop_timeout: float = 0.0
    ready_timeout: float = 0.0
    gpus: tuple[int, ...] | None = None
    proven: bool = False
    exclusive: tuple[Exclusive, ...] = ()
    boot_id: str = ""
    started: float = 0.0
    updated: float = 0.0
    invocation_id: str = ""
    cursor: str = ""
    started_boottime: float | None = None
    timeline: tuple[PhaseTime, ...] = ()


@dataclass(frozen=True, slots=True)
class UnitState(Record):
    """systemd's view of the service's unit. The JSON keys are systemd's properties."""

    active: str = named("ActiveState", default="inactive")
    sub: str = named("SubState", default="dead")
    result: str = named("Result", default="")
    restarts: int = named("NRestarts", default=0)
    invocation_id: str = named("InvocationID", default="")
    main_pid: int = named("MainPID", default=0)
    exec_status: int = named("ExecMainStatus", default=0)
    exec_code: int = named("ExecMainCode", default=0)
    load: str = named("LoadState", default="not-found")
    file_state: str = named("UnitFileState", default="")
    fragment: str = named("FragmentPath", default="")
    drop_ins: tuple[str, ...] = named("DropInPaths", default=())
    active_since: float | None = named("ActiveEnterTimestamp", default=None)
    inactive_since: float | None = named("InactiveEnterTimestamp", default=None)
    changed: float | None = named("StateChangeTimestamp", default=None)
    restart: str = named("Restart", default="")
    needs_reload: bool = named("NeedDaemonReload", default=False)

    @property
    def ok(self) -> bool:
        """Whether it is running or on its way up."""
        return self.active in ("active", "activating", "reloading")


@dataclass(frozen=True, slots=True)
class Running(Record):
    """The unit's main process as ``/proc`` shows it; ``release`` is ``DEPLOYER_RELEASE`` of its environment.

    ``environment`` is what it has of the release's variables, None if the release is not known. ``secrets`` are names
    of the release's secret variables with another value, ``others`` of those set neither by the release nor by systemd.
    """

    pid: int
    release: str | None = None
    argv: tuple[str, ...] = ()
    started: float = 0.0
    pids: tuple[int, ...] = ()
    environment: dict[str, str] | None = None
    secrets: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GuardDeed(Tolerant):
    """What the guard (or ``recover``, at boot) did to finish a change, why, and what came of it."""

    t: float = 0.0
    by: str = "guard"
    what: str = ""
    why: str = ""
    result: str = ""

    def __str__(self) -> str:
        who = "recovery after a boot" if self.by == "recover" else "the guard"
        did = "left the old server as it was" if self.what == "forget" else "put the live release back"
        came = self.result.partition(": ")[2] if self.result.startswith("ok") else f"FAILED: {self.result}"
        return f"{moment(self.t)}: {who} {did}, as {self.why}" + (f" ({came})" if came else "")


@dataclass(frozen=True, slots=True)
class Fallback(Tolerant):
    """The one try of another release, made because the live one did not come up after a boot; ``result``: of it."""

    from_: str = named("from", default="")
    to: str = ""
    t: float = 0.0
    why: str = ""
    result: str = ""


@dataclass(frozen=True, slots=True)
class BootReport(Tolerant):
    """What came of the live release after a boot (``boot_id``), as the host's own assessment found it.

    ``outcome`` is ``waiting``, ``healthy``, ``trying``, ``fell-back``, ``failed``, or ``left`` if somebody else
    decides. ``release`` is the live one by then; ``tried`` is kept as long as no other may be tried from there.
    """

    t: float = 0.0
    boot_id: str = ""
    release: str = ""
    outcome: str = ""
    text: str = ""
    tried: Fallback | None = None

    def __str__(self) -> str:
        outcome = {"healthy": "assessed", "fell-back": "FELL BACK", "failed": "FAILED"}.get(self.outcome, "")
        return f"{moment(self.t)}: {outcome}{': ' if outcome else ''}{self.text}"


@dataclass(frozen=True, slots=True)
class GuardState(Record):
    """The guard unit of a service: systemd's ActiveState and Result; ``last``: what it did last."""

    active: str = "inactive"
    result: str = ""
    last: GuardDeed | None = None

    @property
    def watching(self) -> bool:
        """Whether it runs, or is on its way up."""
        return self.active in ("active", "activating", "reloading")


@dataclass(frozen=True, slots=True)
class ServiceState(Record):
    """Everything the host knows about one service. ``releases`` are in the order of their numbers.

    ``problems`` is what could not be read: damaged state files, witnesses that did not answer.
    """

    live: UnitFile | None = None
    candidate: UnitFile | None = None
    transition: Transition | None = None
    unit: UnitState = field(default_factory=UnitState)
    running: Running | None = None
    releases: tuple[Release, ...] = ()
    guard: GuardState = field(default_factory=GuardState)
    boot: BootReport | None = None
    """What came of the last boot that was assessed."""
    recover_enabled: bool = False
    assess_enabled: bool = False
    enabled: bool = False
    listeners: tuple[Listener, ...] = ()
    strays: tuple[Process, ...] = ()
    """Processes of an earlier start outside the unit, which hold a GPU or the port. A stop ends them."""
    shadows: tuple[str, ...] = ()
    drop_ins: tuple[DropIn, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def live_name(self) -> str | None:
        """The name of the live release, None if nothing is live."""
        return self.live.release if self.live else None

    @property
    def live_release(self) -> Release | None:
        """The live release, None if nothing is live or its folder is gone."""
        return self.release(self.live_name)

    @property
    def running_name(self) -> str | None:
        """The name of the release that the running process belongs to, None if nothing runs."""
        return self.running.release if self.running else None

    def release(self, name: str | None) -> Release | None:
        """Return a release by its name, None if there is none of that name."""
        return next((item for item in self.releases if item.release == name), None)

    def transition_to(self, release: str) -> Transition | None:
        """Return the transition under way if it is to that release, else None."""
        return self.transition if self.transition is not None and self.transition.to == release else None

    @property
    def lost_live(self) -> Release | None:
        """The release that runs and was live although its unit file was deleted; None if all is well."""
        running = self.release(self.running_name) if self.live is None else None
        return running if running is not None and running.was_live else None

    @property
    def at_rest(self) -> bool:
        """Whether nothing of the service runs or is about to; a unit between two automatic restarts is about to."""
        return self.running is None and self.unit.active in ("inactive", "failed") and not self.strays

    @property
    def next_number(self) -> int:
        """The number of the next release (0 is kept for an adopted unit)."""
        return max((item.number for item in self.releases), default=0) + 1


@dataclass(frozen=True, slots=True)
class HostState(Record):
    """What ``observe`` answers.

    ``gpus`` is None if there is no ``nvidia-smi``, it was not requested, or it is in trouble (see ``gpu_problem``).
    """

    boot_id: str
    services: dict[str, ServiceState]
    lease: Lease | None = None
    hold: Hold | None = None
    gpus: tuple[Gpu, ...] | None = None
    gpu_processes: tuple[GpuProcess, ...] = ()
    units: dict[str, UnitOwner] = field(default_factory=dict)
    """The units whose processes hold a GPU or a service's port; not those of the services observed."""
    disk_free: int = 0
    engine: EngineFacts | None = None
    model: ModelFacts | None = None
    memory_total: int | None = None
    gpu_problem: str | None = None

    @property
    def held_lease(self) -> Lease | None:
        """The host's lease while somebody holds it."""
        return self.lease if self.lease is not None and self.lease.valid else None
