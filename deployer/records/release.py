"""A release: one numbered attempt to put a profile on a service, as its ``manifest.json`` keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from deployer.records.codec import Json, Record, Tolerant, named, sparse, unwritten
from deployer.records.effect import InEffect
from deployer.records.failure import Failure, PhaseTime
from deployer.records.verdict import Verdict

#: The variable by which a running process shows which release it belongs to.
OWN_VARIABLE = "DEPLOYER_RELEASE"


@dataclass(frozen=True, slots=True)
class ModelRef(Record):
    """The model of a release: its path or hub id, and the fingerprint of its files (None if they were not seen)."""

    path: str | None = None
    fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class EngineRef(Record):
    """The engine that a release was proven with. ``packages`` are SGLang and what it stands on, with their versions."""

    python: str = ""
    python_version: str | None = None
    packages: dict[str, str] = field(default_factory=dict)
    fingerprint: str | None = None
    written: str | None = sparse(default=None)


@dataclass(frozen=True, slots=True)
class Requested(Record):
    """What a release has to show before it goes live.

    ``arguments`` is what ``/server_info`` has to report, by SGLang's field names; ``allow_changed`` names those that
    may be in effect with another value. ``bench`` is the load to run (`deployer.config.bench.BenchConfig`), ``gate``
    the thresholds, ``relative_gate`` how it is compared with earlier starts (`deployer.config.bench.RelativeGate`).
    """

    arguments: Json = named("requested", default_factory=dict)
    allow_changed: tuple[str, ...] = ()
    bench: Json = field(default_factory=dict)
    gate: dict[str, float] = field(default_factory=dict)
    relative_gate: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BenchSummary(Record):
    """The few figures of a benchmark that ``status`` and ``history`` show, in tokens a second."""

    single_stream_tok_s: float | None = None
    levels: dict[str, float | None] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [f"{self.single_stream_tok_s:.0f} tok/s for one"] if self.single_stream_tok_s else []
        return ", ".join(parts + [f"{rate:.0f} at {level}" for level, rate in self.levels.items() if rate])


@dataclass(frozen=True, slots=True)
class LaterBench(Tolerant):
    """A benchmark that was made of a release after it went live: ``bench-NUMBER.json`` in its folder."""

    number: int = 0
    started: float | None = None
    seconds: float | None = None
    summary: BenchSummary | None = None


@dataclass(frozen=True, slots=True)
class Release(Tolerant):
    """One release. Everything that a later ``resume`` or ``rollback`` needs is in it.

    ``previous`` is the release that it replaced or was to replace. ``ready_timeout`` is how long its start may take, in
    seconds, and ``gpus`` are the indices of those that it needs: by these the host assesses a boot. ``state`` is
    ``staged``, ``candidate``, ``live``, ``superseded``, ``failed``, ``inconclusive``, ``interrupted``, ``abandoned``,
    or ``corrupt`` if its manifest cannot be read (``service`` is empty then). ``unit`` is the text that goes live and
    ``candidate`` the one that is tried; they are files of their own. ``benches_damaged`` keeps what stood in place of a
    list of ``benches`` and could not be read.
    """

    service: str = ""
    release: str = ""
    number: int = 0
    profile: str = ""
    schema: int = 1
    previous: str | None = None
    created: float = 0.0
    operator: str = ""
    argv: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    restart_keys: dict[str, str] = field(default_factory=dict)
    sglang: str | None = None
    ready_timeout: float | None = sparse(default=None)
    gpus: tuple[int, ...] = sparse(default=())
    engine: EngineRef | None = sparse(default=None)
    model: ModelRef = field(default_factory=ModelRef)
    requested: Requested = named("resolved", default_factory=Requested)
    in_effect: InEffect | None = None
    state: str = "staged"
    was_live: bool = False
    promoted: float | None = None
    invocation_id: str | None = sparse(default=None)
    verdict: Verdict | None = None
    timeline: tuple[PhaseTime, ...] = sparse(default=())
    failure: Failure | None = None
    bench_summary: BenchSummary | None = None
    benches: tuple[LaterBench, ...] = sparse(default=())
    benches_damaged: tuple[Any, ...] = sparse(default=())
    unit: str = unwritten(default="")
    candidate: str = unwritten(default="")

    @property
    def variables(self) -> dict[str, str]:
        """The environment that its unit sets, but for the variable that names the release."""
        return {name: value for name, value in self.environment.items() if name != OWN_VARIABLE}

    @property
    def provable(self) -> bool:
        """Whether what it has to show is known: damaged requirements must not pass as none."""
        return "resolved" not in self.extra

    @property
    def unreadable_benches(self) -> tuple[Any, ...]:
        """What stands in its manifest in place of a list of benchmarks that can be read; at most one."""
        return tuple(value for key, value in self.extra.items() if key == "benches")

    @property
    def proven(self) -> bool:
        """Whether its start was measured and went live. Only such starts stand for a profile."""
        return self.was_live and self.bench_summary is not None

    @property
    def became_ready(self) -> bool:
        """Whether its launch was seen to end."""
        return any(span.name == "ready" for span in self.timeline)

    @property
    def verdict_text(self) -> str | None:
        """The gate's verdict in one line, None without one."""
        return self.verdict.summary if self.verdict else None
