"""Files for other programs: a disk that fills up costs the new text, never the file that was there."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from deployer.config.files import write_whole
from deployer.errors import UsageError

#: The name that stands for the standard output.
STDOUT = Path("-")


def cannot_be_written(path: Path, error: OSError) -> UsageError:
    """What is said of a file that could not be written."""
    return UsageError(f"{path} cannot be written: {error.strerror or error}")


def check_writable(path: Path) -> None:
    """UsageError where a file cannot be written: better before minutes of measuring than after."""
    if path == STDOUT:
        return
    folder = path.absolute().parent
    if path.is_dir():
        raise UsageError(
            f"{path} cannot be written: it is a folder", remedy=f"name a file, as {path / 'name'}"
        )
    if not folder.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {folder}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"{path} cannot be written: no permission, or a file system that is read-only")


def replace(path: Path, text: str) -> None:
    """Write a file anew, whole; what was there stays where that fails. UsageError."""
    try:
        if path == STDOUT:
            _to_stdout(text)
        elif path.exists() and not (path.is_file() and os.access(path.resolve().parent, os.W_OK)):
            path.write_text(
                text, encoding="utf-8"
            )  # a pipe or a device; or a folder that takes no second file
        else:
            write_whole(path.resolve(), text)
    except OSError as error:
        raise cannot_be_written(path, error) from error


def append(path: Path, text: str) -> None:
    """Add to a file, all or nothing. UsageError."""
    try:
        if path == STDOUT:
            _to_stdout(text)
            return
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
    except OSError as error:
        raise cannot_be_written(path, error) from error


def _to_stdout(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:  # a reader that has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
