"""Jinja templates for units: strict about undefined names, and with systemd's quoting as filters."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from traceback import extract_tb
from typing import Any

from jinja2 import (
    BaseLoader,
    BytecodeCache,
    Environment,
    StrictUndefined,
    TemplateError,
    TemplateNotFound,
    TemplateSyntaxError,
)
from jinja2.bccache import Bucket
from jinja2.loaders import split_template_path
from jinja2.runtime import Context
from jinja2.sandbox import SandboxedEnvironment

from deployer.config.problems import read_text
from deployer.config.wording import printable
from deployer.errors import ConfigError, DeployerError
from deployer.units import quoting

UNIT_TEMPLATE = "sglang.service.j2"
#: The largest text a template may produce, in bytes, and how many numbers its ``range`` may yield in all.
TEXT_LIMIT = 1024 * 1024
RANGE_LIMIT = 100_000
#: How long a template may take, in seconds.
TIME_LIMIT = 20.0


class _Folders(BaseLoader):
    """Templates in some folders, the first of a name. Only regular files of bounded size are read."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = folders

    def get_source(self, environment: Environment, template: str) -> tuple[str, str, Callable[[], bool] | None]:
        for folder in self.folders:
            path = folder.joinpath(*split_template_path(template))
            if os.path.lexists(path):
                return read_text(path, "the template"), str(path), None
        raise TemplateNotFound(template)


class _Compiled(BytecodeCache):
    """Templates that this process has compiled. Jinja compares their text, and recompiles what has changed."""

    def __init__(self) -> None:
        self._code: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if bucket.key in self._code:
            bucket.bytecode_from_string(self._code[bucket.key])

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._code[bucket.key] = bucket.bytecode_to_string()


_compiled = _Compiled()


class _Sandbox(SandboxedEnvironment):
    """Templates may compute little: an endless or memory-hungry expression is an error."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(item) if isinstance(item, (str, bytes, list, tuple)) else None for item in (left, right)]
        counts = [item for item in (left, right) if isinstance(item, int)]
        if operator == "**" and not (isinstance(right, (int, float)) and abs(right) <= 64):
            raise OverflowError("an exponent must not be larger than 64")
        if operator == "**" and isinstance(left, int) and left.bit_length() > 1024:
            raise OverflowError("a number is too large")
        if any((size or 0) * count > TEXT_LIMIT for size in sizes for count in counts):
            raise OverflowError("a repeated text or list is too long")
        return super().call_binop(context, operator, left, right)


def _bounded_range() -> Callable[..., range]:
    """Return Jinja's ``range`` for one rendering: nested loops count, too."""
    left = RANGE_LIMIT

    def bounded(*bounds: int) -> range:
        nonlocal left
        numbers = range(*bounds)
        # An empty range costs one turn, because its loop takes time, too.
        left -= max(len(numbers) if abs(numbers.stop - numbers.start) <= 2**62 else RANGE_LIMIT + 1, 1)
        if left < 0:
            raise OverflowError(f"its loops take more than {RANGE_LIMIT} turns")
        return numbers

    return bounded


def _environment(folders: Sequence[Path]) -> Environment:
    # Units are not HTML; their quoting is in the filters.
    environment = _Sandbox(
        loader=_Folders(folders),
        bytecode_cache=_compiled,
        undefined=StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals["range"] = _bounded_range()
    environment.filters |= {
        "word": quoting.word,
        "command_line": quoting.command_line,
        "assignment": lambda value, name: quoting.assignment(name, value),
        "plain": lambda value: quoting.plain(str(value)),
        "path": quoting.path,
    }
    return environment


def render(template: str, values: Mapping[str, Any], folders: Sequence[Path]) -> str:
    """Return a template filled with its values.

    Raise ConfigError, with file and line, if the template is not valid, produces too much or takes too long.
    """
    results: list[str | DeployerError] = []

    def work() -> None:
        try:
            results.append(_render(template, values, folders))
        except DeployerError as error:
            results.append(error)

    # Nothing can stop a template from outside; as a daemon, its thread does not keep the process from ending.
    worker = threading.Thread(target=work, name="template", daemon=True)
    worker.start()
    worker.join(TIME_LIMIT)
    if not results:
        raise _broken(template, None, f"it did not finish within {TIME_LIMIT:g} s")
    if isinstance(results[0], DeployerError):
        raise results[0]
    return results[0]


def _render(template: str, values: Mapping[str, Any], folders: Sequence[Path]) -> str:
    environment = _environment(folders)
    parts, size = [], 0
    try:
        compiled = environment.get_template(template)
        for part in compiled.generate(values):
            parts.append(part)
            size += len(part.encode("utf-8", "surrogatepass"))
            if size > TEXT_LIMIT:
                raise _broken(compiled.filename or template, None, f"it produces more than {TEXT_LIMIT} bytes of text")
        return "".join(parts)
    except DeployerError:
        raise
    except TemplateNotFound as error:
        searched = ", ".join(printable(str(folder)) for folder in folders)
        raise ConfigError(
            f"there is no template {printable(str(error.name))} in {searched}",
            remedy="put it there, or correct the setting `templates`",
        ) from None
    except TemplateSyntaxError as error:
        raise _broken(error.filename or template, error.lineno, error.message or "syntax error") from None
    except Exception as error:
        # A template runs its author's expressions; whatever they raise is the template's fault.
        frames = [frame for frame in extract_tb(error.__traceback__) if frame.filename.endswith(".j2")]
        file, line = (frames[-1].filename, frames[-1].lineno) if frames else (template, None)
        kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
        raise _broken(file, line, f"{kind}{error}") from None


def _broken(file: str, line: int | None, why: str) -> ConfigError:
    at = f", line {line}" if line else ""
    return ConfigError(
        f"template {printable(file)}{at}: {printable(why, 500)}",
        remedy="correct the template, or remove it to use the one that ships with deployer",
    )
