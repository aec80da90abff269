"""Sets of practice hosts on disk: the state folder of each, its keys, and who has which loopback address.

Several sets can run at once on one machine (a test run has its own), so addresses are handed out under a lock that all
of them share, wherever their state folders are.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from deployer.errors import ConfigError, HostError, UsageError
from deployer_rehearsal import machine, system

DEFAULT_SET = "default"
SGLANG_SET = "sglang"
"""The set of `rehearse up --engine sglang`, unless it is named."""
STORY_SET = "story"

ENGINES = "engines"
DEFAULT_FOLDER = Path("/var/lib/deployer-rehearsal")
_REGISTRY = Path("/run/deployer-rehearsal")
_NETWORK = "127.77.0."
# Fixed, because the shipped inventories name them.
_FIXED_ADDRESSES = {DEFAULT_SET: range(1, 10), SGLANG_SET: range(241, 250)}
_OTHER_ADDRESSES = range(10, 241)
MOST_HOSTS = 9
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")


@dataclass(frozen=True)
class HostRecord:
    """What is kept of one host between commands. Whether it runs is looked up."""

    name: str
    address: str


@dataclass(frozen=True)
class SetRecord:
    """A set as in its ``set.json``."""

    name: str
    folder: Path
    engine_version: str
    hosts: dict[str, HostRecord] = field(default_factory=dict)
    schema: int = 1
    engine: str = "standin"

    def save(self) -> None:
        """Write the record atomically."""
        data = asdict(self) | {"folder": str(self.folder)}
        target = self.folder / "set.json"
        fresh = target.with_suffix(".new")
        fresh.write_text(json.dumps(data, indent=2) + "\n")
        fresh.replace(target)


def state_root() -> Path:
    """Return the folder of all sets: DEPLOYER_REHEARSAL_DIR, or /var/lib/deployer-rehearsal."""
    return Path(os.environ.get("DEPLOYER_REHEARSAL_DIR") or DEFAULT_FOLDER).absolute()


def engines_folder() -> Path:
    """Return the folder of the prepared engines, which all sets share."""
    return state_root() / ENGINES


def set_folder(name: str) -> Path:
    """Return the state folder of a set. Raise UsageError if its name is not a plain word."""
    if not _NAME.fullmatch(name) or name == ENGINES:
        raise UsageError(
            f"`{name}` is not a valid name for a set of practice hosts",
            remedy=f"use lower-case letters, digits and hyphens, at most 32 of them, and not `{ENGINES}`",
        )
    folder = state_root() / name
    if any(character in str(folder) for character in ",:\\\n"):
        raise UsageError(
            f"mount options cannot hold the state folder {folder}: it contains a comma, colon, backslash or line end",
            remedy="set DEPLOYER_REHEARSAL_DIR to another folder",
        )
    return folder


def load_set(name: str) -> SetRecord | None:
    """Return the record of a set, None if there is none. Raise ConfigError if its file is damaged."""
    path = set_folder(name) / "set.json"
    try:
        data: dict[str, Any] = json.loads(path.read_text())
        hosts = {key: HostRecord(**value) for key, value in data["hosts"].items()}
        return SetRecord(
            data["name"],
            Path(data["folder"]),
            data["engine_version"],
            hosts,
            data["schema"],
            data.get("engine", "standin"),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged: {error}", remedy="run `deployer rehearse down`") from error


def all_sets() -> list[str]:
    """Return the names of the sets that have a state folder."""
    root = state_root()
    names = [path.name for path in root.iterdir() if _is_set(path)] if root.is_dir() else []
    return sorted(name for name in names if _NAME.fullmatch(name) and name != ENGINES)


def require_set(folder: Path) -> None:
    """Raise UsageError if a folder exists and is not a set's: what others keep in it must not be removed."""
    if not _is_set(folder) and folder.exists():
        raise UsageError(
            f"{folder} exists and is not a set of practice hosts",
            remedy="give another name, or name another folder for all sets in DEPLOYER_REHEARSAL_DIR",
        )


def _is_set(folder: Path) -> bool:
    """Whether a folder has a set's record, or was made for one that is not written yet."""
    try:
        names = {path.name for path in folder.iterdir()}
    except (FileNotFoundError, NotADirectoryError):  # another command may be removing it
        return False
    return "set.json" in names or names <= {"set.new"}


def remove_set(folder: Path) -> None:
    """Remove a set's folder, its record last: when interrupted, it is still a set that can be removed."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != "set.json":
            path.unlink()
    (folder / "set.json").unlink(missing_ok=True)
    folder.rmdir()


@contextlib.contextmanager
def lock_set(name: str) -> Iterator[None]:
    """Hold a set for one command at a time; another one waits. The lock file goes away with the set."""
    path = _REGISTRY / f"set-{name}.lock"
    with machine.locked(path):
        try:
            yield
        finally:
            if not set_folder(name).is_dir():
                path.unlink(missing_ok=True)


def take_addresses(name: str, folder: Path, wanted: int) -> list[str]:
    """Return addresses for the hosts of a set: its own, then free ones. Raise HostError if there are not enough."""
    span = _OTHER_ADDRESSES
    if folder == DEFAULT_FOLDER / name and name in _FIXED_ADDRESSES:
        span = _FIXED_ADDRESSES[name][:wanted]
    with _registry() as entries:
        mine = [address for address, owner in entries.items() if owner == str(folder)]
        for number in span:
            address = f"{_NETWORK}{number}"
            if len(mine) >= wanted:
                break
            if address not in entries and machine.address_free(address, system.SSH_PORT):
                entries[address] = str(folder)
                mine.append(address)
        if len(mine) < wanted:
            raise HostError(
                f"no free address for another practice host in {_NETWORK}{span.start} to {_NETWORK}{span.stop - 1}",
                remedy="see `ss -ltn | grep 127.77` for what listens there; `deployer rehearse down` frees a set's",
            )
        mine.sort(key=lambda address: int(address.rpartition(".")[2]))
        return mine[:wanted]


def give_addresses_back(folder: Path) -> None:
    """Release the addresses of a set."""
    with _registry() as entries:
        for address in [address for address, owner in entries.items() if owner == str(folder)]:
            del entries[address]


@contextlib.contextmanager
def _registry() -> Iterator[dict[str, str]]:
    """Addresses and state folders of all sets, to be changed in place. Entries without a folder are dropped."""
    path = _REGISTRY / "addresses.json"
    with machine.locked(_REGISTRY / "addresses.lock"):
        try:
            entries: dict[str, str] = json.loads(path.read_text())
        except (FileNotFoundError, ValueError):
            entries = {}
        entries = {address: owner for address, owner in entries.items() if Path(owner).is_dir()}
        yield entries
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(entries, indent=2) + "\n")
        fresh.replace(path)


# Keys


def make_key(path: Path, comment: str) -> str:
    """Create an ed25519 key pair at ``path`` unless it exists; return the public line."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        machine.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)])
    return path.with_name(path.name + ".pub").read_text().strip()


def give_to_operator(path: Path) -> None:
    """Give a file to the user who called sudo, so that they can read it without."""
    user = os.environ.get("SUDO_UID")
    if user and user.isdigit():
        os.chown(path, int(user), int(os.environ.get("SUDO_GID", "-1")))
