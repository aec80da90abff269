"""A benchmark as ``bench.json`` keeps it: what docs/benchmark.md describes, whoever wrote it and in which version.

A value that is damaged or missing reads as None (or as 0 or empty); documents of version 1 have no passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from deployer.records.codec import Tolerant, sparse
from deployer.records.failure import PhaseTime
from deployer.records.release import ModelRef

#: The level that stands for the single stream.
ONE = 1
#: Kinds of requests that our own end cut off: what would have become of them is unknown.
UNFINISHED = ("cut", "stalled")


@dataclass(frozen=True, slots=True)
class Quantiles(Tolerant):
    """A distribution. What the number of samples does not support is None."""

    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    n: int = 0


@dataclass(frozen=True, slots=True)
class Spread(Tolerant):
    """The mean and the ends of some samples."""

    mean: float = 0.0
    min: float = 0.0
    max: float = 0.0


@dataclass(frozen=True, slots=True)
class Sample(Tolerant):
    """One request; times in seconds. ``repeat`` is the number of its pass (None outside a level)."""

    repeat: int | None = sparse("pass", default=None)
    index: int | None = None
    failed: str | None = None
    start_s: float | None = None
    ttft_s: float | None = None
    ttft_sent_s: float | None = None
    tpot_s: float | None = None
    seconds: float | None = None
    chunks: int = 0
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    detail: str | None = sparse(default=None)
    repeats: str | None = sparse(default=None)


@dataclass(frozen=True, slots=True)
class Client(Tolerant):
    """How busy the load client itself was."""

    cpu: float | None = None
    lag_p50_s: float | None = None
    lag_p99_s: float | None = None
    samples: int = 0
    client_limited: bool = False
    processes: int | None = sparse(default=None)


@dataclass(frozen=True, slots=True)
class Counted(Tolerant):
    """Requests that were sent: ``completed`` and the numbers in ``failed`` are ``requests``."""

    requests: int = 0
    completed: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    output_tokens: int = 0

    @property
    def failures(self) -> dict[str, int]:
        """How many requests failed in which way, without those that our own end cut off."""
        return {kind: n for kind, n in self.failed.items() if kind not in UNFINISHED and n > 0}

    @property
    def unfinished(self) -> int:
        """How many requests our own end cut off."""
        return sum(max(0, self.failed.get(kind, 0)) for kind in UNFINISHED)


@dataclass(frozen=True, slots=True)
class Stage(Counted):
    """What warm-ups, single runs and levels have in common."""

    repetitive: int = 0
    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True, slots=True)
class Singles(Stage):
    """Requests one at a time: the speed of a single stream."""

    tok_s: tuple[float, ...] | None = None
    ttft_s: Quantiles | None = None
    tpot_s: Quantiles | None = None
    client: Client | None = None
    foreign_traffic: bool | None = None
    cut_short: str | None = sparse(default=None)


@dataclass(frozen=True, slots=True)
class Discarded(Counted):
    """The wave before a level's first pass, which is not counted."""

    wall_s: float | None = None
    aggregate_tok_s: float | None = None
    cut_short: str | None = None


@dataclass(frozen=True, slots=True)
class Pass(Counted):
    """One repeat of a level. ``wall_s`` is ``ramp_s`` + ``steady_s`` + ``tail_s``."""

    repeat: int | None = None
    started_s: float | None = None
    wall_s: float | None = None
    ramp_s: float | None = None
    steady_s: float | None = None
    tail_s: float | None = None
    aggregate_tok_s: float | None = None
    steady_tok_s: float | None = None
    client: Client | None = None
    foreign_traffic: bool | None = None
    cut_short: str | None = None


@dataclass(frozen=True, slots=True)
class Slots(Tolerant):
    """Micro-batches at work (None if too few log lines show it), of how many, and the sizes of decode batches."""

    seen: int | None = None
    of: int = 1
    batch: Spread | None = None


@dataclass(frozen=True, slots=True)
class GpuUse(Tolerant):
    """One GPU during a level. Memory in bytes."""

    index: int = 0
    utilization: Spread | None = None
    power_w: Spread | None = None
    sm_clock_mhz: Spread | None = None
    power_limit_w: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None


@dataclass(frozen=True, slots=True)
class ServerUse(Tolerant):
    """What the server did while a level was measured, and a sentence of it."""

    running: Spread | None = None
    queued: Spread | None = None
    slots: Slots | None = None
    graph_share: float | None = None
    kv_use: Spread | None = None
    gpus: tuple[GpuUse, ...] = ()
    samples: int = 0
    sentence: str | None = None


@dataclass(frozen=True, slots=True)
class Level(Stage):
    """``concurrency`` streams side by side, in one or more passes. ``concurrency`` 0 is a damaged level."""

    concurrency: int = 0
    wall_s: float | None = None
    aggregate_tok_s: float | None = None
    steady_tok_s: float | None = None
    steady_s: float | None = None
    client: Client | None = None
    foreign_traffic: bool | None = None
    cut_short: str | None = None
    tokens_per_request: float | None = None
    tokens_per_chunk: float | None = None
    prompt_tokens_per_request: float | None = None
    ttft_s: Quantiles | None = None
    ttft_sent_s: Quantiles | None = None
    itl_s: Quantiles | None = None
    tpot_s: Quantiles | None = None
    itl_histogram: dict[int, int] = field(default_factory=dict)
    passes: tuple[Pass, ...] = ()
    discarded: Discarded | None = None
    server: ServerUse | None = None

    @property
    def parts(self) -> tuple[Pass | Level, ...]:
        """Its passes; a level without any is one pass of itself."""
        return self.passes or (self,)


@dataclass(frozen=True, slots=True)
class SanityCheck(Tolerant):
    """One check of the output. ``ok`` is None if it could not be made."""

    name: str | None = None
    ok: bool | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class FixedPrompt(Tolerant):
    """The fixed prompt and the first answer to it."""

    prompt: str | None = None
    text: str | None = None
    sha256: str | None = None
    same_twice: bool | None = None


@dataclass(frozen=True, slots=True)
class Sanity(Tolerant):
    """Whether the output is sane: False if a check failed, None if none could be made."""

    ok: bool | None = None
    checks: tuple[SanityCheck, ...] = ()
    fixed_prompt: FixedPrompt | None = None


@dataclass(frozen=True, slots=True)
class ForeignTraffic(Tolerant):
    """Whether somebody else used the server (None: unknown), and what shows it."""

    value: bool | None = None
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Budget(Tolerant):
    """The time of a run in seconds, and what it cut or left out, in words."""

    seconds: float | None = None
    used_s: float = 0.0
    cut: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Moment(Tolerant):
    """One step of ``over_time``, ``t_s`` seconds after the run began."""

    t_s: float | None = None
    running: float | None = None
    queued: float | None = None
    kv_use: float | None = None
    utilization: float | None = None
    power_w: float | None = None


@dataclass(frozen=True, slots=True)
class ClientFacts(Tolerant):
    """What the load client ran with. ``sampler_ended_s`` is set if the process that looks at the server died."""

    python: str | None = None
    httpx: str | None = None
    loop: str | None = None
    length_factor: float | None = None
    sampler_ended_s: float | None = sparse(default=None)


@dataclass(frozen=True, slots=True)
class Requests(Tolerant):
    """What was requested, as far as deployer reads it again: the ``spec`` and the ``workload`` of a document."""

    levels: tuple[int, ...] | None = sparse(default=None)
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    shared_prefix: int | None = None
    sanity: str | None = sparse(default=None)
    salt: str | None = sparse(default=None)


@dataclass(frozen=True, slots=True)
class BenchRun(Tolerant):
    """A whole run. ``place`` is where the load came from: ``host`` or ``operator``."""

    schema: int | None = None
    started: float | None = None
    base_url: str | None = None
    model: str | None = None
    spec: Requests | None = None
    workload: Requests | None = None
    client: ClientFacts | None = None
    warmups: Stage | None = None
    singles: Singles | None = None
    fixed: Stage | None = None
    single_stream_tok_s: float | None = None
    levels: tuple[Level, ...] = ()
    over_time: tuple[Moment, ...] = ()
    sanity: Sanity | None = None
    interrupted: str | None = None
    stopped: str | None = None
    client_limited: bool = False
    foreign_traffic: ForeignTraffic | None = None
    budget: Budget | None = None
    seconds: float | None = None
    place: str | None = None

    @property
    def stages(self) -> Iterator[tuple[str, Counted]]:
        """Every stage with its name, those that are not measured too: a server has no right to fail them either."""
        named = (("warm-up", self.warmups), ("single runs", self.singles), ("the fixed prompt", self.fixed))
        yield from ((name, stage) for name, stage in named if stage)
        for level in self.levels:
            name = f"level {level.concurrency}"
            if level.discarded:
                yield f"{name}, the discarded wave", level.discarded
            yield name, level

    @property
    def by_concurrency(self) -> dict[int, Singles | Level]:
        """The measured stages; the single runs are level 1 unless that is among the levels."""
        stages: dict[int, Singles | Level] = {ONE: self.singles} if self.singles else {}
        return stages | {level.concurrency: level for level in self.levels if level.concurrency >= 1}

    def level(self, concurrency: int) -> Level | None:
        """Return the level with so many streams. None if it was not measured."""
        return next((level for level in self.levels if level.concurrency == concurrency), None)

    @property
    def foreign(self) -> bool | None:
        """Whether somebody else used the server meanwhile; None if that is unknown."""
        return None if self.foreign_traffic is None else self.foreign_traffic.value

    @property
    def cut(self) -> tuple[str, ...]:
        """What the budget cut or left out, in words."""
        return () if self.budget is None else self.budget.cut

    @property
    def unanswered(self) -> int:
        """How many requests were not completed, for whatever reason."""
        return sum(max(0, n) for _, stage in self.stages for n in stage.failed.values())

    @property
    def measured_anything(self) -> bool:
        """Whether there is a figure in it."""
        return bool(self.single_stream_tok_s) or any(level.completed for level in self.levels)


@dataclass(frozen=True, slots=True)
class About(Tolerant):
    """What is known of a benchmark beside its figures: the releases it measured and what they ran.

    ``verdict`` is the gate's in one line; ``never_live`` says what became of releases that did not go live.
    """

    releases: tuple[str, ...] = ()
    profile: str | None = None
    created: float | None = None
    sglang: str | None = None
    model: ModelRef = field(default_factory=ModelRef)
    argv: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    timeline: tuple[PhaseTime, ...] | None = None
    verdict: str | None = None
    never_live: tuple[str, ...] = ()
    host: str | None = None
    gpus: tuple[str, ...] = ()
