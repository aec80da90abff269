"""SGLang's versions, and the command-line flags each of them has.

The tables in ``data/args-<version>.json`` were taken from the versions' own parsers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, total_ordering
from pathlib import Path
from typing import Any

from deployer.config.problems import printable
from deployer.errors import ConfigError

_DATA = Path(__file__).resolve().parent / "data"
_VERSION = re.compile(
    r"v?(?P<release>\d+(?:\.\d+){1,5})"
    r"(?:[-_.]?(?P<pre>a|b|rc)\.?(?P<pre_n>\d+))?(?:\.post(?P<post>\d+))?(?:\.dev(?P<dev>\d+))?"
    r"(?:\+[A-Za-z0-9._-]+)?"
)
#: Names under which older versions parse what their ServerArgs, and /server_info, call otherwise.
_SERVER_INFO_NAMES = {
    "tensor_parallel_size": "tp_size",
    "pipeline_parallel_size": "pp_size",
    "data_parallel_size": "dp_size",
    "expert_parallel_size": "ep_size",
    "attention_context_parallel_size": "attn_cp_size",
    "moe_data_parallel_size": "moe_dp_size",
}


@total_ordering
@dataclass(frozen=True)
class Version:
    """A version of SGLang: ``0.5.12.post1`` follows ``0.5.12``, which follows ``0.5.12rc1``."""

    text: str
    key: tuple[Any, ...] = field(repr=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __lt__(self, other: Version) -> bool:
        return self.key < other.key

    def __str__(self) -> str:
        return self.text


def parse_version(text: str) -> Version:
    """A version from its text. ConfigError, which lists those that are known, when it is none."""
    match = _VERSION.fullmatch(text) if len(text) <= 100 and text.isascii() else None
    if match is None:
        known = ", ".join(map(str, known_versions()))
        raise ConfigError(
            f"{printable(text, 60)!r} is no version of SGLang",
            remedy=f"a version looks like 0.5.12.post1; known are {known}",
        )
    release = [int(part) for part in match["release"].split(".")]
    while release and release[-1] == 0:
        release.pop()
    post = int(match["post"]) if match["post"] else -1
    dev = int(match["dev"]) if match["dev"] else None
    pre = ({"a": 0, "b": 1, "rc": 2}[match["pre"]], int(match["pre_n"])) if match["pre"] else None
    if pre is None:
        # A development version without anything else precedes all pre-releases of the same release.
        pre = (-1, 0) if dev is not None and post < 0 else (3, 0)
    return Version(text, (tuple(release), pre, post, dev is None, dev or 0))


@dataclass(frozen=True)
class Flag:
    """One flag of one version."""

    names: tuple[str, ...]
    dest: str
    type: str | None
    action: str | None
    nargs: int | str | None
    choices: tuple[Any, ...] | None
    default: Any
    deprecated: bool

    @property
    def switch(self) -> bool:
        """Whether it takes no value."""
        return self.nargs == 0

    @property
    def info_name(self) -> str:
        """The name of its value in ``/server_info``."""
        return _SERVER_INFO_NAMES.get(self.dest, self.dest)


@dataclass(frozen=True)
class FlagTable:
    """All flags of one version. ``note`` says so when the table is that of an earlier version than asked for."""

    version: Version
    asked: Version
    flags: tuple[Flag, ...]
    note: str | None = None

    @cached_property
    def by_name(self) -> Mapping[str, Flag]:
        """Option string (``--tp-size``) -> flag."""
        return {name: flag for flag in self.flags for name in flag.names}


@cache
def known_versions() -> tuple[Version, ...]:
    """The versions whose flags are known, oldest first."""
    names = (path.name.removeprefix("args-").removesuffix(".json") for path in _DATA.glob("args-*.json"))
    return tuple(sorted(parse_version(name) for name in names))


@cache
def _flags(version: str) -> tuple[Flag, ...]:
    data = json.loads((_DATA / f"args-{version}.json").read_text(encoding="utf-8"))
    return tuple(
        Flag(
            names=tuple(item["names"]),
            dest=item["dest"],
            type=item.get("type"),
            action=item.get("action"),
            nargs=item.get("nargs"),
            choices=tuple(item["choices"]) if "choices" in item else None,
            default=item.get("default"),
            deprecated=item.get("deprecated", False),
        )
        for item in data["flags"]
    )


@cache
def flag_table(version: str | None) -> FlagTable:
    """The flags of a version, or of the nearest known version before it. None means the newest known.

    ConfigError when the version is older than all that are known.
    """
    known = known_versions()
    if version is None:
        newest = known[-1]
        note = f"the SGLang version on the host is not known; flags are those of {newest}"
        return FlagTable(newest, newest, _flags(newest.text), note)
    asked = parse_version(version)
    fitting = [candidate for candidate in known if candidate <= asked]
    if not fitting:
        raise ConfigError(
            f"SGLang {asked} is older than {known[0]}, the oldest version whose flags are known",
            remedy="install a later SGLang on the host",
        )
    found = fitting[-1]
    inexact: str | None = None
    if found != asked:
        inexact = f"the flags of SGLang {asked} are not known exactly; those of {found} were used"
    return FlagTable(found, asked, _flags(found.text), inexact)


@cache
def history(option: str) -> tuple[Version, ...]:
    """The known versions that have an option, oldest first."""
    return tuple(version for version in known_versions() if option in flag_table(version.text).by_name)
