"""Options and decorators that commands share."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from deployer.cli.app import App

F = TypeVar("F", bound=Callable[..., Any])

#: A file that a command writes; ``-`` is stdout.
FILE = click.Path(path_type=Path)


class Seconds(click.FloatRange):
    """A number of seconds within bounds; ``nan`` and ``inf`` are refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is not a valid number of seconds.", param, ctx)
        return seconds


class Duration(click.ParamType[float]):
    """Seconds, or a time with units such as ``90s``, ``10m``, ``1h30m``, ``2d``; ``inf`` has no end."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip()
        if text == "inf":
            return math.inf
        parts = re.fullmatch(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?", text)
        if not text or parts is None:
            self.fail(f"{text!r} is not a valid time: write it like 90s, 10m, 1h30m or 2d.", param, ctx)
        return float(
            sum(int(part or 0) * unit for part, unit in zip(parts.groups(), (86400, 3600, 60, 1), strict=True))
        )


def common_options(function: F) -> F:
    """Add the options that every command takes, before or after its name."""

    def store(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        if value not in (None, False):
            context.ensure_object(App).flags[str(parameter.name)] = value
        return value

    options = [
        click.option(
            "-i",
            "--inventory",
            type=click.Path(path_type=Path),
            expose_value=False,
            callback=store,
            help="Inventory file (or DEPLOYER_INVENTORY).",
        ),
        click.option(
            "-s",
            "--service",
            expose_value=False,
            callback=store,
            help="Service name. Optional if the inventory has only one.",
        ),
        click.option(
            "--json",
            is_flag=True,
            expose_value=False,
            callback=store,
            help="Print one JSON document on stdout, nothing else.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


wait_option = click.option(
    "--wait",
    type=Duration(),
    is_flag=False,
    flag_value="inf",
    default="0",
    metavar="[=DURATION]",
    help="If somebody else is at work on the host, or it is on hold, wait that long (without =DURATION: until they "
    "are done) instead of exiting with 4.",
)


def pass_app(function: Callable[..., Any]) -> Callable[..., Any]:
    """Pass the command its `App`."""
    return click.make_pass_decorator(App, ensure=True)(function)
