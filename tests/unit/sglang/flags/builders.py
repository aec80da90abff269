"""Profiles and services for the tests of arguments, and a parser made from a version's flag table."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from deployer.config.inventory import HostConfig, ServiceConfig, inventory_from
from deployer.config.profile import Profile
from deployer.sglang import rules
from deployer.sglang.flags.arguments import LaunchArguments
from deployer.sglang.flags.versions import flag_table
from deployer.sglang.rules import Facts

PYTHON = "/opt/sglang/bin/python"


def service(**more: Any) -> ServiceConfig:
    """A service called kimi on a host with 8 GPUs."""
    table = {"host": "box", "model": "/models/kimi", "engine": {"python": PYTHON}, **more}
    return inventory_from({"hosts": {"box": {"gpus": 8}}, "services": {"kimi": table}}, Path("site.toml")).service()


def profile(**tables: Any) -> Profile:
    """A profile from its tables."""
    return Profile.model_validate({"name": "test", **tables})


def launch_arguments(
    profile: Profile, service: ServiceConfig, version: str | None, learned: Path | None = None
) -> LaunchArguments:
    """The command line on a host whose GPUs nobody has counted."""
    host = HostConfig.model_validate({"name": "box"})
    return rules.launch_arguments(Facts.of(profile, service, host, version, learned))


class Parser(argparse.ArgumentParser):
    """argparse that raises ValueError instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


_TYPES: dict[str | None, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "loads": json.loads,
    "json_list_type": json.loads,
    "parse_cuda_graph_config_arg": json.loads,
}


@cache
def parser(version: str, *, abbreviations: bool = False) -> Parser:
    """A parser with exactly the version's flags; SGLang's own takes ``abbreviations``."""
    made = Parser(allow_abbrev=abbreviations)
    for flag in flag_table(version).flags:
        options: dict[str, Any] = {"dest": flag.dest, "default": argparse.SUPPRESS}
        if flag.action == "BooleanOptionalAction":
            options["action"] = argparse.BooleanOptionalAction
        elif flag.nargs == 0:
            options["action"] = "store_true"
        else:
            options["type"] = _TYPES.get(flag.type, str)
            if flag.nargs is not None:
                options["nargs"] = flag.nargs
            if flag.choices is not None:
                options["choices"] = flag.choices
        made.add_argument(*flag.names, **options)
    return made
