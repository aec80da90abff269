"""Settings of the tool itself: flag, else DEPLOYER_* environment, else .env, else deployer.toml, else default."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, Literal

from dotenv.parser import parse_stream
from pydantic import Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from deployer.config.problems import Problem, complain, load_toml, problems_of, read_text
from deployer.config.secrets import LocalPath
from deployer.config.wording import printable, shown, unknown

PREFIX = "DEPLOYER_"
FILE = "deployer.toml"

with warnings.catch_warnings():
    # `json` is also the name of a deprecated method of pydantic's, which nobody calls here.
    warnings.filterwarnings("ignore", message='Field name "json"')

    class Settings(BaseSettings):
        """How the tool is used here. `load_settings` reads them."""

        model_config = SettingsConfigDict(
            env_prefix=PREFIX, extra="forbid", frozen=True, env_ignore_empty=True, hide_input_in_errors=True
        )

        inventory: LocalPath | None = Field(None, description="the inventory")
        profiles: LocalPath | None = Field(None, description="folder of the site's own profiles")
        templates: LocalPath | None = Field(None, description="folder of the site's own templates")
        flags: LocalPath | None = Field(
            None,
            description="folder of flag tables learned from hosts (default: `flags` beside the inventory)",
        )
        service: str | None = Field(None, description="the service that is meant")
        json: bool = Field(False, description="one JSON document on standard output")  # type: ignore[assignment]
        yes: bool = Field(False, description="do not ask before something live restarts")
        verbose: bool = Field(False, description="say more")
        color: Literal["auto", "always", "never"] = Field("auto", description="colours on the terminal")


def load_settings(flags: Mapping[str, Any] | None = None, folder: Path | None = None) -> Settings:
    """The settings in force.

    ``flags`` are those of the command line (None: not given); ``.env`` and ``deployer.toml`` are looked for in
    ``folder`` (default: the working directory), and paths in them are relative to it. ConfigError names the source of
    a bad value.
    """
    here = folder if folder is not None else Path.cwd()
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    dotenv = _dotenv(here / ".env")
    toml = _toml(here / FILE)

    class Sources(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            files = (InitSettingsSource(settings_cls, init_kwargs=values) for values in (dotenv, toml))
            return init_settings, env_settings, *files

    try:
        found = Sources(**given)
    except ValidationError as error:
        sources = (
            ("the command line", given),
            ("the environment", _environment()),
            (str(here / ".env"), dotenv),
            (str(here / FILE), toml),
        )
        raise complain(
            "settings", list(_from(error, sources)), remedy="correct them at their source"
        ) from None
    return Settings.model_construct(**{name: getattr(found, name) for name in Settings.model_fields})


def _environment() -> dict[str, str]:
    return {
        name.upper().removeprefix(PREFIX).lower(): value
        for name, value in os.environ.items()
        if name.upper().startswith(PREFIX) and value
    }


def _from(error: ValidationError, sources: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[Problem]:
    for problem in problems_of(error, Settings):
        name = str(problem.path[0]) if problem.path else ""
        where = next((place for place, values in sources if name in values), "the command line")
        shown_name = f"{PREFIX}{name.upper()}" if where == "the environment" else name
        yield Problem((), f"{shown_name} of {printable(where)}: {problem.text}")


def _dotenv(path: Path) -> dict[str, str]:
    """The DEPLOYER_* variables of a .env file; other variables there are somebody else's."""
    if not path.exists():
        return {}
    problems, found = [], {}
    for binding in parse_stream(StringIO(read_text(path, "the file"))):
        if binding.error:
            problems.append(Problem((), f"line {binding.original.line} is not NAME=value"))
        name = (binding.key or "").upper()
        if not name.startswith(PREFIX) or not binding.value:
            continue
        field = name.removeprefix(PREFIX).lower()
        if field in Settings.model_fields:
            found[field] = binding.value
        else:
            allowed = [f"{PREFIX}{known.upper()}" for known in Settings.model_fields]
            problems.append(Problem((name,), unknown(name, allowed, kind="unknown setting")))
    if problems:
        raise complain(path, problems)
    return _at(path.parent, found)


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
            wanted = "true or false" if field.annotation is bool else "text in quotes"
            problems.append(Problem((key,), f"found {shown(value)}, allowed is {wanted}"))
    if problems:
        raise complain(path, problems)
    return _at(path.parent, data)


def _at(folder: Path, values: dict[str, Any]) -> dict[str, Any]:
    """The values with relative paths made relative to the folder of their file."""
    paths = ("inventory", "profiles", "templates", "flags")
    return {
        name: str(folder / value) if name in paths and value and not value.startswith("~") else value
        for name, value in values.items()
    }
