"""An environment of its own for each client, made with pip and kept: pinned, so that figures can be compared."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_REHEARSAL = _ROOT / "deployer_rehearsal"
_PIP = ("-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check")
TORCH = "2.13.0"

#: What pip installs, a call each; `cli` is for benchmarks.cli. bench_serving imports torch and much of SGLang: the list
#: is the one that the practice hosts' real SGLang has. guidellm and aiperf bring what they need (6 GB and 1 GB).
STEPS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "deployer": (("httpx==0.28.1", "uvloop==0.23.0"),),
    "bench_serving": (
        (f"torch=={TORCH}",),
        ("--no-deps", "sglang==0.5.23"),
        ("-r", str(_REHEARSAL / "sglang_requirements.txt"), "datasets==5.2.0"),
    ),
    "guidellm": (("guidellm==0.8.1",),),
    "aiperf": (("aiperf==0.13.0",),),
    "cli": (("ansible-core==2.19.14", "pyinfra==3.10.0"),),
}
#: The packages whose versions are told.
TOLD: Mapping[str, tuple[str, ...]] = {
    "deployer": ("httpx", "uvloop"),
    "bench_serving": ("sglang", "aiohttp"),
    "guidellm": ("guidellm", "httpx"),
    "aiperf": ("aiperf", "aiohttp"),
    "cli": ("ansible-core", "pyinfra"),
}


def prepared(name: str, folder: Path) -> str:
    """The Python of that environment, made in ``folder`` where it is not there. SystemExit where pip fails."""
    place = folder / f".venv-bench-{name}"
    python = place / "bin" / "python"
    done = place / "installed"
    wanted = repr(STEPS[name])
    if done.exists() and done.read_text() == wanted:
        return str(python)
    print(f"making {place} (once)", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
    steps = STEPS[name]
    engine = _engine()
    if name == "bench_serving" and engine is not None:
        # A practice host's real SGLang of this version is there: what it has is not fetched again.
        lib = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
        (place / lib / "engine.pth").write_text(f"{engine / lib}\n")
        steps = ((steps[-1][-1],),)
    for words in steps:
        if subprocess.run([str(python), *_PIP, *words], check=False).returncode:
            raise SystemExit(f"pip could not install {' '.join(words)} for {name}")
    done.write_text(wanted)
    return str(python)


def _engine() -> Path | None:
    """The environment of a practice host's real SGLang, where it has been made with this Python."""
    from deployer_rehearsal.sglang_env import VERSION, environment

    here = environment()
    lib = here.venv / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    fits = any(lib.glob(f"sglang-{VERSION}.dist-info"))
    return here.venv if fits and os.access(lib, os.R_OK) else None


def versions(name: str, python: str) -> str:
    """Versions of Python and of the packages that matter, as one line."""
    code = (
        "import platform, importlib.metadata as m\n"
        "print('Python', platform.python_version())\n"
        f"for name in {TOLD[name]!r}:\n"
        "    try: print(name, m.version(name))\n"
        "    except m.PackageNotFoundError: pass\n"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return ", ".join(done.stdout.split("\n")).strip(", ") or "unknown"
