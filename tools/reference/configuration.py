"""Generates docs/configuration.md from the models: every key with its type, default and meaning."""

from __future__ import annotations

import json
import textwrap
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from deployer.config.bench import LEVEL_GATES, SINGLE_GATE
from deployer.config.fields import OWNED_ENVIRONMENT, STALL_DEFAULTS
from deployer.config.inventory import HostConfig, ServiceConfig
from deployer.config.profile import Profile
from deployer.config.secrets import Secret
from deployer.config.settings import PREFIX, Settings

_HEAD = """\
# Configuration

Three kinds of TOML files: the **inventory** (hosts and services), **profiles** (ways to run a model), and
`deployer.toml` (settings of the tool itself). All are closed: a key that is not listed here is an error, and so is a
value of another type. Everything that is wrong with a file is reported at once, with its place and the nearest valid
name.

Relative paths on the operator's machine begin at the folder of the file they are in; `~` is your home. Paths on the
host are absolute. Times are in seconds.
"""

_INVENTORY = """
## Inventory

`-i FILE` or `DEPLOYER_INVENTORY` names it. It has a table `[hosts.NAME]` for each host, `[services.NAME]` for each
service, and optionally `[defaults]`, with keys of a service that apply to all services; a service's own keys take
precedence, table by table. `[hooks]` has the same keys as a service's `hooks`, for all services
([hooks.md](hooks.md)). Names have lower-case letters, digits, `-` and `_`, 40 at most. Two services on one host
cannot share a port or a GPU, unless one of them declares `exclusive_with`. `inventories/example.toml` is a commented
example.
"""

_PROFILE = """
## Profiles

A profile is `NAME.toml` in the site's folder of profiles or among the shipped ones; the site's come first.
`extends` names a profile whose values apply to what this one leaves out, table by table. A profile may extend the one
of its own name in a later folder: that is how a site changes a shipped one.

The keys are SGLang's concepts; deployer writes them as the installed version spells them. A concept that the version
lacks is refused, with the first version that has it.

`[extra_args]`, here and in a service, takes any other flag by name: `trust-remote-code = true`,
`tool-call-parser = "kimi_k2"`, `lora-paths = ["a", "b"]`, and a table if the flag takes JSON. `true` gives the flag
alone, `false` leaves it out. Names (in full: no abbreviations), types and choices are checked against the version's own
flags ([sglang.md](sglang.md)). A flag that has a key of its own is refused here, and so are secrets.
"""

_GATE = """
### Gates

A gate maps figures to thresholds: `{single}` (tokens a second of one request alone), and with a level, as in
`"aggregate_tok_s@32"`: {rates} (tokens a second, minimum), {times} (seconds, maximum). A figure that is not measured,
such as one of a level that is not run, is refused before anything is stopped
([gate-not-measured](rules.md#gate-not-measured)). `relative_gate` says how a candidate is compared with earlier starts;
[gate.md](gate.md) explains it.
"""

_SECRETS = """
## Secrets

A secret is a table with exactly one of these keys, which says where it comes from. It is read when needed, and reaches
the host in files that only their owner can read. deployer writes it to no command line, unit, log or JSON, and removes
it from what it shows of the host's journal (`deployer logs`, and the log of a failed launch). SGLang itself prints its
`api_key` into that journal when it starts; [security.md](security.md) says in which versions, who can read it there,
and what to do.
"""

_ENVIRONMENT = """
### Environment variables of a service

Values are text; in a service also secrets. Plain text under a name that looks like a secret (`..._TOKEN`,
`..._API_KEY` and the like) is refused. deployer itself sets these: {owned}.
"""

_SETTINGS = """
## Settings of the tool

The strongest first: the command line, `{prefix}...` in the environment, the same in a file `.env`, `deployer.toml`, the
default. Both files are read from the working directory.
"""


#: What a profile's tables are that a service has too, by their names.
_INHERITED = {
    "relative_gate": "A profile's own comparison settings; the service's apply to the rest.",
    "bench": "A profile's own benchmark settings; the service's apply to the rest.",
}


def reference() -> str:
    """Return the text of docs/configuration.md."""
    times = ", ".join(f"`{name}`" for name in LEVEL_GATES if not name.endswith("tok_s"))
    rates = ", ".join(f"`{name}`" for name in LEVEL_GATES if name.endswith("tok_s"))
    owned = ", ".join(
        f"`{name}`" + (f" (from `{field}`)" if field else "") for name, field in OWNED_ENVIRONMENT.items()
    )
    parts = [
        _HEAD,
        _INVENTORY,
        *_tables(HostConfig, "hosts.NAME", "### "),
        *_tables(ServiceConfig, "services.NAME", "### "),
        _ENVIRONMENT.format(owned=owned),
        _GATE.format(single=SINGLE_GATE, rates=rates, times=times),
        _PROFILE,
        *_tables(Profile, "", "### "),
        _SECRETS,
        _table(Secret, _keys(Secret)),
        _SETTINGS.format(prefix=PREFIX),
        _settings(),
    ]
    return "\n".join(part.strip("\n") + "\n" for part in parts)


def _keys(model: type[BaseModel]) -> Mapping[str, FieldInfo]:
    return {name: field for name, field in model.model_fields.items() if not field.exclude}


def _tables(model: type[BaseModel], path: str, heading: str) -> list[str]:
    """Return a model's own keys, then the tables in it, each under a heading of its path."""
    plain, inner = {}, []
    for name, field in _keys(model).items():
        table = _model(field.annotation)
        if table is None or table is Secret:
            plain[name] = field
        else:
            inner += _tables(table, f"{path}.{name}".lstrip("."), heading)
    title = f"{heading}`[{path}]`" if path else f"{heading}At the top of a profile"
    about = (model.__doc__ or "").strip().split("\n")[0]
    if path in _INHERITED:
        names = ", ".join(f"`{name}`" for name in plain)
        return [title, _INHERITED[path], _wrapped(f"Its keys are those of the service: {names}.", "")]
    return [title, about, _table(model, plain), *inner]


def _table(model: type[BaseModel], fields: Mapping[str, FieldInfo]) -> str:
    return "\n".join(_item(f"**`{name}`**", field) for name, field in fields.items())


def _settings() -> str:
    return "\n".join(
        _item(f"**`{name}`** or `{PREFIX}{name.upper()}`", field) for name, field in Settings.model_fields.items()
    )


def _item(name: str, field: FieldInfo) -> str:
    """One key: its name, type, default and meaning."""
    default = _default(field)
    about = "; ".join(filter(None, (_type(field), f"default {default}" if default else "")))
    return _wrapped(f"* {name} ({about}): {field.description or ''}", "  ").replace("default required", "required")


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(text, 118, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False).rstrip(
        ": "
    )


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default()
    if value is None or value == "" or isinstance(value, BaseModel):
        return ""
    if value == dict(STALL_DEFAULTS):
        return ", ".join(f"{name} {seconds:g}" for name, seconds in STALL_DEFAULTS.items())
    return f"`{json.dumps(value)}`"


def _model(annotation: Any) -> type[BaseModel] | None:
    annotation = _bare(annotation)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _bare(annotation: Any) -> Any:
    while typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) in (Union, types.UnionType):
        members = [member for member in typing.get_args(annotation) if member is not type(None)]
        if len(members) == 1:
            return _bare(members[0])
    return annotation


_WORDS = {str: "text", int: "whole number", float: "number", bool: "true or false", Path: "path", Any: "any"}


def _type(field: FieldInfo) -> str:
    text = _words(field.annotation)
    bounds = _bounds(field.metadata) or _bounds_within(field.annotation)
    return f"{text}, {bounds}" if bounds else text


def _words(annotation: Any) -> str:
    annotation = _bare(annotation)
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{json.dumps(value)}`" for value in args)
    if origin is list:
        return f"list of {_words(args[0])}s" if _words(args[0]) != "text" else "list of texts"
    if origin is dict:
        return f"table of {_words(args[1])}"
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_words(member) for member in args if member is not type(None)))
    if annotation is Secret:
        return "secret"
    return _WORDS.get(annotation, "table")


def _bounds_within(annotation: Any) -> str:
    """Return the limits written inside ``Annotated[..] | None``."""
    if typing.get_origin(annotation) is Annotated:
        inner, *metadata = typing.get_args(annotation)
        for item in list(metadata):
            if isinstance(item, FieldInfo):
                metadata += item.metadata
        return _bounds(metadata) or _bounds_within(inner)
    if typing.get_origin(annotation) in (Union, types.UnionType):
        return next(filter(None, map(_bounds_within, typing.get_args(annotation))), "")
    return ""


def _bounds(metadata: list[Any]) -> str:
    low = next((f"from {item.ge:g}" for item in metadata if isinstance(item, Ge)), None)
    low = low or next((f"above {item.gt:g}" for item in metadata if isinstance(item, Gt)), None)
    high = next((f"to {_number(item.le)}" for item in metadata if isinstance(item, Le)), None)
    high = high or next((f"below {item.lt:g}" for item in metadata if isinstance(item, Lt)), None)
    if low is None and high is None and any(isinstance(item, (MinLen, MaxLen)) for item in metadata):
        return ""
    return (", " if low and low.startswith("above") else " ").join(part for part in (low, high) if part)


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def main() -> None:
    """Write the page into a checkout: ``python -m tools.reference.configuration``."""
    Path("docs/configuration.md").write_text(reference(), encoding="utf-8")


if __name__ == "__main__":
    main()
