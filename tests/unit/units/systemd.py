"""How systemd reads units, written anew from its documentation, to check what deployer writes.

Follows systemd.syntax(7), systemd.service(5) "Command lines" and systemd.exec(5): lines, words, escapes, specifiers,
assignments, and the lines of an EnvironmentFile=.
"""

from __future__ import annotations

BLANKS = " \t\n\r"
_ESCAPED = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92, '"': 34, "'": 39, "s": 32}
_MAXIMUM = 1024 * 1024


class Misread(Exception):
    """systemd would warn, and ignore the line."""


def lines(text: str) -> list[tuple[str, str]]:
    """(section, line) with continuation lines joined and comments left out."""
    found: list[tuple[str, str]] = []
    section, pending = "", None
    for raw in _split(text):
        stripped = raw.lstrip(BLANKS)
        if stripped[:1] in ("#", ";") and stripped:
            continue
        line = raw if pending is None else pending + raw
        pending = None
        if len(line.encode()) > _MAXIMUM:
            raise Misread("line too long")
        if _escaped_end(line):
            pending = line[:-1] + " "
            continue
        line = line.strip(BLANKS)
        if not line:
            continue
        _check_text(line)
        if line.startswith("["):
            if not line.endswith("]"):
                raise Misread(f"section head {line}")
            section = line[1:-1]
            continue
        found.append((section, line))
    if pending is not None:
        found.append((section, pending))
    return found


def _split(text: str) -> list[str]:
    """Lines end at LF, CR or NUL, and at nothing else."""
    for end in ("\r", "\0"):
        text = text.replace(end, "\n")
    return text.split("\n")


def _escaped_end(line: str) -> bool:
    escaped = False
    for char in line:
        escaped = not escaped and char == "\\"
    return escaped


def _check_text(text: str) -> None:
    for char in text:
        code = ord(char)
        if 0xD800 <= code <= 0xDFFF or 0xFDD0 <= code <= 0xFDEF or (code & 0xFFFE) == 0xFFFE:
            raise Misread("not valid UTF-8 text")


def assignments(text: str) -> list[tuple[str, str, str]]:
    """(section, key, value)."""
    found: list[tuple[str, str, str]] = []
    for section, line in lines(text):
        if section.startswith("X-"):
            continue
        if "=" not in line:
            raise Misread(f"no = in {line}")
        key, _, value = line.partition("=")
        found.append((section, key.rstrip(BLANKS), value.lstrip(BLANKS)))
    return found


def words(text: str) -> list[str]:
    """Split into words: quotes and C escapes undone."""
    found: list[str] = []
    data, place = text, 0
    while True:
        while place < len(data) and data[place] in BLANKS:
            place += 1
        if place == len(data):
            return found
        if data[place] == ";" and (place + 1 == len(data) or data[place + 1] in BLANKS):
            raise Misread("a command ends here")
        word, place = _word(data, place)
        found.append(word)


def _word(data: str, place: int) -> tuple[str, int]:
    word, quote = bytearray(), ""
    while place < len(data):
        char = data[place]
        if char == "\\":
            value, place = _escape(data, place + 1)
            word += value
            continue
        if quote:
            if char == quote:
                quote = ""
            else:
                word += char.encode()
        elif char in "\"'":
            quote = char
        elif char in BLANKS:
            break
        else:
            word += char.encode()
        place += 1
    if quote:
        raise Misread("unbalanced quote")
    try:
        return word.decode(), place
    except UnicodeDecodeError:
        raise Misread("not UTF-8") from None


def _escape(data: str, place: int) -> tuple[bytes, int]:
    if place == len(data):
        raise Misread("escape at the end")
    kind = data[place]
    if kind in _ESCAPED:
        return bytes([_ESCAPED[kind]]), place + 1
    length = {"x": 2, "u": 4, "U": 8}.get(kind)
    if length is not None:
        digits = data[place + 1 : place + 1 + length]
        if len(digits) < length or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
            raise Misread(f"bad escape \\{kind}{digits}")
        code = int(digits, 16)
        if code == 0:
            raise Misread("escaped NUL")
        return bytes([code]) if kind == "x" else chr(code).encode(), place + 1 + length
    if kind in "01234567":
        digits = data[place : place + 3]
        return bytes([int(digits, 8)]), place + 3
    raise Misread(f"unknown escape \\{kind}")


def specifiers(text: str) -> str:
    """Replace %%; anything else after % is a mistake of ours."""
    parts = text.split("%%")
    if any("%" in part for part in parts):
        raise Misread("a specifier")
    return "%".join(parts)


def command(value: str) -> list[str]:
    """The argument vector of ``ExecStart=:...``."""
    split = words(value)
    first = split[0]
    if not first.startswith(":"):
        raise Misread("without : there is $ expansion")
    path = specifiers(first[1:])
    if path[:1] in tuple("@-+!|:"):
        raise Misread("special executable prefix")
    if not path.startswith("/") or any(char in "\"'\\" or ord(char) < 32 or ord(char) == 127 for char in path):
        raise Misread("not an executable's name")
    return [path, *map(specifiers, split[1:])]


def environment(value: str) -> dict[str, str]:
    """The variables of one ``Environment=``."""
    found = {}
    for word in words(value):
        name, equals, text = specifiers(word).partition("=")
        if not equals or not _valid(name, text):
            raise Misread(f"ignored: {word!r}")
        found[name] = text
    return found


def _valid(name: str, text: str) -> bool:
    good = bool(name) and (name[0].isalpha() or name[0] == "_") and name.isascii() and name.replace("_", "a").isalnum()
    return good and not any((ord(char) < 32 and char not in "\t\n") or ord(char) == 127 for char in text)


def environment_file(text: str) -> dict[str, str]:
    """The variables of a file, read as a POSIX shell would read assignments without expansion."""
    found, place = {}, 0
    while place < len(text):
        if text[place] in BLANKS:
            place += 1
            continue
        if text[place] in "#;":
            place = (text.find("\n", place) + 1) or len(text)
            continue
        end = text.index("=", place)
        name = text[place:end]
        value, place = _file_value(text, end + 1)
        if not _valid(name, value):
            raise Misread(f"ignored: {name}")
        _check_text(value)
        found[name] = value
    return found


def _file_value(text: str, place: int) -> tuple[str, int]:
    value = ""
    while place < len(text) and text[place] not in "\n\r":
        char = text[place]
        if char == '"':
            place += 1
            while text[place] != '"':
                if text[place] == "\\":
                    place += 1
                    if text[place] in '"\\`$':
                        value += text[place]
                    elif text[place] != "\n":
                        value += "\\" + text[place]
                else:
                    value += text[place]
                place += 1
        elif char == "\\":
            place += 1
            value += text[place]
        else:
            value += char
        place += 1
    return value, place
