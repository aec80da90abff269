"""Replacing files of the operator's machine."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Replace a file with ``text`` in one step; owner and mode stay those of the file that was there. OSError."""
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
