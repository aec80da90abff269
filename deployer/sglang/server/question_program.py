"""Asks SGLang itself, in its own environment. Runs on the host: ``python program.py``, Python 3.8 and later.

It needs nothing but SGLang. The question is JSON on stdin: ``{"want": "flags"}``, or ``{"want": "arguments",
"argvs": [[word, ..], ..], "cwd": "/"}``. The answer is one line on stdout that begins with `MARK`; whatever libraries
print there goes to stderr. Nothing is loaded on a GPU. The process volunteers to be ended first when memory runs out,
and yields the processor to running servers.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import enum
import io
import json
import linecache
import logging
import math
import os
import re
import resource
import sys
import time
import traceback
from typing import Any, Dict

Json = Dict[str, Any]
MARK = "deployer-answer: "
#: Private memory it may use, in bytes. Importing torch and transformers needs about 1 GiB; thread stacks count, too.
MEMORY_LIMIT = 32 << 30
TEXT_LIMIT = 2000
#: Values that are chosen anew at every start, so that they say nothing about the next one.
PASSING = ("random_seed", "nccl_port", "launch_command")

_SECRET = re.compile(r"password|secret|credential|(^|_)(key|token)(_b)?$", re.IGNORECASE)
_PLAIN = re.compile(r"[A-Za-z0-9_.,:+{}\[\]-]{0,64}")
_DEPRECATED = re.compile(r"^\W*deprecated\b|[(\[]deprecated\b", re.IGNORECASE)


class Unrepresentable(Exception):
    """A value that JSON cannot represent."""


def main() -> None:
    """Read the question and print the answer."""
    answer: Json
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    be_modest()
    question = json.load(sys.stdin)
    os.chdir(question.get("cwd") or "/")
    sys.path[0] = os.getcwd()  # as for `python -m sglang.launch_server`
    begun = time.time()
    warnings = Warnings()
    warnings.listen()
    try:
        from sglang.srt import server_args as module  # type: ignore[import-not-found]

        load_plugins()
    except BaseException as error:
        answer = {"unavailable": "%s: %s" % (type(error).__name__, cut(str(error)))}
    else:
        if question["want"] == "flags":
            answer = {"version": version(), "flags": flags(module)}
        else:
            warnings.take()
            answer = {"answers": [ask(module, list(argv), warnings) for argv in question["argvs"]]}
    answer["seconds"] = round(time.time() - begun, 2)
    output.write("\n%s%s\n" % (MARK, json.dumps(answer)))
    output.flush()
    os._exit(0)  # without waiting for threads and exit handlers of the imports


def be_modest() -> None:
    """Limit memory and processor time, as far as this user may."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    with contextlib.suppress(OSError):
        os.nice(10)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def load_plugins() -> None:
    """Load SGLang's plug-ins, as versions that have them do before they parse: they may change what arguments mean."""
    with contextlib.suppress(ImportError):
        from sglang.srt import plugins

        plugins.load_plugins()


class Warnings:
    """Collects what is logged at level warning or above, even though parsing replaces the handlers."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.handle = logging.Logger.callHandlers

    def listen(self) -> None:
        """Collect from every logger of this process from now on."""

        def call_handlers(logger: logging.Logger, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING:
                with contextlib.suppress(Exception):
                    self.texts.append(cut(record.getMessage()))
            self.handle(logger, record)

        logging.Logger.callHandlers = call_handlers  # type: ignore[method-assign,assignment]

    def stop(self) -> None:
        logging.Logger.callHandlers = self.handle  # type: ignore[method-assign]

    def take(self) -> list[str]:
        """Return the warnings since the last call, each once."""
        texts, self.texts = list(dict.fromkeys(self.texts)), []
        return texts


def version() -> str:
    """Return the installed version, by the package's metadata."""
    from importlib import metadata

    return metadata.version("sglang")


def cut(text: str) -> str:
    return text if len(text) <= TEXT_LIMIT else text[: TEXT_LIMIT - 3] + "..."


# -- arguments ------------------------------------------------------------------------------------------------------


def ask(module: Any, argv: list[str], warnings: Warnings) -> Json:
    """Parse, resolve and check one command line as the server does before it loads anything.

    ``stage`` is where it ended: parse, resolve, check, or done. Up to 0.5.16 parsing resolves, too.
    """
    answer: Json = {"stage": "parse", "error": None, "resolved": {}}
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            args = module.prepare_server_args(argv)
        answer["stage"] = "resolve"
        getattr(args, "resolve_once", do_nothing)()  # may not be called twice on one object
        answer["stage"] = "check"
        getattr(args, "check_server_args", do_nothing)()
        answer["stage"] = "done"
        answer["resolved"] = resolved(args)
    except SystemExit as error:
        answer["error"] = {"kind": "usage", "status": error.code, "message": usage_error(printed.getvalue())}
    except Exception as error:
        answer["error"] = describe(error)
    answer["warnings"] = warnings.take()
    return answer


def do_nothing() -> None:
    """Stand in for a step that a version does not have."""


def usage_error(text: str) -> str:
    """Return argparse's message: what follows ``error:`` on the last line that has it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        if "error: " in line:
            return cut(line.split("error: ", 1)[1])
    return cut(lines[-1]) if lines else ""


def describe(error: BaseException) -> Json:
    """Return an exception's own message, that of its root cause, and the statement that raised it."""
    root: BaseException = error
    while root.__cause__ is not None or (root.__context__ is not None and not root.__suppress_context__):
        root = root.__cause__ or root.__context__ or root
    frames = traceback.extract_tb(root.__traceback__)
    place, statement = "", ""
    if frames:
        path = frames[-1].filename
        place = "%s:%d" % (re.split(r".*/(?:sglang|site-packages)/", path)[-1], frames[-1].lineno or 0)
        statement = source(path, frames[-1].lineno or 0)
    return {
        "kind": "exception",
        "type": type(error).__name__,
        "bases": [base.__name__ for base in type(error).__mro__],
        "message": cut(str(error)),
        "root_type": type(root).__name__,
        "root_message": cut(str(root)),
        "place": place,
        "statement": cut(statement),
    }


def source(path: str, number: int) -> str:
    """Return the statement at a line, up to where its brackets close: an `assert` may have no other message."""
    text = ""
    for line in range(number, number + 8):
        text = (text + " " + linecache.getline(path, line).strip()).strip()
        if text.count("(") <= text.count(")") and not text.endswith("\\"):
            break
    return text


def resolved(args: Any) -> Json:
    """Return the values the server would start with, by its field names, as far as JSON can represent them."""
    # In 0.5.23 the fields themselves stay as they were requested.
    values = args.resolved_dict() if hasattr(args, "resolved_dict") else vars(args)
    kept = {}
    for name, value in values.items():
        if name in PASSING or name.startswith("_") or (_SECRET.search(name) and isinstance(value, str)):
            continue
        with contextlib.suppress(Unrepresentable):
            kept[name] = as_json(value)
    return kept


def as_json(value: Any) -> Any:
    """Return a value as JSON has it. Raise Unrepresentable."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Unrepresentable
        return value
    if isinstance(value, enum.Enum):
        return as_json(value.value)
    if isinstance(value, str):
        if len(value) > TEXT_LIMIT:
            raise Unrepresentable
        return value
    if isinstance(value, (list, tuple, set, frozenset)):
        return [as_json(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): as_json(item) for key, item in value.items()}
    raise Unrepresentable


# -- flags ----------------------------------------------------------------------------------------------------------


def flags(module: Any) -> list[Json]:
    """Return every flag of the installed version's parser, in the layout of deployer's flag tables."""
    parser = argparse.ArgumentParser(add_help=False)
    module.ServerArgs.add_cli_args(parser)
    return [flag(action) for action in parser._actions if action.option_strings]


def flag(action: argparse.Action) -> Json:
    kind = type(action).__name__
    if kind.startswith("_Store"):
        kind = {"_StoreTrueAction": "store_true", "_StoreFalseAction": "store_false"}.get(kind, "")
    names = list(action.option_strings)
    if kind == "BooleanOptionalAction":
        names = [name for name in names if not name.startswith("--no-")] or names
    entry: Json = {"names": names, "dest": action.dest}
    if action.nargs != 0:
        entry["type"] = type_name(action.type)
    if kind:
        entry["action"] = kind
    if action.nargs is not None:
        entry["nargs"] = action.nargs
    if action.choices is not None:
        entry["choices"] = [plain(choice) for choice in action.choices]
        if isinstance(action.choices, (set, frozenset)):
            entry["choices"].sort(key=str)
    if (
        action.default not in (None, argparse.SUPPRESS)
        and action.default is not False
        and not _SECRET.search(action.dest)
    ):
        with contextlib.suppress(Unrepresentable):
            entry["default"] = harmless(action.default)
    if action.required:
        entry["required"] = True
    if kind.startswith("Deprecated") or _DEPRECATED.search(action.help or ""):
        entry["deprecated"] = True
    return entry


def type_name(kind: Any) -> str:
    if kind is None:
        return "str"
    return getattr(getattr(kind, "func", kind), "__name__", type(kind).__name__)


def plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)


def harmless(value: Any) -> Any:
    """Return a default that says nothing about this machine: no path, not its name, nothing from the environment."""
    if isinstance(value, str):
        own = {text for text in os.environ.values() if len(text) > 3} | {os.uname().nodename}
        if not _PLAIN.fullmatch(value) or value in own:
            raise Unrepresentable
        return value
    if isinstance(value, (list, tuple)):
        return [harmless(item) for item in value]
    if isinstance(value, (bool, int, float)):
        return as_json(value)
    raise Unrepresentable


if __name__ == "__main__":
    main()
