"""Carry a schedule out on a practice host: the change, the blow, the healing, the next command."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

from deployer.errors import DeployerError
from deployer_rehearsal import hosts
from tests.chaos.invariants import AGENT, violations
from tests.chaos.schedule import ADMIN, Schedule
from tests.e2e.conftest import Site, apply_first, end_children, site_on

#: Seconds that the host has to heal by itself: lease and grace of the site, and a start.
HEALING = 120.0
GUARD = "deployer-guard@kimi.service"
Blow = Callable[[Site, "subprocess.Popen[str]"], None]


@dataclass(frozen=True)
class Result:
    """What came of a schedule. ``hit``: the blow fell while the change ran; ``healed`` in seconds after the blow."""

    hit: bool
    healed: float
    wrong: tuple[str, ...]


def carry_out(site: Site, wanted: Schedule) -> Result:
    """Prepare, change, disturb, wait and look."""
    prepare(site, wanted)
    child = start(site, wanted)
    hit = await_moment(site, child, wanted.at)
    BLOWS[wanted.blow](site, child)
    began = time.monotonic()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.communicate(timeout=HEALING)
    healed = await_healed(site, child)
    if wanted.blow in ADMIN or wanted.change == "converge":
        undo(site)
        site.exit_code("converge", "--yes")
    took = time.monotonic() - began
    wrong = list(violations(site)) if healed else [f"not healed within {HEALING:.0f} s", *violations(site)]
    end_children(site)
    return Result(hit, round(took, 1), tuple(wrong))


def prepare(site: Site, wanted: Schedule) -> None:
    """`tp2` is live; for a rollback `pp2` after it; for a converge it is stopped."""
    made = site_on(site.host, site.folder)
    made.write_inventory(grace=3, lease=6)
    apply_first(made)
    if wanted.fault:
        made.fault(wanted.fault, when_argv_contains="--pp-size")
    if wanted.change == "rollback":
        made.run("apply", "pp2", "--yes")
    if wanted.change == "converge":
        made.host.run(["systemctl", "stop", made.unit])


def start(site: Site, wanted: Schedule) -> subprocess.Popen[str]:
    words = {"apply": ("apply", "pp2", "--yes"), "rollback": ("rollback", "--yes"), "converge": ("converge", "--yes")}
    return site.start(*words[wanted.change])


def await_moment(site: Site, child: subprocess.Popen[str], at: str | float) -> bool:
    """Wait for a step, or for some seconds; return whether the change still runs then."""
    began = time.monotonic()
    while child.poll() is None and time.monotonic() < began + HEALING:
        if time.monotonic() >= began + at if isinstance(at, float) else site.step() == at:
            return True
        time.sleep(0.01)
    return False


def await_healed(site: Site, child: subprocess.Popen[str]) -> bool:
    """Whether, in time, no operator and no transition is left and the server is healthy, or stopped for good."""
    deadline = time.monotonic() + HEALING
    while time.monotonic() < deadline:
        with contextlib.suppress(DeployerError, OSError):
            if child.poll() is not None and site.step() is None and (site.healthy() or not up(site)):
                return True
        time.sleep(0.3)
    return False


def up(site: Site) -> bool:
    state = site.host.run(["systemctl", "show", "-P", "ActiveState", site.unit]).strip()
    return state not in ("inactive", "failed")


def undo(site: Site) -> None:
    """Take back what an admin did to the guard."""
    site.host.run(["systemctl", "unmask", "--runtime", GUARD])


# --- blows --------------------------------------------------------------------------------------------------------


def on_host(*argv: str) -> Blow:
    """A command on the host. It may find nothing to hit."""

    def blow(site: Site, child: subprocess.Popen[str]) -> None:
        with contextlib.suppress(DeployerError):
            site.host.run(list(argv))

    return blow


def send(*numbers: signal.Signals, pause: float = 0.7) -> Blow:
    """Signals for the operator, with a pause between two."""

    def blow(site: Site, child: subprocess.Popen[str]) -> None:
        for number in numbers:
            child.send_signal(number)
            time.sleep(pause if len(numbers) > 1 else 0)

    return blow


def power_cut(site: Site, child: subprocess.Popen[str]) -> None:
    hosts.powercut(site.host)
    child.kill()


def second_operator(site: Site, child: subprocess.Popen[str]) -> None:
    for words in (("rollback", "--yes"), ("converge", "--yes")):
        site.start(*words).communicate(timeout=HEALING)


def both(*blows: Blow) -> Blow:
    def blow(site: Site, child: subprocess.Popen[str]) -> None:
        for one in blows:
            one(site, child)

    return blow


BLOWS: dict[str, Blow] = {
    "operator killed": send(signal.SIGKILL),
    "Ctrl-C": send(signal.SIGINT),
    "Ctrl-C twice": send(signal.SIGINT, signal.SIGINT),
    "operator stopped past its lease": send(signal.SIGSTOP, signal.SIGCONT, pause=12.0),
    "power cut": power_cut,
    "connection broken": on_host("pkill", "-KILL", "-f", "sshd: root@notty"),
    "agent killed": on_host("pkill", "-KILL", "-f", AGENT),
    "guard killed": on_host("systemctl", "kill", "-s", "KILL", GUARD),
    "operator and guard killed": both(send(signal.SIGKILL), on_host("systemctl", "kill", "-s", "KILL", GUARD)),
    "second operator": second_operator,
    "admin stops the service": on_host("systemctl", "stop", "sglang-kimi.service"),
    "admin disables the service": on_host("systemctl", "disable", "sglang-kimi.service"),
    "admin masks the guard": on_host("systemctl", "mask", "--runtime", "--now", GUARD),
    "systemd re-executed": on_host("systemctl", "daemon-reexec"),
}
