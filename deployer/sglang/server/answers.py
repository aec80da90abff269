"""What the answers of `question_program` mean. Pure."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deployer.records.codec import Json
from deployer.sglang.flags.versions import Flag, FlagTable
from deployer.sglang.server.info import redact
from deployer.sglang.server.question_program import MARK

#: Exceptions that are SGLang's own judgement of the arguments.
JUDGEMENTS = frozenset({"AssertionError", "ValueError", "NotImplementedError"})
#: Exceptions that no network, secret or device mends: its code does not survive these arguments, or this environment
#: lacks what it imports. The server ends by them just as the question does. Any other may come from something that the
#: server has and the question lacked, so it is not a refusal.
BREAKDOWNS = frozenset(
    {"TypeError", "AttributeError", "LookupError", "ArithmeticError", "NameError", "RecursionError", "ImportError"}
)


@dataclass(frozen=True)
class Asked:
    """What the host's own SGLang says about one command line."""

    #: ``accepted``, ``refused``, or ``unknown``: it could not be asked, or could not judge.
    verdict: str
    #: Why it refuses, or why that is unknown; None if it accepts.
    reason: str | None = None
    #: The warnings that it logs meanwhile.
    warnings: tuple[str, ...] = ()
    #: The values it would start with, by its field names.
    resolved: Mapping[str, Any] = field(default_factory=dict, repr=False)
    #: Whether it is an earlier answer to the same question.
    cached: bool = False

    def judgement(self) -> Json:
        """Return the answer without the values, for JSON documents."""
        return {"verdict": self.verdict, "reason": self.reason, "warnings": list(self.warnings)}

    def as_dict(self) -> Json:
        return {**self.judgement(), "resolved": dict(self.resolved)}


def program_text() -> str:
    """Return the program to run on the host."""
    return (Path(__file__).parent / "question_program.py").read_text(encoding="utf-8")


def find_answer(lines: Iterable[str]) -> Json | None:
    """Return the program's answer among whatever else was printed; None if there is none."""
    answer = None
    for line in lines:
        if line.startswith(MARK):
            with contextlib.suppress(ValueError):
                document = json.loads(line[len(MARK) :])
                answer = document if isinstance(document, dict) else answer
    return answer


def judge(answer: Mapping[str, Any]) -> Asked:
    """Return what one of the program's ``answers`` means."""
    warnings = tuple(redact(str(text)) for text in answer.get("warnings") or ())
    error = answer.get("error")
    if not error:
        return Asked("accepted", None, warnings, redact(dict(answer.get("resolved") or {})))
    bases = set(error.get("bases") or ())
    refused = error["kind"] == "usage" or JUDGEMENTS & bases or (BREAKDOWNS & bases and _its_own(answer, error))
    return Asked("refused" if refused else "unknown", redact(_reason(error)), warnings)


def _its_own(answer: Mapping[str, Any], error: Mapping[str, Any]) -> bool:
    """Whether SGLang breaks down by itself: not over a secret variable that the question lacks, nor in our own part."""
    return answer.get("stage") != "done" and "environ" not in str(error.get("statement"))


def _reason(error: Mapping[str, Any]) -> str:
    if error["kind"] == "usage":
        return str(error["message"]) or f"it ended with status {error['status']}"
    message, root = str(error["message"]).strip(), str(error["root_message"]).strip()
    place = f" ({error['place']})" if error.get("place") else ""
    if not root:
        # An assertion may have no message: then its condition explains it.
        root = f"{error['root_type']}: {error['statement']}" if error.get("statement") else error["root_type"]
    if error["kind"] == "exception" and error["type"] not in JUDGEMENTS:
        message = f"{error['type']}: {message}" if message else error["type"]
    elif not message:
        return f"{root}{place}"
    return message + (f" [{root}]" if root not in message else "") + place


@dataclass(frozen=True)
class Difference:
    """How the flags of one table differ from those of another, by their first names."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]

    def as_dict(self) -> Json:
        return {"added": list(self.added), "removed": list(self.removed), "changed": list(self.changed)}

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


def difference(old: FlagTable, new: FlagTable) -> Difference:
    """Return which flags ``new`` adds, removes and changes against ``old``."""
    before, after = old.by_name, new.by_name
    shared = sorted({flag.names[0] for flag in new.flags} & set(before))
    return Difference(
        added=tuple(sorted(set(after) - set(before))),
        removed=tuple(sorted(set(before) - set(after))),
        changed=tuple(name for name in shared if _takes(before[name]) != _takes(after[name])),
    )


def _takes(flag: Flag) -> tuple[Any, ...]:
    choices = None if flag.choices is None else tuple(sorted(map(str, flag.choices)))
    kind = None if flag.nargs == 0 else flag.type or "str"  # argparse's default type is text
    return (flag.dest, kind, flag.action, flag.nargs, choices, flag.deprecated)
