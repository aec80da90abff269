"""The inventory: hosts, and the services that run on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError, model_validator

from deployer.config.bench import BenchConfig, Gate, RelativeGate
from deployer.config.exclusion import declared, exclusion_problems
from deployer.config.fields import (
    NAME,
    STALL_DEFAULTS,
    Account,
    Address,
    Environment,
    Folder,
    Gpus,
    HostKey,
    HostName,
    HostPath,
    Limits,
    Seconds,
    StallSeconds,
    Text,
    Url,
)
from deployer.config.hardening import Relaxed
from deployer.config.hooks import Hooks
from deployer.config.problems import Model, Problem, complain, load_toml, merge_tables, problems_of
from deployer.config.secrets import LocalPath, Secret
from deployer.config.wording import KeyPath, nearest, printable, shown, unknown
from deployer.errors import UsageError
from deployer.records.destination import FIELDS as DESTINATION
from deployer.records.destination import Destination

T = TypeVar("T")

_TABLES = ("hosts", "services", "defaults", "hooks")


class HostConfig(Model):
    """A machine with GPUs, and the way to it."""

    name: str = Field(exclude=True)
    transport: Literal["ssh", "local"] = Field("ssh", description="local: deployer runs on the host itself")
    address: Text = Field(
        "",
        validate_default=False,
        description="host name, address or ssh_config alias; default: the host's name in the inventory",
    )
    port: int = Field(22, ge=1, le=65535, description="port of sshd")
    user: Text | None = Field(None, description="login; default: as in ssh_config, else your own")
    identity_file: LocalPath | None = Field(None, description="private key; default: agent and ssh_config")
    ssh_config: LocalPath | None = Field(None, description="ssh_config file instead of ~/.ssh/config")
    proxy_jump: Text | None = Field(None, description="jump host, as in ssh -J; default: as in ssh_config")
    host_keys: Literal["strict", "accept-new", "pinned"] = Field(
        "strict",
        description="strict: known_hosts must have the key; accept-new: a new host's key is added; "
        "pinned: the key is host_key",
    )
    known_hosts: LocalPath | None = Field(None, description="known_hosts file instead of ~/.ssh/known_hosts")
    host_key: HostKey | None = Field(None, description='the pinned key: "ssh-ed25519 AAAA..." or "SHA256:..."')
    sudo: Literal["auto", "never"] = Field("auto", description="auto: become root with sudo if the login is not root")
    python: Text = Field("python3", description="Python 3.8 or later on the host, for deployer's own agent")
    gpus: int | None = Field(None, ge=0, le=1024, description="number of GPUs in the host; 0: none")
    metrics_dir: HostPath | None = Field(
        None, description="folder of node_exporter's textfile collector, where the host writes metrics at each change"
    )
    connect_timeout: Seconds = Field(15.0, description="time limit for connecting, in seconds")
    keepalive: int = Field(15, ge=1, le=3600, description="seconds between SSH keepalives")

    @property
    def destination(self) -> Destination:
        """How it is reached."""
        paths = {name: getattr(self, name) for name in ("identity_file", "ssh_config", "known_hosts")}
        values: dict[str, Any] = {name: path and str(path) for name, path in paths.items()}
        values |= {name: getattr(self, name) for name in DESTINATION if name not in paths}
        return Destination(**values)

    @model_validator(mode="before")
    @classmethod
    def _own_address(cls, data: Any) -> Any:
        if isinstance(data, dict) and "address" not in data:
            return {**data, "address": "localhost" if data.get("transport") == "local" else data.get("name")}
        return data

    @model_validator(mode="after")
    def _pinned(self) -> HostConfig:
        if self.host_keys == "pinned" and self.host_key is None:
            raise ValueError('host_keys = "pinned" needs host_key')
        if self.host_key is not None and self.host_keys != "pinned":
            raise ValueError('host_key is used only with host_keys = "pinned"')
        return self


class EngineConfig(Model):
    """The SGLang installation on the host."""

    python: Folder = Field(description="the Python that has SGLang, such as /opt/sglang/bin/python")
    cuda_home: Folder | None = Field(None, description="CUDA_HOME; its bin folder is added to PATH")
    ld_library_path: list[Folder] = Field([], description="folders of LD_LIBRARY_PATH")
    path: list[Folder] = Field([], description="folders of PATH in addition to the engine's, CUDA's and the system's")


class Deadlines(Model):
    """How long things may take, in seconds."""

    start: Seconds = Field(2700.0, description="from start to ready, overall")
    grace: Seconds = Field(600.0, description="how long an unproven candidate waits for its operator to return")
    lease: Annotated[float, Field(ge=5, le=3600)] = Field(
        30.0, description="how long the lease lives without a heartbeat"
    )
    drain: Annotated[float, Field(ge=0, le=86_400)] = Field(
        30.0, description="how long requests in flight have to end when the server is stopped; then they are cut off"
    )
    stop: Seconds = Field(120.0, description="how long the server then has to end until it is killed")
    stall: StallSeconds = Field(
        dict(STALL_DEFAULTS), description="per phase: time without progress after which it counts as stuck"
    )


class ServiceConfig(Model):
    """One SGLang endpoint."""

    name: str = Field(exclude=True)
    host: HostName = Field(description="name of a host of this inventory")
    model: Text = Field(description="path of the checkpoint on the host, or a hub id")
    served_model_name: Text | None = Field(None, description="model name that clients use; default: the model's path")
    port: int = Field(30000, ge=1, le=65535, description="port of the endpoint")
    bind: Address = Field("127.0.0.1", description="address the endpoint binds to")
    advertised: Url | None = Field(
        None, description="URL that clients use (a proxy's, for example); it has to answer too"
    )
    gpus: Gpus | None = Field(None, description="indices of the GPUs it may use; default: all")
    exclusive_with: list[Text] = Field(
        [],
        description="services of the host that use the same GPUs or port, of which only one runs at a time: applying "
        "one stops and disables the others; one side's declaration is enough",
    )
    engine: EngineConfig = Field(description="the SGLang installation")
    user: Account | None = Field(None, description="account the server runs as; default: root")
    home: HostPath | None = Field(None, description="HOME; default: that of user")
    hf_home: HostPath | None = Field(None, description="HF_HOME, the cache of the Hugging Face hub")
    environment: Environment = Field({}, description="more environment variables: text or secrets")
    api_key: Secret | None = Field(None, description="key that clients have to send (SGLang 0.5.5 or later)")
    # Defaults need no validation: to build the validator of each of these models would take longer than the file.
    limits: Limits = Field(
        Limits.model_construct(), description="limits for every profile; a profile's own take precedence"
    )
    extra_args: dict[str, Any] = Field({}, description="more SGLang flags, as in a profile; these take precedence")
    deadlines: Deadlines = Field(Deadlines.model_construct(), description="how long things may take")
    bench: BenchConfig = Field(BenchConfig.model_construct(), description="the smoke benchmark")
    gate: Gate = Field({}, description="thresholds for every profile; a profile's own take precedence")
    relative_gate: RelativeGate = Field(
        RelativeGate.model_construct(), description="comparison of a candidate with earlier proven starts"
    )
    relax: Relaxed = Field([], description="directives of the unit's hardening to leave out; see docs/security.md")
    protected: bool = Field(False, description="true: its name has to be typed before a restart that interrupts it")
    hooks: Hooks = Field(Hooks(), description="programs and a webhook, over those of the table [hooks]")


class Inventory(Model):
    """All hosts and services of one file."""

    source: Path = Field(exclude=True)
    hosts: dict[str, HostConfig]
    services: dict[str, ServiceConfig]

    def host(self, name: str) -> HostConfig:
        """Return a host by name. Raise UsageError if there is none."""
        return _pick(self.hosts, name, "host", self.source)

    def service(self, name: str | None = None) -> ServiceConfig:
        """Return a service by name; without a name the only one. Raise UsageError if that is ambiguous."""
        if name is None:
            if len(self.services) == 1:
                return next(iter(self.services.values()))
            raise UsageError(
                f"{self.source} has {len(self.services)} services ({', '.join(sorted(self.services))}); "
                "name one of them",
                remedy="give --service NAME, or set DEPLOYER_SERVICE",
            )
        return _pick(self.services, name, "service", self.source)

    def rivals(self, service: ServiceConfig) -> list[ServiceConfig]:
        """Return the services that must not run beside this one."""
        return [self.services[name] for name in service.exclusive_with]


def _pick(items: Mapping[str, T], name: str, kind: str, source: Path) -> T:
    if name in items:
        return items[name]
    near = nearest(name, items)
    raise UsageError(
        f"{source} has no {kind} {printable(name, 60)}" + (f"; did you mean {near}?" if near else ""),
        remedy=f"its {kind}s: {', '.join(sorted(items))}",
    )


def load_inventory(path: Path) -> Inventory:
    """Read an inventory. Raise ConfigError with everything that is wrong in it."""
    return inventory_from(load_toml(path, "the inventory"), path)


def inventory_from(data: Mapping[str, Any], source: Path) -> Inventory:
    """Return the inventory in the tables of its file, ``source``; relative paths begin at its folder."""
    problems = [Problem((key,), unknown(key, _TABLES)) for key in data if key not in _TABLES]
    tables = {key: _table(data, key, problems) for key in _TABLES}
    if tables["hooks"]:
        tables["defaults"] = merge_tables({"hooks": tables["hooks"]}, tables["defaults"])
    problems += [
        Problem((), f"no {kind} are defined: add a table [{kind}.NAME]")
        for kind in ("hosts", "services")
        if kind not in data or data[kind] == {}
    ]
    if "name" in tables["defaults"]:
        problems.append(Problem(("defaults", "name"), "unknown key; the name is in the table's header"))
    context = {"folder": source.absolute().parent}
    hosts, services, merged = {}, {}, {}
    for name, raw in _named(tables["hosts"], "hosts", problems):
        try:
            hosts[name] = HostConfig.model_validate({**raw, "name": name}, context=context)
        except ValidationError as error:
            problems += problems_of(error, HostConfig, ("hosts", name))
    for name, raw in _named(tables["services"], "services", problems):
        merged[name] = merge_tables(tables["defaults"], raw)
        try:
            services[name] = ServiceConfig.model_validate({**merged[name], "name": name}, context=context)
        except ValidationError as error:
            invalid = problems_of(error, ServiceConfig, ("services", name))
            problems += [_at_origin(problem, raw, tables["defaults"], tables["hooks"]) for problem in invalid]
    problems += _between(tables["hosts"], merged)
    if problems:
        raise complain(source, problems)
    for name, partners in declared(merged).items():
        services[name] = services[name].model_copy(update={"exclusive_with": sorted(partners)})
    return Inventory(source=source, hosts=hosts, services=services)


def _table(data: Mapping[str, Any], key: str, problems: list[Problem]) -> dict[str, Any]:
    value = data.get(key, {})
    if isinstance(value, dict):
        return value
    problems.append(Problem((key,), f"found {shown(value)}, expected a table"))
    return {}


def _named(table: dict[str, Any], kind: str, problems: list[Problem]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, raw in table.items():
        if not NAME.fullmatch(name):
            problems.append(Problem((kind, name), "a name may have lower-case letters, digits, - and _ (40 at most)"))
        elif not isinstance(raw, dict):
            problems.append(Problem((kind, name), f"found {shown(raw)}, expected a table [{kind}.NAME]"))
        elif "name" in raw:
            problems.append(Problem((kind, name, "name"), "unknown key; the name is in the table's header"))
        else:
            yield name, raw


def _has(table: Any, path: KeyPath) -> bool:
    for part in path:
        if isinstance(table, list) and isinstance(part, int):
            return part < len(table)
        if not isinstance(table, dict) or part not in table:
            return False
        table = table[part]
    return True


def _at_origin(problem: Problem, raw: dict[str, Any], defaults: dict[str, Any], hooks: dict[str, Any]) -> Problem:
    """Return the problem with the place where its value was written: the service, [hooks] or [defaults]."""
    below = problem.path[2:]
    if below[:1] == ("hooks",) and not _has(raw, below) and _has(hooks, below[1:]):
        return Problem(below, problem.text)
    if below and not _has(raw, below) and _has(defaults, below):
        return Problem(("defaults", *below), problem.text)
    return problem


def _between(hosts: Mapping[str, Any], services: Mapping[str, Mapping[str, Any]]) -> list[Problem]:
    """Return what is wrong between hosts and services, even if one of them has problems of its own."""
    problems = list(exclusion_problems(services, hosts))
    for name, service in services.items():
        at: KeyPath = ("services", name)
        host, gpus = service.get("host"), service.get("gpus")
        if isinstance(host, list) and len(host) == 1:
            host = host[0]
        if not isinstance(host, str):
            continue
        if host not in hosts:
            problems.append(Problem((*at, "host"), unknown(host, hosts, kind=f"there is no host {shown(host)}")))
            continue
        count = hosts[host].get("gpus") if isinstance(hosts[host], dict) else None
        if isinstance(count, int) and isinstance(gpus, list):
            missing = [gpu for gpu in gpus if isinstance(gpu, int) and gpu >= count]
            if missing:
                text = f"host {host} has no GPU {', '.join(map(str, missing))}"
                problems.append(
                    Problem(
                        (*at, "gpus"),
                        f"{text} (it has {f'{count}: 0 to {count - 1}' if count > 0 else 'none'})",
                    )
                )
    return problems
