"""The known ways in which a launch fails: data (``data/failures.json``), read once. Pure.

``where`` says in what a signature is looked for and what it is worth:

* ``line``: any line; proof by itself.
* ``exception``: what a traceback raised; with ``frames`` its frames must match as well, with ``raised`` the frame that
  raised the root cause (file, function, line of code).
* ``secondary``: a consequence (a lost peer, a watchdog); believed only where nothing better is there, and not if
  ``cured_by`` matches a later line.
* ``kernel``: the kernel's or systemd's messages.
* ``stall``: what the log shows when nothing moves any more.
* ``warning``: good launches print it too; never a cause, shown as a note.
* ``quiet``: known, but leaves nothing in a log; only the documentation lists it.

A ``generic`` one names the kind of failure only; a more telling line near it, or the kernel's word, wins over it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files

WHERE = ("line", "exception", "secondary", "kernel", "stall", "warning", "quiet")


@dataclass(frozen=True)
class Signature:
    """One known way to fail; several forms may share an ``id``. ``phase`` is where it usually happens, if anywhere."""

    id: str
    phase: str | None
    where: str
    regex: re.Pattern[str]
    frames: re.Pattern[str] | None
    raised: re.Pattern[str] | None
    generic: bool
    cured_by: re.Pattern[str] | None
    cause: str
    remedy: str
    refs: tuple[str, ...]

    @property
    def reference(self) -> str | None:
        """Where more is written about it."""
        return self.refs[0] if self.refs else None


@cache
def signatures() -> tuple[Signature, ...]:
    """All known signatures; within one ``where`` the most telling first."""
    data = json.loads((files("deployer.sglang") / "data" / "failures.json").read_text("utf-8"))
    return tuple(
        Signature(
            id=item["id"],
            phase=item["phase"],
            where=item["where"],
            regex=re.compile(item["regex"]),
            frames=re.compile(item["frames"]) if "frames" in item else None,
            raised=re.compile(item["raised"]) if "raised" in item else None,
            generic=bool(item.get("generic")),
            cured_by=re.compile(item["cured_by"]) if "cured_by" in item else None,
            cause=item["cause"],
            remedy=item["remedy"],
            refs=tuple(item["refs"]),
        )
        for item in data
    )


@cache
def found_in(where: str) -> tuple[Signature, ...]:
    """The signatures that are looked for in ``where``."""
    return tuple(one for one in signatures() if one.where == where)


@cache
def any_of(where: str) -> re.Pattern[str]:
    """One expression that matches where any signature of ``where`` does: a quick first look."""
    return re.compile("|".join(f"(?:{one.regex.pattern})" for one in found_in(where)))


#: What is in every line that a line signature, a consequence, a warning or an end can be in: a quick first look.
_WORDS = (
    "err", "fail", "crit", "exit", "dead", "died", "kill", "abort", "terminat", "crash", "dump", "segf",
    "segment", "bus ", "assert", "timeout", "timed out", "watchdog", "connect", "peer", "pipe", "recv",
    "remote", "oom", "memory", "mismatch", "profiled", "kernel", "nvshmem", "gloo", "sig", "stop",
    "shutting", "debug info", "diststore", "finish", "too many", "allreduce", "rlimit", "ignore",
    "deepep", "deactivated", "gracefully", "已杀死",
)  # fmt: skip


#: No word has a digit, so lines that differ in numbers only are looked at once: most lines of a long log do.
_NUMBERS = str.maketrans("123456789", "000000000")
_SHORT = 400


def telling(text: str) -> bool:
    """Whether a line can tell of a failure, a stop or a warning at all."""
    return _telling(text.translate(_NUMBERS)) if len(text) <= _SHORT else _has_word(text)


def _has_word(text: str) -> bool:
    low = text.lower()
    return any(word in low for word in _WORDS)


_telling = lru_cache(maxsize=1 << 14)(_has_word)


#: Proof by a single line that a launch has failed, while it is still being watched. None is in a good launch's log.
FATAL_LINES = (
    r"hit an exception: Traceback \(most recent call last\)",
    r"\[Errno \d+\] error while attempting to bind on address",
    r"^torch\.(?:cuda\.)?OutOfMemoryError: ",
    r"^(?:\w+\.)*\w*(?:Exception|Error): Capture [\w ]{0,30}graph failed: ",
    r"^[\w .-]{1,40}: error: (?:argument [^ ]|unrecognized arguments|ambiguous option|the following arguments are)",
    r"Rank \d+ scheduler (?:died during initialization|is dead)",
    r"Received sigquit from a child process",
    r"SIGQUIT received\. signum",
    r"Subprocess \S+ \(pid=\d+\) crashed with exit code",
    r"Initialization failed\. warmup error",
    r"\[sgl_kernel\] CRITICAL: Could not load any common_ops library",
)
