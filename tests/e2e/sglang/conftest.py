"""Sites on practice hosts with the real SGLang, on the CPU.

The engine is prepared once for the whole machine (`deployer rehearse up --engine sglang` does the same); a run has its
own hosts. Two processors that others use too make everything slow, so times are bounded generously.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deployer_rehearsal import hosts, sglang_env
from deployer_rehearsal.host import RehearsalHost
from deployer_rehearsal.real_engine import MODEL, PYTHON
from tests.conftest import remove_left_behind, wipe
from tests.e2e.conftest import Site, end_children

_SET = f"test-{os.getpid()}-sglang"
#: Seconds a whole command may take: a start is 20 to 40 s on two idle processors.
PATIENCE = 400.0


def pytest_collection_finish(session: pytest.Session) -> None:
    """Prepare the engine before the first test, whose time limit would not be enough for that."""
    here = Path(__file__).parent
    if any(here in item.path.parents for item in session.items) and not session.config.option.collectonly:
        sglang_env.ensure(print)


#: One pass of each level: these are tests of the way, not of the speed.
BENCH = """
levels = [1, 2, 4, 8]
prompt_tokens = 16
output_tokens = 16
warmups = 1
singles = 1
repeats = 1
discard = false
requests_at_least = 0
budget = 60
"""


@dataclass
class SglangSite(Site):
    """A site whose service `tiny` is served by the real SGLang."""

    service: str = "tiny"

    def write_inventory(
        self,
        *,
        grace: float = 60,
        lease: float = 30,
        more: str = "",
        gate: str = "",
        relative_gate: str = 'baseline = "none"',
        model: str = MODEL,
        python: str = PYTHON,
        limits: str = "max_total_tokens = 16384",
        extra_args: str = "",
        environment: str = "",
        deadlines: str = "start = 300\ndrain = 5\nstop = 60",
        bench: str = BENCH,
    ) -> None:
        """The practice host and its service; what is given is TOML below the table of that name, times in seconds."""
        self.inventory.write_text(
            self.tables(0, model, python, more)
            + f"""
[services.tiny.limits]
{limits}

[services.tiny.extra_args]
device = "cpu"
sleep-on-idle = true
enable-metrics = true
{extra_args}

[services.tiny.environment]
HF_HUB_OFFLINE = "1"
OMP_NUM_THREADS = "1"
SGLANG_CPU_OMP_THREADS_BIND = "0|1|0|1"
{environment}

[services.tiny.deadlines]
grace = {grace}
lease = {lease}
{deadlines}

[services.tiny.bench]
{bench}

[services.tiny.relative_gate]
{relative_gate}

[services.tiny.gate]
{gate}
"""
        )

    def run(self, *words: str, expect: int = 0, timeout: float = PATIENCE) -> str:
        return super().run(*words, expect=expect, timeout=timeout)

    def json(self, *words: str, expect: int = 0, timeout: float = PATIENCE) -> Any:
        return super().json(*words, expect=expect, timeout=timeout)

    def broken_model(self, name: str, change: str) -> str:
        """A copy of the checkpoint on the host that ``change``, a shell command run in its folder, has broken."""
        folder = f"/srv/broken/{name}"
        self.host.run(
            ["sh", "-ec", f"rm -rf {folder}; mkdir -p {folder}; cp {MODEL}/* {folder}; cd {folder}; {change}"]
        )
        return folder

    def ask(self, path: str, body: object = None, timeout: float = 60, port: int = 30000) -> Any:
        """What the server answers to GET ``path``, or to POST with a JSON body; parsed where it is JSON."""
        sent = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://{self.host.address}:{port}{path}", sent, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError as error:
            error.close()
            raise
        try:
            return json.loads(text)
        except ValueError:
            return text

    def server_processes(self) -> list[str]:
        """The processes of the real server on the host, whoever holds them: pid, parent and title."""
        listing = self.host.run(["ps", "-eo", "pid=,ppid=,args="])
        return [line.strip() for line in listing.splitlines() if "sglang" in line and "ps -eo" not in line]


@pytest.fixture(scope="session")
def sglang_hosts() -> Iterator[Callable[[int], list[RehearsalHost]]]:
    """Gives so many booted hosts with the real engine, at most three; the first is that of the other fixtures."""
    remove_left_behind()
    try:
        yield lambda count: hosts.up(_SET, count, engine="sglang", say=print)
    finally:
        hosts.down(_SET)


@pytest.fixture(scope="session")
def sglang_host(sglang_hosts: Callable[[int], list[RehearsalHost]]) -> RehearsalHost:
    """A booted host with the real engine, shared by the whole run."""
    return sglang_hosts(1)[0]


@pytest.fixture
def sglang_site(sglang_host: RehearsalHost, tmp_path: Path) -> Iterator[SglangSite]:
    """A site on which nothing is, and nothing was."""
    sglang_host.limit_memory(None)
    wipe(sglang_host)
    made = SglangSite(sglang_host, tmp_path)
    made.write_inventory()
    yield made
    end_children(made)


# Whether a host is just as `apply tp1` on a fresh one leaves it; later releases are forgotten.
_STILL_LIVE = r"""
grep -qx Release=0001-tp1 /usr/local/lib/systemd/system/sglang-tiny.service || exit 0
test ! -e /run/systemd/system/sglang-tiny.service || exit 0
test ! -e /var/lib/deployer/tiny/transition.json || exit 0
pid=$(systemctl show -P MainPID sglang-tiny.service)
grep -qzx DEPLOYER_RELEASE=0001-tp1 "/proc/$pid/environ" || exit 0
test "$(systemctl is-enabled sglang-tiny.service)" = enabled || exit 0
cd /var/lib/deployer/tiny/releases
for release in *; do test "$release" = 0001-tp1 || rm -rf "$release"; done
echo yes
"""


@pytest.fixture
def tp1_site(sglang_host: RehearsalHost, tmp_path: Path) -> Iterator[SglangSite]:
    """A site on which `tp1` is live as release 0001-tp1, the only one; taken over from the test before if it is so."""
    made = SglangSite(sglang_host, tmp_path)
    made.write_inventory()
    sglang_host.limit_memory(None)
    if sglang_host.run(["sh", "-c", _STILL_LIVE]).strip() != "yes":
        wipe(sglang_host)
        made.run("apply", "tp1")
    yield made
    end_children(made)
