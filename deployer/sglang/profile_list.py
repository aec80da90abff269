"""A list of profiles: what each of them asks of a version of SGLang, and why it does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

from deployer.config.problems import complain
from deployer.config.profile import Profile, load_profile, profile_names
from deployer.errors import ConfigError
from deployer.sglang.flags.arguments import render
from deployer.sglang.flags.versions import FlagTable, flag_table
from deployer.sglang.rules import shape_problems


class ProfileRow(TypedDict):
    """One profile; without arguments if it does not fit the version, and then ``problem`` says why."""

    name: str
    description: str
    extends: list[str]
    gpus: int | None
    gate: dict[str, Any]
    arguments: list[str] | None
    problem: str | None
    notes: list[str]


def profile_listing(folders: Sequence[Path], version: str | None, learned: Path | None = None) -> list[ProfileRow]:
    """Return a row for every profile in the folders, by name; one that cannot be read only has a ``problem``.

    ``learned`` is the folder of the site's own flag tables. Raise ConfigError if the version is not one or too old, or
    if a folder cannot be read.
    """
    table = flag_table(version, learned)
    rows = []
    for name in profile_names(folders):
        try:
            rows.append(_row(load_profile(name, folders), table, learned))
        except ConfigError as error:
            rows.append(_empty(name, error.message))
    return rows


def _empty(name: str, problem: str) -> ProfileRow:
    return ProfileRow(
        name=name, description="", extends=[], gpus=None, gate={}, arguments=None, problem=problem, notes=[]
    )


def _row(profile: Profile, table: FlagTable, learned: Path | None) -> ProfileRow:
    rendered = render(profile, None, table, learned)
    problems = [*shape_problems(profile), *rendered.problems]
    return ProfileRow(
        name=profile.name,
        description=profile.description,
        extends=list(profile.chain[1:]),
        gpus=profile.gpus,
        gate=dict(profile.gate),
        arguments=None if problems else rendered.argv,
        problem=complain(f"profile {profile.name}", problems).message if problems else None,
        notes=[] if problems else rendered.notes,
    )
