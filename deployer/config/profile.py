"""Profiles: ways to run a model, in SGLang's concepts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, ValidationError

from deployer.config.bench import BenchConfig, Gate, RelativeGate
from deployer.config.fields import NAME, NAME_RULE, Count, Limits, Text, check_environment, matching
from deployer.config.files import searched
from deployer.config.hardening import Relaxed
from deployer.config.inventory import ServiceConfig
from deployer.config.problems import Model, Problem, complain, load_toml, merge_tables, problems_of
from deployer.config.wording import printable, shown, unknown
from deployer.errors import ConfigError
from deployer.resources import shipped

Size = Annotated[int, Field(ge=1, le=1024)]


def _once(values: list[str]) -> list[str]:
    twice = sorted({value for value in values if values.count(value) > 1})
    if twice:
        raise ValueError(f"{', '.join(twice)} is listed twice")
    return values


Word = Annotated[
    str,
    matching(
        r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}",
        "a word of letters, digits, _, . and - (100 at most) that does not begin with . or -",
    ),
]
ArgumentName = Annotated[
    str,
    matching(
        r"[a-z][a-z0-9_]{0,99}",
        "the name of an argument as /server_info shows it, such as chunked_prefill_size",
    ),
]
#: A number, or "auto".
MicroBatch = Annotated[
    Annotated[Count, Tag("<number>")] | Annotated[Literal["auto"], Tag("<word>")],
    Discriminator(lambda value: "<word>" if isinstance(value, str) else "<number>"),
]


class Parallelism(Model):
    """How the model is spread over GPUs."""

    tp: Size = Field(1, description="tensor parallel size")
    pp: Size = Field(1, description="pipeline parallel size (stages)")
    dp: Size = Field(1, description="data parallel size: replicas, or attention groups with dp_attention")
    ep: Size = Field(1, description="expert parallel size; divides tp")
    dp_attention: bool = Field(False, description="data parallel attention inside the tensor parallel group")
    nnodes: Size = Field(1, description="number of hosts; only 1 is supported")


class Pipeline(Model):
    """How a pipeline is kept full."""

    async_batch_depth: int | None = Field(
        None, ge=0, le=1024, description="micro-batches in flight beyond pp; loop size = pp + depth"
    )
    max_micro_batch_size: MicroBatch | None = Field(
        None, description='requests in a micro-batch; "auto" = max_running_requests // pp'
    )


class CudaGraph(Model):
    """Capture of CUDA graphs for decoding."""

    enabled: bool = Field(True, description="false: no graphs; every step is launched kernel by kernel")
    max_batch_size: Count | None = Field(None, description="largest batch that is captured")


class Memory(Model):
    """GPU memory."""

    mem_fraction_static: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="share of GPU memory for weights and KV pool"
    )
    chunked_prefill_size: int | None = Field(
        None, ge=-1, le=2**40, description="tokens in a prefill chunk; -1: no chunks"
    )
    kv_cache_dtype: Word | None = Field(None, description="type of the KV cache")


class Attention(Model):
    """Attention kernels."""

    backend: Word | None = Field(None, description="attention backend")


class Moe(Model):
    """Mixture of experts."""

    a2a_backend: Word | None = Field(None, description="all-to-all backend")
    runner_backend: Word | None = Field(None, description="backend of the expert kernels")


class Verify(Model):
    """What the running server is compared with."""

    allow_changed: Annotated[list[ArgumentName], AfterValidator(_once)] = Field(
        [],
        description="arguments, by their names in `/server_info`, that SGLang may run with another value than "
        "requested; any other change fails the candidate",
    )


class Profile(Model):
    """One way to run a model."""

    name: str = Field(exclude=True)
    description: Text = Field("", validate_default=False, description="one line: what it is for")
    extends: str | None = Field(None, description="profile whose values apply to what this one leaves out")
    chain: list[str] = Field([], exclude=True)
    parallelism: Parallelism = Field(Parallelism(), description="how the model is spread over GPUs")
    pipeline: Pipeline = Field(Pipeline(), description="how a pipeline is kept full")
    limits: Limits = Field(Limits(), description="how much is served at a time")
    cuda_graph: CudaGraph = Field(CudaGraph(), description="capture of CUDA graphs")
    memory: Memory = Field(Memory(), description="GPU memory")
    attention: Attention = Field(Attention(), description="attention kernels")
    moe: Moe = Field(Moe(), description="mixture of experts")
    quantization: Word | None = Field(None, description="quantization method; default: the checkpoint's")
    verify: Verify = Field(Verify(), description="what the running server is compared with")
    gate: Gate = Field({}, description="thresholds of the smoke benchmark")
    relative_gate: RelativeGate = Field(
        RelativeGate(), description="comparison with earlier proven starts, if it differs from the service's"
    )
    bench: BenchConfig = Field(BenchConfig(), description="the smoke benchmark, if it differs from the service's")
    extra_args: dict[str, Any] = Field({}, description="more SGLang flags, checked against the version's own")
    environment: Annotated[dict[str, str], AfterValidator(check_environment)] = Field(
        {}, description="more environment variables"
    )
    relax: Relaxed = Field(
        [], description="directives of the unit's hardening to leave out, besides the service's; see docs/security.md"
    )

    @property
    def gpus(self) -> int:
        """The number of GPUs it takes."""
        sizes = self.parallelism
        return sizes.tp * sizes.pp * (1 if sizes.dp_attention else sizes.dp)

    @property
    def loop_size(self) -> int:
        """Micro-batches that take turns in the pipeline: pp + async depth."""
        return self.parallelism.pp + (self.pipeline.async_batch_depth or 0)


def effective_bench(service: ServiceConfig, profile: Profile) -> BenchConfig:
    """Return the service's smoke benchmark with the profile's settings on top."""
    return profile.bench.over(service.bench)


def effective_profile(service: ServiceConfig, profile: Profile) -> Profile:
    """Return a profile on a service: limits that it leaves out are the service's."""
    return profile.model_copy(update={"limits": profile.limits.over(service.limits)})


def effective_gate(service: ServiceConfig, profile: Profile) -> dict[str, float]:
    """Return the service's thresholds with the profile's on top."""
    return {**service.gate, **profile.gate}


def effective_relative_gate(service: ServiceConfig, profile: Profile) -> RelativeGate:
    """Return the service's comparison with earlier starts, with the profile's settings on top."""
    return profile.relative_gate.over(service.relative_gate)


def profile_folders(site: Path | None = None) -> list[Path]:
    """Return where profiles are looked up: the site's own folder first, then the shipped ones.

    Raise ConfigError if the site's folder is not a readable folder.
    """
    return searched(site, "profiles", shipped("templates") / "profiles")


def profile_names(folders: Sequence[Path]) -> list[str]:
    """Return the names of all profiles, sorted; a missing folder has none. Raise ConfigError if one cannot be read."""
    names = set()
    for folder in folders:
        try:
            names |= {path.stem for path in folder.iterdir() if path.suffix == ".toml"}
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ConfigError(
                f"the folder of profiles {printable(str(folder))} cannot be read: {error.strerror}",
                remedy="check its permissions, or correct the setting `profiles`",
            ) from None
    return sorted(names)


def list_profiles(folders: Sequence[Path]) -> list[Profile]:
    """Return all profiles, by name. Raise ConfigError if one of them is not valid."""
    return [load_profile(name, folders) for name in profile_names(folders)]


def load_profile(name: str, folders: Sequence[Path]) -> Profile:
    """Read a profile and what it extends.

    A profile may extend one of its own name in a later folder: that is how a site changes a shipped one. Raise
    ConfigError if it or a parent does not exist, if they extend each other in a circle, or with all that is wrong.
    """
    chain: list[tuple[str, Path, dict[str, Any]]] = []
    current, later, child = name, 0, None
    while True:
        place = _find(current, folders, later)
        if place is None and chain and chain[-1][0] == current:
            raise _circle(chain[-1][1], f"{current} -> {current} (no other folder has one)")
        if place is None:
            raise _no_such(current, folders, child)
        index, path = place
        if any(path == seen for _, seen, _ in chain):
            raise _circle(chain[-1][1], " -> ".join([*(link for link, _, _ in chain), current]))
        raw = load_toml(path, "the profile")
        _check(raw, current, path)
        chain.append((current, path, raw))
        child = path
        parent = raw.get("extends")
        if parent is None:
            break
        later = index + 1 if parent == current else 0
        current = parent
    merged: dict[str, Any] = {}
    for _, _, raw in reversed(chain):
        merged = merge_tables(merged, raw)
    merged["extends"] = chain[0][2].get("extends")
    try:
        return Profile.model_validate({**merged, "name": name, "chain": [link for link, _, _ in chain]})
    except ValidationError as error:
        raise complain(chain[0][1], problems_of(error, Profile)) from None


def _circle(path: Path, names: str) -> ConfigError:
    return complain(path, [Problem(("extends",), f"profiles extend each other in a circle: {names}")])


def _find(name: str, folders: Sequence[Path], later: int) -> tuple[int, Path] | None:
    if not NAME.fullmatch(name):
        return None
    for index, folder in enumerate(folders[later:], later):
        path = folder / f"{name}.toml"
        if path.exists():
            return index, path
    return None


def _no_such(name: str, folders: Sequence[Path], child: Path | None) -> ConfigError:
    if not NAME.fullmatch(name):
        text = f"{shown(name)} is not a valid profile name: {NAME_RULE}"
        if child is not None:
            return complain(child, [Problem(("extends",), text)])
        return ConfigError(text, remedy="rename its file, or give another name")
    names = profile_names([folder for folder in folders if folder.is_dir()])
    names = [item for item in names if NAME.fullmatch(item)]
    text = unknown(name, names, kind=f"there is no profile {shown(name)}")
    if child is not None:
        return complain(child, [Problem(("extends",), text)])
    return ConfigError(text, remedy="`deployer profiles` lists them")


def _check(raw: Mapping[str, Any], name: str, path: Path) -> None:
    """Refuse what is wrong in one file of a chain, so that the message names that file."""
    own = ("name", "chain")
    problems = [Problem((key,), "unknown key; a profile is named by its file") for key in own if key in raw]
    inner = {key: value for key, value in raw.items() if key not in own}
    try:
        Profile.model_validate({**inner, "name": name})
    except ValidationError as error:
        problems += problems_of(error, Profile)
    if problems:
        raise complain(path, problems)
