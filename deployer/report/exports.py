"""Benchmarks written to files for other programs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from deployer.bench.export import bench_serving_lines, request_lines
from deployer.errors import UsageError

Json = dict[str, Any]


def check_exports(requests: Path | None, serving: Path | None) -> None:
    """UsageError where a file cannot be written: better before minutes of measuring than after."""
    paths = [path for path in (requests, serving) if path is not None]
    if len({path.resolve() for path in paths}) < len(paths):
        raise UsageError(f"{paths[0]} cannot hold both exports", remedy="name two files")
    for path in paths:
        folder = path.absolute().parent
        if not folder.is_dir():
            raise UsageError(f"{path} cannot be written: there is no folder {folder}")
        if not os.access(path if path.exists() else folder, os.W_OK):
            raise UsageError(f"{path} cannot be written: no permission, or a file system that is read-only")


def write_exports(
    document: Json, requests: Path | None, serving: Path | None
) -> tuple[list[Path], list[UsageError]]:
    """Write a ``bench --json`` document: requests anew, lines like bench_serving's appended.

    The files written, and what is to be said of the others.
    """
    written, errors = [], []
    for path, lines, mode in ((requests, request_lines, "w"), (serving, bench_serving_lines, "a")):
        if path is None:
            continue
        try:
            with path.open(mode, encoding="utf-8") as file:
                file.write(lines(document["bench"], document["name"]))
        except OSError as error:
            errors.append(UsageError(f"{path} cannot be written: {error.strerror}"))
        else:
            written.append(path)
    return written, errors
