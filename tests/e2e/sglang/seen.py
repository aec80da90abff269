"""What tests look at on a host with the real SGLang: its health while something happens, its processes, its log."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from deployer_rehearsal.real_engine import MODEL
from tests.e2e.sglang.conftest import SglangSite


@dataclass
class Health:
    """Answers of /health in order: state (status, or ``refused`` for no connection) and seconds of each answer."""

    states: list[str] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def add(self, state: str, seconds: float) -> None:
        if not self.states or self.states[-1] != state:
            self.states.append(state)
        self.seconds.setdefault(state, []).append(seconds)


@contextmanager
def watching(address: str, port: int = 30000) -> Iterator[Health]:
    """Ask for /health all the while, often."""
    health, done = Health(), threading.Event()

    def look() -> None:
        while not done.is_set():
            begun = time.monotonic()
            try:
                with urllib.request.urlopen(f"http://{address}:{port}/health", timeout=30) as answer:
                    state = str(answer.status)
            except urllib.error.HTTPError as error:
                state = str(error.code)
            except OSError:
                state = "refused"  # or cut off, which is a moment only
            health.add(state, time.monotonic() - begun)
            done.wait(0.1)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield health
    finally:
        done.set()
        thread.join(40)


def journal(site: SglangSite, unit: str = "") -> list[str]:
    """What the unit's last start wrote, line by line."""
    unit = unit or site.unit
    invocation = site.host.run(["systemctl", "show", "-P", "InvocationID", unit]).strip()
    words = ["journalctl", "-o", "cat", "--all", "--no-pager", f"_SYSTEMD_INVOCATION_ID={invocation}"]
    return site.host.run(words).splitlines()


def strays(site: SglangSite) -> list[str]:
    """Processes of SGLang that do not belong to the unit as it runs now."""
    group = site.host.run(["systemctl", "show", "-P", "ControlGroup", site.unit]).strip()
    ours = site.host.run(["sh", "-c", f"cat /sys/fs/cgroup{group}/cgroup.procs 2>/dev/null || true"]).split()
    return [line for line in site.server_processes() if line.split()[0] not in ours]


def serves_as_before(site: SglangSite) -> None:
    """tp1, live as 0001-tp1: its own process answers, nothing else is left, and nothing is under way."""
    site.write_inventory()
    seen = site.status()
    assert seen["live"]["release"] == seen["unit"]["running"] == "0001-tp1"
    assert seen["health"]["ok"]
    assert seen["drift"] == []
    assert seen["transition"] is seen["candidate"] is seen["lease"] is None
    assert site.ask("/model_info")["model_path"] == MODEL
    said = site.ask("/v1/completions", {"prompt": "the of and", "max_tokens": 4, "temperature": 0})
    assert len(said["choices"][0]["text"].split()) == 4
    assert strays(site) == []


def victim(site: SglangSite, name: str) -> int | None:
    """The pid of the unit's ``parent``, ``scheduler`` or ``detokenizer`` on the host; None: not there yet."""
    parent = int(site.host.run(["systemctl", "show", "-P", "MainPID", site.unit]))
    if name == "parent":
        return parent or None
    for line in site.server_processes():
        pid, above, title = line.split(maxsplit=2)
        if int(above) == parent and title.startswith(f"sglang::{name}"):
            return int(pid)
    return None
