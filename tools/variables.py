"""The environment variables that each known version of SGLang reads: ``deployer/sglang/data/variables.json``.

    python -m tools.variables            # the versions of the file again
    python -m tools.variables 0.5.24     # and one more

The wheels are downloaded with pip, without what they depend on, and their sources are read as text; nothing of them is
run. What is new and gone since the version before is printed, for review.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from deployer.sglang.flags.versions import parse_version

DATA = Path(__file__).resolve().parents[1] / "deployer" / "sglang" / "data" / "variables.json"
_WIDTH = 118
#: A name in quotes (``os.environ["SGLANG_PORT"]``), and one that srt/environ.py declares (``SGLANG_PORT = EnvInt(3)``).
_NAMED = re.compile(r"""["']((?:SGLANG|SGL)_[A-Z0-9_]*[A-Z0-9])["']""")
_DECLARED = re.compile(r"^\s+((?:SGLANG|SGL)_[A-Z0-9_]*[A-Z0-9])\s*=\s*_?\w*Env\w*\(", re.MULTILINE)


#: Examples in SGLang's own docstrings.
_EXAMPLES = frozenset({"SGLANG_NEW_NAME", "SGLANG_OLD_NAME"})


def named(source: str) -> set[str]:
    """Return the variables of SGLang's that a module names."""
    return {*_NAMED.findall(source), *_DECLARED.findall(source)} - _EXAMPLES


def of_wheel(path: Path) -> set[str]:
    """Return the variables that the modules of a wheel name."""
    with zipfile.ZipFile(path) as wheel:
        modules = [name for name in wheel.namelist() if name.startswith("sglang/") and name.endswith(".py")]
        return set().union(*(named(wheel.read(name).decode("utf-8", "replace")) for name in modules))


def document(found: Mapping[str, set[str]]) -> str:
    """Return the file's text for the variables by version, ascending: each name with its first and last version."""
    versions = list(found)
    spans: dict[tuple[int, int], list[str]] = {}
    for name in sorted(set().union(*found.values())):
        places = [index for index, version in enumerate(versions) if name in found[version]]
        spans.setdefault((places[0], places[-1]), []).append(name)
    parts = [
        f'  {{"first": {json.dumps(versions[first])}, "last": {json.dumps(versions[last])}, "names": [\n'
        + ",\n".join(_lines(names))
        + "\n  ]}"
        for (first, last), names in sorted(spans.items())
    ]
    return f'{{"versions": {json.dumps(versions)},\n "spans": [\n' + ",\n".join(parts) + "\n]}\n"


def _lines(names: Sequence[str]) -> Iterator[str]:
    line = "   "
    for name in map(json.dumps, names):
        if len(line) + len(name) > _WIDTH:
            yield line.rstrip(",")
            line = "   "
        line += f" {name},"
    yield line.rstrip(",")


def downloaded(version: str, folder: Path) -> Path:
    """Return the wheel of a version."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*pip, "--python-version", "3.12", "--dest", str(folder), f"sglang=={version}"], check=True)
    [wheel] = folder.glob(f"sglang-{version}-*.whl")
    return wheel


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the wheels, write the file, and print what changed with each version named."""
    parser = argparse.ArgumentParser(prog="python -m tools.variables", description=__doc__)
    parser.add_argument("versions", nargs="*", help="versions to add")
    wanted = parser.parse_args(arguments).versions
    known = json.loads(DATA.read_text(encoding="utf-8"))["versions"]
    versions = sorted({*known, *wanted}, key=parse_version)
    with tempfile.TemporaryDirectory() as name:
        found = {version: of_wheel(downloaded(version, Path(name))) for version in versions}
    DATA.write_text(document(found), encoding="utf-8")
    for before, version in itertools.pairwise(versions):
        if version in wanted:
            print(f"{version}: new {', '.join(sorted(found[version] - found[before])) or 'none'}")
            print(f"{version}: gone {', '.join(sorted(found[before] - found[version])) or 'none'}")


if __name__ == "__main__":
    main()
