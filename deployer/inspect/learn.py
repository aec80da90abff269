"""Reading the flag table of a host's own SGLang, and keeping it for the site."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from deployer.config.files import write_whole
from deployer.config.inventory import ServiceConfig
from deployer.config.secrets import Secret
from deployer.deploy.engine_preflight import Unanswered, run_program
from deployer.errors import ConfigError, HostError
from deployer.host.client import HostClient
from deployer.sglang.flags.versions import (
    SCHEMA,
    FlagTable,
    flag_table,
    known_tables,
    learned_flags,
    parse_version,
)
from deployer.sglang.server.answers import Difference, Json, difference


@dataclass(frozen=True)
class Learned:
    """A table that was read: where from, where it is now, and how it differs from what was known before."""

    host: str
    python: str
    table: FlagTable
    path: Path
    #: The version of the shipped table it is compared with: its own, or the nearest one before.
    compared: str
    difference: Difference

    def as_dict(self) -> Json:
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
    """Read the flags of the SGLang that ``service`` runs with, and keep them as ``folder``/args-<version>.json.

    HostError where the host's SGLang does not answer with a table; ConfigError where it cannot be kept.
    """
    try:
        answer = run_program(
            client, service, {"want": "flags", "cwd": service.home or "/"}, _environment(service)
        )
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
            f"{client.name}: what {service.engine.python} says of its flags is no table: {error}",
            remedy="nothing was kept; the tables that ship stay in force",
        ) from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, _lines(document))
    except OSError as error:
        raise ConfigError(
            f"the flag table {path} cannot be written: {error.strerror}",
            remedy="name another folder with the setting `flags`",
        ) from error
    table = flag_table(version, folder)
    before = flag_table(version)
    return Learned(
        client.name, service.engine.python, table, path, str(before.version), difference(before, table)
    )


def _lines(document: Json) -> str:
    """JSON with a line for each flag, so that two tables can be compared by eye."""
    head = json.dumps(
        {name: value for name, value in document.items() if name != "flags"}, ensure_ascii=False
    )
    flags = ",\n".join(json.dumps(flag, ensure_ascii=False) for flag in document["flags"] or ())
    return f'{head[:-1]}, "flags": [\n{flags}\n]}}\n'


def _environment(service: ServiceConfig) -> dict[str, str]:
    """What the service would have, without its secrets and without a GPU: a parser needs none."""
    own = {name: value for name, value in service.environment.items() if not isinstance(value, Secret)}
    if service.engine.ld_library_path:
        own["LD_LIBRARY_PATH"] = ":".join(service.engine.ld_library_path)
    if service.home:
        own["HOME"] = service.home
    return {**own, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}


def table_rows(folder: Path | None) -> list[Json]:
    """All known tables, oldest version first: version, number of flags, where it is from."""
    rows = []
    for known in known_tables(folder):
        table = flag_table(known.version.text, folder)
        rows.append(
            {
                "version": str(known.version),
                "flags": len(table.flags),
                "learned": known.learned,
                "path": str(known.path) if known.learned else None,
                "choices": "complete" if table.complete else "perhaps incomplete",
            }
        )
    return rows
