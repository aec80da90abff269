"""The operator's files: reading only regular ones and never more than fits, replacing them in one step."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

from deployer.errors import ConfigError
from deployer.resources import shipped

#: The largest configuration file that is read, in bytes.
FILE_LIMIT = 16 * 1024 * 1024


def read_regular(path: Path, limit: int) -> bytes:
    """Return at most ``limit + 1`` bytes of a regular file, or of one that a link leads to.

    Raise OSError if it cannot be read or is something else: a pipe would wait for its writer, a device may never end.
    """
    _check(os.stat(path))
    # What replaces it in between must not block either.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as stream:
        _check(os.fstat(descriptor))
        return stream.read(limit + 1)


def _check(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")


def existing_folder(folder: Path, setting: str) -> Path:
    """Return ``folder``, which the setting names. Raise ConfigError if it is not a readable folder."""
    name = "".join(char if char.isprintable() else "?" for char in str(folder))
    fault = None
    try:
        if not stat.S_ISDIR(os.stat(folder).st_mode):
            fault = "is not a folder"
        elif not os.access(folder, os.R_OK | os.X_OK):
            fault = "cannot be read"
    except FileNotFoundError:
        fault = "does not exist"
    except (OSError, ValueError):
        fault = "cannot be read"
    if fault is not None:
        raise ConfigError(
            f"the folder {name} {fault} (setting `{setting}`, DEPLOYER_{setting.upper()})",
            remedy=f"correct the setting `{setting}`, or create the folder",
        )
    return folder


def template_folders(site: Path | None = None) -> list[Path]:
    """Return where templates are looked up: the site's own folder first, then the shipped ones.

    Raise ConfigError if the site's folder is not a readable folder.
    """
    return searched(site, "templates", shipped("templates"))


def searched(site: Path | None, setting: str, ours: Path) -> list[Path]:
    """Return the site's folder, if the setting names one, and the shipped one. Raise ConfigError if unreadable."""
    return [ours] if site is None else [existing_folder(site, setting), ours]


def write_whole(path: Path, text: str) -> None:
    """Replace a file with ``text`` in one step, keeping its owner and mode. Raise OSError if that fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            old = path.stat()
            with contextlib.suppress(PermissionError):  # not ours to give away
                os.chown(temporary, old.st_uid, old.st_gid)
            temporary.chmod(old.st_mode & 0o7777)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
