"""What SGLang itself says, in its own environment. Runs on the host: ``python program.py``, Python 3.8 and later.

It needs nothing but SGLang. The question is JSON on stdin: ``{"want": "flags"}``, or ``{"want": "arguments",
"argvs": [[word, ..], ..], "cwd": "/"}``. The answer is one line on stdout that begins with `MARK`; whatever libraries
print there goes to stderr. Nothing is loaded on a GPU. The process makes itself the first to be ended when memory runs
out, and yields the processor to what serves.
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
#: Private memory it may take, in bytes. Importing torch and transformers takes about 1 GiB; thread stacks count, too.
MEMORY_LIMIT = 32 << 30
TEXT_LIMIT = 2000
#: Values that are made up anew at every start, so that they say nothing about the next one.
PASSING = ("random_seed", "nccl_port", "launch_command")

_SECRET = re.compile(r"password|secret|credential|(^|_)(key|token)(_b)?$", re.IGNORECASE)
_PLAIN = re.compile(r"[A-Za-z0-9_.,:+{}\[\]-]{0,64}")
_DEPRECATED = re.compile(r"^\W*deprecated\b|[(\[]deprecated\b", re.IGNORECASE)


class Unspeakable(Exception):
    """A value that JSON cannot say."""


def main() -> None:
    """Read the question, give the answer."""
    said: Json
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    be_modest()
    question = json.load(sys.stdin)
    os.chdir(question.get("cwd") or "/")
    sys.path[0] = os.getcwd()  # as for `python -m sglang.launch_server`
    begun = time.time()
    heard = Warnings()
    heard.listen()
    try:
        from sglang.srt import server_args as module  # type: ignore[import-not-found]

        load_plugins()
    except BaseException as error:
        said = {"unavailable": "%s: %s" % (type(error).__name__, cut(str(error)))}
    else:
        if question["want"] == "flags":
            said = {"version": version(), "flags": flags(module)}
        else:
            heard.take()
            said = {"answers": [ask(module, list(argv), heard) for argv in question["argvs"]]}
    said["seconds"] = round(time.time() - begun, 2)
    answer.write("\n%s%s\n" % (MARK, json.dumps(said)))
    answer.flush()
    os._exit(0)  # whatever threads and exit handlers the imports left are not waited for


def be_modest() -> None:
    """Bounds on memory and processor, as far as this account may set them."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    with contextlib.suppress(OSError):
        os.nice(10)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def load_plugins() -> None:
    """Plug-ins may change what the arguments come to; versions that know them load them before they parse."""
    with contextlib.suppress(ImportError):
        from sglang.srt import plugins

        plugins.load_plugins()


class Warnings:
    """What is logged as a warning, or worse: whatever becomes of the handlers, which parsing replaces."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.handle = logging.Logger.callHandlers

    def listen(self) -> None:
        """Hear every logger of this process from now on."""

        def call_handlers(logger: logging.Logger, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING:
                with contextlib.suppress(Exception):
                    self.texts.append(cut(record.getMessage()))
            self.handle(logger, record)

        logging.Logger.callHandlers = call_handlers  # type: ignore[method-assign,assignment]

    def stop(self) -> None:
        logging.Logger.callHandlers = self.handle  # type: ignore[method-assign]

    def take(self) -> list[str]:
        """What was heard since the last time, each once."""
        texts, self.texts = list(dict.fromkeys(self.texts)), []
        return texts


def version() -> str:
    """The installed version, by the package's metadata."""
    from importlib import metadata

    return metadata.version("sglang")


def cut(text: str) -> str:
    return text if len(text) <= TEXT_LIMIT else text[: TEXT_LIMIT - 3] + "..."


# -- arguments ------------------------------------------------------------------------------------------------------


def ask(module: Any, argv: list[str], heard: Warnings) -> Json:
    """Parse, resolve and check one command line as the server does before it loads anything.

    ``stage`` is where it ended: parse, resolve, check, or done. Up to 0.5.16 parsing resolves, too.
    """
    said: Json = {"stage": "parse", "error": None, "resolved": {}}
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            args = module.prepare_server_args(argv)
        said["stage"] = "resolve"
        getattr(args, "resolve_once", do_nothing)()  # may not be called twice on one object
        said["stage"] = "check"
        getattr(args, "check_server_args", do_nothing)()
        said["stage"] = "done"
        said["resolved"] = resolved(args)
    except SystemExit as error:
        said["error"] = {"kind": "usage", "status": error.code, "message": usage_error(printed.getvalue())}
    except Exception as error:
        said["error"] = describe(error)
    said["warnings"] = heard.take()
    return said


def do_nothing() -> None:
    """Stands for a step that a version has not."""


def usage_error(text: str) -> str:
    """argparse's complaint: what follows ``error:`` on the last line that has it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        if "error: " in line:
            return cut(line.split("error: ", 1)[1])
    return cut(lines[-1]) if lines else ""


def describe(error: BaseException) -> Json:
    """An exception: its own message, that of the one at the bottom of it, and the statement that raised it."""
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
    """The statement at a line, up to where its brackets close: `assert` may have nothing else to say."""
    text = ""
    for line in range(number, number + 8):
        text = (text + " " + linecache.getline(path, line).strip()).strip()
        if text.count("(") <= text.count(")") and not text.endswith("\\"):
            break
    return text


def resolved(args: Any) -> Json:
    """The values the server would start with, by the names of its fields; those that JSON cannot say are left out."""
    # In 0.5.23 the fields themselves stay as they were asked.
    values = args.resolved_dict() if hasattr(args, "resolved_dict") else vars(args)
    found = {}
    for name, value in values.items():
        if name in PASSING or name.startswith("_") or (_SECRET.search(name) and isinstance(value, str)):
            continue
        with contextlib.suppress(Unspeakable):
            found[name] = speakable(value)
    return found


def speakable(value: Any) -> Any:
    """A value as JSON has it. Raises Unspeakable."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Unspeakable
        return value
    if isinstance(value, enum.Enum):
        return speakable(value.value)
    if isinstance(value, str):
        if len(value) > TEXT_LIMIT:
            raise Unspeakable
        return value
    if isinstance(value, (list, tuple, set, frozenset)):
        return [speakable(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): speakable(item) for key, item in value.items()}
    raise Unspeakable


# -- flags ----------------------------------------------------------------------------------------------------------


def flags(module: Any) -> list[Json]:
    """Every flag of the installed version's parser, in the layout of deployer's flag tables."""
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
    said: Json = {"names": names, "dest": action.dest}
    if action.nargs != 0:
        said["type"] = type_name(action.type)
    if kind:
        said["action"] = kind
    if action.nargs is not None:
        said["nargs"] = action.nargs
    if action.choices is not None:
        said["choices"] = [plain(choice) for choice in action.choices]
        if isinstance(action.choices, (set, frozenset)):
            said["choices"].sort(key=str)
    if (
        action.default not in (None, argparse.SUPPRESS)
        and action.default is not False
        and not _SECRET.search(action.dest)
    ):
        with contextlib.suppress(Unspeakable):
            said["default"] = harmless(action.default)
    if action.required:
        said["required"] = True
    if kind.startswith("Deprecated") or _DEPRECATED.search(action.help or ""):
        said["deprecated"] = True
    return said


def type_name(kind: Any) -> str:
    if kind is None:
        return "str"
    return getattr(getattr(kind, "func", kind), "__name__", type(kind).__name__)


def plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)


def harmless(value: Any) -> Any:
    """A default that says nothing about this machine: no path, no name of it, nothing out of the environment."""
    if isinstance(value, str):
        own = {text for text in os.environ.values() if len(text) > 3} | {os.uname().nodename}
        if not _PLAIN.fullmatch(value) or value in own:
            raise Unspeakable
        return value
    if isinstance(value, (list, tuple)):
        return [harmless(item) for item in value]
    if isinstance(value, (bool, int, float)):
        return speakable(value)
    raise Unspeakable


if __name__ == "__main__":
    main()
