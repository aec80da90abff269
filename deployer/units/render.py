"""Jinja templates for units: strict about undefined names, and with systemd's quoting as filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from traceback import extract_tb
from typing import Any

from jinja2 import (
    Environment,
    FileSystemLoader,
    StrictUndefined,
    TemplateError,
    TemplateNotFound,
    TemplateSyntaxError,
)

from deployer.config.problems import printable
from deployer.errors import ConfigError, DeployerError
from deployer.resources import shipped
from deployer.units import quoting

UNIT_TEMPLATE = "sglang.service.j2"


def template_folders(site: Path | None = None) -> list[Path]:
    """Where templates are looked for: the site's own folder first, then the shipped ones."""
    return [*([site] if site is not None else []), shipped("templates")]


def _environment(folders: Sequence[Path]) -> Environment:
    # Units are not HTML; their quoting is in the filters.
    made = Environment(
        loader=FileSystemLoader([str(folder) for folder in folders]),
        undefined=StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {
        "word": quoting.word,
        "command_line": quoting.command_line,
        "assignment": lambda value, name: quoting.assignment(name, value),
        "plain": lambda value: quoting.plain(str(value)),
        "path": quoting.path,
    }
    return made


def render(template: str, values: Mapping[str, Any], folders: Sequence[Path]) -> str:
    """A template with its values. ConfigError names file and line where the template is wrong."""
    made = _environment(folders)
    try:
        return made.get_template(template).render(values)
    except DeployerError:
        raise
    except TemplateNotFound as error:
        looked = ", ".join(printable(str(folder)) for folder in folders)
        raise ConfigError(
            f"there is no template {printable(str(error.name))} in {looked}",
            remedy="put it there, or correct the setting `templates`",
        ) from None
    except TemplateSyntaxError as error:
        raise _broken(error.filename or template, error.lineno, error.message or "syntax error") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"a template in {printable(str(folders[0]))} is not UTF-8 text: {error.reason}",
            remedy="save it as UTF-8",
        ) from None
    except Exception as error:
        # A template runs expressions of its author; whatever they raise is the template's fault.
        where = [frame for frame in extract_tb(error.__traceback__) if frame.filename.endswith(".j2")]
        file, line = (where[-1].filename, where[-1].lineno) if where else (template, None)
        kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
        raise _broken(file, line, f"{kind}{error}") from None


def _broken(file: str, line: int | None, why: str) -> ConfigError:
    at = f", line {line}" if line else ""
    return ConfigError(
        f"template {printable(file)}{at}: {printable(why, 500)}",
        remedy="correct the template, or remove it to use the one that ships with deployer",
    )
