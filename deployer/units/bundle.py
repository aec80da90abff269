"""Everything that goes to a host for one release."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from deployer.config.files import template_folders
from deployer.config.hardening import hardening
from deployer.config.inventory import HostConfig, ServiceConfig
from deployer.config.profile import Profile
from deployer.config.secrets import Secret
from deployer.errors import ConfigError
from deployer.reach import unit_name
from deployer.sglang.flags.arguments import LaunchArguments
from deployer.sglang.rules import RULES, Facts, launch_arguments
from deployer.units import quoting
from deployer.units.render import TEXT_LIMIT, UNIT_TEMPLATE, render
from deployer.units.text import STATE_ROOT, restart_keys, section

#: Restarts before systemd gives up on a service, and the pause before each, in seconds.
START_LIMIT_BURST = 3
RESTART_SECONDS = 10
#: Limits in bytes. Linux gives arguments and environment 2 MiB together; systemd adds variables of its own.
ENVIRONMENT_LIMIT = 1024 * 1024
EXEC_LIMIT = 1536 * 1024
#: The cost of the digest of secrets (scrypt's N): some 50 ms to compute one, or to guess at one.
DIGEST_COST = 2**14
#: The share of a unit for arguments and environment; the rest of its text is small.
UNIT_LIMIT = TEXT_LIMIT - 64 * 1024
_SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
#: What ProtectSystem= makes read-only.
_READ_ONLY = re.compile(r"/(usr|boot|efi|etc)/")
_RELEASE = re.compile(r"[0-9]{4,9}-[a-z0-9][a-z0-9_-]{0,39}")


@dataclass(frozen=True)
class Bundle:
    """A rendered release. ``files`` holds secrets, so it is never shown."""

    #: The server's argument vector, program first.
    argv: list[str]
    #: The environment the unit sets, without the secret variables (those are in the file ``env``).
    environment: dict[str, str]
    #: Text of the live and of the candidate unit.
    unit: str = field(repr=False)
    candidate: str = field(repr=False)
    #: Name -> {"text": .., "mode": 0o600}: unit, unit.candidate; config.yaml and env if there are secrets.
    files: Mapping[str, Mapping[str, Any]] = field(repr=False)
    #: Keys of the unit's [Service] section that take effect only with a restart; ``secrets`` stands for all of those.
    restart_keys: dict[str, str]
    #: What /server_info must show: field name -> value.
    requested: dict[str, Any]
    #: Remarks for the operator.
    notes: tuple[str, ...] = ()
    #: All secrets in it, to remove them from logs.
    secrets: tuple[str, ...] = field(default=(), repr=False)


def build_bundle(
    service: ServiceConfig,
    host: HostConfig,
    profile: Profile,
    version: str | None,
    release: str,
    start_seconds: float | None = None,
    *,
    templates: Sequence[Path] | None = None,
    learned: Path | None = None,
    resolve: Callable[[Secret], str] = Secret.resolve,
) -> Bundle:
    """Render a release of ``profile`` for ``service``.

    ``version`` is SGLang's on the host (None: a preview); ``start_seconds`` how long a start takes there, if known;
    ``templates`` the folders of templates (see `template_folders`); ``learned`` that of the site's own flag tables;
    ``resolve`` reads secrets (for a preview, a stand-in). Raise ConfigError if the release cannot be rendered.
    """
    if not _RELEASE.fullmatch(release):
        raise ConfigError(
            f"{release!r} is not a valid release name",
            remedy="an example of a release name is 0007-pp8-async",
        )
    facts = Facts.of(profile, service, host, version, learned)
    arguments = launch_arguments(facts)
    notes = [item.message for item in RULES["gpus-unused"].findings(facts)] + arguments.notes
    folder = PurePosixPath(STATE_ROOT) / service.name / "releases" / release
    argv = list(arguments.argv)
    files: dict[str, dict[str, Any]] = {}
    secrets = []
    if arguments.secret_config:
        argv += ["--config", str(folder / "config.yaml")]
        text, in_config = _config_file(service.name, arguments, resolve)
        files["config.yaml"] = {"text": text, "mode": 0o600}
        secrets += in_config
    environment, hidden = _environment(service, profile, release, resolve)
    if hidden:
        lines = (quoting.file_line(name, value) for name, value in hidden.items())
        files["env"] = {"text": "".join(lines), "mode": 0o600}
        secrets += hidden.values()
    _check_sizes(service, profile, argv, environment, hidden)
    values: dict[str, Any] = {
        "release": release,
        "service": service.name,
        "profile": profile.name,
        "conflicts": [unit_name(name) for name in service.exclusive_with],
        "user": service.user,
        "working_directory": service.home or "/",
        "argv": argv,
        "environment": environment,
        "environment_file": str(folder / "env") if hidden else None,
        "stop_seconds": math.ceil(service.deadlines.drain + service.deadlines.stop),
        "restart_seconds": RESTART_SECONDS,
        "hardening": hardening([*service.relax, *profile.relax]),
        "writable": [place for place in (service.home, service.hf_home) if place and _READ_ONLY.match(f"{place}/")],
        "start_limit": start_limit(start_seconds or service.deadlines.start),
    }
    folders = templates if templates is not None else template_folders()
    unit = _unit({**values, "candidate": False}, folders)
    candidate = _unit({**values, "candidate": True}, folders)
    keys = restart_keys(unit)
    if secrets:
        keys["secrets"] = _digest(service.name, secrets)
    files["unit"] = {"text": unit, "mode": 0o644}
    files["unit.candidate"] = {"text": candidate, "mode": 0o644}
    return Bundle(
        argv=argv,
        environment=environment,
        unit=unit,
        candidate=candidate,
        files=files,
        restart_keys=keys,
        requested=arguments.requested,
        notes=tuple(notes),
        secrets=tuple(secrets),
    )


def start_limit(start_seconds: float) -> dict[str, int]:
    """Return StartLimit settings: the interval is 1.5x the time that BURST restarts take."""
    interval = math.ceil(1.5 * START_LIMIT_BURST * (start_seconds + RESTART_SECONDS))
    return {"burst": START_LIMIT_BURST, "interval": interval}


def _digest(service: str, secrets: Sequence[str]) -> str:
    """Return a digest that shows whether secrets changed, and little else: it is slow and short."""
    text = "\0".join(secrets).encode()
    return hashlib.scrypt(text, salt=service.encode(), n=DIGEST_COST, r=8, p=1, dklen=4).hex()


def _environment(
    service: ServiceConfig, profile: Profile, release: str, resolve: Callable[[Secret], str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables that the unit sets, and the secret ones. systemd itself sets next to none."""
    engine = service.engine
    home = service.home or ("/root" if service.user in (None, "root", "0") else None)
    path = [
        str(PurePosixPath(engine.python).parent),
        *([f"{engine.cuda_home}/bin"] if engine.cuda_home else []),
    ]
    owned = {
        "DEPLOYER_RELEASE": release,
        "PATH": ":".join(dict.fromkeys([*path, *engine.path, *_SYSTEM_PATH])),
        "HOME": home,
        "HF_HOME": service.hf_home,
        "CUDA_HOME": engine.cuda_home,
        "LD_LIBRARY_PATH": ":".join(engine.ld_library_path) or None,
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, service.gpus)) if service.gpus is not None else None,
        "PYTHONUNBUFFERED": "1",
    }
    shown = {name: value for name, value in owned.items() if value is not None}
    hidden: dict[str, str] = {}
    variables: dict[str, str | Secret] = {**profile.environment, **service.environment}
    for name in sorted(variables):
        value = variables[name]
        if isinstance(value, Secret):
            owner = f"services.{service.name}." if name in service.environment else f"profile {profile.name}: "
            hidden[name] = _resolved(value, f"{owner}environment.{name}", resolve)
        else:
            shown[name] = value
    return shown, hidden


def _check_sizes(
    service: ServiceConfig,
    profile: Profile,
    argv: Sequence[str],
    environment: Mapping[str, str],
    hidden: Mapping[str, str],
) -> None:
    """Refuse what the kernel would not start or systemd not read, and name the largest table."""
    arguments = sum(_size(word) for word in argv)
    variables = sum(_size(f"{name}={value}") for part in (environment, hidden) for name, value in part.items())
    lines = len(quoting.command_line(list(argv)).encode()) + sum(
        len(f"Environment={quoting.assignment(name, value)}\n".encode()) for name, value in environment.items()
    )
    if variables > ENVIRONMENT_LIMIT:
        what = f"the environment takes {variables} bytes (maximum {ENVIRONMENT_LIMIT})"
    elif arguments + variables > EXEC_LIMIT:
        what = f"arguments and environment take {arguments + variables} bytes (maximum {EXEC_LIMIT})"
    elif lines > UNIT_LIMIT:
        what = f"the unit takes {lines} bytes for arguments and environment (maximum {UNIT_LIMIT})"
    else:
        return
    tables: dict[str, Mapping[str, Any]] = {
        f"services.{service.name}.environment": service.environment,
        f"services.{service.name}.extra_args": service.extra_args,
        f"environment of profile {profile.name}": profile.environment,
        f"extra_args of profile {profile.name}": profile.extra_args,
    }
    largest = max(tables, key=lambda key: sum(_size(f"{name}={value}") for name, value in tables[key].items()))
    raise ConfigError(
        f"{largest} is too large ({len(tables[largest])} keys): {what}",
        remedy="put large values into a file on the host and pass its path",
    )


def _size(text: str) -> int:
    """Return what a string takes of the kernel's space for a new program: itself, its NUL and a pointer."""
    return len(text.encode("utf-8", "surrogatepass")) + 9


def _resolved(secret: Secret, place: str, resolve: Callable[[Secret], str]) -> str:
    """Return a secret. Raise ConfigError with its place in the configuration if its source has none."""
    try:
        return resolve(secret)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error.message}", remedy=error.remedy) from None


def _config_file(service: str, arguments: LaunchArguments, resolve: Callable[[Secret], str]) -> tuple[str, list[str]]:
    """Return SGLang's --config file (flags without dashes, values as JSON, which YAML reads) and its secrets."""
    lines, values = [], []
    for key, secret in sorted(arguments.secret_config.items()):
        value = _resolved(secret, f"services.{service}.{key.replace('-', '_')}", resolve)
        if not value.isascii() or not value.isprintable() or " " in value or value.startswith("-"):
            raise ConfigError(
                f"the secret for {key} cannot be used: it must be printable ASCII without blanks, and not begin with -",
                remedy="choose another secret (clients send it in a header)",
            )
        lines.append(f"{key}: {json.dumps(value)}\n")
        values.append(value)
    return "".join(lines), values


def _unit(values: Mapping[str, Any], folders: Sequence[Path]) -> str:
    text = render(UNIT_TEMPLATE, values, folders)
    ours, service = section(text, "X-Deployer"), section(text, "Service")
    expected = {"Release": values["release"], "Service": values["service"], "Profile": values["profile"]}
    wrong = [f"[X-Deployer] {key}={value}" for key, value in expected.items() if ours.get(key) != value]
    if f'"DEPLOYER_RELEASE={values["release"]}"' not in service.get("Environment", "").split("\n"):
        wrong.append("Environment= with DEPLOYER_RELEASE")
    if values["candidate"] and service.get("Restart") != "no":
        wrong.append("Restart=no for a candidate")
    if not service.get("ExecStart", "").startswith(":"):
        wrong.append("ExecStart={{ argv | command_line }}")
    if values["environment_file"] and values["environment_file"] not in service.get("EnvironmentFile", ""):
        wrong.append("EnvironmentFile={{ environment_file | path }}")
    if len(service.get("ExecStart", "").split("\n")) > 1:
        raise ConfigError(
            f"the template {UNIT_TEMPLATE} has ExecStart= twice, but a service of this type has one command",
            remedy="keep only ExecStart={{ argv | command_line }}; use ExecStartPre= to run something before it",
        )
    if wrong:
        raise ConfigError(
            f"the template {UNIT_TEMPLATE} lacks what deployer needs in a unit: {'; '.join(wrong)}",
            remedy="copy these lines from the template that ships with deployer",
        )
    return text
