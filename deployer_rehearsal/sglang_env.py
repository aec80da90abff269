"""The real SGLang 0.5.23 for practice hosts without a GPU: the steps of its installation, and what they require.

The environment is prepared once for all sets, in ``engines/sglang-0.5.23`` beside them, and hosts see it read-only.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployer.errors import PreflightRefused, UsageError
from deployer_rehearsal import machine, sets
from deployer_rehearsal.packages import damaged, forget_broken, missing
from deployer_rehearsal.preparation import (
    Argv,
    Say,
    Step,
    folder_size,
    is_done,
    locked,
    marker,
    pending,
    prepare,
    remove,
    size_text,
)

VERSION = "0.5.23"
TORCH, TORCHVISION = "2.13.0", "0.28.0"
OLDEST_PYTHON = (3, 11)
#: In order of preference. The pinned packages were tested with the first.
PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
#: Memory of one host: 1.7 GB for a server, 0.65 GB for each further rank; never two servers at a time.
HOST_MEMORY = 3_500_000_000
_PLUGIN = "sglang_cpu"
_HERE = Path(__file__).resolve().parent
_PIP = ("-m", "pip", "install", "--no-input", "--progress-bar", "off", "--disable-pip-version-check")
_PROBE = """
import json, sys
try:
    import ensurepip, venv
except ImportError as error:
    raise SystemExit(f"no {error.name}")
print(json.dumps([list(sys.version_info[:3]), sys._base_executable, sys.base_prefix]))
"""
# torchvision's published build is for CUDA. Beside a torch for the CPU its operators cannot be loaded, and its import
# fails because it describes two of them to torch: so they are declared.
_DECLARE = """

# declared for a torch without CUDA
if not _has_ops():
    for _name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{_name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
_PATCH = f"""
import importlib.util, pathlib, torch
file = pathlib.Path(importlib.util.find_spec("torchvision").origin).with_name("extension.py")
text, more = file.read_text(), {_DECLARE!r}
if torch.version.cuda is None and more not in text:
    file.write_text(text + more)
"""
#: Files of packages that were changed on purpose.
_CHANGED = ("torchvision/extension.py",)
# FILES: text by path, below the folder of packages.
_WRITE = """
import pathlib, sysconfig
for name, text in FILES.items():
    file = pathlib.Path(sysconfig.get_path("purelib"), name)
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
"""
_PROOF = """
import torchvision, sglang.launch_server
from sglang.srt.platforms import current_platform
assert type(current_platform).__name__ == "PracticePlatform", current_platform
"""


@dataclass(frozen=True)
class Environment:
    """The folders of the prepared engine. Hosts see only ``venv`` and ``model``."""

    folder: Path

    @property
    def venv(self) -> Path:
        """The Python environment with SGLang."""
        return self.folder / "venv"

    @property
    def model(self) -> Path:
        """The tiny checkpoint."""
        return self.folder / "tiny-qwen3"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.venv / "bin/python"


def environment() -> Environment:
    """Return the environment of this machine, prepared or not."""
    return Environment(sets.engines_folder() / f"sglang-{VERSION}")


# Steps


#: Number of steps until all packages are installed.
_INSTALLED = 6


def steps(where: Environment, interpreter: str) -> list[Step]:
    """Return the steps from an empty folder to an environment that has been tested."""
    python = str(where.python)
    requirements = (_HERE / "sglang_requirements.txt").read_text()
    wanted, pinned = where.folder / "requirements.txt", where.folder / "pinned.txt"
    plugin = _install_plugin()

    def pip(*words: str) -> tuple[Argv, ...]:
        return ((python, *_PIP, *words),)

    def tidy() -> None:
        forget_broken(where.venv, changed=_CHANGED)

    return [
        Step(
            "venv",
            f"making a Python environment with {interpreter}",
            "venv",
            commands=((interpreter, "-m", "venv", "--clear", str(where.venv)),),
            size=25_000_000,
        ),
        Step(
            "torch",
            f"installing torch {TORCH}",
            TORCH,
            before=tidy,
            commands=pip(f"torch=={TORCH}+cpu"),
            otherwise=pip(f"torch=={TORCH}"),
            size=900_000_000,
            otherwise_if="from versions: (?!none)",  # pip could ask, and was told of others only
            otherwise_size=5_000_000_000,
        ),
        Step(
            "sglang",
            f"installing sglang {VERSION} and torchvision {TORCHVISION}",
            f"{VERSION} {TORCHVISION}",
            before=tidy,
            commands=pip("--no-deps", f"torchvision=={TORCHVISION}", f"sglang=={VERSION}"),
            size=250_000_000,
        ),
        Step(
            "requirements",
            "installing what sglang imports",
            requirements,
            before=tidy,
            files={wanted: requirements, pinned: f"torch=={TORCH}\n"},
            commands=pip("-c", str(pinned), "-r", str(wanted)),
            size=1_750_000_000,
        ),
        Step("torchvision", "fitting torchvision to torch", _PATCH, commands=((python, "-c", _PATCH),)),
        Step("plugin", "installing the CPU plug-in", plugin, commands=((python, "-c", plugin),)),
        Step(
            "checkpoint",
            "making a tiny checkpoint",
            (_HERE / "checkpoint.py").read_text(),
            before=lambda: empty(where.model),
            commands=((python, str(_HERE / "checkpoint.py"), str(where.model)),),
            result=where.model,
            size=5_000_000,
        ),
        Step("proof", "importing all of it once", _PROOF, commands=((python, "-c", _PROOF),)),
    ]


def _install_plugin() -> str:
    """A program that writes the plug-in, as an installed distribution with its entry point, beside the packages."""
    info = f"{_PLUGIN}-{VERSION}.dist-info"
    files = {
        f"{_PLUGIN}.py": (_HERE / f"{_PLUGIN}.py").read_text(),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {_PLUGIN}\nVersion: {VERSION}\n",
        f"{info}/entry_points.txt": f"[sglang.srt.platforms]\n{_PLUGIN} = {_PLUGIN}:activate\n",
        f"{info}/INSTALLER": "deployer\n",
        f"{info}/RECORD": "",
    }
    return _WRITE.replace("FILES", repr(files))


def empty(folder: Path) -> None:
    """Remove the files of a folder, not the folder: hosts that are up have it mounted."""
    for path in folder.glob("*"):
        path.unlink()


# Whether it can be


@dataclass(frozen=True)
class Interpreter:
    """A Python of the machine: its file, and the folder of its library."""

    file: Path
    base: Path


def find_python(names: Sequence[str] = PYTHONS, *, path: str | None = None, own: str | None = None) -> Interpreter:
    """Return the first Python that SGLang and venv can use. Raise PreflightRefused, naming those tried, if none can.

    The system's folders come before the caller's PATH, because every host sees them.
    """
    folders = f"{machine.SYSTEM_PATH}:{os.environ.get('PATH', '')}" if path is None else path
    tried: list[str] = []
    for name in (*names, own or sys.executable):
        files = [shutil.which(name, path=folder) for folder in dict.fromkeys(folders.split(":")) if folder]
        if "/" in name:
            files = [name]
        for file in dict.fromkeys(filter(None, files)):
            problem, found = _probe(file)
            if found:
                return found
            tried.append(f"{file} ({problem})")
        if not any(files):
            tried.append(f"{name} (not there)")
    oldest = ".".join(map(str, OLDEST_PYTHON))
    raise PreflightRefused(
        f"SGLang {VERSION} needs Python {oldest} or later, with venv; tried: {', '.join(tried)}",
        remedy="install one (Debian packages: python3.11 and python3.11-venv)",
        detail={"tried": tried},
    )


def _probe(file: str) -> tuple[str, Interpreter | None]:
    """Return why a Python cannot be used, or the interpreter."""
    try:
        done = subprocess.run([file, "-I", "-c", _PROBE], capture_output=True, text=True, timeout=30, check=False)
        version, executable, base = json.loads(done.stdout or "null") or ((), "", "")
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return f"cannot be run: {error}", None
    if done.returncode != 0:
        return (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1], None
    if tuple(version[:2]) < OLDEST_PYTHON:
        return f"is {'.'.join(map(str, version))}", None
    return "", Interpreter(Path(executable).resolve(), Path(base).resolve())


def require_processor(kind: str | None = None) -> None:
    """Raise PreflightRefused unless the machine is an x86-64: elsewhere SGLang needs CPU kernels that no wheel has."""
    kind = kind or os.uname().machine
    if kind != "x86_64":
        raise PreflightRefused(
            f"SGLang {VERSION} runs on the CPU of an x86-64 machine only, and this one is {kind}",
            remedy="rehearse with the stand-in engine",
        )


def require_disk(folder: Path, plan: Sequence[Step], left: Sequence[Step], *, free: int | None = None) -> None:
    """Raise PreflightRefused unless the remaining steps and pip's temporary files fit on the disk of ``folder``.

    What an interrupted step has left there counts as free.
    """
    wanted = [step.size for step in left]
    needed = sum(wanted) + max(wanted, default=0) // 3 + (100 << 20)  # packed, they take a third
    place = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
    names = {step.name for step in left}
    begun = folder_size(folder) - sum(step.size for step in plan if step.name not in names)
    have = (shutil.disk_usage(place).free if free is None else free) + max(0, begun)
    if have < needed:
        more = " or taken by the unfinished preparation" if begun > 0 else ""
        raise PreflightRefused(
            f"preparing SGLang {VERSION} needs {size_text(needed)} in {folder}, and {size_text(have)} are free there"
            + more,
            remedy="free some space, or name a folder on another disk in DEPLOYER_REHEARSAL_DIR",
            detail={"needed_bytes": needed, "free_bytes": have},
        )


def require_memory(hosts: int, *, meminfo: str | None = None) -> None:
    """Raise PreflightRefused unless the available memory is enough for so many hosts with a server each."""
    text = Path("/proc/meminfo").read_text() if meminfo is None else meminfo
    available = [line.split()[1] for line in text.splitlines() if line.startswith("MemAvailable:")]
    have = int(available[0]) * 1024 if available else 0
    if have < hosts * HOST_MEMORY:
        raise PreflightRefused(
            f"{hosts} practice host{'s' * (hosts > 1)} with SGLang need{'s' * (hosts == 1)} "
            f"{size_text(hosts * HOST_MEMORY)} of memory, and {size_text(have)} are available",
            remedy="end other programs, or rehearse with the stand-in engine, which needs little",
            detail={"needed_bytes": hosts * HOST_MEMORY, "available_bytes": have},
        )


# The whole


def ensure(say: Say) -> Environment:
    """Return the environment, prepared as far as it is missing or damaged.

    Raise PreflightRefused, before anything is changed, without a suitable Python or enough disk; HostError if a step
    fails (the next call continues there).
    """
    require_processor()
    where = environment()
    plan = steps(where, "")
    if all(is_done(where.folder, step) for step in plan[:_INSTALLED]):
        _look_after(where, plan, say)
    if pending(where.folder, plan):
        say(f"preparing SGLang {VERSION} for practice hosts (only once) in {where.folder}")
        # Even if the environment exists: somebody may remove it before we have the lock.
        found = _probe(str(where.python))[1] if is_done(where.folder, plan[0]) else None
        plan = steps(where, str((found or find_python()).file))
    prepare(where.folder, plan, say=say, check=lambda left: require_disk(where.folder, plan, left))
    return where


def _look_after(where: Environment, plan: Sequence[Step], say: Say) -> None:
    """Mark the steps for repetition whose results have been damaged."""
    if _probe(str(where.python))[0]:  # the Python it was made with is gone
        say("the Python of the prepared SGLang is gone")
        marker(where.folder, plan[0]).unlink(missing_ok=True)
        return
    broken = {info.name.partition("-")[0] for info in damaged(where.venv, changed=_CHANGED)}
    broken.update(missing(where.venv, ("torch", "torchvision", "sglang", _PLUGIN)))
    plugin = (_HERE / f"{_PLUGIN}.py").read_text()
    if [file.read_text() for file in where.venv.glob(f"lib/python3*/site-packages/{_PLUGIN}.py")] != [plugin]:
        broken.add(_PLUGIN)
    if broken:
        say(f"damaged packages of the prepared SGLang: {', '.join(sorted(broken))}")
        marker(where.folder, plan[1]).unlink(missing_ok=True)


def ready(where: Environment) -> bool:
    """Whether all steps are done."""
    return not pending(where.folder, steps(where, ""))


def describe() -> dict[str, Any]:
    """Return the environment as data: its folder, whether it exists and is complete, its bytes on the disk."""
    where = environment()
    there = where.folder.is_dir()
    return {
        "engine": f"sglang-{VERSION}",
        "folder": str(where.folder),
        "there": there,
        "ready": there and ready(where),
        "bytes": folder_size(where.folder) if there else 0,
    }


def clean(users: Callable[[], list[str]]) -> int | None:
    """Remove the environment; return the bytes that this frees, None if there is none.

    ``users`` returns the sets that run on it; raise UsageError if there are any.
    """
    where = environment()
    if not where.folder.is_dir():
        return None
    with locked(where.folder):
        if names := users():
            raise UsageError(
                f"the prepared SGLang is in use by {', '.join(names)}",
                remedy=f"run `deployer rehearse down --name {names[0]}` first",
            )
        size = folder_size(where.folder)
        remove(where.folder)
    return size
