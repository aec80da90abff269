"""What the doctor has seen of a running service, and the figures that follow from it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any, NamedTuple

from deployer.config.profile import Profile
from deployer.deploy.session import Health
from deployer.deploy.verify import Verification
from deployer.records.effect import Computed
from deployer.records.events import LogLine
from deployer.records.host import HostState, ServiceState
from deployer.records.release import Release
from deployer.records.samples import Sampled
from deployer.sglang.log.batches import Batches, parse_batch, read_batches

#: SGLang's default of --decode-log-interval.
LOG_INTERVAL = 40
#: How often /v1/loads is requested: under a pipeline each answer is about another micro-batch.
LOOKS = 6
#: How many lines of the running start's log are read, from its end.
LINES = 10_000
#: What doctor requests and reads, in words for its report.
REQUESTS = (
    "/health once (SGLang generates one token for it)",
    "/server_info once",
    f"/v1/loads {LOOKS} times",
    "/metrics once",
    f"the newest {LINES} lines of this start's log",
    "nvidia-smi, open connections, memory, swap and disks",
)
#: Differences between two releases that concern the micro-batch cap alone.
_CAP = {"pp_max_micro_batch_size", "max_micro_batch_size", "cuda_graph_max_bs", "cuda_graph_max_bs_decode"}
NOT_VERIFIED = Verification()
NOT_SAMPLED = Sampled()
_FIRED_UP = "The server is fired up and ready to roll"


class Load(NamedTuple):
    """One answer of ``/v1/loads``, over all data-parallel ranks. ``usage`` is the share of the KV pool in use."""

    running: int = 0
    waiting: int = 0
    usage: float | None = None


@dataclass(frozen=True)
class Evidence:
    """One look at one service. What did not answer is None or empty.

    ``metrics`` are the gauges and counters of ``/metrics`` by name, summed over their labels; ``lines`` the newest of
    the running start's log, ``cut`` if there are more; ``window`` the seconds in which lines about batches count;
    ``watched`` the seconds for which the GPUs were watched.
    """

    service: str
    host: str
    state: ServiceState
    observed: HostState
    health: Health
    now: float
    window: float = 300.0
    drift: tuple[str, ...] = ()
    verification: Verification = NOT_VERIFIED
    loads: tuple[Load, ...] = ()
    metrics: Mapping[str, float] | None = None
    lines: tuple[LogLine, ...] = ()
    cut: bool = False
    sampled: Sampled = NOT_SAMPLED
    profiles: tuple[Profile, ...] = ()
    gpus: tuple[int, ...] | None = None
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
    def changing(self) -> str:
        """Who is changing this service at this moment, and how far that is; empty if nobody is."""
        lease = self.observed.held_lease
        if lease is None or lease.service != self.service:
            return ""
        transition = self.state.transition
        if transition is None:
            return f"{lease.owner} holds the lease; nothing was stopped yet"
        return f"{lease.owner} is changing it to {transition.to}, in step {transition.step}"

    @property
    def computed(self) -> Computed:
        """What SGLang made of its arguments."""
        return self.verification.in_effect.computed or Computed()

    def argument(self, name: str) -> Any:
        """Return the value that an argument has in the server."""
        return self.verification.effective.get(name)

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
    def interval(self) -> int:
        """--decode-log-interval."""
        return _count(self.argument("decode_log_interval"), LOG_INTERVAL)

    @cached_property
    def recent(self) -> list[tuple[float, str]]:
        """The engine's lines of the window."""
        since = self.now - self.window
        return [(t, line.text) for line in self.lines if line.engine and (t := line.t or 0.0) >= since]

    @cached_property
    def batches(self) -> Batches:
        """What the lines about batches say, within the window."""
        return read_batches(self.recent, self.interval)

    @cached_property
    def largest(self) -> tuple[str, ...]:
        """The line of the largest micro-batch, if there is one."""
        sizes = {
            text: batch.running
            for _, text in self.recent
            if "Decode batch" in text and (batch := parse_batch(text)) is not None and batch.leading
        }
        return (max(sizes, key=lambda text: sizes[text]),) if sizes else ()

    @property
    def waiting(self) -> int | None:
        """Requests in the queue now, None if unknown."""
        if self.loads:
            return round(median(load.waiting for load in self.loads))
        return self.batches.queued[-1] if self.batches.queued else None

    @property
    def running(self) -> int | None:
        """Requests that run in all. Under a pipeline no answer of SGLang has it: the open connections show it."""
        turns = [load.running for load in self.loads]
        if self.computed.slots == 1:
            return round(median(turns)) if turns else None
        if self.sampled.connections is None:
            return None
        return max(0, round(self.sampled.connections) - (self.waiting or 0), *turns)

    @property
    def busy(self) -> bool:
        """Whether requests run now."""
        return bool(self.running) or any(load.running for load in self.loads)

    # -- the log ------------------------------------------------------------------------------------------------

    @cached_property
    def engine_lines(self) -> list[str]:
        """The lines that the server itself printed."""
        return [line.text for line in self.lines if line.engine]

    @cached_property
    def serving_lines(self) -> list[str]:
        """Those since it was ready."""
        ready = [number for number, text in enumerate(self.engine_lines, 1) if _FIRED_UP in text]
        return self.engine_lines[ready[-1] if ready else 0 :]

    # -- others -------------------------------------------------------------------------------------------------

    @property
    def own_gpus(self) -> set[int]:
        """The GPUs that the service's processes hold memory of; else those that the inventory gives it."""
        pids = self.state.running.pids if self.state.running else ()
        held = {process.gpu for process in self.observed.gpu_processes if process.pid in pids}
        indices = {gpu for gpu in held if isinstance(gpu, int)}
        return indices or set(self.sampled.gpus if self.gpus is None else self.gpus)

    def other_profile(self, fits: Callable[[Profile], object]) -> str | None:
        """Return a profile for as many GPUs that ``fits``, other than the running one; None if there is none."""
        size = _count(self.argument("tp_size"), 1) * self.pp
        others = (item for item in self.profiles if item.gpus == size and item.name != self.profile)
        return next((item.name for item in others if fits(item)), None)

    def twins(self) -> list[Release]:
        """Return the proven releases that differ from the running one in the micro-batch cap alone, it included."""
        own = _but_cap(self.record) if self.record else None
        if not own:
            return []
        return [item for item in self.state.releases if item.proven and _but_cap(item) == own]


def _but_cap(release: Release) -> dict[str, Any]:
    return {name: value for name, value in release.requested.arguments.items() if name not in _CAP}


def _count(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default
