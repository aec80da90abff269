"""What the doctor has seen of a running service, and the figures that follow from it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Any

from deployer.config.profile import Profile
from deployer.deploy.session import Health
from deployer.records.host import HostState, Lease, ServiceState
from deployer.records.release import Release
from deployer.records.samples import Sampled
from deployer.sglang.log.batches import Batches, parse_batch, read_batches
from deployer.sglang.server.effect import Computed
from deployer.sglang.server.info import ArgumentCheck

Json = dict[str, Any]
#: SGLang's default of --decode-log-interval.
LOG_INTERVAL = 40
#: Differences between two releases that are about the micro-batch cap alone.
_CAP = {"pp_max_micro_batch_size", "max_micro_batch_size", "cuda_graph_max_bs", "cuda_graph_max_bs_decode"}
_FIRED_UP = "The server is fired up and ready to roll"


@dataclass(frozen=True)
class LogLine:
    """One line of the service's log; ``t`` in epoch seconds of the host."""

    t: float
    text: str
    engine: bool = True


@dataclass(frozen=True)
class Evidence:
    """One look at one service. What could not be asked is None or empty.

    ``loads`` are the answers of ``/v1/loads``, one for each time it was asked; ``metrics`` the gauges and counters of
    ``/metrics`` by name, summed over their labels; ``lines`` the newest of the running start's log, ``cut`` where there
    were more; ``window`` the seconds in which lines about batches count; ``info`` the server's own account of itself;
    ``watched`` the seconds that the GPUs were looked at.
    """

    service: str
    host: str
    state: ServiceState
    observed: HostState
    health: Health
    now: float
    window: float = 300.0
    drift: tuple[str, ...] = ()
    effective: Json = field(default_factory=dict)
    computed: Computed | None = None
    checks: tuple[ArgumentCheck, ...] = ()
    allowed: frozenset[str] = frozenset()
    loads: tuple[Json, ...] = ()
    metrics: dict[str, float] | None = None
    lines: tuple[LogLine, ...] = ()
    cut: bool = False
    sampled: Sampled | None = None
    profiles: tuple[Profile, ...] = ()
    gpus: tuple[int, ...] | None = None
    info: Json | None = field(default=None, repr=False)
    watched: float = 5.0

    # -- the service --------------------------------------------------------------------------------------------

    @property
    def release(self) -> str | None:
        """The release that runs."""
        return self.state.running_name

    @property
    def record(self) -> Release | None:
        """What the host keeps of the running release."""
        return self.state.release(self.release)

    @property
    def profile(self) -> str:
        """The running release's profile."""
        return self.record.profile if self.record else "?"

    @property
    def lease(self) -> Lease | None:
        """The host's lease, while somebody holds it."""
        lease = self.observed.lease
        return lease if lease is not None and lease.valid else None

    @property
    def changing(self) -> str:
        """Who is changing this service at this moment, and how far that is, in words; empty where nobody is."""
        if self.lease is None or self.lease.service != self.service:
            return ""
        transition = self.state.transition
        if transition is None:
            return f"{self.lease.owner} holds the lease; nothing was stopped yet"
        return f"{self.lease.owner} is changing it to {transition.to}, in step {transition.step}"

    @property
    def age(self) -> float | None:
        """Seconds since the process started."""
        return max(0.0, self.now - self.state.running.started) if self.state.running else None

    def argument(self, *names: str) -> Any:
        """The first of these arguments that has a value in the server."""
        return next((self.effective[name] for name in names if self.effective.get(name) is not None), None)

    # -- batches ------------------------------------------------------------------------------------------------

    @property
    def pp(self) -> int:
        """Pipeline stages."""
        return _count(self.argument("pp_size"), 1)

    @property
    def depth(self) -> int:
        """Micro-batches in flight beyond the stages."""
        return _count(self.argument("pp_async_batch_depth"), 0)

    @property
    def slots(self) -> int:
        """Micro-batches in turn; 1 without a pipeline."""
        return self.computed.slots if self.computed else 1

    @property
    def interval(self) -> int:
        """--decode-log-interval."""
        return _count(self.argument("decode_log_interval"), LOG_INTERVAL)

    @cached_property
    def batches(self) -> Batches:
        """What the lines about batches say, of the window."""
        since = self.now - self.window
        recent = [(line.t, line.text) for line in self.lines if line.engine and line.t >= since]
        return read_batches(recent, self.interval)

    @cached_property
    def largest(self) -> str | None:
        """The line of the largest micro-batch."""
        since = self.now - self.window
        best: tuple[int, str] | None = None
        for line in self.lines:
            if line.engine and line.t >= since and "Decode batch" in line.text:
                batch = parse_batch(line.text)
                if batch is not None and batch.leading and (best is None or batch.running > best[0]):
                    best = (batch.running, line.text)
        return best[1] if best else None

    @property
    def waiting(self) -> int | None:
        """Requests in the queue now; None where nothing tells."""
        told = [_count(load.get("num_waiting_reqs"), 0) for load in self.loads]
        if told:
            return round(median(told))
        return self.batches.queued[-1] if self.batches.queued else None

    @property
    def turns(self) -> list[int]:
        """What ``/v1/loads`` said of running requests, each time: under a pipeline one micro-batch's."""
        return [_count(load.get("num_running_reqs"), 0) for load in self.loads]

    @property
    def running(self) -> int | None:
        """Requests that run in all. Under a pipeline no answer of SGLang has it: it is the open connections then."""
        if self.slots == 1:
            return round(median(self.turns)) if self.turns else None
        if self.sampled is None or self.sampled.connections is None:
            return None
        return max(0, round(self.sampled.connections) - (self.waiting or 0), *self.turns)

    @property
    def busy(self) -> bool:
        """Whether requests run now."""
        return bool(self.running) or any(self.turns)

    # -- the log ------------------------------------------------------------------------------------------------

    @cached_property
    def serving_lines(self) -> list[str]:
        """The engine's lines since it was ready."""
        texts = [line.text for line in self.lines if line.engine]
        ready = [number for number, text in enumerate(texts) if _FIRED_UP in text]
        return texts[ready[-1] + 1 :] if ready else texts

    # -- others -------------------------------------------------------------------------------------------------

    @property
    def own_gpus(self) -> set[int]:
        """The GPUs that the service's processes hold memory of; else those the inventory gives it."""
        pids = set(self.state.running.pids) if self.state.running else set()
        held = {process.gpu for process in self.observed.gpu_processes if process.pid in pids}
        found = {gpu for gpu in held if isinstance(gpu, int)}
        if found:
            return found
        return set(self.gpus) if self.gpus is not None else set(self.sampled.gpus if self.sampled else ())

    def other_profile(self, wanted: Callable[[Profile], bool]) -> str | None:
        """A profile for the same number of GPUs that is ``wanted``, but the running one."""
        size = _count(self.argument("tp_size"), 1) * self.pp
        fitting = [
            item for item in self.profiles if item.gpus == size and item.name != self.profile and wanted(item)
        ]
        return fitting[0].name if fitting else None

    def twins(self) -> list[Release]:
        """Return the measured releases that differ from the running one in the micro-batch cap alone, it included."""
        mine = _but_cap(self.record) if self.record else None
        if not mine:
            return []
        return [item for item in self.state.releases if item.bench_summary and _but_cap(item) == mine]


def _but_cap(release: Release) -> Json:
    return {name: value for name, value in release.requested.arguments.items() if name not in _CAP}


def _count(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default
