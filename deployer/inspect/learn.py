"""`sglang learn`: read the flag table of a host's own SGLang and keep it; `sglang versions`: list the known tables."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployer.config.files import write_whole
from deployer.config.inventory import ServiceConfig
from deployer.config.secrets import Secret
from deployer.deploy.engine_preflight import Unanswered, run_program
from deployer.errors import ConfigError, HostError
from deployer.host.client import HostClient
from deployer.records.codec import Record
from deployer.sglang.flags.versions import (
    SCHEMA,
    FlagTable,
    flag_table,
    known_tables,
    learned_flags,
    parse_version,
)
from deployer.sglang.server.answers import Difference, difference


@dataclass(frozen=True)
class Learned:
    """A table that was read from ``python`` on ``host`` and written to ``path``.

    ``compared`` is the version of the shipped table it is compared with: its own, or the nearest one before.
    """

    host: str
    python: str
    table: FlagTable
    path: Path
    compared: str
    difference: Difference

    def as_json(self) -> dict[str, Any]:
        """Return its part of the document of ``sglang learn --json`` (docs/cli.md)."""
        return {
            "host": self.host,
            "python": self.python,
            "version": str(self.table.version),
            "flags": len(self.table.flags),
            "path": str(self.path),
            "compared_with": self.compared,
            **self.difference.as_dict(),
        }


def learn(client: HostClient, service: ServiceConfig, folder: Path) -> Learned:
    """Read the flags of the SGLang that ``service`` runs with, and write them to ``folder``/args-<version>.json.

    Raise HostError if the host's SGLang does not answer with a table, ConfigError if the file cannot be written.
    """
    try:
        answer = run_program(client, service, {"want": "flags", "cwd": service.home or "/"}, _environment(service))
    except Unanswered as silence:
        raise HostError(
            f"{client.name}: the flags of {service.engine.python} could not be read: {silence}",
            remedy=silence.remedy
            or f"correct services.{service.name}.engine.python, or repair SGLang in that environment",
        ) from silence
    try:
        version = str(parse_version(str(answer.get("version"))))
    except ConfigError as error:
        raise HostError(
            f"{client.name}: {service.engine.python}: {error.message}", remedy="install SGLang from a release"
        ) from error
    document = {
        "schema": SCHEMA,
        "version": version,
        "choices": "complete",
        "host": client.name,
        "python": service.engine.python,
        "learned": round(time.time()),
        "flags": answer.get("flags"),
    }
    path = folder / f"args-{version}.json"
    try:
        learned_flags(document)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HostError(
            f"{client.name}: {service.engine.python} did not answer with a flag table: {error}",
            remedy="nothing was written; the shipped tables stay in force",
        ) from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, _lines(document))
    except OSError as error:
        raise ConfigError(
            f"the flag table {path} cannot be written: {error.strerror}",
            remedy="choose another folder with the setting `flags`",
        ) from error
    table = flag_table(version, folder)
    before = flag_table(version)
    return Learned(client.name, service.engine.python, table, path, str(before.version), difference(before, table))


def _lines(document: Mapping[str, Any]) -> str:
    """Return it as JSON with a line for each flag, so that two tables can be compared by eye."""
    head = json.dumps({name: value for name, value in document.items() if name != "flags"}, ensure_ascii=False)
    flags = ",\n".join(json.dumps(flag, ensure_ascii=False) for flag in document["flags"] or ())
    return f'{head[:-1]}, "flags": [\n{flags}\n]}}\n'


def _environment(service: ServiceConfig) -> dict[str, str]:
    """Return the service's environment without its secrets and without a GPU: a parser needs neither."""
    own = {name: value for name, value in service.environment.items() if not isinstance(value, Secret)}
    if service.engine.ld_library_path:
        own["LD_LIBRARY_PATH"] = ":".join(service.engine.ld_library_path)
    if service.home:
        own["HOME"] = service.home
    return {**own, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True)
class KnownTable(Record):
    """A version whose flags are known, as ``sglang versions --json`` shows it; ``path`` is a learned table's file."""

    version: str
    flags: int
    learned: bool
    path: str | None
    choices: str


def tables(folder: Path | None) -> list[KnownTable]:
    """Return all known tables, oldest version first."""
    rows = []
    for known in known_tables(folder):
        table = flag_table(known.version.text, folder)
        choices = "complete" if table.complete else "perhaps incomplete"
        path = str(known.path) if known.learned else None
        rows.append(KnownTable(str(known.version), len(table.flags), known.learned, path, choices))
    return rows
