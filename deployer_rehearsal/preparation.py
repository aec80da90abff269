"""Something large is made once, step by step, in a folder that many use: resumable, and by one at a time.

A step is done when its marker says so, and the marker is written last, so a step that was broken off is made again.
A step whose description has changed is made again too, and so are all that come after it. At the end everything is
synced, once; until then a marker is good for this boot only, as a power cut may take what the step wrote.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from deployer.errors import HostError
from deployer_rehearsal import machine

Say = Callable[[str], None]
Argv = tuple[str, ...]
LOCK = "lock"
#: What programs write on the way; worth nothing once they have ended.
SCRATCH = "tmp"
#: Seconds between two words about a step that takes long.
TELL_EVERY = 10.0
_POLL = 0.1
#: Lines of pip that say what it is at.
_NEWS = ("Collecting", "Downloading", "Building", "Installing")


@dataclass(frozen=True)
class Step:
    """One step of a preparation.

    ``made_from`` is all that its result depends on (not where it is made). ``before`` tidies what an earlier,
    broken-off try has left. ``files`` are written, then ``commands`` run in order; when one fails and its log has what
    ``otherwise_if`` (an expression) looks for, ``otherwise`` is run instead, where there is any. ``size``: bytes that
    it adds, about; ``otherwise_size`` with the second best. ``result``: a small folder that it fills; the step is to be
    made again when that does not hold what it held then.
    """

    name: str
    doing: str
    made_from: str
    commands: tuple[Argv, ...] = ()
    otherwise: tuple[Argv, ...] = ()
    otherwise_if: str = ""
    files: Mapping[Path, str] = field(default_factory=dict)
    before: Callable[[], None] = lambda: None
    size: int = 0
    otherwise_size: int = 0
    result: Path | None = None

    @property
    def fingerprint(self) -> str:
        """Changes when the step has to be made again."""
        return hashlib.sha256(f"{self.name}\n{self.made_from}".encode()).hexdigest()[:16]


def marker(folder: Path, step: Step) -> Path:
    """The file that says that a step is done."""
    return folder / "done" / f"{step.name}.json"


def is_done(folder: Path, step: Step) -> bool:
    """Whether a step was made, to its end and from what it would be made of now, and its result is as it was."""
    try:
        done = json.loads(marker(folder, step).read_text())
        good = done.get("synced", True) or done["boot"] == _boot()
        whole = step.result is None or done.get("result") in (None, digest(step.result))
        return bool(done["fingerprint"] == step.fingerprint and good and whole)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def digest(folder: Path) -> str:
    """Changes with the names and contents of a folder's files."""
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        total.update(f"{path.name}\n{path.stat().st_size}\n".encode())
        total.update(path.read_bytes())
    return total.hexdigest()[:16]


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _mark(folder: Path, step: Step, content: Mapping[str, object]) -> None:
    done = marker(folder, step)
    done.parent.mkdir(exist_ok=True)
    fresh = done.with_suffix(".new")
    fresh.write_text(json.dumps(content) + "\n")
    fresh.replace(done)


def _sync(folder: Path, steps: Sequence[Step]) -> None:
    """From now on the markers are good whatever happens to the machine."""
    machine.run(["sync", "--file-system", str(folder)], timeout=600)
    for step in _unsynced(folder, steps):
        _mark(folder, step, json.loads(marker(folder, step).read_text()) | {"synced": True})


def _unsynced(folder: Path, steps: Sequence[Step]) -> list[Step]:
    """Of steps that are done those that a power cut would undo."""
    return [step for step in steps if not json.loads(marker(folder, step).read_text()).get("synced", True)]


def pending(folder: Path, steps: Sequence[Step]) -> list[Step]:
    """The steps that are left: the first that is not done, and all after it."""
    first = next((index for index, step in enumerate(steps) if not is_done(folder, step)), len(steps))
    return list(steps[first:])


def prepare(
    folder: Path, steps: Sequence[Step], *, say: Say, check: Callable[[list[Step]], None] = lambda left: None
) -> None:
    """Make what is left of ``steps`` in ``folder``. Somebody else who is at it already is waited for.

    ``check`` gets what is left before anything is made, and may refuse by raising. HostError when a step fails; the
    next call goes on with it.
    """
    left = pending(folder, steps)
    if not left and not _unsynced(folder, steps):
        return
    if left:
        check(left)
    with locked(
        folder, waiting=lambda: say(f"another command is preparing {folder}; waiting for it")
    ) as lock:
        left = pending(folder, steps)
        if left:
            check(left)
        if len(left) < len(steps) and left:
            say(f"going on with step {len(steps) - len(left) + 1} of {len(steps)}")
        for step in left:
            marker(folder, step).unlink(missing_ok=True)
        while left:
            number = len(steps) - len(left) + 1
            _make(folder, left, lock, _numbered(say, f"{number}/{len(steps)}"), check)
            left = left[1:]
        _sync(folder, steps)


def _numbered(say: Say, number: str) -> Say:
    return lambda text: say(f"{number} {text}")


@contextlib.contextmanager
def locked(folder: Path, *, waiting: Callable[[], None] = lambda: None) -> Iterator[int]:
    """Hold a folder alone, made if need be; gives the lock's file descriptor.

    ``waiting`` is called once if somebody else has it. A program that inherits the descriptor keeps the lock when this
    process dies.
    """
    told = False
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:  # whoever had it has removed the folder
            continue
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not told:
                    waiting()
                told = True
                fcntl.flock(handle, fcntl.LOCK_EX)
            if _is_file(handle, folder / LOCK):
                yield handle
                return
        finally:
            os.close(handle)


def _is_file(handle: int, path: Path) -> bool:
    """Whether an open file is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def remove(folder: Path) -> None:
    """Remove a folder that is `locked`, the lock last: who waits for it makes the folder anew."""
    shutil.rmtree(folder / "done", ignore_errors=True)  # from now on it is not whole
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()
    (folder / LOCK).unlink()
    with contextlib.suppress(OSError):  # somebody is there again
        folder.rmdir()


def _make(folder: Path, left: list[Step], lock: int, say: Say, check: Callable[[list[Step]], None]) -> None:
    """Make the first of the steps that are left."""
    step = left[0]
    began = time.monotonic()
    say(step.doing)
    step.before()
    for path, text in step.files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    log = folder / "log" / f"{step.name}.log"
    log.parent.mkdir(exist_ok=True)
    log.write_text("")
    told = _Progress(folder, log, began, say)
    if not _run_all(folder, step.commands, lock, log, told):
        second = bool(step.otherwise and re.search(step.otherwise_if, log.read_text(errors="replace")))
        if second:
            say("that is not to be had here; the next best")
            check([replace(step, size=step.otherwise_size), *left[1:]])
        if not second or not _run_all(folder, step.otherwise, lock, log, told):
            raise HostError(
                f"{step.doing} failed: {complaint(log.read_text(errors='replace'))}",
                remedy=f"read {log}; the same command again goes on with this step",
            )
    seconds, size = time.monotonic() - began, folder_size(folder)
    done = {"fingerprint": step.fingerprint, "seconds": round(seconds, 1), "boot": _boot(), "synced": False}
    if step.result is not None:
        done["result"] = digest(step.result)
    _mark(folder, step, done)
    say(f"done in {seconds:.0f} s; {size_text(size)} in all")


@dataclass
class _Progress:
    folder: Path
    log: Path
    began: float
    say: Say

    def __post_init__(self) -> None:
        self._told = time.monotonic()

    def tick(self) -> None:
        now = time.monotonic()
        if now - self._told < TELL_EVERY:
            return
        self._told = now
        lines = self.log.read_text(errors="replace").splitlines()
        last = next((line.strip() for line in reversed(lines) if line.strip().startswith(_NEWS)), "")
        size = size_text(folder_size(self.folder))
        self.say(f"  {now - self.began:.0f} s, {size}" + (f": {last[:90]}" if last else ""))


@contextlib.contextmanager
def _held_back() -> Iterator[list[int]]:
    """Signals that end this program are kept in the list: who is to end a program must know it first.

    (Ctrl-C between the start of a child and `Popen`'s return would leave the child without anybody who knows it.)
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    before = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run_all(folder: Path, commands: Sequence[Argv], lock: int, log: Path, progress: _Progress) -> bool:
    """Run commands one after the other, their output to ``log``; False at the first that fails."""
    scratch = folder / SCRATCH
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        return all(_run(folder, argv, lock, log, progress) for argv in commands)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run(folder: Path, argv: Argv, lock: int, log: Path, progress: _Progress) -> bool:
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    with log.open("a") as output:
        output.write(f"$ {' '.join(argv)[:300]}\n")
        output.flush()
        try:
            with _held_back() as came:
                child = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**environment, "TMPDIR": str(folder / SCRATCH)},
                    cwd=folder,
                    pass_fds=(lock,),
                    umask=0o022,  # services of any user read it
                    start_new_session=True,
                )
        except OSError as error:
            output.write(f"{argv[0]} cannot be run: {error}\n")
            return False
        try:
            for number in came:
                signal.raise_signal(number)
            while child.poll() is None:
                progress.tick()
                time.sleep(_POLL)
        finally:
            if child.poll() is None:
                _end_group(child)
    return child.returncode == 0


def _end_group(leader: subprocess.Popen[bytes]) -> None:
    """End a program with all that it has started: whoever goes on here is to be alone in the folder."""
    for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 1.0)):
        deadline = time.monotonic() + patience
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader.pid, number)
            while time.monotonic() < deadline:
                leader.poll()
                os.killpg(leader.pid, 0)
                time.sleep(0.02)
    leader.wait()


def complaint(log: str) -> str:
    """What went wrong, out of what a program printed: its last line that begins with ERROR, else its last line.

    pip calls a package that it could not ask for one that there is not: then what kept it from asking is said, too.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    said = (errors or lines or ["it printed nothing"])[-1][:300]
    broken = re.findall(r"^WARNING: Retrying .*? after (connection broken by .{0,200})", log, re.MULTILINE)
    return f"{said} ({broken[-1]})" if broken else said


def folder_size(folder: Path) -> int:
    """Bytes that a folder takes on its disk; what goes away meanwhile is not counted."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(path, name)).st_blocks * 512
    return total


def size_text(size: int) -> str:
    """Bytes as people read them."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
