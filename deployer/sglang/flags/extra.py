"""Flags given by name in ``[extra_args]``, checked against the flag table of the version they are meant for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from deployer.config.inventory import ServiceConfig
from deployer.config.wording import nearest, printable, shown, unknown
from deployer.sglang.flags.versions import Flag, FlagTable, Version, history

#: Takes a remark for the operator.
Remark = Callable[[str], None]

_NAME = re.compile(r"-{0,2}([A-Za-z0-9][A-Za-z0-9_-]*)")
_SECRET_NAME = re.compile(
    r"(^|-)(api-key|password|passphrase|secret|secret-key|access-key|private-key|credentials?|auth-token|"
    r"hf-token|hub-token|access-token|bearer)(-|$)"
)
_SECRET_VALUE = re.compile(
    r"(hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|AKIA[0-9A-Z]{16}|://[^/\s:@]+:[^/\s@]+@)"
)
_NEGATIVE = re.compile(r"-(\d+(\.\d*)?|\.\d+)")
_HUMAN = re.compile(r"\d+(\.\d+)?[kKmMgGtT]?")
_JSON_TYPES = frozenset({"loads", "json_list_type", "parse_cuda_graph_config_arg"})


def option_name(key: str) -> str | None:
    """Return the option for a key of [extra_args] (``mem_frac``: ``--mem-frac``); None if the key is not valid."""
    match = _NAME.fullmatch(key)
    return "--" + match[1].replace("_", "-") if match else None


def place(key: str, service: ServiceConfig | None) -> tuple[str, ...]:
    """Return the place of a key of [extra_args]: the service's table if it has it, because that wins."""
    of_service = service is not None and key in service.extra_args
    return ("services", service.name, "extra_args", key) if service and of_service else ("extra_args", key)


def secret_looking(option: str, value: Any) -> bool:
    """Return whether an option seems to carry a secret, by its name or its value."""
    if _SECRET_NAME.search(option.removeprefix("--")):
        return True
    if isinstance(value, Mapping):
        return any(secret_looking(f"--{str(key).replace('_', '-').lower()}", item) for key, item in value.items())
    if isinstance(value, list):
        return any(secret_looking("", item) for item in value)
    return isinstance(value, str) and _SECRET_VALUE.search(value) is not None


def lacking(option: str, versions: Sequence[Version], table: FlagTable) -> str:
    """Return the sentence about a version without ``option``, which the ``versions`` have."""
    text = f"{table.title} has no {option}"
    if later := [version for version in versions if version > table.version]:
        return f"{text}; SGLang {later[0]} is the first known version that has it"
    return text + (f"; SGLang {versions[-1]} is the last known version that has it" if versions else "")


def missing(option: str, table: FlagTable, owned: Mapping[str, str], learned: Path | None = None) -> str:
    """Return the sentence about an option that a version does not have."""
    versions, near = history(option, learned), nearest(option, table.by_name)
    text = lacking(option, versions, table)
    if versions:
        gone = versions[0] <= table.version
        return text + (f" (now perhaps {near})" if gone and near and alike(option, near) else "")
    if full := sorted(name for name in table.by_name if name.startswith(option)):
        return _abbreviation(option, full, owned)
    return text + (f"; did you mean {near}?" if near else "")


def alike(option: str, other: str) -> bool:
    """Return whether two flags are about the same thing: they share half of their words, and both or none disable it.

    Similar letters alone mean little: --enable-nan-detection, --enable-lean-attention.
    """
    one, two = ({word[:4] for word in name[2:].split("-")} - {"enab"} for name in (option, other))
    return len(one & two) * 2 >= len(one | two) and ("disa" in one) == ("disa" in two)


def _abbreviation(option: str, full: Sequence[str], owned: Mapping[str, str]) -> str:
    """Return the sentence about an abbreviation: the parser accepts it until a later version makes it ambiguous."""
    if len(full) == 1:
        field = f" (set by {owned[full[0]]})" if full[0] in owned else ""
        return f"{option} is an abbreviation; the full name is {full[0]}{field}"
    listed = ", ".join(full[:5]) + (", ..." if len(full) > 5 else "")
    ours = next((f"; {name} is set by {owned[name]}" for name in full if name in owned), "")
    return f"{option} is an abbreviation of {len(full)} flags; write one in full: {listed}{ours}"


def render(flag: Flag, option: str, value: Any, remark: Remark | None = None) -> tuple[list[str], Any]:
    """Return the words of one flag, and the value ``/server_info`` will show. Raise ValueError with what is wrong.

    A value that is not among the choices is wrong, or with ``remark`` only remarked upon.
    """
    if flag.action == "DeprecatedAction":
        raise ValueError(f"{option} no longer has any effect in this version; remove it")
    if flag.action == "BooleanOptionalAction" or flag.switch:
        return _switch(flag, option, value)
    if flag.nargs in ("+", "*") and not isinstance(value, list):
        value = [value]
    if flag.nargs in ("+", "*"):
        if flag.nargs == "+" and not value:
            raise ValueError("found an empty list, expected at least one value")
        items = [_one(flag, item, remark) for item in value]
        for text, _ in items:
            if text.startswith("-") and not _NEGATIVE.fullmatch(text):
                raise ValueError(f"an item must not begin with - (found {shown(text)})")
        return [option, *(text for text, _ in items)], [item for _, item in items]
    if flag.nargs == "?" and isinstance(value, bool):
        return _switch(flag, option, value)
    text, effective = _one(flag, value, remark)
    if text.startswith("-") and not _NEGATIVE.fullmatch(text):
        return [f"{option}={text}"], effective
    return [option, text], effective


def _switch(flag: Flag, option: str, value: Any) -> tuple[list[str], Any]:
    if not isinstance(value, bool):
        raise ValueError(f"found {shown(value)}, expected true or false: {option} takes no value")
    if value:
        return [option], True
    if flag.action == "BooleanOptionalAction":
        return [f"--no-{option.removeprefix('--')}"], False
    return [], False


def _one(flag: Flag, value: Any, remark: Remark | None) -> tuple[str, Any]:
    """Return one value as a word, and as ``/server_info`` will show it."""
    kind = flag.type or "str"
    if kind in _JSON_TYPES:
        text, effective = _json(kind, value)
    elif kind == "int":
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"found {shown(value)}, expected a whole number")
        text, effective = str(value), value
    elif kind == "float":
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"found {shown(value)}, expected a number")
        text, effective = repr(value), float(value)
    elif kind == "human_readable_int":
        fits = isinstance(value, str) and _HUMAN.fullmatch(value)
        if isinstance(value, bool) or not (isinstance(value, int) or fits):
            raise ValueError(f'found {shown(value)}, expected a whole number, or one like "128K"')
        text, effective = str(value), value
    elif isinstance(value, (dict, list)):
        text = _dump(value)
        effective = text
    elif isinstance(value, str):
        text, effective = value, value
    else:
        raise ValueError(f"found {shown(value)}, expected text")
    if flag.choices is not None and effective not in flag.choices:
        if remark is None:
            raise ValueError(unknown(text, map(str, flag.choices), kind=f"found {shown(value)}, not a choice"))
        near = nearest(text, map(str, flag.choices))
        remark(
            f"{shown(value)} is not among the known choices of {flag.names[0]}"
            + (f" (did you mean {near}?)" if near else "")
        )
    return text, effective


def _dump(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        raise ValueError("has a value that JSON cannot represent (a date, a time, inf or nan)") from None


def _json(kind: str, value: Any) -> tuple[str, Any]:
    if isinstance(value, str):
        try:
            effective = json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError("not valid JSON; write a table, or JSON text") from None
        text = value
    else:
        text, effective = _dump(value), value
    if kind == "json_list_type" and not isinstance(effective, list):
        raise ValueError("expected a list")
    return text, effective


def check_names(
    extra: Mapping[str, Any], table: FlagTable, owned: Mapping[str, str], learned: Path | None = None
) -> tuple[list[tuple[str, Flag, str, Any]], list[tuple[str, str]]]:
    """Match the keys of [extra_args] with flags.

    ``owned`` maps the options that typed fields render to those fields. Return (option, flag, key, value) sorted by
    option, and what is wrong as (key, sentence).
    """
    known = table.by_name
    owned_dests = {known[option].dest: field for option, field in owned.items() if option in known}
    matched: dict[str, tuple[str, Flag, str, Any]] = {}
    wrong: list[tuple[str, str]] = []
    for key, value in extra.items():
        option = option_name(key)
        if option is None:
            wrong.append((key, "not a valid name of a flag (letters, digits and -)"))
        elif secret_looking(option, value):
            text = "looks like a secret, which must not be on a command line"
            wrong.append((key, f"{text}; {_secret_remedy(option)}"))
        elif option in owned:
            wrong.append((key, f"{option} is set by {owned[option]}"))
        elif option not in table.by_name:
            wrong.append((key, missing(option, table, owned, learned)))
        else:
            flag = table.by_name[option]
            name = flag.names[0]
            if flag.dest in owned_dests and not flag.choices:
                wrong.append((key, f"{option} is set by {owned_dests[flag.dest]}"))
            elif name in matched:
                wrong.append((key, f"the same flag as {printable(matched[name][2], 60)}"))
            else:
                matched[name] = (name, flag, key, value)
    return [matched[name] for name in sorted(matched)], wrong


def _secret_remedy(option: str) -> str:
    if option == "--api-key":
        return "use the service's api_key"
    return "leave it out, or give it as a secret environment variable if SGLang reads one"


def words(
    items: Sequence[tuple[str, Flag, str, Any]], remark: Remark | None = None
) -> tuple[list[str], dict[str, Any], list[tuple[str, str]]]:
    """Return matched flags as words, what ``/server_info`` will show, and what is wrong as (key, sentence)."""
    argv: list[str] = []
    shows: dict[str, Any] = {}
    wrong: list[tuple[str, str]] = []
    for option, flag, key, value in items:
        try:
            rendered, effective = render(flag, option, value, remark)
        except ValueError as error:
            wrong.append((key, str(error)))
            continue
        argv += rendered
        shows[flag.info_name] = effective
    return argv, shows, wrong
