"""Processes and control groups of a practice host: its systemd-nspawn, found by the root folder it runs on.

Only processes found by a host's folder are ever killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from deployer.errors import HostError
from deployer_rehearsal import machine

# Enters control groups and becomes systemd-nspawn, so that its process id is known from the start.
_ENTER = 'while [ "$1" != -- ]; do echo $$ > "$1" || exit 1; shift; done; shift; exec "$@"'

# Processes


def process_started(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it does not exist or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def containers_of(root: Path) -> list[int]:
    """Return the process ids of every systemd-nspawn on exactly this root folder."""
    pids = []
    wanted = f"--directory={root}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            argv = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        alive = process_started(int(entry.name)) is not None
        program = argv[0].rpartition(b"/")[2]
        starts = program == b"sh" and _ENTER.encode() in argv  # and becomes systemd-nspawn
        if alive and wanted in argv and (starts or program == b"systemd-nspawn"):
            pids.append(int(entry.name))
    return pids


def init_of(container: int) -> int | None:
    """Return a container's PID 1 as the machine numbers it; None before it exists."""
    for child in _children(container):
        try:
            status = Path(f"/proc/{child}/status").read_text()
        except OSError:
            continue
        numbers = [line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")]
        if numbers and len(numbers[0]) > 1 and numbers[0][-1] == "1" and process_started(child) is not None:
            return child
    return None


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def kill(pid: int) -> None:
    """Send SIGKILL to a process, unless it is gone already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def wait_gone(pids: Sequence[int], patience: float = 15.0) -> None:
    """Wait until processes have ended, reaping our children. Raise HostError after ``patience`` seconds."""
    deadline = time.monotonic() + patience
    left = list(pids)
    while left:
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        left = [pid for pid in left if process_started(pid) is not None]
        if left and time.monotonic() > deadline:
            raise HostError(f"processes {left} do not end, even after SIGKILL (uninterruptible?)")
        if left:
            time.sleep(0.02)


# Control groups

# By default the group of all hosts would count as one process beside the machine's own, and get next to nothing on a
# busy machine.
_SHARES = {"cpu.shares": "16384", "cpu.weight": "1600"}


def control_groups(name: str) -> list[Path]:
    """Create control groups for one host, one in each hierarchy; none if systemd runs the machine and creates them.

    Without systemd, containers would otherwise share the group they were started from.
    """
    if Path("/run/systemd/system").is_dir():
        return []
    made = []
    for path in group_paths(name):
        path.mkdir(parents=True, exist_ok=True)
        for parent_file in ("cpuset.cpus", "cpuset.mems"):
            for folder in (path.parent, path):
                mine = folder / parent_file
                if mine.exists() and not mine.read_text().strip():
                    mine.write_text((folder.parent / parent_file).read_text())
        for name_of_share, share in _SHARES.items():
            if (path.parent / name_of_share).exists():
                (path.parent / name_of_share).write_text(share)
        made.append(path)
    return made


def group_paths(name: str, table: str | None = None) -> list[Path]:
    """Return the folders of a host's control groups. ``table`` is the text of /proc/self/mounts."""
    text = Path("/proc/self/mounts").read_text() if table is None else table
    points = [line.split()[1] for line in text.splitlines() if line.split()[2:3] in (["cgroup"], ["cgroup2"])]
    return [Path(point) / "deployer-rehearsal" / name for point in points]


def remove_control_groups(name: str) -> None:
    """Remove a host's control groups, innermost first, except those that still have processes."""
    if Path("/run/systemd/system").is_dir():
        return
    for path in group_paths(name):
        for folder, _, _ in os.walk(path, topdown=False):
            machine.remove_folder(Path(folder))
        machine.remove_folder(path.parent)


# The container

#: What would reach beyond the container: the machine's clock, kernel modules and messages, raw devices.
DROPPED = "CAP_SYS_TIME,CAP_SYS_MODULE,CAP_SYS_RAWIO,CAP_SYSLOG,CAP_WAKE_ALARM,CAP_MKNOD"
#: The same in setpriv's words, for programs that enter from outside.
_WITHOUT = ",".join("-" + name[len("CAP_") :].lower() for name in DROPPED.split(","))


def start(root: Path, name: str, hostname: str, binds: Sequence[tuple[Path, str]], log: Path) -> int:
    """Boot ``rehearsal.target`` on ``root``; return the process id of systemd-nspawn.

    ``binds`` are folders of the machine and where the host sees them, read-only.
    """
    nspawn = machine.program("systemd-nspawn")
    assert nspawn is not None
    groups = control_groups(name)
    argv = [
        nspawn,
        "--quiet",
        f"--directory={root}",
        "--boot",
        f"--machine={name}",
        f"--hostname={hostname}",
        "--register=no",
        "--settings=no",
        "--link-journal=no",
        "--resolv-conf=off",
        "--timezone=off",
        "--console=read-only",
        f"--drop-capability={DROPPED}",
        *(["--keep-unit"] if groups else []),
        *(f"--bind-ro={_nspawn_path(source)}:{_nspawn_path(target)}" for source, target in binds),
        "systemd.unit=rehearsal.target",
    ]
    files = [str(group / "cgroup.procs") for group in groups]
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        return os.posix_spawn(
            "/bin/sh",
            ["sh", "-c", _ENTER, "sh", *files, "--", *argv],
            {"PATH": machine.SYSTEM_PATH, "LANG": "C.UTF-8", "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, nothing, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, output, 2),
            ],
            setsid=True,
        )
    finally:
        os.close(output)
        os.close(nothing)


def _nspawn_path(path: Path | str) -> str:
    return str(path).replace("\\", "\\\\").replace(":", "\\:")


def enter(init: int, argv: Sequence[str], *, stdin: str | None = None, timeout: float = 60.0) -> str:
    """Run a program inside a container as root, without SSH; return its output."""
    spaces = ["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wd"]
    clean = [
        "setpriv",
        f"--bounding-set={_WITHOUT}",
        "env",
        "-i",
        f"PATH={machine.SYSTEM_PATH}",
        "HOME=/root",
        "LANG=C.UTF-8",
    ]
    argv = ["nsenter", f"--target={init}", *spaces, *clean, *argv]
    return machine.run(argv, stdin=stdin, timeout=timeout, inherit_locks=False)


# Memory


def memory_limit_file(init: int, groups: str | None = None, mounts: str | None = None) -> Path | None:
    """Return the file that limits the memory of all processes of a container; None if the kernel has none.

    ``groups`` and ``mounts`` are the texts of the init's cgroup file and of the mount table.
    """
    groups = Path(f"/proc/{init}/cgroup").read_text() if groups is None else groups
    mounts = Path("/proc/self/mounts").read_text() if mounts is None else mounts
    table = [line.split() for line in mounts.splitlines()]
    for line in groups.splitlines():
        _, controllers, group = line.split(":", 2)
        if "memory" in controllers.split(","):
            points = [words[1] for words in table if words[2] == "cgroup" and "memory" in words[3].split(",")]
            file = "memory.limit_in_bytes"
        elif not controllers:
            points = [words[1] for words in table if words[2] == "cgroup2"]
            file = "memory.max"
        else:
            continue
        # Its systemd keeps PID 1 in a group of its own, below the one that holds the whole container.
        files = [Path(point) / group.strip().removesuffix("/init.scope").lstrip("/") / file for point in points]
        if files and (files[0].exists() or controllers):
            return files[0]
    return None


def limit_memory(init: int, limit: int | None) -> None:
    """Limit the memory of all processes of a container, in bytes; None removes the limit.

    Raise HostError if this kernel cannot do that, or the container holds more.
    """
    file = memory_limit_file(init)
    if file is None:
        raise HostError("the memory of a practice host cannot be limited: there is no memory control group")
    without = "-1" if file.name == "memory.limit_in_bytes" else "max"
    try:
        file.write_text(without if limit is None else str(limit))
    except OSError as error:
        raise HostError(f"the memory of the practice host cannot be limited by {file}: {error}") from error
