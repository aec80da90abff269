"""Benchmarks written to files for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deployer.bench.export import bench_serving_lines, request_lines
from deployer.errors import UsageError

Json = dict[str, Any]


def write_exports(document: Json, requests: Path | None, serving: Path | None) -> list[Path]:
    """Write a ``bench --json`` document: requests anew, lines like bench_serving's appended. The files written."""
    written = []
    for path, lines, mode in ((requests, request_lines, "w"), (serving, bench_serving_lines, "a")):
        if path is None:
            continue
        try:
            with path.open(mode, encoding="utf-8") as file:
                file.write(lines(document["bench"], document["name"]))
        except OSError as error:
            raise UsageError(
                f"{path} cannot be written: {error.strerror}",
                remedy=f"the figures are kept on the host as {document['name']}: `deployer compare` reads them",
            ) from error
        written.append(path)
    return written
