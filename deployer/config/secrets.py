"""Secrets: configuration names where one comes from (a variable, a file or a command) and never holds its value."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    model_serializer,
    model_validator,
)

from deployer.config.files import read_regular
from deployer.config.problems import Model
from deployer.config.wording import printable
from deployer.errors import ConfigError

#: How long a secret's command may take, in seconds.
COMMAND_TIMEOUT = 60.0
_LIMIT = 64 * 1024


def path_from(value: Any, info: ValidationInfo) -> Any:
    """Return the path: ``~`` means home, and a relative path begins at the folder of its file."""
    if not isinstance(value, str):
        return value
    if not value or "\0" in value:
        raise ValueError("a path must not be empty or contain NUL")
    try:
        path = Path(value).expanduser()
    except RuntimeError as error:
        raise ValueError(f"the home folder in {printable(value, 80)} is unknown") from error
    folder = (info.context or {}).get("folder")
    return Path(folder) / path if folder is not None else path


#: A path on the operator's machine.
LocalPath = Annotated[Path, BeforeValidator(path_from)]


class Secret(Model):
    """Where a secret comes from on the operator's machine. The value is never kept or shown."""

    env: str | None = Field(None, min_length=1, description="name of an environment variable")
    file: LocalPath | None = Field(None, description="path of a file; its text, without a final newline")
    command: list[str] | None = Field(
        None, min_length=1, description="command (program and arguments, no shell) that prints it"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(source is not None for source in (self.env, self.file, self.command)) != 1:
            raise ValueError("a secret must have exactly one of env, file and command")
        if self.command is not None and not self.command[0]:
            raise ValueError("the command of a secret must not be empty")
        return self

    @property
    def source(self) -> str:
        """The kind of its source: ``env``, ``file`` or ``command``."""
        return "env" if self.env is not None else "file" if self.file is not None else "command"

    @model_serializer
    def _masked(self) -> dict[str, str]:
        return {self.source: "***"}

    def __repr__(self) -> str:
        return f"Secret({self.source}=***)"

    __str__ = __repr__

    def resolve(self) -> str:
        """Return the secret. Raise ConfigError, without the value, if its source has none."""
        if self.env is not None:
            value = os.environ.get(self.env)
            where = f"environment variable {printable(self.env, 80)}"
            if value is None:
                raise ConfigError(f"{where}, which holds a secret, is not set", remedy=f"set {where}")
        elif self.file is not None:
            where = f"file {printable(str(self.file))}"
            value = _from_file(self.file, where)
        else:
            where = f"command {printable(self.command[0] if self.command else '', 80)}"
            value = _from_command(self.command or [], where)
        value = value.removesuffix("\n").removesuffix("\r")
        if not value:
            raise ConfigError(f"the secret from {where} is empty", remedy=f"put the secret into {where}")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ConfigError(
                f"the secret from {where} is not UTF-8 text", remedy="store the secret as UTF-8 text"
            ) from None
        return value


def _from_file(path: Path, where: str) -> str:
    try:
        data = read_regular(path, _LIMIT)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "the path is not valid"
        raise ConfigError(
            f"a secret cannot be read from {where}: {reason}", remedy="check the path and its permissions"
        ) from None
    return _text(data, where)


def _from_command(command: list[str], where: str) -> str:
    try:
        result = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"{where}, which prints a secret, did not end within {COMMAND_TIMEOUT:.0f} s",
            remedy="run it by hand: it may wait for input",
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not a valid command"
        raise ConfigError(
            f"{where}, which prints a secret, cannot be run: {reason}", remedy="install it, or correct its path"
        ) from None
    if result.returncode != 0:
        raise ConfigError(
            f"{where}, which prints a secret, ended with status {result.returncode}",
            remedy="run it by hand to see why (its output is not shown here, because it may contain the secret)",
        )
    return _text(result.stdout, where)


def _text(data: bytes, where: str) -> str:
    if len(data) > _LIMIT:
        raise ConfigError(f"the secret from {where} is longer than 64 KiB", remedy="a secret is a short text")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(
            f"the secret from {where} is not UTF-8 text", remedy="store the secret as UTF-8 text"
        ) from None


def _kind(value: Any) -> str:
    return "<secret>" if isinstance(value, (dict, Secret)) else "<text>"


#: A value that may be plain text or a secret.
TextOrSecret = Annotated[Annotated[str, Tag("<text>")] | Annotated[Secret, Tag("<secret>")], Discriminator(_kind)]
