"""Settings of the stand-in engine and options of its faults, checked before they are written.

The stand-in reads both when it starts; a value that it cannot use would end it there, and look like a failing engine.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping

from deployer.config.wording import nearest, printable
from deployer.errors import UsageError

Rule = tuple[str, Callable[[object], bool]]
"""What is expected, in words, and whether a value is that."""


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def number(low: float, high: float, *, whole: bool = False) -> Rule:
    """Return the rule for a number from ``low`` to ``high``, both included."""

    def fits(value: object) -> bool:
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            return False
        return low <= value <= high and (not whole or isinstance(value, int))

    return f"a {'whole ' if whole else ''}number from {low:g} to {high:g}", fits


def _is_text(value: object) -> bool:
    return isinstance(value, str) or _number(value)


TRUTH: Rule = ("true or false", lambda value: isinstance(value, bool))
TEXT: Rule = ("text", _is_text)
TEXTS: Rule = (
    "text, or a JSON list of texts",
    lambda value: _is_text(value) or (isinstance(value, list) and bool(value) and all(map(_is_text, value))),
)
FIELD: Rule = (
    "the name of a server argument, as pp_size",
    lambda value: isinstance(value, str) and re.fullmatch("[a-z][a-z0-9_]*", value) is not None,
)
ANYTHING: Rule = ("anything", lambda value: True)
EXCEPTION: Rule = (
    "text as `RuntimeError: message`",
    lambda value: isinstance(value, str) and re.match(r"[A-Za-z_][\w.]*(: .|$)", value) is not None,
)


def one_of(*words: str) -> Rule:
    """Return the rule for one of several words."""
    return " or ".join(words), lambda value: value in words


RANK = number(0, 1023, whole=True)
SHARE = number(0, 1)
COUNT = number(1, 1_000_000, whole=True)

SETTINGS: dict[str, Rule] = {
    "scale": number(0.01, 1000),
    "speed": number(0.01, 1000),
    "gpus": number(1, 14, whole=True),
    "gpu_memory_mib": number(4096, 1 << 20, whole=True),
    "strict_memory": TRUTH,
    "shards": number(1, 10_000, whole=True),
    "size": number(0.001, 1000),
    "noise": SHARE,
    "start_noise": SHARE,
    "seed": number(0, 2**31 - 1, whole=True),
}

CONDITIONS: dict[str, Rule] = {
    "when_argv_contains": TEXTS,
    "unless_argv_contains": TEXTS,
    "once": TRUTH,
}
FAULT_OPTIONS: dict[str, dict[str, Rule]] = {
    "crash-in-load": {"at": SHARE, "rank": RANK, "exception": EXCEPTION},
    "oom-in-load": {"at": SHARE, "rank": RANK},
    "oom-in-capture": {"rank": RANK},
    "crash-after-capture": {"rank": RANK, "exception": EXCEPTION},
    "crash-while-serving": {"at": COUNT, "rank": RANK, "exception": EXCEPTION},
    "hang-in-load": {"at": SHARE},
    "hang-in-dist": {},
    "never-ready": {},
    "hang-at-request": {"at": COUNT},
    "slow": {"percent": number(0, 100_000), "at": COUNT},
    "http-error": {"status": number(400, 599, whole=True), "at": COUNT, "every": COUNT},
    "broken-stream": {
        "how": one_of("reset", "close", "stall", "garbage", "page"),
        "tokens": number(0, 1_000_000, whole=True),
        "at": COUNT,
        "every": COUNT,
    },
    "bad-counters": {
        "how": one_of("missing", "garbage", "hang", "nan", "negative", "huge", "infinite"),
        "endpoint": one_of("metrics", "loads"),
    },
    "wrong-argument": {"argument": FIELD, "value": ANYTHING},
    "port-never-released": {},
    "memory-never-released": {},
    "garbage-output": {"text": TEXT},
    "ignore-sigterm": {},
    "graphs-lost": {},
}
REQUIRED = {"wrong-argument": ("argument", "value")}


def check_settings(settings: Mapping[str, object]) -> None:
    """Raise UsageError unless every setting exists and has a valid value."""
    if "version" in settings:
        raise UsageError(
            "the stand-in's version cannot be changed by --set",
            remedy="use `deployer rehearse up --sglang VERSION`",
        )
    _check("setting", "of the stand-in engine", settings, SETTINGS)


def check_fault(name: str, options: Mapping[str, object]) -> None:
    """Raise UsageError unless every option belongs to this fault and is valid, and none is missing."""
    _check("option", f"of the fault {name}", options, {**FAULT_OPTIONS[name], **CONDITIONS})
    missing = [key for key in REQUIRED.get(name, ()) if key not in options]
    if missing:
        raise UsageError(
            f"the fault {name} needs {' and '.join(missing)}",
            remedy=f"add {' '.join(f'--set {key}=...' for key in missing)}",
        )


def _quoted(value: object) -> str:
    return printable(json.dumps(value, ensure_ascii=False, default=str), 80)


def _check(kind: str, whose: str, given: Mapping[str, object], allowed: Mapping[str, Rule]) -> None:
    for key, value in given.items():
        if key not in allowed:
            near = nearest(key, allowed)
            raise UsageError(
                f"{_quoted(key)} is not a valid {kind} {whose}" + (f"; did you mean {near}?" if near else ""),
                remedy=f"choose among {', '.join(sorted(allowed))}",
            )
        wanted, fits = allowed[key]
        if not fits(value):
            raise UsageError(
                f"the {kind} {key} {whose} must be {wanted}, not {_quoted(value)}",
                remedy=f"use --set {key}=VALUE",
            )
