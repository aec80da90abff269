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
#: Folders that deployer writes in on a disk.
FOLDERS = ("/var/lib/deployer", "/usr/local/lib/systemd/system")
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
    mini = neighbour(site) if wanted.neighbour else None
    before = mini.invocation() if mini else ""
    child = start(site, wanted)
    hit = await_moment(site, child, wanted.at)
    BLOWS[wanted.blow](site, child)
    began = time.monotonic()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.communicate(timeout=HEALING)
    healed = await_healed(site, child)
    undo(site)
    if wanted.blow in ADMIN or wanted.change == "converge":
        site.exit_code("converge", "--yes")
    took = time.monotonic() - began
    wrong = list(violations(site)) if healed else [f"not healed within {HEALING:.0f} s", *violations(site)]
    if mini:
        same = mini.invocation() == before or wanted.blow.startswith(("power cut", "isolated"))
        wrong += ["mini was started again"] * (not same) + ["mini is down"] * (mini.exit_code("status") != 0)
        end_children(mini)
    end_children(site)
    return Result(hit, round(took, 1), tuple(wrong))


def prepare(site: Site, wanted: Schedule) -> None:
    """`tp2` is live; for a rollback `pp2` after it; for a converge it is stopped."""
    unmount(site)
    made = site_on(site.host, site.folder)
    made.write_inventory(grace=3, lease=6)
    apply_first(made)
    if wanted.fault:
        made.fault(wanted.fault, when_argv_contains="--pp-size")
    if wanted.change == "rollback":
        made.run("apply", "pp2", "--yes")
    if wanted.change == "converge":
        made.host.run(["systemctl", "stop", made.unit])


def unmount(site: Site) -> None:
    """Give the host's own disk back."""
    for name in FOLDERS:
        site.host.run(["sh", "-c", f"while umount -l {name} 2>/dev/null; do :; done"])


def neighbour(site: Site) -> Site:
    """Another service on other GPUs of the host, live and healthy."""
    folder = site.folder / "mini"
    folder.mkdir()
    text = site.inventory.read_text().replace("services.kimi", "services.mini").replace('"kimi"', '"mini"')
    mini = Site(site.host, folder, service="mini")
    mini.inventory.write_text(text.replace("port = 30000", "port = 30001\ngpus = [4, 5]"))
    mini.run("apply", "tp2", "--yes")
    return mini


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
    """Take back what was done to the guard, to the disk and to recovery."""
    site.host.run(["systemctl", "unmask", "--runtime", GUARD])
    site.host.run(
        ["sh", "-c", "rm -f /var/lib/deployer/full*; systemctl disable --now chaos-killer 2>/dev/null || true"]
    )


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


def in_turn(pause: float, *commands: str) -> Blow:
    """Shell commands on the host, with a pause between two."""

    def blow(site: Site, child: subprocess.Popen[str]) -> None:
        for number, command in enumerate(commands):
            time.sleep(pause if number else 0)
            with contextlib.suppress(DeployerError):
                site.host.run(["sh", "-c", command])

    return blow


#: The state moves to a disk of four megabytes, and it is filled to the last byte.
FULL = """
mkdir -p /run/small && mount -t tmpfs -o size=4m none /run/small
cp -a /var/lib/deployer/. /run/small/ && mount --move /run/small /var/lib/deployer
rm -f /var/lib/deployer/reserve; cat /dev/zero > /var/lib/deployer/full 2>/dev/null || true
"""
READ_ONLY = "; ".join(f"mount --bind {name} {name} && mount -o remount,bind,ro {name}" for name in FOLDERS)
WRITABLE = "; ".join(f"mount -o remount,bind,rw {name}" for name in FOLDERS)
#: At the next boot recovery is killed as it begins, and twice a little later.
KILLER = r"""
cat > /etc/systemd/system/chaos-killer.service <<'END'
[Unit]
DefaultDependencies=no
[Service]
Environment='AWAIT=until pkill -0 -f "[p]y recover"; do sleep 0.01; done'
ExecStart=/bin/sh -c 'for wait in 0 0.1 0.3; do eval "$$AWAIT"; sleep $$wait; pkill -KILL -f "[p]y recover"; done'
[Install]
WantedBy=multi-user.target
END
systemctl enable chaos-killer.service && sync
"""

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
    "sshd killed": on_host("systemctl", "kill", "-s", "KILL", "rehearsal-sshd.service"),
    "isolated to another target and back": in_turn(
        3.0, "systemctl isolate --no-block rescue.target", "systemctl isolate --no-block rehearsal.target"
    ),
    "disk full": in_turn(0.0, FULL),
    "disk read-only for a while": in_turn(8.0, READ_ONLY, WRITABLE),
    "power cut, recovery killed again and again": both(in_turn(0.0, KILLER), power_cut),
}
