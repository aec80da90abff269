"""The command line of one SGLang version: argparse built from the version's flag table, and its ``--config`` file."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

# Where the flag's destination is not the name of the field it ends up in (to 0.5.16).
FIELD_OF = {
    "tensor_parallel_size": "tp_size",
    "pipeline_parallel_size": "pp_size",
    "data_parallel_size": "dp_size",
    "expert_parallel_size": "ep_size",
    "attention_context_parallel_size": "attn_cp_size",
    "moe_data_parallel_size": "moe_dp_size",
}
_REQUIRED = ("<required>", "NODEFAULT")
_FLAG_ACTIONS = ("store_true", "DeprecatedStoreTrueAction", "DeprecatedAction")
_SUFFIX = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def load_table(folder: Path, version: str) -> dict[str, Any]:
    """Return the flag table of a version. Raise FileNotFoundError if there is none."""
    data: dict[str, Any] = json.loads((folder / f"args-{version}.json").read_text(encoding="utf-8"))
    return data


def human_readable_int(text: str) -> int:
    """Parse ``8192``, ``8k`` (thousands), ``8K`` (1024s), ``1.5m``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgtKMGT]?)", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"Invalid integer: {text!r}")
    number, suffix = match.groups()
    if suffix.isupper():
        return int(float(number) * 1024 ** ("KMGT".index(suffix) + 1))
    return int(float(number) * _SUFFIX.get(suffix, 1))


def _nullable_str(text: str) -> str | None:
    return None if not text or text == "None" else text


def _json_list(text: str) -> list[Any]:
    value = json.loads(text)
    if not isinstance(value, list):
        raise argparse.ArgumentTypeError(f"Invalid JSON list: {text}")
    return value


_TYPES: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "loads": json.loads,
    "human_readable_int": human_readable_int,
    "nullable_str": _nullable_str,
    "json_list_type": _json_list,
    "parse_cuda_graph_config_arg": json.loads,
    "parse_cuda_graph_backend_arg": str,
}


class _Warned(argparse.Action):
    """A flag that SGLang still accepts and warns about."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        print(f"NOTE: The command line argument '{option_string}' is deprecated.", file=sys.stderr)
        setattr(namespace, self.dest, True if self.nargs == 0 else values)


class _Plain(argparse.Action):
    """A flag with an action of SGLang's own that stores the value."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, values)


class _Parser(argparse.ArgumentParser):
    """argparse, with standard error flushed before it exits (status 2)."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        sys.stderr.write(f"{self.prog}: error: {message}\n")
        sys.stderr.flush()
        raise SystemExit(2)


def build_parser(table: dict[str, Any]) -> argparse.ArgumentParser:
    """Return the version's parser, with the same names, abbreviations, choices and messages."""
    parser = _Parser(prog=_program(str(table["version"])))
    add_flags(parser, table)
    return parser


def add_flags(parser: argparse.ArgumentParser, table: dict[str, Any]) -> None:
    """Add the flags of a table to a parser."""
    for flag in table["flags"]:
        options: dict[str, Any] = {"dest": flag["dest"], "default": flag.get("default")}
        action = flag.get("action")
        if flag.get("required"):
            options["required"] = True
        if flag.get("deprecated"):
            options["help"] = "deprecated"
        if action == "BooleanOptionalAction":
            options["action"] = argparse.BooleanOptionalAction
        elif action == "store_true":
            options["action"] = "store_true"
            options["default"] = bool(flag.get("default") or False)
        elif action in ("DeprecatedStoreTrueAction", "DeprecatedAction"):
            options |= {"action": type(action, (_Warned,), {}), "nargs": 0, "default": False}
        else:
            if action is not None:
                kind = _Warned if action == "DeprecatedStoreConstAction" else _Plain
                options["action"] = type(action, (kind,), {})
            if "choices" in flag:
                options["choices"] = flag["choices"]
            if flag.get("nargs") is not None:
                options["nargs"] = flag["nargs"]
            if flag.get("nargs") == "?":
                options["const"] = flag.get("const")
            options["type"] = _type(str(flag.get("type", "str")))
        parser.add_argument(*flag["names"], **options)


def _type(name: str) -> Callable[[str], Any]:
    """Return a converter of the name that argparse's messages show."""
    known = _TYPES.get(name, str)
    if known.__name__ == name:
        return known

    def convert(text: str) -> Any:
        return known(text)

    convert.__name__ = name
    return convert


def _program(version: str) -> str:
    numbers = [int(part) for part in version.split(".")[:3] if part.isdigit()]
    return "sglang serve" if numbers >= [0, 5, 16] else "launch_server.py"


def parse(table: dict[str, Any], argv: Sequence[str], parser: argparse.ArgumentParser | None = None) -> dict[str, Any]:
    """Return all fields of the version's ServerArgs as requested, unresolved. Raise SystemExit(2) as argparse does.

    ``parser`` is `build_parser` of the table, where there is one already.
    """
    booleans = {
        name.lstrip("-") for flag in table["flags"] if flag.get("action") in _FLAG_ACTIONS for name in flag["names"]
    }
    parsed = vars((parser or build_parser(table)).parse_args(merge_config(list(argv), booleans)))
    asked = {FIELD_OF.get(dest, dest): value for dest, value in parsed.items()}
    fields: dict[str, Any] = {}
    for field in table["fields"]:
        name, default = field["name"], field.get("default")
        fields[name] = asked.get(name, None if default in _REQUIRED else default)
    return fields


def merge_config(argv: list[str], booleans: set[str]) -> list[str]:
    """Put a ``--config`` file's contents before the other arguments, which win. Raise ValueError as SGLang does."""
    places = [index for index, word in enumerate(argv) if word == "--config"]
    if not places:
        return argv
    if len(places) > 1:
        raise ValueError("Multiple config files specified! Only one allowed.")
    if places[0] == len(argv) - 1:
        raise ValueError("No config file specified after --config flag!")
    path = Path(argv[places[0] + 1])
    if path.suffix.lower() not in (".yaml", ".yml"):
        raise ValueError(f"Config file must be YAML format, got: {path.suffix}")
    if not path.exists():
        raise ValueError(f"Config file not found: {path}")
    words: list[str] = []
    for key, value in flat_yaml(path.read_text(encoding="utf-8")).items():
        if isinstance(value, bool) and key.replace("_", "-") in booleans:
            words += [f"--{key.replace('_', '-')}"] if value else []
        elif isinstance(value, bool):
            words += [f"--{key}", str(value).lower()]
        elif isinstance(value, list):
            words += [f"--{key}", *(str(item) for item in value)] if value else []
        else:
            words += [f"--{key}", str(value)]
    return words + argv[: places[0]] + argv[places[0] + 2 :]


def flat_yaml(text: str) -> dict[str, Any]:
    """Parse a mapping of scalars and lists of scalars in YAML, or a JSON object. Raise ValueError for anything else."""
    if text.lstrip().startswith("{"):
        data = json.loads(text)
        return dict(data)
    result: dict[str, Any] = {}
    open_list: list[Any] | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.rstrip()
        if not line.strip() or line.lstrip().startswith("#") or line in ("---", "..."):
            continue
        if open_list is not None and re.match(r"\s*- ", line):
            open_list.append(_scalar(line.split("- ", 1)[1]))
            continue
        match = re.fullmatch(r"(?:\"([^\"]+)\"|'([^']+)'|([A-Za-z0-9_.-]+)):(?:\s+(.*))?", line)
        if match is None:
            if number == 1 or line.lstrip().startswith("- "):
                raise ValueError("Config file must contain a dictionary at root level")
            raise ValueError(f"could not read line {number} of the config file")
        key = next(part for part in match.groups()[:3] if part)
        rest = (match.group(4) or "").strip()
        open_list = None
        if rest:
            result[key] = _scalar(rest)
        else:
            open_list = result[key] = []
    return {key: None if value == [] else value for key, value in result.items()}


def _scalar(text: str) -> Any:
    text = text.strip()
    if text[:1] == '"':
        return json.loads(re.match(r'"(?:[^"\\]|\\.)*"', text).group())  # type: ignore[union-attr]
    if text[:1] == "'":
        return text[1 : text.rindex("'")].replace("''", "'")
    text = re.sub(r"\s+#.*$", "", text)
    if text.startswith("[") and text.endswith("]"):
        return [_scalar(part) for part in text[1:-1].split(",") if part.strip()]
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text in ("null", "~", "Null", "NULL"):
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
