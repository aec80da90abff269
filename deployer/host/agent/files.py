"""Files that survive a power cut: each is the old one or the new one, whole. Also when the disk is full.

A link in a file's place is replaced, or what would follow it is refused: it may lead to anybody's file.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from typing import Any, Dict, List, Optional, Tuple

from .base import SCHEMA, Fail, Json

Shape = Dict[str, Any]  # keys of a state file, with the types their values must have
RESERVE = 1 << 20


def read_text(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            return file.read()
    except OSError:
        return None


def read_json(path: str, shape: Optional[Shape] = None) -> Optional[Json]:
    """Return the JSON object in a state file, None if there is no such file.

    Raise Fail ``schema`` if a newer deployer wrote it, ``corrupt`` if it does not have the keys and types of ``shape``.
    """
    text = read_text(path)
    if text is None:
        return None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Fail("corrupt", "%s is damaged: %s" % (path, error), path=path) from error
    if not isinstance(data, dict) or not isinstance(data.get("schema", SCHEMA), int):
        raise Fail("corrupt", "%s is damaged: it was not written by deployer" % path, path=path)
    if data.get("schema", SCHEMA) > SCHEMA:
        raise Fail("schema", "%s was written by a newer deployer; use that version" % path, path=path)
    for key, kind in (shape or {}).items():
        if not isinstance(data.get(key), kind):
            raise Fail("corrupt", "%s is damaged: %r is missing or has a wrong type" % (path, key), path=path)
    return data


def read_intact(path: str, shape: Shape, problems: Optional[List[str]] = None) -> Optional[Json]:
    """As `read_json`, but a damaged file counts as absent; what is wrong with it is added to ``problems``."""
    try:
        return read_json(path, shape)
    except Fail as failure:
        if failure.code != "corrupt":
            raise
        if problems is not None:
            problems.append(failure.message)
        return None


def set_aside(path: str, shape: Shape) -> bool:
    """Rename a damaged state file, so that work can go on and the evidence stays. To be called under the lock."""
    problems: List[str] = []
    read_intact(path, shape, problems)
    if problems:
        os.rename(path, "%s.corrupt-%d" % (path, time.time()))
        fsync_dir(os.path.dirname(path))
    return bool(problems)


def fsync_dir(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def write_new(path: str, text: str, mode: int, owner: Optional[Tuple[int, int]] = None) -> None:
    folder, name = os.path.split(path)
    import tempfile  # here, because most agents write nothing

    fd, temporary = tempfile.mkstemp(prefix="." + name + ".", suffix=".tmp", dir=folder)
    try:
        with os.fdopen(fd, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), mode)
            if owner:
                os.fchown(file.fileno(), *owner)
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    fsync_dir(folder)


def overwrite(path: str, text: str) -> None:
    """Write into the blocks a file already has. Shorter than a block, so hardly ever torn; a torn one is set aside."""
    data = text.encode("utf-8")
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    try:
        if len(data) > os.fstat(fd).st_blocks * 512:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        os.pwrite(fd, data, 0)
        os.ftruncate(fd, len(data))
        os.fsync(fd)
    finally:
        os.close(fd)


def append(path: str, text: str, mode: int = 0o644) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, mode)
    with os.fdopen(fd, "w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def remove_file(path: str) -> bool:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    fsync_dir(os.path.dirname(path))
    return True


def write_link(path: str, target: str) -> bool:
    """Make ``path`` a symbolic link to exactly ``target``; return whether it was not one before."""
    if os.path.islink(path) and os.readlink(path) == target:
        return False
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    temporary = os.path.join(folder, ".%s.tmp" % name)
    if os.path.lexists(temporary):
        os.unlink(temporary)
    os.symlink(target, temporary)
    os.rename(temporary, path)
    fsync_dir(folder)
    return True


class Files:
    """The machine's folders, and the ways to write in them."""

    def __init__(self) -> None:
        folder = os.environ.get
        self.state_dir = folder("DEPLOYER_STATE_DIR", "/var/lib/deployer")
        self.volatile_dir = folder("DEPLOYER_VOLATILE_DIR", "/run/deployer")
        self.live_dir = folder("DEPLOYER_UNIT_DIR", "/usr/local/lib/systemd/system")
        self.run_dir = folder("DEPLOYER_RUN_DIR", "/run/systemd/system")
        self.wants_dir = folder("DEPLOYER_WANTS_DIR", "/etc/systemd/system/multi-user.target.wants")

    @property
    def reserve(self) -> str:
        return os.path.join(self.state_dir, "reserve")

    def make_reserve(self) -> None:
        """Occupy real blocks that state files can have when the disk is full. Going without is no reason to stop."""
        if os.path.exists(self.reserve):
            return
        try:
            write_new(self.reserve, "\0" * RESERVE, 0o600)
        except OSError as error:
            if not is_full(error):
                raise

    def write_file(self, path: str, text: str, mode: int = 0o644, owner: Optional[Tuple[int, int]] = None) -> None:
        """Replace a file atomically and durably. On a full disk the reserve is given up for it."""
        try:
            write_new(path, text, mode, owner)
        except OSError as error:
            if not is_full(error) or not remove_file(self.reserve):
                raise
            write_new(path, text, mode, owner)

    def write_json(self, path: str, data: Json, mode: int = 0o644) -> None:
        """Write a state file. On a disk that stays full, into the blocks it already has."""
        text = json.dumps(dict(data, schema=SCHEMA), indent=1, ensure_ascii=False) + "\n"
        try:
            self.write_file(path, text, mode)
        except OSError as error:
            if not is_full(error) or not os.path.exists(path):
                raise
            overwrite(path, text)

    def write_changed(self, path: str, text: str) -> bool:
        """Write a file unless it has this text already; return whether it was written."""
        if read_text(path) == text and not os.path.islink(path):
            return False
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self.write_file(path, text)
        return True
