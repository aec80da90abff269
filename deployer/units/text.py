"""Reading the text of a unit file, and the command line in it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from deployer.records.endpoint import Endpoint

STATE_ROOT = "/var/lib/deployer"
_RELEASE_PATH = re.compile(re.escape(STATE_ROOT) + r"/[a-z0-9][a-z0-9_-]{0,39}/releases/[^/]+(?=/|$)")
#: Keys of [Service] that can change without a restart: they say how systemd treats the server, or are compared by
#: themselves (command line, environment).
_NO_RESTART = re.compile(
    r"ExecStart|Environment(File)?|Type|Restart(Sec|Steps|MaxDelaySec)?|Timeout\w+|KillMode|KillSignal|FinalKillSignal|"
    r"SendSIGKILL|OOMPolicy|LogRateLimit\w+|\w+Accounting"
)


def entries(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield (section, key, value) of each assignment, as systemd splits lines: continuations joined, no comments."""
    section, pending = "", ""
    for raw in text.split("\n"):
        stripped = raw.lstrip(" \t\r")
        if stripped.startswith(("#", ";")):
            continue
        line = pending + raw
        pending = ""
        if _continues(line):
            pending = line[:-1] + " "
            continue
        line = line.strip(" \t\r")
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif "=" in line:
            key, _, value = line.partition("=")
            yield section, key.rstrip(" \t"), value.lstrip(" \t")


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def section(text: str, name: str) -> dict[str, str]:
    """Return one section. Values of a repeated key are joined by newlines."""
    values: dict[str, str] = {}
    for where, key, value in entries(text):
        if where == name:
            values[key] = f"{values[key]}\n{value}" if key in values else value
    return values


def restart_keys(unit: str) -> dict[str, str]:
    """Return the keys of a unit's [Service] section that take effect only with a restart."""
    return {key: value for key, value in section(unit, "Service").items() if not _NO_RESTART.fullmatch(key)}


def comparable(argv: Sequence[str]) -> list[str]:
    """Return a command line without the name of its release, so that those of equal releases are equal."""
    return [_RELEASE_PATH.sub("RELEASE", word) for word in argv]


def grouped_arguments(argv: Sequence[str]) -> list[tuple[str, str]]:
    """An engine's argv as (flag, value) pairs; a flag without a value has ``""``, words before the first flag none.

    A word that starts with ``--`` begins a flag. What follows up to the next one is its value, joined by blanks.
    """
    pairs: list[tuple[str, list[str]]] = []
    for word in argv:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            pairs.append((flag, [value] if equals else []))
        elif pairs:
            pairs[-1][1].append(word)
        else:
            pairs.append(("", [word]))
    return [(flag, " ".join(words)) for flag, words in pairs]


def arguments(argv: Sequence[str]) -> dict[str, str]:
    """Return the values of an engine's argv by flag."""
    return joined(grouped_arguments(argv))


def joined(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the values by name; those of a repeated name are joined by `` | ``."""
    values: dict[str, str] = {}
    for name, value in pairs:
        values[name] = f"{values[name]} | {value}" if name in values else value
    return values


def argument(argv: Sequence[str], flag: str) -> str | None:
    """Return the value of a flag in a server's own arguments, None if it is not given."""
    return arguments(argv).get(flag) or None


def argument_endpoint(argv: Sequence[str], default: Endpoint) -> Endpoint:
    """Return where a server listens by its own arguments, else by ``default``."""
    port = argument(argv, "--port") or ""
    return replace(
        default,
        address=argument(argv, "--host") or default.address,
        port=int(port) if port.isdigit() else default.port,
    )


def served_model_name(argv: Sequence[str]) -> str | None:
    """Return the name under which a server serves its model, else its path, by its own arguments."""
    return argument(argv, "--served-model-name") or argument(argv, "--model-path")
