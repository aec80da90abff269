"""A connection that begins before the configuration is read.

To load and check the configuration takes about as long as to log in. So a command remembers which host its files led
to, and the next one connects there while it reads them, provided that none of these files has changed. What it reads
has the last word: if that leads elsewhere, the connection is dropped.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deployer import __version__
from deployer.errors import AuthenticationFailed
from deployer.host.beside import Beside
from deployer.records.codec import BadRecord, Record
from deployer.records.destination import Destination
from deployer.records.endpoint import Endpoint
from deployer.resources import cache_folder

if TYPE_CHECKING:
    from deployer.host.channel import ChannelHost

#: Seconds after which a place that nothing asked for is forgotten.
_KEPT = 30 * 86400.0


@dataclass(frozen=True, slots=True)
class Place(Record):
    """Where a command went: the host, and the address and port of the server there."""

    destination: Destination
    address: str
    port: int
    files: dict[str, tuple[int, ...]]
    """The state of each file that was read, by its path; see `state_of`."""

    @property
    def health(self) -> dict[str, Any]:
        """The request for /health, as `HostClient.http` makes it."""
        return Endpoint("", self.address, self.port).request("GET", "/health")


class Memory:
    """The place that a command with these options, in this folder and environment, went to the last time."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        variables = {name: value for name, value in os.environ.items() if name.upper().startswith("DEPLOYER_")}
        told = [__version__, os.getcwd(), {name: str(value) for name, value in options.items()}, variables]
        key = hashlib.sha256(json.dumps(told, sort_keys=True).encode("utf-8", "surrogateescape")).hexdigest()
        self._path: Path | None = None
        with suppress(RuntimeError):  # an account without a home
            self._path = cache_folder("ahead") / f"{key[:32]}.json"
        self._known: Place | None = None

    def recall(self) -> Place | None:
        """Return the place, None if it is not known or if a file has changed since."""
        with suppress(OSError, ValueError, BadRecord):
            if self._path is not None and self._path.stat().st_uid == os.geteuid():
                place = Place.from_json(json.loads(self._path.read_bytes()))
                if all(state_of(path) == state for path, state in place.files.items()):
                    self._known = place
        return self._known

    def keep(self, destination: Destination, address: str, port: int, files: Sequence[Path]) -> None:
        """Remember the place that ``files`` led to. Nothing depends on it, so nothing is said if that fails."""
        place = Place(destination, address, port, {str(path): state_of(path) for path in files})
        if self._path is None or place == self._known:
            return
        with suppress(OSError):
            folder = self._path.parent
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            forget_old(folder)
            with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
                json.dump(place.as_json(), file)
            os.replace(file.name, self._path)


def state_of(path: Path | str) -> tuple[int, ...]:
    """Return what tells whether a file is still the same: its times, size and number; nothing if it is not there."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def forget_old(folder: Path) -> None:
    """Remove what nothing has been remembered in for a month."""
    for path in folder.iterdir():
        if path.stat().st_mtime < time.time() - _KEPT:
            path.unlink()


class Ahead:
    """A connection that is being made. It never asks for a password."""

    def __init__(self, place: Place) -> None:
        from deployer.host.connect import connect, load_ssh

        load_ssh()  # here: beside the other imports it would take twice as long, and the host would wait for it
        self.destination = place.destination

        def connected() -> ChannelHost:
            host = connect(place.destination)
            host.begin("http", place.health)
            return host

        self._host = Beside(connected)

    def host(self) -> ChannelHost | None:
        """Return the host, None if a password is wanted. Raise HostError if it cannot be reached."""
        try:
            return self._host.wait()
        except AuthenticationFailed:
            return None

    def drop(self) -> None:
        """Close the connection, as soon as there is one."""

        def close() -> None:
            with suppress(Exception):
                self._host.wait().close()

        threading.Thread(target=close, daemon=True).start()
