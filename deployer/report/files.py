"""Files that a command is asked to write. A disk that fills up costs the new text, never the file that was there."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

from deployer.bench.export import bench_serving_lines, request_lines
from deployer.config.files import write_whole
from deployer.errors import UsageError
from deployer.records.bench import BenchRun

#: The name that stands for the standard output.
STDOUT = Path("-")


def check_writable(path: Path) -> None:
    """Raise UsageError if a file cannot be written: better before minutes of measuring than after."""
    if path == STDOUT:
        return
    folder = path.absolute().parent
    if path.is_dir():
        raise UsageError(f"{path} cannot be written: it is a folder", remedy=f"name a file, such as {path / 'name'}")
    if not folder.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {folder}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"{path} cannot be written: no permission, or a read-only file system")


def replace(path: Path, text: str) -> None:
    """Write a file anew, whole; if that fails, the old one stays. Raise UsageError."""

    def write() -> None:
        if path.exists() and not (path.is_file() and os.access(path.resolve().parent, os.W_OK)):
            path.write_text(text, encoding="utf-8")  # a pipe, a device, or a folder that takes no second file
        else:
            write_whole(path.resolve(), text)

    _write(path, text, write)


def append(path: Path, text: str) -> None:
    """Add to a file, all or nothing. Raise UsageError."""

    def write() -> None:
        before = path.stat().st_size if path.is_file() else None
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError:
            with contextlib.suppress(OSError):  # half a line would spoil those that were there
                if before is not None:
                    os.truncate(path, before)
                elif path.is_file():
                    path.unlink()
            raise

    _write(path, text, write)


def _write(path: Path, text: str, to_file: Callable[[], None]) -> None:
    try:
        if path == STDOUT:
            _to_stdout(text)
        else:
            to_file()
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error


def _to_stdout(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:  # a reader that has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def check_exports(requests: Path | None, serving: Path | None) -> None:
    """Raise UsageError if a file of `write_exports` cannot be written."""
    paths = [path for path in (requests, serving) if path is not None]
    if len({path.resolve() for path in paths}) < len(paths):
        raise UsageError(f"{paths[0]} cannot hold both exports", remedy="name two files")
    for path in paths:
        check_writable(path)


def write_exports(
    bench: BenchRun, name: str, requests: Path | None, serving: Path | None
) -> tuple[list[Path], list[UsageError]]:
    """Write a benchmark: requests anew, lines like bench_serving's appended.

    Return the files written, and the errors of the others.
    """
    written, errors = [], []
    for path, lines, write in ((requests, request_lines, replace), (serving, bench_serving_lines, append)):
        if path is None:
            continue
        try:
            write(path, lines(bench, name))
        except UsageError as error:
            errors.append(error)
        else:
            written.append(path)
    return written, errors
