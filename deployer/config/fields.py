"""Types of values in configuration files, each with the rule it keeps."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from deployer.config.problems import KeyProblems, Model
from deployer.config.secrets import TextOrSecret
from deployer.config.wording import shown, unknown

#: Names of hosts and services; they become parts of unit names and paths.
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
NAME_RULE = "a name has lower-case letters, digits, - and _ (40 at most), and begins with a letter or digit"

#: Seconds without any progress after which a phase of the launch counts as stuck. Silence is normal in all of
#: them: the first capture on a cold machine compiles kernels, and progress bars reach the journal late.
STALL_DEFAULTS: Mapping[str, float] = {
    "launch": 300.0,
    "dist-init": 300.0,
    "load": 600.0,
    "kv-pool": 300.0,
    "capture": 900.0,
    "http-up": 300.0,
    "warm-up": 900.0,
    "ready": 120.0,
}

#: Environment variables that deployer sets, and the field to use instead.
OWNED_ENVIRONMENT: Mapping[str, str] = {
    "CUDA_VISIBLE_DEVICES": "gpus",
    "CUDA_HOME": "engine.cuda_home",
    "LD_LIBRARY_PATH": "engine.ld_library_path",
    "PATH": "engine.path",
    "HOME": "home",
    "HF_HOME": "hf_home",
    "PYTHONUNBUFFERED": "",
    "DEPLOYER_RELEASE": "",
}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_VARIABLE = re.compile(
    r"(^|_)(TOKEN|PASSWORD|PASSPHRASE|SECRET|SECRET_KEY|API_KEY|ACCESS_KEY|PRIVATE_KEY|CREDENTIALS?)$", re.I
)


def check_environment(environment: dict[str, Any]) -> dict[str, Any]:
    """Refuse variables that deployer owns, names that a shell could not hold, and secrets in plain text."""
    wrong: list[tuple[str | int, str]] = []
    for name, value in environment.items():
        if not _VARIABLE.fullmatch(name):
            wrong.append((name, "is not a valid variable name (letters, digits and _)"))
        elif name in OWNED_ENVIRONMENT:
            field = OWNED_ENVIRONMENT[name]
            wrong.append((name, "is set by deployer" + (f"; use the key {field} instead" if field else "")))
        elif isinstance(value, str) and _SECRET_VARIABLE.search(name):
            wrong.append(
                (
                    name,
                    "looks like a secret, which must not be written in plain text: "
                    'use {env = ".."}, {file = ".."} or {command = [..]}',
                )
            )
    if wrong:
        raise KeyProblems(wrong)
    return environment


def _clean(value: str) -> str:
    if any(not char.isprintable() for char in value) or value != value.strip():
        raise ValueError("must not contain control characters, or begin or end with a blank")
    return value


def _host_path(value: str) -> str:
    if not value.startswith("/"):
        raise ValueError(f"found {shown(value)}, expected an absolute path on the host")
    if "/../" in f"{value}/":
        raise ValueError(f"found {shown(value)}, expected a path without ..")
    return value.rstrip("/") or "/"


def _without_colon(value: str) -> str:
    if ":" in value:
        raise ValueError(f"found {shown(value)}, expected a path without a colon, which would end it in PATH")
    return value


def _one_host(value: Any) -> Any:
    if isinstance(value, list):
        if len(value) == 1:
            return value[0]
        raise ValueError(
            f"found a list of {len(value)} hosts, but a service runs on one host: "
            "name one (a model that spans hosts is not supported)"
        )
    return value


def _url(value: str) -> str:
    try:
        parts = urlsplit(value)
        fit = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        fit = False
    if not fit or parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("expected a URL like http://kimi.example.net:30000, without user, query or fragment")
    return value.rstrip("/")


def _address(value: str) -> str:
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        raise ValueError(f"found {shown(value)}, expected an IP address of the host, or 0.0.0.0") from None


def _gpus(gpus: list[int]) -> list[int]:
    if len(set(gpus)) != len(gpus):
        raise ValueError("a GPU is listed twice")
    return gpus


def matching(pattern: str, expected: str, *, repeat: bool = True) -> AfterValidator:
    """Return the validator that a text matches; with ``repeat`` its message repeats the value."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError((f"found {shown(value)}, " if repeat else "") + f"expected {expected}")
        return value

    return AfterValidator(check)


def _stall(stall: dict[str, float]) -> dict[str, float]:
    wrong: list[tuple[str | int, str]] = [
        (name, unknown(name, STALL_DEFAULTS, kind="unknown phase")) for name in stall if name not in STALL_DEFAULTS
    ]
    wrong += [(name, "must be above 0 seconds") for name, seconds in stall.items() if seconds <= 0]
    if wrong:
        raise KeyProblems(wrong)
    return {**STALL_DEFAULTS, **stall}


Text = Annotated[str, StringConstraints(min_length=1, max_length=4096), AfterValidator(_clean)]
HostPath = Annotated[Text, AfterValidator(_host_path)]
#: It becomes part of PATH or its like, where a colon ends a folder.
Folder = Annotated[HostPath, AfterValidator(_without_colon)]
Gpus = Annotated[list[Annotated[int, Field(ge=0, le=1023)]], Field(min_length=1), AfterValidator(_gpus)]
Environment = Annotated[dict[str, TextOrSecret], AfterValidator(check_environment)]
HostKey = Annotated[
    Text,
    matching(
        r"SHA256:[A-Za-z0-9+/]{43}=?|(ssh|ecdsa|sk)-[a-z0-9@.-]+ [A-Za-z0-9+/]+={0,3}( .*)?",
        '"ssh-ed25519 AAAA..." or "SHA256:..." as ssh-keygen -l prints it',
        repeat=False,
    ),
]
HostName = Annotated[Text, BeforeValidator(_one_host)]
Address = Annotated[str, AfterValidator(_address)]
Url = Annotated[Text, AfterValidator(_url)]
Account = Annotated[str, matching(r"[a-z_][a-z0-9_-]{0,30}|[0-9]{1,10}", "an account's name or number")]
StallSeconds = Annotated[dict[str, float], AfterValidator(_stall)]
Seconds = Annotated[float, Field(gt=0, le=604_800)]


#: A count of requests.
Count = Annotated[int, Field(ge=1, le=1_000_000)]


class Limits(Model):
    """How much is served at a time."""

    max_running_requests: Count | None = Field(None, description="requests that run at a time")
    max_total_tokens: Annotated[int, Field(ge=1, le=2**40)] | None = Field(None, description="tokens in the KV pool")
    context_length: Annotated[int, Field(ge=1, le=2**40)] | None = Field(None, description="longest context, in tokens")
