"""Reading TOML, and reporting everything that is wrong with a file in one message."""

from __future__ import annotations

import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self, Union

from pydantic import BaseModel, ConfigDict, ValidationError

from deployer.config.files import FILE_LIMIT, read_regular
from deployer.config.wording import KeyPath, key_path, nearest, printable, shown, unknown
from deployer.errors import ConfigError

#: Tags of unions, which pydantic puts into the place of an error, begin with this.
TAG = "<"


class Model(BaseModel):
    """Base of everything that is read from a file: closed, frozen, and without conversions between types."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        defer_build=True,  # a command builds the models that it uses
    )

    def over(self, base: Self) -> Self:
        """Return ``base`` with the values on top that were given here."""
        return base.model_copy(update={name: getattr(self, name) for name in self.model_fields_set})


class KeyProblems(ValueError):
    """Problems with single keys of a table or items of a list, raised by a validator."""

    def __init__(self, items: Sequence[tuple[str | int, str]]) -> None:
        super().__init__("; ".join(text for _, text in items))
        self.items = tuple(items)


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: its place, what was found there and what was expected."""

    path: KeyPath
    text: str

    def __str__(self) -> str:
        return f"{key_path(self.path)}: {self.text}" if self.path else self.text


def complain(source: Path | str, problems: Sequence[Problem], *, remedy: str | None = None) -> ConfigError:
    """Return one error that lists all problems of a file."""
    unique = list(dict.fromkeys(str(problem) for problem in problems))
    name = printable(str(source), 400)
    if len(unique) == 1:
        message = f"{name}: {unique[0]}"
    else:
        message = f"{name}: {len(unique)} problems\n" + "\n".join(f"  {line}" for line in unique)
    return ConfigError(message, remedy=remedy or f"correct {name}", detail={"file": name, "problems": unique})


def read_text(path: Path, what: str) -> str:
    """Return the text of a regular file, without a byte order mark.

    Raise ConfigError (never OSError or UnicodeError) if it cannot be read or is larger than `FILE_LIMIT`.
    """
    name = printable(str(path), 400)
    try:
        data = read_regular(path, FILE_LIMIT)
    except FileNotFoundError:
        raise ConfigError(
            f"{what} {name} does not exist", remedy="give the path of an existing file, or create it"
        ) from None
    except IsADirectoryError:
        raise ConfigError(f"{what} {name} is a folder, not a file", remedy="give the path of the file in it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"{what} {name} cannot be read: {printable(reason)}", remedy="check the path and its permissions"
        ) from None
    if len(data) > FILE_LIMIT:
        raise ConfigError(
            f"{what} {name} is larger than {FILE_LIMIT // 1024**2} MiB",
            remedy="give the path of the right file",
        )
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(
            f"{what} {name} is not UTF-8 text: line {line} has the byte 0x{data[error.start]:02x}",
            remedy="save the file as UTF-8",
        ) from None


def parse_toml(text: str, path: Path, what: str) -> dict[str, Any]:
    """Return the tables of a TOML text. Raise ConfigError with the line that is not TOML, or if the text is empty."""
    name = printable(str(path), 400)
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, ValueError, RecursionError) as error:
        reason = "tables are nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ConfigError(f"{what} {name} is not TOML: {printable(reason)}", remedy=f"correct {name}") from None
    if not data:
        raise ConfigError(f"{what} {name} is empty", remedy="docs/configuration.md lists what belongs there")
    return data


def load_toml(path: Path, what: str) -> dict[str, Any]:
    """Return the tables of a TOML file; ``what`` ("the inventory") names it in messages."""
    return parse_toml(read_text(path, what), path, what)


#: Tables of these keys are one value: a secret, or flags and variables that may be one.
_WHOLE = frozenset({"api_key", "webhook"})
_WHOLE_INSIDE = frozenset({"environment", "extra_args"})


def merge_tables(base: Mapping[str, Any], top: Mapping[str, Any], inside: bool = False) -> dict[str, Any]:
    """Return ``top`` over ``base``, table by table; lists and secrets are taken whole."""
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        if isinstance(value, dict) and isinstance(below, dict) and not inside and key not in _WHOLE:
            merged[key] = merge_tables(below, value, key in _WHOLE_INSIDE)
        else:
            merged[key] = value
    return merged


def problems_of(error: ValidationError, model: type[BaseModel], at: KeyPath = ()) -> list[Problem]:
    """Return pydantic's errors in the words of this project, each with its place below ``at``."""
    problems = []
    for item in error.errors(include_url=False):
        cause = item.get("ctx", {}).get("error")
        if isinstance(cause, KeyProblems):
            place = (*at, *_place(item["loc"]))
            problems += [Problem((*place, key), printable(text, 2000)) for key, text in cause.items]
        else:
            problems.append(_problem(item, model, at))
    return problems


def _place(loc: tuple[int | str, ...]) -> KeyPath:
    return tuple(part for part in loc if not str(part).startswith(TAG) and part != "[key]")


_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text in quotes",
    "list_type": "a list in brackets",
    "dict_type": "a table",
    "model_type": "a table",
    "finite_number": "a finite number",
    "path_type": "a path in quotes",
}

#: Errors about a length, by pydantic's names.
_LENGTHS = {
    "too_short": "has too few items (minimum {min_length})",
    "too_long": "has too many items (maximum {max_length})",
    "string_too_short": "must not be empty",
    "string_too_long": "is too long (maximum {max_length} characters)",
}


def _problem(item: Mapping[str, Any], model: type[BaseModel], at: KeyPath) -> Problem:
    place = _place(item["loc"])
    if item["type"] == "extra_forbidden":
        # The last part is a key as it was written, which may look like a tag.
        place = (*_place(item["loc"][:-1]), item["loc"][-1])
    path = at + place
    kind, context, value = item["type"], item.get("ctx", {}), shown(item["input"], path)
    if kind == "extra_forbidden":
        return Problem(path, unknown(str(place[-1]), fields_at(model, place[:-1])))
    if kind == "missing":
        return Problem(path, "is missing")
    if kind == "literal_error":
        allowed = [str(value) for value in literals_at(model, place)]
        near = nearest(item["input"], allowed) if isinstance(item["input"], str) else None
        hint = f"; did you mean {near}?" if near else ""
        return Problem(path, f"found {value}{hint} (allowed: {', '.join(allowed) or context.get('expected')})")
    if kind in _EXPECTED:
        return Problem(path, f"found {value}, expected {_EXPECTED[kind]}")
    if kind in _LENGTHS:
        return Problem(path, _LENGTHS[kind].format(**context))
    if kind == "value_error":
        return Problem(path, printable(str(context["error"]), 2000))
    reason = str(item["msg"]).removeprefix("Input should be ").removeprefix("Value should ")
    return Problem(path, f"found {value}, expected {printable(reason)}")


def fields_at(model: type[BaseModel], path: KeyPath) -> list[str]:
    """Return the keys that a table may have, by the model of the file and the table's place in it."""
    annotation = _annotation_at(model, path)
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return []
    return [name for name, field in annotation.model_fields.items() if not field.exclude]


def literals_at(model: type[BaseModel], path: KeyPath) -> list[Any]:
    """Return the values allowed at a place that takes one of a few words."""
    annotation = _annotation_at(model, path)
    return list(typing.get_args(annotation)) if typing.get_origin(annotation) is typing.Literal else []


def _annotation_at(model: Any, path: KeyPath) -> Any:
    current: Any = model
    for part in path:
        current = _plain(current)
        if isinstance(current, type) and issubclass(current, BaseModel):
            field = current.model_fields.get(str(part))
            current = field.annotation if field is not None else None
        elif typing.get_origin(current) in (dict, Mapping):
            current = typing.get_args(current)[1]
        elif typing.get_origin(current) in (list, tuple):
            current = typing.get_args(current)[0]
        else:
            return None
    return _plain(current)


def _plain(annotation: Any) -> Any:
    """Return an annotation without Annotated and ``| None``; of other unions the model, if there is one."""
    while True:
        origin = typing.get_origin(annotation)
        if origin is Annotated:
            annotation = typing.get_args(annotation)[0]
        elif origin in (Union, types.UnionType):
            members = [member for member in typing.get_args(annotation) if member is not type(None)]
            models = [
                member for member in map(_plain, members) if isinstance(member, type) and issubclass(member, BaseModel)
            ]
            annotation = models[0] if models else members[0]
        else:
            return annotation
