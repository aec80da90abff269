"""Writing values into unit files so that systemd reads back exactly the same values. Pure.

Each place has rules of its own: words of a command line (``systemd.service(5)``, "Command lines"), ``Environment=``,
the lines of an ``EnvironmentFile=``, and plain values, which are not quoted at all. A value that a place cannot
hold is refused with ConfigError, never changed.
"""

from __future__ import annotations

import re

from deployer.config.wording import printable
from deployer.errors import ConfigError

#: The kernel's limit of one argument or ``NAME=value``, counting the NUL at its end (MAX_ARG_STRLEN).
ARGUMENT_LIMIT = 128 * 1024
#: systemd's limit of one line of a unit file, continuation lines joined (LONG_LINE_MAX).
LINE_LIMIT = 1024 * 1024

_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./-]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "%": "%%"}
#: Characters that are escaped between double quotes, or may be.
_SPECIAL = re.compile(r'["\\%]|[^ -~]')
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
#: Control characters for which systemd silently drops a variable.
_CONTROL_OF_VARIABLES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
#: Code points that Unicode reserves as noncharacters: U+FDD0 to U+FDEF and the last two of each plane.
_NO_CHARACTER = re.compile(
    "[\ufdd0-\ufdef"
    + "".join(f"{chr(plane + 0xFFFE)}{chr(plane + 0xFFFF)}" for plane in range(0, 0x110000, 0x10000))
    + "]"
)


def _refuse(what: str, value: str, why: str) -> ConfigError:
    return ConfigError(
        f"{what} cannot be written into a unit: it {why}",
        remedy="change the value in the configuration",
        detail={"value_begins": printable(value[:40])} if what.startswith("argument") else None,
    )


def _check(what: str, value: str, limit: int) -> None:
    """Refuse a value that cannot be written anywhere in a unit."""
    if "\0" in value:
        raise _refuse(what, value, "contains NUL")
    try:
        size = len(value.encode("utf-8"))
    except UnicodeEncodeError:
        raise _refuse(what, value, "is not UTF-8 text") from None
    if size >= limit:
        raise _refuse(what, value, f"is {size} bytes long (it must be shorter than {limit})")
    if not value.isascii() and _NO_CHARACTER.search(value):
        # systemd does not accept these as text and would ignore the line.
        raise _refuse(what, value, "contains a code point that Unicode reserves as a noncharacter")


def _quoted(value: str) -> str:
    return f'"{_SPECIAL.sub(_escaped, value)}"'


def _escaped(match: re.Match[str]) -> str:
    """Return a character between double quotes; an invisible one is written by its number, for people."""
    char = match[0]
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable():
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 128 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def word(value: str) -> str:
    """Return one word of a command line under ``ExecStart=:`` (which takes ``$`` literally)."""
    _check("argument", value, ARGUMENT_LIMIT)
    if _PLAIN.fullmatch(value):
        return value
    return _quoted(value)


def executable(value: str) -> str:
    """Return the first word after ``ExecStart=:``. It must be absolute: systemd would look up anything else."""
    _check("argument", value, 4096)
    if not value.startswith("/") or value.endswith("/"):
        raise _refuse("argument", value, "is the program and must be an absolute path")
    if _CONTROL.search(value) or any(char in value for char in "\"'\\"):
        raise _refuse("argument", value, "is the program and contains quotes, backslashes or control characters")
    if "//" in value or "/./" in value or "/../" in value:
        # systemd would simplify it, and argv would differ from the intended one.
        raise _refuse("argument", value, "is the program and contains // or /./ or /../")
    return value if _PLAIN.fullmatch(value) else _quoted(value)


def command_line(argv: list[str]) -> str:
    """Return the value of ``ExecStart=``: ``:`` (no ``$`` expansion), then every argument as one word.

    Each option begins a line of its own, for people; systemd joins the lines.
    """
    if not argv:
        raise ConfigError("there is no command to run", remedy="correct the template")
    text = ":" + executable(argv[0])
    for argument in argv[1:]:
        text += (" \\\n    " if argument.startswith("--") else " ") + word(argument)
    if len(text.encode()) > LINE_LIMIT - 64:
        raise _refuse("the command line", "", f"is longer than {LINE_LIMIT} bytes")
    return text


def assignment(name: str, value: str) -> str:
    """Return the value of ``Environment=``: one quoted ``NAME=value``."""
    _check_variable(name, value)
    return _quoted(f"{name}={value}")


def file_line(name: str, value: str) -> str:
    """Return one line of an ``EnvironmentFile=``, quoted like a shell's: in double quotes ``\\ " ` $`` are escaped."""
    _check_variable(name, value)
    return f'{name}="' + re.sub(r'[\\"`$]', r"\\\g<0>", value) + '"\n'


def _check_variable(name: str, value: str) -> None:
    what = f"environment variable {printable(name, 60)}"
    if not _VARIABLE.fullmatch(name):
        raise _refuse(what, "", "has a name with other characters than letters, digits and _")
    _check(what, value, ARGUMENT_LIMIT - len(name) - 1)
    if not value.isprintable() and _CONTROL_OF_VARIABLES.search(value):
        raise _refuse(what, "", "contains control characters other than tab and newline")


def plain(value: str) -> str:
    """Return a value that is not quoted, such as ``Description=`` or ``User=``: one line, ``%`` doubled."""
    _check("value", value, LINE_LIMIT // 2)
    if _CONTROL.search(value):
        raise _refuse("value", value, "contains control characters")
    if value != value.strip() or value.endswith("\\"):
        raise _refuse("value", value, "begins or ends with a blank, or ends with a backslash")
    return value.replace("%", "%%")


def path(value: str) -> str:
    """Return a path as a plain value (``WorkingDirectory=``, ``EnvironmentFile=``): absolute, without patterns."""
    text = plain(value)
    if not value.startswith("/"):
        raise _refuse("path", value, "is not absolute")
    if any(char in value for char in "*?[\\"):
        raise _refuse("path", value, "contains pattern characters (* ? [ \\)")
    return text
