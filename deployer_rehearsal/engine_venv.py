"""The environment of the stand-in engine on a host: /opt/sglang, a venv in which ``import sglang`` is the stand-in."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from deployer.resources import package_root
from deployer_rehearsal.layer import Layer
from deployer_rehearsal.standin import SETTINGS_FILE

ENGINE_PYTHON = "/opt/sglang/bin/python"
DEFAULT_VERSION = "0.5.12.post1"
VERSIONS = (DEFAULT_VERSION, "0.5.23")
"""SGLang versions the stand-in can speak like."""

_ENGINE = Path(__file__).resolve().parent / "engine"
_NVIDIA_SMI = """\
#!/bin/sh
program={program}
if [ -f "$program" ]; then
    exec {python} "$program" "$@"
fi
echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver." >&2
exit 9
"""


def write_engine(layer: Layer, *, version: str, settings: dict[str, object]) -> None:
    """Write the venv, the nvidia-smi launcher and the stand-in's settings (/etc/sglang-standin.json)."""
    base = Path(sys.base_prefix)
    interpreter = Path(sys.executable).resolve()
    packages = _packages()
    layer.directory("/opt/sglang", opaque=True)
    layer.file(
        "/opt/sglang/pyvenv.cfg",
        f"home = {interpreter.parent}\ninclude-system-site-packages = false\n"
        f"version = {'.'.join(str(part) for part in sys.version_info[:3])}\n",
    )
    for place, target in _links().items():
        layer.link(place, target)
    layer.file(f"{packages}/standin.pth", f"{_ENGINE}\n")
    info = f"{packages}/sglang-{version}.dist-info"
    layer.file(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    layer.file(f"{info}/INSTALLER", "rehearsal\n")
    layer.file(f"{info}/RECORD", "")
    program = _ENGINE / "nvidia_smi.py"
    layer.file("/usr/local/bin/nvidia-smi", _NVIDIA_SMI.format(program=quoted(program), python=ENGINE_PYTHON), 0o755)
    layer.file(SETTINGS_FILE, json.dumps(settings, indent=2) + "\n")
    for path in (base, interpreter, package_root()):
        layer.way_to(path)


def renew_engine(layer: Layer) -> None:
    """Write it again, with its settings, if it leads to another checkout or Python, which may be gone."""
    if not all(layer.leads_to(place, target) for place, target in _links().items()):
        settings = json.loads(layer.at(SETTINGS_FILE).read_text())
        write_engine(layer, version=settings["version"], settings=settings)


def _packages() -> str:
    return f"/opt/sglang/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


def _links() -> dict[str, Path]:
    """Return the links of the venv, and where on this machine they lead."""
    interpreter = Path(sys.executable).resolve()
    names = ("python", "python3", f"python{sys.version_info.major}.{sys.version_info.minor}")
    links = {f"/opt/sglang/bin/{name}": interpreter for name in names}
    links |= {f"{_packages()}/{path.name}": path for path in _files_of("httpx")}
    return links | {f"{_packages()}/sglang": _ENGINE / "sglang"}


def quoted(path: Path) -> str:
    """Return a path as one word of a shell script."""
    return "'" + str(path).replace("'", "'\\''") + "'"


def needed_from_machine() -> list[Path]:
    """Return the folders of the machine that the engine needs, to be seen as they are now, not as they were at `up`."""
    system = {Path("/"), Path("/usr"), Path("/usr/local")}
    sources = {Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), package_root()}
    sources |= {Path(sys.executable).resolve().parent, *(path.parent for path in _files_of("httpx"))}
    wanted = sorted(path for path in sources if path not in system and Path("/usr") not in path.parents)
    return [path for path in wanted if not any(other in path.parents for other in wanted)]


def _files_of(distribution: str) -> list[Path]:
    """Return the top-level modules, packages and metadata of a distribution and of all it requires."""
    import importlib.metadata

    files: set[Path] = set()
    seen: set[str] = set()
    waiting = [distribution]
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            installed = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # required only elsewhere (an extra, another platform)
        for file in installed.files or []:
            top = file.parts[0]
            if top not in ("..", "__pycache__"):
                files.add(Path(str(installed.locate_file(top))))
        for requirement in installed.requires or []:
            if "extra ==" not in requirement:
                waiting.append(re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0])
    return sorted(files)
