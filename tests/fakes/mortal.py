"""A process of a machine in memory that is killed at one of its effects, as by SIGKILL: nothing of it runs on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tests.fakes.machine import FakeMachine

#: What changes files by their paths; the machine's own effects are `systemctl` and `kill`.
FILES = ("rename", "unlink", "symlink", "mkdir")
MAKES = os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Killed(BaseException):
    """The process ends here."""


class Life:
    """What a process has done so far, and how far it comes: it is killed before its effect number ``limit``."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.done: list[str] = []

    def effect(self, name: str) -> None:
        """Live through one more effect, or be killed; then nothing that cleans up has an effect either."""
        if self.limit is not None and len(self.done) >= self.limit:
            raise Killed(name)
        self.done.append(name)

    @property
    def killed(self) -> bool:
        return self.limit is not None and len(self.done) >= self.limit


@contextmanager
def mortal(machine: FakeMachine, limit: int | None = None) -> Iterator[Life]:
    """Run what a process does on the machine up to the ``limit``-th effect; None: to its end."""
    life, opened = Life(limit), os.open

    def counted(name: str, real: Any) -> Any:
        def effect(*args: Any, **options: Any) -> Any:
            words = [word for word in args if isinstance(word, str)]
            idle = name == "mkdir" and os.path.isdir(words[0])
            # Folders are removed by names in them, which is one effect: not counted.
            if name not in FILES or (words[-1].startswith(machine.folder) and not idle):
                life.effect(" ".join([name, *words]).replace(machine.folder, ""))
            return real(*args, **options)

        return effect

    def opening(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        if flags & MAKES and str(path).startswith(machine.folder) and not str(path).endswith("/lock"):
            life.effect(f"open {path}".replace(machine.folder, ""))
        return opened(path, flags, *rest, **options)

    with pytest.MonkeyPatch.context() as patch:
        for name in FILES:
            patch.setattr(os, name, counted(name, getattr(os, name)))
        patch.setattr(os, "open", opening)
        for name in ("systemctl", "kill"):
            patch.setattr(machine, name, counted(name, getattr(machine, name)))
        with suppress(Killed):
            yield life
