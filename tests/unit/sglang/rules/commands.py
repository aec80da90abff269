"""A launch command as people publish it, read as a profile and a service."""

from __future__ import annotations

import re
import shlex
from typing import Any

from deployer.config.problems import merge_tables
from deployer.sglang.flags.arguments import OWNED
from deployer.sglang.flags.versions import Flag, FlagTable, flag_table

#: Where the value of a concept belongs.
_SERVICE = {
    "the service's model": "model",
    "the service's served_model_name": "served_model_name",
    "the service's bind": "bind",
    "the service's port": "port",
    "the service's api_key": "api_key",
}


def read(command: str, version: str) -> dict[str, Any]:
    """Return the tables ``profile`` and ``service`` of a command. Raise KeyError for a flag that a version lacks."""
    table = flag_table(version)
    words = shlex.split(command)
    environment = {}
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    words = words[words.index("serve") + 1 :] if "serve" in words else words[words.index("sglang.launch_server") + 1 :]
    profile: dict[str, Any] = {"extra_args": {}}
    service: dict[str, Any] = {"environment": environment}
    while words:
        option, _, joined = words.pop(0).partition("=")
        flag = _flag(table, option)
        values = [joined] if joined else []
        while words and not words[0].startswith("--"):
            values.append(words.pop(0))
        _put(profile, service, flag, _value(flag, values))
    return {"profile": profile, "service": service}


def _flag(table: FlagTable, option: str) -> Flag:
    """Return a flag by its name or an unambiguous beginning of it, as argparse does."""
    if option in table.by_name:
        return table.by_name[option]
    found = {id(flag): flag for name, flag in table.by_name.items() if name.startswith(option)}
    if len(found) != 1:
        raise KeyError(option)
    return next(iter(found.values()))


def _value(flag: Flag, values: list[str]) -> Any:
    typed = [_typed(flag.type or "str", value) for value in values]
    if flag.nargs in ("+", "*"):
        return typed
    return typed[0] if typed else True


def _typed(kind: str, text: str) -> Any:
    if kind == "str" or not re.fullmatch(r"-?\d+(\.\d+)?", text):
        return text
    return float(text) if "." in text or kind == "float" else int(text)


def _put(profile: dict[str, Any], service: dict[str, Any], flag: Flag, value: Any) -> None:
    field = next((OWNED[name] for name in flag.names if name in OWNED), None)
    if field is None:
        profile["extra_args"][max(flag.names, key=len).removeprefix("--")] = value
    elif field in _SERVICE:
        service[_SERVICE[field]] = value
    else:
        *tables, key = field.split(".")
        made: dict[str, Any] = {key: value}
        for name in reversed(tables):
            made = {name: made}
        profile.update(merge_tables(profile, made))
