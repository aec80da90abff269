"""What a practice host takes from the operator's machine: programs, disk images, mounts, addresses.

Everything here acts on the machine itself, and only on what it is given: images and folders of a set.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from deployer.errors import HostError, PreflightRefused

_PROGRAMS = {
    "systemd-nspawn": "systemd-container",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "ip": "iproute2",
    "dbus-daemon": "dbus",
    "sudo": "sudo",
    "mkfs.ext4": "e2fsprogs",
    "losetup": "mount",
    "mount": "mount",
    "nsenter": "util-linux",
}
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# ext4's "stop at once, flush nothing" (EXT4_IOC_SHUTDOWN with EXT4_GOING_FLAGS_NOLOGFLUSH).
_EXT4_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = 2

# Trouble of the disk and its folders; any other error is a fault of ours.
_DISK_TROUBLE = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EIO,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EEXIST,
        errno.ENAMETOOLONG,
    }
)


def trouble_with_files(error: OSError) -> HostError | None:
    """Return what to report of a file that cannot be written or read; None if the disk is not at fault."""
    if error.errno not in _DISK_TROUBLE:
        return None
    where = f" at {error.filename}" if error.filename else ""
    return HostError(
        f"a file of the practice hosts cannot be written or read: {error.strerror}{where}",
        remedy="fix that, or name a folder on another disk in DEPLOYER_REHEARSAL_DIR",
    )


def program(name: str) -> str | None:
    """Return the path of a program, from the system's folders too (an ordinary user's PATH lacks sbin)."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")


def missing_packages(find: Callable[[str], str | None] = program) -> list[str]:
    """Return the Debian packages whose programs are missing, in alphabetical order."""
    return sorted({package for name, package in _PROGRAMS.items() if find(name) is None})


def require_root() -> None:
    """Raise PreflightRefused unless this is Linux and we are root."""
    if os.uname().sysname != "Linux":
        raise PreflightRefused(
            "practice hosts need Linux: they are systemd-nspawn containers",
            remedy="run the rehearsal on a Linux machine, for example in a virtual machine",
        )
    if os.geteuid() != 0:
        raise PreflightRefused(
            "practice hosts need root: they are containers with mounts and control groups of their own",
            remedy="run the command as root or with sudo (`sudo -v` first is enough for `deployer rehearse`)",
        )


def require_fit() -> None:
    """Raise PreflightRefused unless this machine can run practice hosts and we are root."""
    require_root()
    packages = missing_packages()
    if packages:
        raise PreflightRefused(
            f"this machine lacks programs that practice hosts need (Debian packages: {', '.join(packages)})",
            remedy=f"run `apt-get install -y {' '.join(packages)}`",
            detail={"packages": packages},
        )
    if os.stat("/usr").st_dev != os.stat("/").st_dev or os.stat("/etc").st_dev != os.stat("/").st_dev:
        raise PreflightRefused(
            "/usr and /etc must be on the root file system: a practice host is an overlay of that one file system",
            remedy="rehearse on a machine with one root file system",
        )


_locks: set[int] = set()


@contextlib.contextmanager
def locked(path: Path, *, waiting: Callable[[], None] = lambda: None) -> Iterator[int]:
    """Hold a lock file; give its descriptor. ``waiting`` is called once if another process holds it.

    Programs that `run` starts meanwhile inherit the descriptor: if we are killed, they hold the lock until they end.
    """
    announced = False
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            try:
                lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:  # its last holder has removed the folder
                continue
            stack.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not announced:
                    waiting()
                announced = True
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_file(lock, path):  # its last holder has removed it, and others lock a new one
                continue
            _locks.add(lock)
            try:
                yield lock
            finally:
                _locks.discard(lock)
            return


def _is_file(handle: int, path: Path) -> bool:
    """Whether an open file is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def run(argv: Sequence[str], *, stdin: str | None = None, timeout: float = 60.0, inherit_locks: bool = True) -> str:
    """Run a program of the machine and return its output. Raise HostError, with its error output, if it fails."""
    path = program(argv[0]) or argv[0]
    try:
        done = subprocess.run(
            [path, *argv[1:]],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            pass_fds=tuple(_locks) if inherit_locks else (),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"`{' '.join(argv)}` could not be run: {error}") from error
    if done.returncode != 0:
        raise HostError(
            f"`{' '.join(argv)}` failed with status {done.returncode}: {done.stderr.strip()}",
            remedy="run `deployer rehearse down`, then `deployer rehearse up` again",
        )
    return done.stdout


# Disks


def make_image(image: Path, size: int) -> None:
    """Create a sparse file of ``size`` bytes with an empty ext4 in it."""
    with image.open("wb") as handle:
        handle.truncate(size)
    options = "nodiscard,lazy_itable_init=1,lazy_journal_init=1"
    run(["mkfs.ext4", "-q", "-F", "-m", "0", "-E", options, str(image)])


def mount_image(image: Path, target: Path) -> None:
    """Mount an image; its loop device goes away with the mount.

    The journal is committed by a sync, or once a minute: so a power cut shows what was never synced.
    """
    target.mkdir(parents=True, exist_ok=True)
    run(["mount", "-t", "ext4", "-o", "loop,noinit_itable,commit=60", str(image), str(target)])


def mount_overlay(lower: Path, upper: Path, work: Path, target: Path) -> None:
    """Mount ``lower`` such that everything written to it goes to ``upper``."""
    target.mkdir(parents=True, exist_ok=True)
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    run(["mount", "-t", "overlay", "deployer-rehearsal", "-o", options, str(target)])


def mounts_below(folder: Path, table: str | None = None) -> list[Path]:
    """Return the mount points at or below a folder, the innermost first. ``table`` is the text of a mountinfo file."""
    text = Path("/proc/self/mountinfo").read_text() if table is None else table
    points = [Path(_unescape(line.split()[4])) for line in text.splitlines() if line.strip()]
    return [point for point in reversed(points) if point == folder or folder in point.parents]


def _unescape(word: str) -> str:
    for code, character in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        word = word.replace(code, character)
    return word


def unmount_below(folder: Path, patience: float = 10.0) -> None:
    """Unmount everything below a folder and remove the mount points.

    What stays busy for ``patience`` seconds is detached lazily. Containers that were started meanwhile hold copies of
    our mounts; the kernel drops those when the mount point is removed, and only then is the disk really free.
    """
    deadline = time.monotonic() + patience
    while points := mounts_below(folder):
        busy = time.monotonic() > deadline
        try:
            run(["umount", *(["--lazy"] if busy else []), str(points[0])])
        except HostError:
            # It may have vanished since we looked; what is still there is tried again until it can be detached.
            if busy and points[0] in mounts_below(folder):
                raise
            time.sleep(0.1)
    for name in ("root", "disk"):
        remove_folder(folder / name)


def loops_of(image: Path) -> list[str]:
    """Return the loop devices that hold an image."""
    return run(["losetup", "--noheadings", "--output", "NAME", "--associated", str(image)]).split()


def detach_loops(image: Path, patience: float = 5.0) -> None:
    """Detach the loop devices that still hold an image. The kernel detaches them, too, as soon as nobody uses them."""
    deadline = time.monotonic() + patience
    failure: HostError | None = None
    for attempt in itertools.count():
        devices = loops_of(image)
        if not devices:
            return
        if attempt and time.monotonic() > deadline:
            raise HostError(f"{image} is still held by {', '.join(devices)}") from failure
        for device in devices:
            try:
                run(["losetup", "--detach", device])
            except HostError as error:  # gone since we looked, or in use: the next look decides
                failure = error
        time.sleep(0.05)


def cut_power(mounted: Path) -> None:
    """Stop a mounted ext4 without flushing anything: what was not synced is lost, as when the power fails."""
    handle = os.open(mounted, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.ioctl(handle, _EXT4_SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
    finally:
        os.close(handle)


def remove_folder(path: Path) -> None:
    """Remove a folder if it exists and is empty."""
    with contextlib.suppress(OSError):
        path.rmdir()


# The network


def address_free(address: str, port: int) -> bool:
    """Whether a port of this machine's address is free."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def ssh_answers(address: str, port: int) -> bool:
    """Whether an SSH server answers there."""
    try:
        with socket.create_connection((address, port), timeout=2.0) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False
