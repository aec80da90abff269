"""``sglang.srt.server_args`` as far as deployer asks it: the version's flags, and what becomes of a command line."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from typing import Any

from .. import flags
from ..model import LaunchError, read_model
from ..resolve import check_arguments, resolve
from ..settings import Settings, load_settings

logger = logging.getLogger(__name__)
_ERRORS: dict[str, type[Exception]] = {"AssertionError": AssertionError, "OSError": OSError}


class ServerArgs:
    """The fields of the version's arguments, as attributes."""

    def __init__(self, fields: dict[str, Any], settings: Settings, argv: Sequence[str]) -> None:
        self._settings, self._argv = settings, tuple(argv)
        self.__dict__.update(fields)

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> None:
        """Give a parser the version's flags."""
        settings = load_settings()
        flags.add_flags(parser, flags.load_table(settings.args_folder, settings.version))

    def fields(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def check_server_args(self) -> None:
        """What a server checks before it loads anything."""
        try:
            check_arguments(self.fields())
        except LaunchError as error:
            raise as_raised(error) from None

    def resolved(self) -> dict[str, Any]:
        """The values a server would start with."""
        asked = self.fields()
        try:
            model = read_model(str(asked["model_path"]))
        except LaunchError as error:
            raise as_raised(error) from None
        if asked["pp_size"] > 1 and self._settings.modern:
            logger.warning("Pipeline parallelism is incompatible with overlap schedule.")
        return resolve(asked, model, self._settings, self._argv).fields


class LateServerArgs(ServerArgs):
    """From 0.5.23 on: parsing resolves nothing, and the fields stay as they were asked."""

    def resolve_once(self) -> None:
        if "_resolved" in vars(self):
            raise RuntimeError("resolve_once may not be called again")
        self._resolved = self.resolved()

    def resolved_dict(self) -> dict[str, Any]:
        return dict(self._resolved)


def as_raised(error: LaunchError) -> Exception:
    """The stand-in's error as the exception it plays."""
    return _ERRORS.get(error.kind, ValueError)(error.message)


def prepare_server_args(argv: Sequence[str]) -> ServerArgs:
    """Parse a command line as the version does; to 0.5.16 that resolves, too."""
    settings = load_settings()
    table = flags.load_table(settings.args_folder, settings.version)
    asked = flags.parse(table, argv)
    if [int(part) for part in settings.version.split(".")[:3] if part.isdigit()] >= [0, 5, 23]:
        return LateServerArgs(asked, settings, argv)
    made = ServerArgs(asked, settings, argv)
    made.__dict__.update(made.resolved())
    return made
