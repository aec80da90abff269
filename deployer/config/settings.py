"""Settings of the tool itself: flag, else DEPLOYER_* environment, else .env, else deployer.toml, else default."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deployer.config.problems import Problem, complain, load_toml, problems_of, read_text
from deployer.config.secrets import LocalPath
from deployer.config.wording import printable, shown, unknown

PREFIX = "DEPLOYER_"
FILE = "deployer.toml"

with warnings.catch_warnings():
    # `json` is also a deprecated method of pydantic's, which is not called here.
    warnings.filterwarnings("ignore", message='Field name "json"')

    class Settings(BaseModel):
        """The settings of the tool; `load_settings` reads them."""

        model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True)

        inventory: LocalPath | None = Field(None, description="the inventory")
        profiles: LocalPath | None = Field(None, description="folder of the site's own profiles")
        templates: LocalPath | None = Field(None, description="folder of the site's own templates")
        flags: LocalPath | None = Field(
            None,
            description="folder of flag tables learned from hosts (default: `flags` beside the inventory)",
        )
        service: str | None = Field(None, description="the service to work on")
        json: bool = Field(False, description="one JSON document on standard output")  # type: ignore[assignment]
        yes: bool = Field(False, description="do not ask for confirmation before something live restarts")
        verbose: bool = Field(False, description="show more")
        color: Literal["auto", "always", "never"] = Field("auto", description="colours on the terminal")


def load_settings(flags: Mapping[str, Any] | None = None, folder: Path | None = None) -> Settings:
    """Return the settings in force. Raise ConfigError with the source of a value that is not valid.

    ``flags`` are those of the command line (None: not given). ``.env`` and ``deployer.toml`` are read from ``folder``
    (default: the working directory), and paths in them begin there.
    """
    here = folder if folder is not None else Path.cwd()
    # The strongest first: each setting is the one of the first source that has it.
    sources: dict[str, Mapping[str, Any]] = {
        "the command line": {name: value for name, value in (flags or {}).items() if value is not None},
        "the environment": _environment(),
        str(here / ".env"): _dotenv(here / ".env"),
        str(here / FILE): _toml(here / FILE),
    }
    options, *others = sources.values()
    try:
        return _merged(options, others) if any(others) else Settings.model_validate(options)
    except ValidationError as error:
        raise complain("settings", list(_from(error, sources)), remedy="correct them at their source") from None


def _merged(options: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> Settings:
    """Return the settings of all sources: ``options``, then ``others``, of which the first is the environment."""
    # Here: to load it takes a tenth of the time that a `status` computes, and often there are options only.
    from pydantic_settings import (
        BaseSettings,
        InitSettingsSource,
        PydanticBaseSettingsSource,
        SettingsConfigDict,
    )

    class Merged(BaseSettings, Settings):
        model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True)

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            files = (InitSettingsSource(settings_cls, init_kwargs=dict(values)) for values in others[1:])
            return init_settings, env_settings, *files

    merged = Merged(**options)
    return Settings.model_construct(**{name: getattr(merged, name) for name in Settings.model_fields})


def _environment() -> dict[str, str]:
    """Return the DEPLOYER_* variables that are settings; others belong to other programs."""
    variables = {name.upper(): value for name, value in os.environ.items() if value}
    names = {name: f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    return {name: variables[variable] for name, variable in names.items() if variable in variables}


def _from(error: ValidationError, sources: Mapping[str, Mapping[str, Any]]) -> Iterator[Problem]:
    for problem in problems_of(error, Settings):
        name = str(problem.path[0]) if problem.path else ""
        where = next((place for place, values in sources.items() if name in values), "the command line")
        shown_name = f"{PREFIX}{name.upper()}" if where == "the environment" else name
        yield Problem((), f"{shown_name} in {printable(where)}: {problem.text}")


def _dotenv(path: Path) -> dict[str, str]:
    """Return the DEPLOYER_* variables of a .env file; the others there belong to other programs."""
    if not path.exists():
        return {}
    from dotenv.parser import parse_stream

    problems, values = [], {}
    for binding in parse_stream(StringIO(read_text(path, "the file"))):
        if binding.error:
            problems.append(Problem((), f"line {binding.original.line} is not NAME=value"))
        name = (binding.key or "").upper()
        if not name.startswith(PREFIX) or not binding.value:
            continue
        field = name.removeprefix(PREFIX).lower()
        if field in Settings.model_fields:
            values[field] = binding.value
        else:
            allowed = [f"{PREFIX}{item.upper()}" for item in Settings.model_fields]
            problems.append(Problem((name,), unknown(name, allowed, kind="unknown setting")))
    if problems:
        raise complain(path, problems)
    return _at(path.parent, values)


def _toml(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    data = load_toml(path, "the settings file")
    problems = []
    for key, value in data.items():
        field = Settings.model_fields.get(key)
        if field is None:
            problems.append(Problem((key,), unknown(key, Settings.model_fields)))
        elif isinstance(value, bool) != (field.annotation is bool) or not isinstance(value, (bool, str)):
            expected = "true or false" if field.annotation is bool else "text in quotes"
            problems.append(Problem((key,), f"found {shown(value)}, expected {expected}"))
    if problems:
        raise complain(path, problems)
    return _at(path.parent, data)


def _at(folder: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values, with relative paths beginning at the folder of their file."""
    paths = ("inventory", "profiles", "templates", "flags")
    return {
        name: str(folder / value) if name in paths and value and not value.startswith("~") else value
        for name, value in values.items()
    }
