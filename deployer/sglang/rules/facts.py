"""What rules judge: a profile on a service, and what is known of the host it is for. Pure data."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from deployer.config.inventory import HostConfig, ServiceConfig
from deployer.config.profile import Profile, effective_bench, effective_profile
from deployer.config.secrets import Secret
from deployer.sglang.flags.arguments import LaunchArguments, render
from deployer.sglang.flags.devices import rank_places, taken
from deployer.sglang.flags.extra import option_name, place
from deployer.sglang.flags.versions import FlagTable, Version, flag_table, parse_version
from deployer.sglang.rules.shape import ModelShape

GIB = 1024**3

#: All-to-all backends with which SGLang sets ep to tp (0.5.12.post1:srt/server_args.py:3207, 0.5.16:
#: srt/arg_groups/overrides.py:2072), each in all versions that have it.
_EP_IS_TP = frozenset(
    {
        "deepep",
        "deepep_v2",
        "mooncake",
        "nixl",
        "ascend_fuseep",
        "flashinfer",
        "flashinfer_megamoe",
        "mori",
        "megamoe",
        "pplx",
    }
)
#: Compute capability by name, if the driver does not report it (NVIDIA's table of CUDA GPUs).
_CAPABILITIES = (
    (r"RTX PRO \d+.*Blackwell|GeForce RTX 50\d\d", (12, 0)),
    (r"\bGB10\b", (12, 1)),
    (r"\bG?B300\b", (10, 3)),
    (r"\bG?B[12]00\b", (10, 0)),
    (r"\bG?H(20|100|200|800)\b", (9, 0)),
    (r"\bL(4|20|40S?)\b|GeForce RTX 40\d\d|RTX \d{4} Ada|RTX 6000 Ada", (8, 9)),
    (r"\bA(2|10|10G|16|40)\b|GeForce RTX 30\d\d|RTX A\d{4}", (8, 6)),
    (r"\bA(30|100|800)\b", (8, 0)),
)
#: Cards without NVLink, by their data sheets.
_NO_NVLINK = re.compile(
    r"RTX PRO \d+|GeForce RTX [45]0\d\d|\bL(2|4|20|40S?)\b|\bA(2|10|10G|16)\b|\bT4\b|RTX \d{4} Ada|RTX 6000 Ada"
)
_SXM = re.compile(r"\b(G?H(100|200|800|20)|A(100|800)|G?B[123]00)\b(?!.*PCIe)")


@dataclass(frozen=True)
class GpuFacts:
    """One GPU: its product name, its memory in bytes, and its compute capability if the driver reports it."""

    name: str
    memory: int
    compute_capability: tuple[int, int] | None = None

    @property
    def capability(self) -> tuple[int, int] | None:
        """Compute capability as the driver reports it, else by the name; None for an unknown name."""
        if self.compute_capability is not None:
            return self.compute_capability
        return next((pair for pattern, pair in _CAPABILITIES if re.search(pattern, self.name)), None)

    @property
    def major(self) -> int | None:
        """The first number of its compute capability; None if unknown."""
        return self.capability[0] if self.capability else None

    @property
    def short(self) -> str:
        """Its name, for sentences."""
        return self.name.removeprefix("NVIDIA ")

    @property
    def without_nvlink(self) -> bool:
        """Whether cards of this name never have NVLink and reach each other only over PCIe."""
        return _NO_NVLINK.search(self.name) is not None

    @property
    def with_nvlink(self) -> bool:
        """Whether modules of this name are joined by NVLink."""
        return _SXM.search(self.name) is not None and not self.without_nvlink


@dataclass(frozen=True)
class HostFacts:
    """What only the host can tell; everything may be unknown.

    ``gpus`` are those that the service sees, in its order, ``machine`` all GPUs of the host. ``weight_bytes`` is the
    size of the weight files, ``memory`` the host's RAM in bytes. ``packages`` maps the distributions of the engine's
    environment to their versions; ``python`` is the version of its Python.
    """

    gpus: tuple[GpuFacts, ...] = ()
    machine: tuple[GpuFacts, ...] = ()
    model: ModelShape | None = None
    weight_bytes: int | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    python: str | None = None
    memory: int | None = None


@dataclass(frozen=True)
class Facts:
    """One profile, with the service's limits in it, on one service. ``version`` is SGLang's; None if unknown."""

    profile: Profile
    service: ServiceConfig
    host: HostConfig
    version: Version | None
    table: FlagTable
    #: The folder of the site's own flag tables.
    learned: Path | None = None
    seen: HostFacts = HostFacts()

    @classmethod
    def of(
        cls,
        profile: Profile,
        service: ServiceConfig,
        host: HostConfig,
        version: str | None,
        learned: Path | None = None,
        seen: HostFacts = HostFacts(),
    ) -> Self:
        """Return the facts for a version as text. Raise ConfigError if it is not a version, or has no flag table."""
        known = parse_version(version) if version is not None else None
        table = flag_table(version, learned)
        return cls(effective_profile(service, profile), service, host, known, table, learned, seen)

    @cached_property
    def rendering(self) -> LaunchArguments:
        """The profile's command line, with what keeps it from being usable."""
        return render(self.profile, self.service, self.table, self.learned)

    @cached_property
    def extra(self) -> dict[str, tuple[str, Any]]:
        """Flags of [extra_args]: option (``--page-size``) -> (key as written, value); the service's win."""
        merged = {**self.profile.extra_args, **self.service.extra_args}
        named = ((option_name(key), key, value) for key, value in merged.items())
        return {option: (key, value) for option, key, value in named if option is not None}

    def flag(self, option: str) -> Any:
        """Return the value of an option in [extra_args]; None if it is not there."""
        return self.extra[option][1] if option in self.extra else None

    def at(self, option: str) -> tuple[str, ...]:
        """Return the place of an option in [extra_args] of the profile or of the service."""
        return place(self.extra[option][0], self.service)

    def on(self, option: str) -> bool:
        """Return whether a switch is turned on in [extra_args]."""
        return self.flag(option) is True

    def whole(self, option: str) -> int | None:
        """Return the whole number of an option in [extra_args]; None if there is none."""
        value = self.flag(option)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def number(self, option: str) -> float | None:
        """Return the number of an option in [extra_args]; None if there is none."""
        value = self.flag(option)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def word(self, option: str) -> str | None:
        """Return the text of an option in [extra_args]; None if there is none."""
        value = self.flag(option)
        return value if isinstance(value, str) else None

    @cached_property
    def environment(self) -> dict[str, str | None]:
        """The environment variables of profile and service; None stands for a secret."""
        both: dict[str, str | Secret] = {**self.profile.environment, **self.service.environment}
        return {name: None if isinstance(value, Secret) else value for name, value in both.items()}

    def truthy(self, variable: str) -> bool:
        """Return whether a variable is set to what SGLang and NCCL read as yes."""
        return (self.environment.get(variable) or "").lower() in ("1", "true", "yes", "on", "y")

    def before(self, version: str) -> bool:
        """Return whether SGLang is known to be older than ``version``."""
        return self.version is not None and self.version < parse_version(version)

    def since(self, version: str) -> bool:
        """Return whether SGLang is known to be ``version`` or later."""
        return self.version is not None and not self.before(version)

    # -- sizes --------------------------------------------------------------------------------------------------

    @property
    def tp(self) -> int:
        return self.profile.parallelism.tp

    @property
    def pp(self) -> int:
        return self.profile.parallelism.pp

    @property
    def a2a(self) -> str | None:
        """The all-to-all backend that is requested; None if none is."""
        return self.profile.moe.a2a_backend or self.word("--moe-a2a-backend")

    @property
    def ep(self) -> int:
        """Ranks among which the experts are divided: as requested, or as SGLang sets it for the all-to-all backend."""
        return self.tp if self.a2a in _EP_IS_TP else self.profile.parallelism.ep

    @property
    def depth(self) -> int:
        return self.profile.pipeline.async_batch_depth or 0

    @property
    def attention_tp(self) -> int:
        """GPUs that share one attention layer: tp, or less with DP attention or context parallelism."""
        sizes = self.profile.parallelism
        groups = sizes.dp if sizes.dp_attention else 1
        names = ("--attn-cp-size", "--attention-context-parallel-size")
        context = max(1, *(self.whole(name) or 1 for name in names))
        return max(1, sizes.tp // groups // context)

    @property
    def on_cpu(self) -> bool:
        """Whether the server computes on the CPU: SGLang then pads attention heads, and needs no GPU."""
        return self.host.gpus == 0 or self.word("--device") == "cpu"

    @property
    def gpus(self) -> int | None:
        """How many GPUs the service has; None if unknown, and for an engine that computes on the CPU."""
        if self.on_cpu:
            return None
        if self.service.gpus is not None:
            return len(self.service.gpus)
        return self.host.gpus or len(self.seen.gpus) or None

    @property
    def running(self) -> int | None:
        """limits.max_running_requests."""
        return self.profile.limits.max_running_requests

    @property
    def cap(self) -> int | None:
        """Requests in one micro-batch: as set, else max_running_requests // pp; None without a pipeline or a limit."""
        if self.pp == 1:
            return None
        own = self.profile.pipeline.max_micro_batch_size
        if isinstance(own, int):
            return own
        return max(self.running // self.pp, 1) if self.running else None

    @property
    def at_a_time(self) -> int | None:
        """Requests that can run at a time: max_running_requests, and in a pipeline loop size x micro-batch cap."""
        if self.cap is None:
            return self.running
        room = self.profile.loop_size * self.cap
        return min(room, self.running) if self.running else room

    @property
    def levels(self) -> tuple[int, ...]:
        """The benchmark's levels of concurrency, ascending."""
        return tuple(effective_bench(self.service, self.profile).levels)

    # -- the host -----------------------------------------------------------------------------------------------

    @cached_property
    def layout(self) -> dict[str, int]:
        """How ranks are placed on the GPUs that the service sees: the arguments of `rank_places`."""
        replicas = 1 if self.profile.parallelism.dp_attention else self.profile.parallelism.dp
        base, step = self.whole("--base-gpu-id") or 0, self.whole("--gpu-id-step") or 1
        return {"tp": self.tp, "pp": self.pp, "replicas": replicas, "base": base, "step": step}

    @cached_property
    def used(self) -> tuple[GpuFacts, ...]:
        """The GPUs that the profile's ranks use, of those that the service sees."""
        return taken(self.seen.gpus, rank_places(**self.layout))

    def card(self, wanted: Callable[[GpuFacts], bool]) -> GpuFacts | None:
        """Return the first GPU in use that is ``wanted``: in a mix, every kind has to work."""
        return next((gpu for gpu in self.used if wanted(gpu)), None)

    @property
    def gpu_name(self) -> str:
        """The GPUs' name, for sentences."""
        return self.used[0].short if self.used else "GPU"

    @property
    def smallest_gpu(self) -> int | None:
        """Memory of the smallest GPU in use, in bytes."""
        return min((gpu.memory for gpu in self.used if gpu.memory), default=None)

    @property
    def model(self) -> ModelShape:
        """The model's shape; one in which nothing is known without facts."""
        return self.seen.model or ModelShape()
