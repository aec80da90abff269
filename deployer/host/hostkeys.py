"""SSH host keys: which file knows them, and what to do about one that is unknown, changed or pinned."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path
from typing import Any

import paramiko

from deployer.errors import ConfigError, HostKeyRejected
from deployer.records.destination import Destination


def fingerprint(key: Any) -> str:
    """Return the key's fingerprint as ``ssh-keygen -l`` prints it."""
    return _sha256(key.asbytes())


def _sha256(data: bytes) -> str:
    return "SHA256:" + base64.b64encode(hashlib.sha256(data).digest()).decode("ascii").rstrip("=")


def known_hosts_files(config: Destination, ssh_config: dict[str, Any]) -> list[Path]:
    """Return the files that hold host keys; new keys are written to the first."""
    if config.known_hosts is not None:
        return [Path(config.known_hosts).expanduser()]
    words = str(ssh_config.get("userknownhostsfile") or "~/.ssh/known_hosts").split()
    return [Path(word).expanduser() for word in words] + [Path("/etc/ssh/ssh_known_hosts")]


class Strict(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
    """Refuse a host whose key is in none of the files."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        raise HostKeyRejected(
            f"the host key of {hostname} is not known: it offers {key.get_name()} {fingerprint(key)}, and "
            f"{self.files[0]} has no key for it",
            remedy=f"compare the fingerprint with the host's own (`ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub`), then "
            f'add it to {self.files[0]}; or set `host_keys = "accept-new"` or "pinned"',
            detail={"offered": fingerprint(key), "known": None, "file": str(self.files[0])},
        )


class AcceptNew(Strict):
    """Write the key of a host never seen before. A changed key is refused all the same."""

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        path = self.files[0]
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "w") as file:
                file.write(f"{hostname} {key.get_name()} {key.get_base64()}\n")
        except OSError as error:
            raise ConfigError(
                f"the key of {hostname} cannot be written to {path}: {error.strerror}",
                remedy="let it be written, name another file (`known_hosts` of the host in the inventory), or give the "
                'key there (`host_keys = "pinned"`)',
            ) from error


class Pinned(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
    """Accept one key only, given in the inventory as a key line or a fingerprint."""

    def __init__(self, pinned: str) -> None:
        self.pinned = pinned

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        offered = fingerprint(key)
        words = self.pinned.split()
        if offered == self.pinned or (len(words) > 1 and words[1] == key.get_base64()):
            return
        raise changed_key(hostname, offered, pinned_fingerprint(self.pinned), "the inventory (host_key)")


def pinned_fingerprint(pinned: str) -> str:
    if pinned.startswith("SHA256:"):
        return pinned
    try:
        return _sha256(base64.b64decode(pinned.split()[1]))
    except (IndexError, ValueError) as error:
        raise ConfigError(f'host_key = "{pinned}" is neither a key line nor a SHA256: fingerprint') from error


def changed_key(hostname: str, offered: str, known: str, where: str) -> HostKeyRejected:
    """Return the error for a key that is not the known one."""
    return HostKeyRejected(
        f"the host key of {hostname} has changed: it offers {offered}, but {where} says {known}",
        remedy="find out why before anything else: another machine may be answering. If the host was reinstalled, "
        f"replace its key in {where}",
        detail={"offered": offered, "known": known, "file": where},
    )


def install(client: paramiko.SSHClient, config: Destination, ssh_config: dict[str, Any], *, jump: bool) -> list[Path]:
    """Give an unconnected client its known keys and its policy. Return the files that were read.

    A jump host is never pinned (the pin is the target's key): it is checked against known_hosts.
    """
    files = known_hosts_files(config, ssh_config)
    if config.host_keys == "pinned" and not jump:
        assert config.host_key is not None, "the inventory guarantees it"
        client.set_missing_host_key_policy(Pinned(config.host_key))
        return []
    for path in files:
        if os.path.isfile(path) or os.path.isdir(path):  # a folder is reported; /dev/null holds nothing
            load(client, path)
    policy = AcceptNew if config.host_keys == "accept-new" else Strict
    client.set_missing_host_key_policy(policy(files))
    return files


def load(client: paramiko.SSHClient, path: Path) -> None:
    """Load the keys of a file. Raise ConfigError with the line that is not a key."""
    try:
        client.load_host_keys(str(path))
    except OSError as error:
        raise ConfigError(
            f"{path}, which holds host keys, cannot be read: {error.strerror}",
            remedy="let it be read, or name another file (`known_hosts` of the host in the inventory)",
        ) from error
    except Exception as error:  # paramiko lets through whatever its parsers of keys raise
        number = bad_line(path)
        at = f", line {number}" if number else ""
        raise ConfigError(
            f"{path}{at}: not a valid host key: {error or type(error).__name__}",
            remedy="correct or remove the line (`ssh-keygen -R HOST -f FILE` removes those of a host)",
        ) from error


def bad_line(path: Path) -> int | None:
    """Return the number of the first line that paramiko rejects."""
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            text = line.decode().strip()
            if text and not text.startswith("#"):
                paramiko.hostkeys.HostKeyEntry.from_line(text, number)
        except paramiko.SSHException:
            continue  # it skips such lines
        except Exception:
            return number
    return None
