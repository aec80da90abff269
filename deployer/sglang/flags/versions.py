"""SGLang's versions, and the command line flags that each of them has.

The tables in ``data/args-<version>.json`` ship with deployer; those that a site has learned from its hosts take
precedence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, total_ordering
from pathlib import Path
from typing import Any

from deployer.config.files import FILE_LIMIT, read_regular
from deployer.config.wording import printable
from deployer.errors import ConfigError

#: The layout of a learned table.
SCHEMA = 1
_DATA = Path(__file__).resolve().parents[1] / "data"
_TABLE_FILE = re.compile(r"args-.*\.json")
_OPTION = re.compile(r"--?[A-Za-z0-9][A-Za-z0-9_.-]*")
_VERSION = re.compile(
    r"v?(?P<release>\d+(?:\.\d+){1,5})"
    r"(?:[-_.]?(?P<pre>a|b|rc)\.?(?P<pre_n>\d+))?(?:\.post(?P<post>\d+))?(?:\.dev(?P<dev>\d+))?"
    r"(?:\+[A-Za-z0-9._-]+)?"
)
#: Names of parsed arguments in older versions, with the names in their ServerArgs and /server_info.
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
    """Return a version from its text. Raise ConfigError, which lists the known versions, if it is not valid."""
    match = _VERSION.fullmatch(text) if len(text) <= 100 and text.isascii() else None
    if match is None:
        known = ", ".join(map(str, known_versions()))
        raise ConfigError(
            f"{printable(text, 60)!r} is not a valid SGLang version",
            remedy=f"a version looks like 0.5.12.post1; known versions: {known}",
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


class Flags(tuple[Flag, ...]):
    """The flags of one file, with a cached index of their names."""

    @cached_property
    def by_name(self) -> Mapping[str, Flag]:
        """Option string (``--tp-size``) -> flag."""
        return {name: flag for flag in self for name in flag.names}


@dataclass(frozen=True)
class FlagTable:
    """All flags of one version. ``note`` says so if ``version`` is not the ``requested`` one."""

    version: Version
    requested: Version
    flags: Flags
    note: str | None = None
    #: Whether the lists of choices are known to be complete: as in the version's running parser.
    complete: bool = False
    #: The file of a learned table; None if it ships with deployer.
    learned: Path | None = None

    @property
    def by_name(self) -> Mapping[str, Flag]:
        """Option string (``--tp-size``) -> flag."""
        return self.flags.by_name

    @property
    def title(self) -> str:
        """The version for a sentence, and the version whose flags are used if that is another one."""
        if self.version == self.requested:
            return f"SGLang {self.version}"
        return f"SGLang {self.requested} (by the flags of {self.version})"

    @property
    def strict(self) -> bool:
        """Whether a value outside the choices can be refused.

        Some shipped tables were read from SGLang's source, which extends some lists at run time, and a neighbouring
        version may have others: only a table read from, or compared with, the running parser of exactly this version
        is certain.
        """
        return self.complete and self.version == self.requested


@dataclass(frozen=True)
class TableFile:
    """The file with the flags of a version: shipped with deployer, or learned from a host."""

    version: Version
    path: Path
    learned: bool


def known_tables(learned: Path | None = None) -> tuple[TableFile, ...]:
    """Return all tables, oldest version first; a learned one replaces a shipped one of the same version.

    ``learned`` is the folder of the site's own tables, which need not exist. Raise ConfigError if it cannot be read or
    a file in it is not named after a version.
    """
    found = {version: TableFile(version, path, False) for version, path in _shipped()}
    for path in _learned_files(learned):
        try:
            version = parse_version(_version_of(path))
        except ConfigError:
            raise ConfigError(
                f"{printable(str(path), 400)} is not named after a version of SGLang",
                remedy="flag tables are named like args-0.5.12.post1.json; rename or remove it",
            ) from None
        found[version] = TableFile(version, path, True)
    return tuple(found[version] for version in sorted(found))


def known_versions(learned: Path | None = None) -> tuple[Version, ...]:
    """Return the versions whose flags are known, oldest first."""
    return tuple(table.version for table in known_tables(learned))


def flag_table(version: str | None, learned: Path | None = None) -> FlagTable:
    """Return the flags of a version, or of the nearest known version before it; None stands for the newest known.

    ``learned`` as in `known_tables`. Raise ConfigError if the version is older than all known ones, or its table is
    damaged.
    """
    known = known_tables(learned)
    if version is None:
        newest = known[-1]
        note = f"the SGLang version on the host is unknown; flags are those of {newest.version}"
        return _table(newest, newest.version, note)
    requested = parse_version(version)
    fitting = [candidate for candidate in known if candidate.version <= requested]
    if not fitting:
        raise ConfigError(
            f"SGLang {requested} is older than {known[0].version}, the oldest version whose flags are known",
            remedy="install a later SGLang on the host, or read its flags with `deployer sglang learn`",
        )
    nearest = fitting[-1]
    inexact = (
        f"the flags of SGLang {requested} are not known exactly; those of {nearest.version} were used "
        "(`deployer sglang learn` reads them from the host)"
    )
    return _table(nearest, requested, None if nearest.version == requested else inexact)


def defaults(version: str | None, learned: Path | None = None) -> Mapping[str, Any]:
    """Return a version's own defaults, by the names of ``/server_info``; None for those SGLang decides at the start.

    Raise ConfigError as `flag_table` does.
    """
    flags = flag_table(version, learned).flags
    return {flag.info_name: False if flag.switch and flag.default is None else flag.default for flag in flags}


def history(option: str, learned: Path | None = None) -> tuple[Version, ...]:
    """Return the known versions that have an option, oldest first."""
    tables = (flag_table(version.text, learned) for version in known_versions(learned))
    return tuple(table.version for table in tables if option in table.by_name)


def _table(file: TableFile, requested: Version, note: str | None) -> FlagTable:
    if not file.learned:
        complete, flags = _read(file.path)
        return FlagTable(file.version, requested, flags, note, complete)
    try:
        info = file.path.stat()
        complete, flags = _read_learned(file.path, info.st_mtime_ns, info.st_size)
    except (ConfigError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = getattr(error, "strerror", None) or printable(f"{type(error).__name__}: {error}", 200)
        raise ConfigError(
            f"the flag table {printable(str(file.path), 400)} is damaged: {why}",
            remedy="read it from the host again with `deployer sglang learn`, or remove the file",
        ) from None
    return FlagTable(file.version, requested, flags, note, complete, file.path)


@cache
def _shipped() -> tuple[tuple[Version, Path], ...]:
    return tuple((parse_version(_version_of(path)), path) for path in _DATA.glob("args-*.json"))


def _learned_files(folder: Path | None) -> list[Path]:
    if folder is None:
        return []
    try:
        return sorted(path for path in folder.iterdir() if _TABLE_FILE.fullmatch(path.name))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(
            f"the folder of flag tables {printable(str(folder), 400)} cannot be read: {error.strerror}",
            remedy="check its permissions, or correct the setting `flags`",
        ) from None


def _version_of(path: Path) -> str:
    return path.name.removeprefix("args-").removesuffix(".json")


@cache
def _read(path: Path) -> tuple[bool, Flags]:
    data = json.loads(path.read_text(encoding="utf-8"))
    return data.get("choices") == "complete", Flags(_flag(item) for item in data["flags"])


@cache
def _read_learned(path: Path, changed: int, size: int) -> tuple[bool, Flags]:
    """Read a learned table, again if it ``changed``. Raise ValueError with what is wrong."""
    data = json.loads(read_regular(path, FILE_LIMIT))
    flags = learned_flags(data)
    if parse_version(str(data["version"])) != parse_version(_version_of(path)):
        raise ValueError(f"it is the table of SGLang {data['version']}")
    return True, flags


def learned_flags(data: Any) -> Flags:
    """Return the flags in a learned table's document. Raise ValueError, KeyError or TypeError if it is not valid."""
    if data["schema"] != SCHEMA:
        raise ValueError(f"its schema is {data['schema']!r}; only {SCHEMA} is supported")
    flags = Flags(_flag(item) for item in data["flags"])
    for flag in flags:
        if not flag.names or not all(_OPTION.fullmatch(name) for name in flag.names) or not flag.dest:
            raise ValueError(f"{flag.names!r} are not valid names of a flag")
    if "--model-path" not in {name for flag in flags for name in flag.names}:
        raise ValueError("it has no --model-path")
    return flags


def _flag(item: Mapping[str, Any]) -> Flag:
    return Flag(
        names=tuple(item["names"]),
        dest=item["dest"],
        type=item.get("type"),
        action=item.get("action"),
        nargs=item.get("nargs"),
        choices=tuple(item["choices"]) if item.get("choices") is not None else None,
        default=item.get("default"),
        deprecated=item.get("deprecated", False),
    )
