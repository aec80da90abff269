"""The known ways in which a launch fails: data (``data/failures.json``), and the cause found by them. Pure.

``where`` says what a signature is matched against, and how much a match proves:

* ``line``: any line; proof by itself.
* ``exception``: what a traceback raised; with ``frames`` its frames must match as well, with ``raised`` the frame that
  raised the root cause (file, function, line of code).
* ``secondary``: a consequence (a lost peer, a watchdog); the cause only if there is nothing better, and not if
  ``cured_by`` matches a later line.
* ``kernel``: the kernel's or systemd's messages.
* ``stall``: what the log shows when nothing moves any more.
* ``warning``: good launches print it too; never a cause, shown as a note.
* ``quiet``: known, but leaves no trace in a log; only the documentation lists it.

A ``generic`` one only names the kind of failure; a more specific line near it, or the kernel's messages, win over it.
Several forms may share an id; a form without texts of its own has those of the first one.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

UNKNOWN = "unknown"
STOPPED = "stopped"
WHERE = ("line", "exception", "secondary", "kernel", "stall", "warning", "quiet")


@dataclass(frozen=True)
class Signature:
    """One form of a known failure. ``phase`` is where it usually happens; None if it can happen anywhere."""

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
        """Where to read more about it."""
        return self.refs[0] if self.refs else None


@dataclass(frozen=True)
class Cause:
    """Why a launch failed: the signature (or `UNKNOWN`), the launch phase, and cause and remedy in words.

    ``evidence`` are the log lines that prove it, ``numbers`` their positions in the log (from 1; 0: elsewhere),
    ``reference`` is where to read more. ``rank`` is whose failure it is; ``quote`` is the log's own message, which is
    part of ``cause``, in brackets. Of an unknown cause, ``component`` is the part of the engine that it comes from, and
    ``search`` a search for the project's tracker.
    """

    signature: str
    phase: str | None
    cause: str
    remedy: str
    evidence: tuple[str, ...]
    reference: str | None
    numbers: tuple[int, ...] = ()
    rank: str = ""
    quote: str = ""
    component: str = ""
    search: str = ""


@cache
def signatures() -> tuple[Signature, ...]:
    """Return all known signatures; within one ``where`` the most specific first."""
    data = json.loads((files("deployer.sglang") / "data" / "failures.json").read_text("utf-8"))
    first: dict[str, dict[str, Any]] = {}
    for item in data:
        base = first.setdefault(item["id"], item)
        item.update({key: base[key] for key in ("phase", "cause", "remedy", "refs") if key not in item})
    return tuple(
        Signature(
            id=item["id"],
            phase=item["phase"],
            where=item["where"],
            regex=re.compile(item["regex"]),
            frames=_optional(item.get("frames")),
            raised=_optional(item.get("raised")),
            generic=bool(item.get("generic")),
            cured_by=_optional(item.get("cured_by")),
            cause=item["cause"],
            remedy=item["remedy"],
            refs=tuple(item["refs"]),
        )
        for item in data
    )


def _optional(pattern: str | None) -> re.Pattern[str] | None:
    return None if pattern is None else re.compile(pattern)


@cache
def found_in(where: str) -> tuple[Signature, ...]:
    """Return the signatures that are matched against ``where``."""
    return tuple(one for one in signatures() if one.where == where)


@cache
def any_of(where: str) -> re.Pattern[str]:
    """Return one expression that matches if any signature of ``where`` does: a quick first look."""
    return re.compile("|".join(f"(?:{one.regex.pattern})" for one in found_in(where)))


#: One of these words is in every line that a signature, a consequence, a warning or a stop can be in.
_WORDS = (
    "err", "fail", "crit", "exit", "dead", "died", "kill", "abort", "terminat", "crash", "dump", "segf",
    "segment", "bus ", "assert", "timeout", "timed out", "watchdog", "connect", "peer", "pipe", "recv",
    "remote", "oom", "memory", "mismatch", "profiled", "kernel", "nvshmem", "gloo", "sig", "stop",
    "shutting", "debug info", "diststore", "finish", "too many", "allreduce", "rlimit", "ignore",
    "deepep", "deactivated", "gracefully", "已杀死",
)  # fmt: skip


#: No word has a digit, so lines that differ only in numbers (most lines of a long log) are searched once.
_NUMBERS = str.maketrans("123456789", "000000000")
_SHORT = 400


def telling(text: str) -> bool:
    """Return whether a line can show a failure, a stop or a warning at all."""
    return _telling(text.translate(_NUMBERS)) if len(text) <= _SHORT else _has_word(text)


def _has_word(text: str) -> bool:
    low = text.lower()
    return any(word in low for word in _WORDS)


_telling = lru_cache(maxsize=1 << 14)(_has_word)


#: Expressions for single lines, each certain proof that a launch being watched has failed; no good launch prints one.
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
