"""Benchmarks written to files for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deployer.bench.export import bench_serving_lines, request_lines
from deployer.errors import UsageError
from deployer.report.writing import append, check_writable, replace

Json = dict[str, Any]


def check_exports(requests: Path | None, serving: Path | None) -> None:
    """UsageError where a file cannot be written: better before minutes of measuring than after."""
    paths = [path for path in (requests, serving) if path is not None]
    if len({path.resolve() for path in paths}) < len(paths):
        raise UsageError(f"{paths[0]} cannot hold both exports", remedy="name two files")
    for path in paths:
        check_writable(path)


def write_exports(
    document: Json, requests: Path | None, serving: Path | None
) -> tuple[list[Path], list[UsageError]]:
    """Write a ``bench --json`` document: requests anew, lines like bench_serving's appended.

    The files written, and what is to be said of the others.
    """
    written, errors = [], []
    for path, lines, write in ((requests, request_lines, replace), (serving, bench_serving_lines, append)):
        if path is None:
            continue
        try:
            write(path, lines(document["bench"], document["name"]))
        except UsageError as error:
            errors.append(error)
        else:
            written.append(path)
    return written, errors
