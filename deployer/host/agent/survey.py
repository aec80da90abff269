"""What can be known before anything runs: the engine's environment and the model."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
from typing import Optional, Set, Tuple

from .base import Fail, Json
from .files import read_text
from .machine import Machine

#: Distributions of the engine's environment whose versions decide whether it runs.
PACKAGES = ("sglang", "httpx", "torch", "transformers", "sglang-kernel", "sgl-kernel", "flashinfer-python")
#: A config.json above this, in bytes, is not read.
CONFIG_LIMIT = 16 << 20

ENGINE_FACTS = """
import hashlib, json, os, platform, sys
from importlib import metadata, util
versions, found, since, changed = {}, {}, %r, []
for name in %r:
    try: versions[name] = metadata.version(name)
    except Exception: pass
try:
    digest = hashlib.sha256(repr((sys.version, sys.prefix, sorted(versions.items()))).encode())
    written = hashlib.sha256()
    for top in util.find_spec('sglang').submodule_search_locations:
        for folder, folders, names in os.walk(top):
            folders.sort()
            for name in sorted(name for name in names if name.endswith('.py')):
                info = os.stat(os.path.join(folder, name))
                mark = (os.path.relpath(folder, top), name, info.st_size, info.st_mtime_ns)
                digest.update(repr(mark).encode())
                written.update(repr((*mark, info.st_ctime_ns)).encode())
                if since and info.st_ctime > since: changed.append(os.path.normpath(os.path.join(*mark[:2])))
    found.update(fingerprint=digest.hexdigest()[:16], written=written.hexdigest()[:16])
except Exception: pass
found.update(changed=changed[:5], changed_files=len(changed))
print(json.dumps(dict(found, packages=versions, python_version=platform.python_version())))
"""


def last_object(text: str) -> Json:
    """Return the JSON object in the last line that holds one, whatever is printed around it; empty if there is none."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            with contextlib.suppress(ValueError, RecursionError):
                return dict(json.loads(line))
    return {}


def engine_facts(machine: Machine, python: str, since: Optional[float] = None) -> Json:
    """Versions by metadata, without an import; ``fingerprint`` changes with SGLang's files and what it depends on.

    ``written`` also changes with a file that keeps size and time: a patch may put these back, but not the kernel's
    own time of the change. (To read them all would cost a second.)
    ``changed`` names some of the files that were written after ``since``, ``changed_files`` is their number.
    """
    path = shutil.which(python)
    facts: Json = {"python": python, "exists": bool(path), "sglang": None, "httpx": None, "fingerprint": None}
    facts.update(packages={}, python_version=None)
    if path:
        try:
            done = machine.execute([path, "-I", "-c", ENGINE_FACTS % (since, PACKAGES)], timeout=60, check=False)
        except Fail as failure:
            if failure.code != "missing-tool":
                raise
            return dict(facts, exists=False)  # not a program, or one for another processor
        facts.update(last_object(done.stdout))
        if not isinstance(facts["packages"], dict):
            facts["packages"] = {}
        facts.update((name, facts["packages"].pop(name, None)) for name in ("sglang", "httpx"))
    return facts


def first_time(folder: str, seen: Set[Tuple[int, int]]) -> bool:
    """Whether a folder was not walked yet: a link may lead back to one that was."""
    try:
        info = os.stat(folder)
    except OSError:
        return False
    new = (info.st_dev, info.st_ino) not in seen
    seen.add((info.st_dev, info.st_ino))
    return new


def model_facts(path: str) -> Json:
    """Size and fingerprint of a model: the names, sizes and times of its files, the text of its small JSON files."""
    digest, total, count, weights = hashlib.sha256(), 0, 0, 0
    exists = os.path.isdir(path)
    seen: Set[Tuple[int, int]] = set()
    first_time(path, seen)
    for folder, folders, names in os.walk(path, followlinks=True):
        folders[:] = sorted(name for name in folders if name[0] != "." and first_time(os.path.join(folder, name), seen))
        for name in sorted(names):
            full = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                info = os.stat(full)
                if not stat.S_ISREG(info.st_mode):
                    continue  # reading a pipe may wait for ever
                small = name.endswith(".json") and info.st_size < 1 << 20
                mark = read_text(full) if small else int(info.st_mtime)
                digest.update(("%s\0%d\0%s\0" % (os.path.relpath(full, path), info.st_size, mark)).encode("utf-8"))
                total, count = total + info.st_size, count + 1
                if folder == path and name.endswith(".safetensors") and not name.startswith("consolidated"):
                    weights += info.st_size  # `consolidated` holds the same weights again
    config, own = None, os.path.join(path, "config.json")
    with contextlib.suppress(OSError, ValueError, RecursionError):
        info = os.stat(own)
        if stat.S_ISREG(info.st_mode) and info.st_size <= CONFIG_LIMIT:
            config = json.loads(read_text(own) or "null")
    fingerprint = digest.hexdigest()[:16] if exists else None
    return {
        "path": path,
        "exists": exists,
        "bytes": total,
        "files": count,
        "weight_bytes": weights,
        "fingerprint": fingerprint,
        "config": config,
    }
