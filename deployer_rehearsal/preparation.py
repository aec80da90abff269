"""Preparing something large once, step by step, in a shared folder: resumable, and by one process at a time.

A step is done when its marker says so. The marker is written last, so an interrupted step is repeated; so is a step
whose description has changed, with all that come after it. At the end everything is synced; until then a marker is
valid for this boot only, because a power cut may take what the step wrote.
"""

from __future__ import annotations

import contextlib
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
#: Temporary files of the programs.
SCRATCH = "tmp"
#: Seconds between two progress lines of a long step.
REPORT_EVERY = 10.0
_POLL = 0.1
#: Lines of pip that say what it is doing.
_NEWS = ("Collecting", "Downloading", "Building", "Installing")


@dataclass(frozen=True)
class Step:
    """One step of a preparation.

    ``made_from`` is everything its result depends on, except the place. ``before`` cleans up after an interrupted
    attempt. ``files`` are written, then ``commands`` run in order; if one fails and its log matches ``otherwise_if``,
    ``otherwise`` is run instead, if there is any. ``size`` is about how many bytes it adds, ``otherwise_size`` with the
    alternative. ``result`` is a small folder that it fills; if its content changes later, the step is repeated.
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
        """Changes if the step has to be repeated."""
        return hashlib.sha256(f"{self.name}\n{self.made_from}".encode()).hexdigest()[:16]


def marker(folder: Path, step: Step) -> Path:
    """Return the file that marks a step as done."""
    return folder / "done" / f"{step.name}.json"


def is_done(folder: Path, step: Step) -> bool:
    """Whether a step was completed from what it would be made from now, and its result has not changed since."""
    try:
        done = json.loads(marker(folder, step).read_text())
        good = done.get("synced", True) or done["boot"] == _boot()
        whole = step.result is None or done.get("result") in (None, digest(step.result))
        return bool(done["fingerprint"] == step.fingerprint and good and whole)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def digest(folder: Path) -> str:
    """Return a hash of the names and contents of a folder's files."""
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
    """Sync everything, so that the markers stay valid whatever happens to the machine."""
    machine.run(["sync", "--file-system", str(folder)], timeout=600)
    for step in _unsynced(folder, steps):
        _mark(folder, step, json.loads(marker(folder, step).read_text()) | {"synced": True})


def _unsynced(folder: Path, steps: Sequence[Step]) -> list[Step]:
    """Return the completed steps that a power cut would undo."""
    return [step for step in steps if not json.loads(marker(folder, step).read_text()).get("synced", True)]


def pending(folder: Path, steps: Sequence[Step]) -> list[Step]:
    """Return the steps that are left: the first that is not done, and all after it."""
    first = next((index for index, step in enumerate(steps) if not is_done(folder, step)), len(steps))
    return list(steps[first:])


def prepare(
    folder: Path, steps: Sequence[Step], *, say: Say, check: Callable[[list[Step]], None] = lambda left: None
) -> None:
    """Do what is left of ``steps`` in ``folder``; wait for another process that is already doing so.

    ``check`` is given what is left before anything is done, and may refuse by raising. Raise HostError if a step
    fails; the next call continues with it.
    """
    left = pending(folder, steps)
    if not left and not _unsynced(folder, steps):
        return
    if left:
        check(left)
    with locked(folder, waiting=lambda: say(f"another command is preparing {folder}; waiting for it")) as lock:
        left = pending(folder, steps)
        if left:
            check(left)
        if len(left) < len(steps) and left:
            say(f"continuing with step {len(steps) - len(left) + 1} of {len(steps)}")
        for step in left:
            marker(folder, step).unlink(missing_ok=True)
        while left:
            number = len(steps) - len(left) + 1
            _make(folder, left, lock, _numbered(say, f"{number}/{len(steps)}"), check)
            left = left[1:]
        _sync(folder, steps)


def _numbered(say: Say, number: str) -> Say:
    return lambda text: say(f"{number} {text}")


def locked(folder: Path, *, waiting: Callable[[], None] = lambda: None) -> contextlib.AbstractContextManager[int]:
    """Hold a folder alone, made if necessary. See `machine.locked`."""
    return machine.locked(folder / LOCK, waiting=waiting)


def remove(folder: Path) -> None:
    """Remove a folder that is `locked`, the lock last: whoever waits for it creates the folder again."""
    shutil.rmtree(folder / "done", ignore_errors=True)  # from now on it is incomplete
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()
    (folder / LOCK).unlink()
    with contextlib.suppress(OSError):  # another process uses it again
        folder.rmdir()


def _make(folder: Path, left: list[Step], lock: int, say: Say, check: Callable[[list[Step]], None]) -> None:
    """Do the first of the steps that are left."""
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
    progress = _Progress(folder, log, began, say)
    if not _run_all(folder, step.commands, lock, log, progress):
        second = bool(step.otherwise and re.search(step.otherwise_if, log.read_text(errors="replace")))
        if second:
            say("not available here; trying the alternative")
            check([replace(step, size=step.otherwise_size), *left[1:]])
        if not second or not _run_all(folder, step.otherwise, lock, log, progress):
            raise HostError(
                f"{step.doing} failed: {complaint(log.read_text(errors='replace'))}",
                remedy=f"read {log}; run the same command again to continue with this step",
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
        self._reported = time.monotonic()

    def tick(self) -> None:
        now = time.monotonic()
        if now - self._reported < REPORT_EVERY:
            return
        self._reported = now
        lines = self.log.read_text(errors="replace").splitlines()
        last = next((line.strip() for line in reversed(lines) if line.strip().startswith(_NEWS)), "")
        size = size_text(folder_size(self.folder))
        self.say(f"  {now - self.began:.0f} s, {size}" + (f": {last[:90]}" if last else ""))


@contextlib.contextmanager
def _held_back() -> Iterator[list[int]]:
    """Collect signals that would end this program, to be raised later.

    Ctrl-C between the start of a child and the return of `Popen` would leave a child that nobody can end.
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
    """Run commands in order, with their output in ``log``; return False at the first that fails."""
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
    """End a program with all its children: whoever continues must be alone in the folder."""
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
    """Return what went wrong by a program's output: its last line that begins with ERROR, otherwise its last line.

    pip reports a package that it could not ask for as missing: then the broken connection is added.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    last = (errors or lines or ["it printed nothing"])[-1][:300]
    broken = re.findall(r"^WARNING: Retrying .*? after (connection broken by .{0,200})", log, re.MULTILINE)
    return f"{last} ({broken[-1]})" if broken else last


def folder_size(folder: Path) -> int:
    """Return the bytes that a folder takes on its disk, without files that vanish meanwhile."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(path, name)).st_blocks * 512
    return total


def size_text(size: int) -> str:
    """Return a number of bytes as text."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
