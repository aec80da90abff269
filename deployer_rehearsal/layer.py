"""The writable layer of a practice host: what it adds to the operator's machine, and what it hides.

The layer is written before it is mounted over the machine's root, so building it touches nothing of the machine.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_OPAQUE = "trusted.overlay.opaque"


class Layer:
    """The upper folder of an overlay over ``lower``. Paths are absolute paths on the host."""

    def __init__(self, upper: Path, lower: Path = Path("/")) -> None:
        self.upper = upper
        self.lower = lower

    def at(self, path: str | Path) -> Path:
        """Return where a path of the host lies in the layer."""
        return self.upper / str(path).lstrip("/")

    def directory(
        self,
        path: str | Path,
        mode: int | None = None,
        *,
        opaque: bool = False,
        owner: tuple[int, int] | None = None,
    ) -> Path:
        """Create a folder, by default with the machine's mode and owner. ``opaque`` hides the machine's content."""
        target = self.at(path)
        if not target.is_dir():
            if target != self.upper:
                self.directory(Path(path).parent)
            target.mkdir()
            below = self.lower / str(path).lstrip("/")
            if below.is_dir():
                shutil.copymode(below, target)
                os.chown(target, below.stat().st_uid, below.stat().st_gid)
            else:
                target.chmod(0o755)
        if mode is not None:
            target.chmod(mode)
        if owner is not None:
            os.chown(target, *owner)
        if opaque:
            os.setxattr(target, _OPAQUE, b"y")
        return target

    def file(self, path: str | Path, text: str, mode: int = 0o644, owner: tuple[int, int] = (0, 0)) -> Path:
        """Write a file."""
        self.directory(Path(path).parent)
        target = self.at(path)
        target.write_text(text)
        target.chmod(mode)
        os.chown(target, *owner)
        return target

    def link(self, path: str | Path, to: str | Path) -> None:
        """Create a symbolic link, replacing an earlier one of this layer."""
        self.directory(Path(path).parent)
        target = self.at(path)
        target.unlink(missing_ok=True)
        target.symlink_to(to)

    def leads_to(self, path: str | Path, to: Path) -> bool:
        """Whether a path is a symbolic link of this layer to ``to``."""
        target = self.at(path)
        return target.is_symlink() and target.readlink() == to

    def way_to(self, path: Path) -> None:
        """Let everybody on the host reach ``path`` (an interpreter below /root, say)."""
        for parent in reversed(path.parents):
            below = self.lower / str(parent).lstrip("/")
            if below.is_dir() and not below.stat().st_mode & 0o001:
                self.directory(parent, (below.stat().st_mode & 0o7777) | 0o011)

    def read_below(self, path: str) -> str:
        """Return the machine's own text of a file, "" if there is none."""
        try:
            return (self.lower / path.lstrip("/")).read_text()
        except FileNotFoundError:
            return ""
