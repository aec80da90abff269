"""What the whole agent stands on: paths, failures, requests under way, files that survive a power cut."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

Json = Dict[str, Any]
Shape = Dict[str, Any]  # keys of a state file, with the types their values must have

SCHEMA = 1
RESERVE = 1 << 20
OUTPUT_LIMIT = 64 << 20  # bytes that a program may print
BUS_PATIENCE = 5.0
BUS_GONE = re.compile(
    r"Connection (reset|refused|terminated|timed out)|Failed to connect to (system )?bus|Transport endpoint|"
    r"Broken pipe|disconnected from message bus"
)
NUMBER_OR_NONE = (int, float, type(None))
TRANSITION: Shape = {
    "to": str,
    "boot_id": str,
    "grace": NUMBER_OR_NONE,
    "stop_timeout": NUMBER_OR_NONE,
    "port": NUMBER_OR_NONE,
    "started_boottime": NUMBER_OR_NONE,
}
STATE_DIR = os.environ.get("DEPLOYER_STATE_DIR", "/var/lib/deployer")
VOLATILE_DIR = os.environ.get("DEPLOYER_VOLATILE_DIR", "/run/deployer")
LIVE_DIR = os.environ.get("DEPLOYER_UNIT_DIR", "/usr/local/lib/systemd/system")
RUN_DIR = os.environ.get("DEPLOYER_RUN_DIR", "/run/systemd/system")
WANTS_DIR = os.environ.get("DEPLOYER_WANTS_DIR", "/etc/systemd/system/multi-user.target.wants")
CHILD_ENV = dict(os.environ, LC_ALL="C", SYSTEMD_PAGER="", SYSTEMD_COLORS="0", SYSTEMD_LOG_LEVEL="notice")


class Fail(Exception):
    """An operation's refusal or failure: a code for programs, a message for people, data for both."""

    def __init__(self, code: str, message: str, **detail: Any) -> None:
        super().__init__(message)
        self.code, self.message, self.detail = code, message, detail

    def as_json(self) -> Json:
        return {"code": self.code, "message": self.message, "detail": self.detail}


class Call:
    """One request under way: where its events go, and whether it was cancelled."""

    def __init__(self, send: Callable[[Json], None], call_id: Any = None) -> None:
        self.send, self.id = send, call_id
        self.ended = threading.Event()
        self.cancelled = False
        self.children: List[subprocess.Popen[bytes]] = []

    def emit(self, event: Json) -> None:
        self.check()
        self.send({"id": self.id, "event": event})

    def check(self) -> None:
        if self.cancelled:
            raise Fail("cancelled", "cancelled by the operator")

    def sleep(self, seconds: float) -> None:
        self.ended.wait(seconds)
        self.check()

    def cancel(self) -> None:
        self.cancelled = True
        self.end()

    def end(self) -> None:
        """Stop what the call started: its helper threads see ``ended``, its child processes are killed."""
        self.ended.set()
        for child in self.children:
            if child.poll() is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)

    def spawn(self, argv: List[str], **options: Any) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            argv, start_new_session=True, stdout=subprocess.PIPE, **dict({"env": CHILD_ENV}, **options)
        )
        self.children.append(child)
        if self.ended.is_set():
            self.end()
        return child


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def read_text(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            return file.read()
    except OSError:
        return None


BOOT_ID = (read_text("/proc/sys/kernel/random/boot_id") or "").strip()


def read_json(path: str, shape: Optional[Shape] = None) -> Optional[Json]:
    """The JSON object in a state file, None where there is none. Fail: ``schema`` (a newer one than ours), ``corrupt``.

    ``shape``: keys it must have, with their types.
    """
    text = read_text(path)
    if text is None:
        return None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Fail("corrupt", "%s is damaged: %s" % (path, error), path=path) from error
    if not isinstance(data, dict) or not isinstance(data.get("schema", SCHEMA), int):
        raise Fail("corrupt", "%s is damaged: it is not what deployer writes" % path, path=path)
    if data.get("schema", SCHEMA) > SCHEMA:
        raise Fail("schema", "%s was written by a newer deployer; use that one" % path, path=path)
    for key, kind in (shape or {}).items():
        if not isinstance(data.get(key), kind):
            raise Fail("corrupt", "%s is damaged: it has no proper %r" % (path, key), path=path)
    return data


def read_intact(path: str, shape: Shape, problems: Optional[List[str]] = None) -> Optional[Json]:
    """As `read_json`, but a damaged file counts as none; what is wrong with it is added to ``problems``."""
    try:
        return read_json(path, shape)
    except Fail as failure:
        if failure.code != "corrupt":
            raise
        if problems is not None:
            problems.append(failure.message)
        return None


def set_aside(path: str, shape: Shape) -> bool:
    """Under the lock: rename a state file if it is damaged, so that work can go on and the evidence stays."""
    problems: List[str] = []
    read_intact(path, shape, problems)
    if problems:
        os.rename(path, "%s.corrupt-%d" % (path, time.time()))
        fsync_dir(os.path.dirname(path))
    return bool(problems)


def fsync_dir(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def no_space(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def reserve_path() -> str:
    return os.path.join(STATE_DIR, "reserve")


def make_reserve() -> None:
    """Hold space (real blocks) that state files can have when the disk is full. Not having it is no reason to stop."""
    if os.path.exists(reserve_path()):
        return
    try:
        write_new(reserve_path(), "\0" * RESERVE, 0o600)
    except OSError as error:
        if not no_space(error):
            raise


def write_new(path: str, text: str, mode: int, owner: Optional[Tuple[int, int]] = None) -> None:
    folder, name = os.path.split(path)
    fd, temporary = tempfile.mkstemp(prefix="." + name + ".", suffix=".tmp", dir=folder)
    try:
        with os.fdopen(fd, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), mode)
            if owner:
                os.fchown(file.fileno(), *owner)
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    fsync_dir(folder)


def overwrite(path: str, text: str) -> None:
    """Write into the blocks a file has already. Shorter than a block, so hardly ever torn; a torn one is set aside."""
    data = text.encode("utf-8")
    fd = os.open(path, os.O_WRONLY)
    try:
        if len(data) > os.fstat(fd).st_blocks * 512:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        os.pwrite(fd, data, 0)
        os.ftruncate(fd, len(data))
        os.fsync(fd)
    finally:
        os.close(fd)


def write_file(path: str, text: str, mode: int = 0o644, owner: Optional[Tuple[int, int]] = None) -> None:
    """Replace a file so that a power failure leaves the old one or the new one, whole.

    On a full disk the reserve is given up for it.
    """
    try:
        write_new(path, text, mode, owner)
    except OSError as error:
        if not no_space(error) or not remove_file(reserve_path()):
            raise
        write_new(path, text, mode, owner)


def write_json(path: str, data: Json, mode: int = 0o644) -> None:
    """Write a state file. On a disk that stays full, into the blocks that it has."""
    text = json.dumps(dict(data, schema=SCHEMA), indent=1, ensure_ascii=False) + "\n"
    try:
        write_file(path, text, mode)
    except OSError as error:
        if not no_space(error) or not os.path.exists(path):
            raise
        overwrite(path, text)


def remove_file(path: str) -> bool:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    fsync_dir(os.path.dirname(path))
    return True


def checked_run(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    if done.returncode:
        text = done.stderr.strip() or done.stdout.strip()
        words = " ".join(done.args[:4])
        raise Fail("command", "%s: %s" % (words, text), status=done.returncode, argv=done.args)
    return done


def end_of(child: subprocess.Popen[bytes]) -> None:
    """Kill a program with all of its process group. Should it not even die, it is left behind."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    threading.Thread(target=child.wait, daemon=True).start()


def output_of(child: subprocess.Popen[bytes], until: float, limit: int) -> Optional[List[str]]:
    """What a program prints (stdout, stderr) up to its end; None where that is not there by ``until`` (monotonic).

    Fail ``command``: it prints more than ``limit`` bytes, which may be endless.
    """
    pipes = [child.stdout, child.stderr]
    said = [bytearray(), bytearray()]
    with selectors.DefaultSelector() as selector:
        for pipe, text in zip(pipes, said):
            selector.register(pipe, selectors.EVENT_READ, text)  # type: ignore[arg-type]
        while selector.get_map():
            left = until - time.monotonic()
            if left <= 0:
                return None
            for key, _ in selector.select(left):
                data = os.read(key.fd, 1 << 16)
                key.data.extend(data)
                if not data:
                    selector.unregister(key.fileobj)
            if sum(map(len, said)) > limit:
                raise Fail("command", "it prints more than %d bytes" % limit)
    try:
        child.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None
    # As Python reads text: a line may end in any way.
    return [re.sub("\r\n?", "\n", bytes(text).decode("utf-8", "replace")) for text in said]


def execute(
    argv: List[str], timeout: float = 90.0, check: bool = True, limit: int = OUTPUT_LIMIT
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end. One that takes too long, or prints without end, is killed."""
    until = time.monotonic() + timeout
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=CHILD_ENV,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise Fail("missing-tool", "the host has no %s" % argv[0]) from error
    except OSError as error:  # no program, or one for another processor
        raise Fail("missing-tool", "%s cannot be run: %s" % (argv[0], error.strerror)) from error
    try:
        said = output_of(child, until, limit)
        if said is None:
            raise Fail("timeout", "%s took longer than %d s" % (" ".join(argv[:3]), timeout))
    except Fail as failure:
        end_of(child)
        if failure.code == "command":
            failure.message = "%s: %s" % (argv[0], failure.message)
        raise
    finally:
        for pipe in (child.stdout, child.stderr):
            pipe.close()  # type: ignore[union-attr]
    done = subprocess.CompletedProcess(argv, child.returncode, *said)
    return checked_run(done) if check else done


def ask_systemd(argv: List[str], check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a client of systemd; again, for a few seconds, while systemd re-executes itself and does not answer."""
    deadline = boottime() + BUS_PATIENCE
    while True:
        done = execute(argv, check=False)
        if not done.returncode or boottime() > deadline or not BUS_GONE.search(done.stderr):
            return checked_run(done) if check else done
        time.sleep(0.25)


def systemctl(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return ask_systemd(["systemctl", "--no-ask-password", *words], check)


def checked(value: Any, what: str) -> str:
    """A name that is safe as a file name and as a unit instance."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", value):
        raise Fail("bad-request", "%s %r is not a plain name" % (what, value))
    return value


def unit_name(service: str) -> str:
    return "sglang-%s.service" % checked(service, "service")


def live_path(service: str) -> str:
    return os.path.join(LIVE_DIR, unit_name(service))


def candidate_path(service: str) -> str:
    return os.path.join(RUN_DIR, unit_name(service))


def service_dir(service: str) -> str:
    return os.path.join(STATE_DIR, checked(service, "service"))


def transition_path(service: str) -> str:
    return os.path.join(service_dir(service), "transition.json")


def release_dir(service: str, release: str) -> str:
    return os.path.join(service_dir(service), "releases", checked(release, "release"))


def unit_release(text: str) -> Optional[str]:
    """``Release=`` of a unit text's ``[X-Deployer]`` section."""
    section = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section = line
        elif section == "[X-Deployer]" and line.startswith("Release="):
            return line[len("Release=") :].strip()
    return None


def unit_file(path: str) -> Optional[Json]:
    if os.path.islink(path) and os.path.realpath(path) == "/dev/null":
        return None
    text = read_text(path)
    return None if text is None else {"release": unit_release(text), "text": text, "path": path}
