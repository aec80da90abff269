"""Make the real SGLang server fail in every prepared way, and see what `diagnose` makes of each.

The server of ``make demo-sglang`` is run directly, without a host and without systemd: the ways are in
``tools/fail_real_cases.py``. For each the log is kept and judged against what the case says it is.

    .venv/bin/python tools/fail_real.py --out /tmp/logs                    # all (about half an hour)
    .venv/bin/python tools/fail_real.py --out /tmp/logs weights kill-load  # those whose name begins so
    .venv/bin/python tools/fail_real.py --out /tmp/logs --judge            # only judge the logs again

As root: some cases need a mount or a memory limit of their own. Each server has its own session, and only processes of
that session are ended.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from deployer.sglang.log.diagnosis import diagnose
from deployer.sglang.log.endings import UnitEnd
from deployer.sglang.log.text import read
from deployer_rehearsal.sglang_env import environment

sys.path.insert(0, str(Path(__file__).parent))
from fail_real_cases import CASES, Case

_READY = "The server is fired up and ready to roll"
#: Seconds without a line after which a server that was hurt, or said something fatal, counts as hanging.
_QUIET = 20.0
_FATAL = re.compile(r"hit an exception|Errno|Received sigquit|crashed with|Traceback")
_NOBODY = 65534
_GROUPS = Path("/sys/fs/cgroup/memory")


class Server(Protocol):
    """A server under way."""

    pid: int

    def poll(self) -> int | None:
        """Its return code, once it has ended."""


class Started:
    """A server started as always."""

    def __init__(
        self, case: Case, command: list[str], environ: dict[str, str], folder: Path, log: Path, before: str
    ) -> None:
        wrapper = ["unshare", "-m"] if "mount " in before else []
        shell = f'{before or ":"}\nexec "$@"'
        with log.open("wb") as file:
            self._popen = subprocess.Popen(
                [*wrapper, "sh", "-c", shell, "sh", *command],
                stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                env=environ, cwd=folder, start_new_session=True,
            )  # fmt: skip
        self.pid = self._popen.pid

    def poll(self) -> int | None:
        return self._popen.poll()


class Forked:
    """A server forked from one that has done its imports."""

    _source: subprocess.Popen[str] | None = None

    def __init__(
        self, args: list[str], environ: dict[str, str], folder: Path, log: Path, hindered: dict[str, object]
    ) -> None:
        asked = {"args": args, "env": environ, "cwd": str(folder), "log": str(log), "hindered": hindered}
        self.pid = int(self._ask(asked))

    def poll(self) -> int | None:
        return self._ask({"poll": self.pid})

    @classmethod
    def ready(cls) -> bool:
        """Start the source of forks, once. False where it does not start."""
        if cls._source is None:
            environ = {
                "PATH": os.environ["PATH"],
                "HOME": "/tmp",
                "HF_HUB_OFFLINE": "1",
                "PYTHONUNBUFFERED": "1",
            }
            program = str(Path(__file__).with_name("fail_real_fork.py"))
            cls._source = subprocess.Popen(
                [str(environment().python), program],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environ,
            )  # fmt: skip
            assert cls._source.stdout
            return bool(cls._source.stdout.readline())
        return True

    @classmethod
    def end(cls) -> None:
        """No more forks."""
        if cls._source is not None and cls._source.stdin:
            cls._source.stdin.close()
            cls._source.wait()

    @classmethod
    def _ask(cls, asked: dict[str, object]) -> Any:
        source = cls._source
        assert source is not None
        assert source.stdin is not None
        assert source.stdout is not None
        source.stdin.write(json.dumps(asked) + "\n")
        source.stdin.flush()
        return json.loads(source.stdout.readline())


def _at_import(environ: dict[str, str]) -> bool:
    """Whether the environment holds what is read while modules are imported."""
    early = ("HF_HUB_DISABLE", "HF_HOME", "HF_ENDPOINT", "PYTHONPATH", "PROM", "SGLANG_USE", "TRITON")
    moved = environ["HF_HUB_OFFLINE"] != "1" or environ["HOME"].startswith("/none")
    return moved or any(name.startswith(early) for name in environ)


def run(case: Case, out: Path, port: int) -> dict[str, object]:
    """Run one case; its log is ``NAME.log`` in ``out``, what became of it is returned (and kept as ``NAME.json``)."""
    where = environment()
    folder = out / "run" / case.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model = folder / "model"
    shutil.copytree(where.model, model)
    fields = {"MODEL": str(model), "PORT": str(port), "RUN": str(folder), "PORT2": str(port + 1)}
    if case.files:
        subprocess.run(["sh", "-ec", _fill(case.files, fields)], cwd=model, check=True)
    if case.nobody:
        _give(folder, case)
    hidden = _hiding(folder, case)
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        "SGLANG_CPU_OMP_THREADS_BIND": "0|1" if case.ranks == 2 else "0",
        **({"PYTHONPATH": str(hidden)} if hidden else {}),
        **{name: _fill(value, fields) for name, value in case.env.items()},
    }
    if case.ranks == 1 and "SGLANG_CPU_OMP_THREADS_BIND" not in case.env:
        del environ["SGLANG_CPU_OMP_THREADS_BIND"]
    usual = [
        ("--model-path", str(model)), ("--device", "cpu"), ("--host", "127.0.0.1"), ("--port", str(port)),
        ("--max-total-tokens", "16384"),
    ]  # fmt: skip
    asked = [_fill(word, fields) for word in case.args]
    words = [word for pair in usual if pair[0] not in asked for word in pair]
    command = [str(where.python), "-m", "sglang.launch_server", *words, *asked]
    log = out / f"{case.name}.log"
    plain = not (case.before or case.hide or case.memory or _at_import(environ)) and Forked.ready()
    began = time.monotonic()
    server: Server
    if plain:
        server = Forked(command[3:], environ, folder, log, _hindered(case, fields))
    else:
        server = Started(case, command, environ, folder, log, _fill(case.before, fields))
    helper = None
    if case.beside:
        helper = subprocess.Popen(["sh", "-c", _fill(case.beside, fields)], start_new_session=True)
    try:
        ended = _follow(server, case, log, began)
        code = server.poll()
    finally:
        _end(server.pid)
        if helper:
            os.killpg(helper.pid, signal.SIGKILL)
            helper.wait()
    with suppress(OSError):
        (_GROUPS / f"fail-real-{case.name}").rmdir()
    after = {
        "returncode": code,
        "ended": ended,
        "seconds": round(time.monotonic() - began, 1),
    }
    (out / f"{case.name}.json").write_text(json.dumps(after))
    shutil.rmtree(folder, ignore_errors=True)
    return after


def _follow(server: Server, case: Case, log: Path, began: float) -> str:
    """Watch until it ends or hangs; hurt it where the case says so. How it ended."""
    hurt = stopping = False
    size, moved = 0, time.monotonic()
    while True:
        time.sleep(0.1)
        now = time.monotonic()
        text = log.read_text("utf-8", "replace") if log.exists() else ""
        if len(text) != size:
            size, moved = len(text), now
        if server.poll() is not None:
            time.sleep(1.0)
            return "stopped" if stopping else "exited"
        if case.kill and not hurt and re.search(case.kill.after, text):
            time.sleep(case.kill.delay)
            victims = _called(case.kill.who, server.pid)
            if victims:
                os.kill(victims[-1], getattr(signal, f"SIG{case.kill.signal}"))
                hurt, moved = True, now
        if _READY in text and not case.kill and not stopping:
            if case.then:
                subprocess.run(["sh", "-c", case.then], timeout=60, check=False, capture_output=True)
                time.sleep(3)
                case = Case(case.name, "", "")
                continue
            os.kill(server.pid, signal.SIGTERM)
            stopping, moved = True, now
        quiet = now - moved > _QUIET and (hurt or stopping or _FATAL.search(text))
        if quiet or now - began > case.limit * (1 if isinstance(server, Forked) else 2):
            return "hung"


def _hiding(folder: Path, case: Case) -> Path | None:
    """A folder for PYTHONPATH in which modules are missing (``name``) or are something else (``name=code``)."""
    if not case.hide:
        return None
    path = folder / "hide"
    path.mkdir()
    for name in case.hide:
        if "=" in name:
            module, code = name.split("=", 1)
            file = path / (module.replace(".", "/") + "/__init__.py")
            file.parent.mkdir(parents=True)
            file.write_text(code + "\n")
    gone = {name for name in case.hide if "=" not in name}
    (path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Gone:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name in {gone!r}:\n"
        '            raise ModuleNotFoundError(f"No module named {name!r}", name=name)\n'
        "sys.meta_path.insert(0, Gone())\n"
    )
    return path


def _give(folder: Path, case: Case) -> None:
    """The folder becomes that of a user without rights, but for what the case keeps from it."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, _NOBODY, _NOBODY)
    if case.keep:
        os.chown(folder / case.keep, 0, 0)
        (folder / case.keep).chmod(0)


def _hindered(case: Case, fields: dict[str, str]) -> dict[str, object]:
    """What `fail_real_fork.hinder` is to do."""
    tmpfs = {_fill(path, fields): options for path, options in case.tmpfs.items()}
    return {"tmpfs": tmpfs, "limits": case.limits, "user": _NOBODY if case.nobody else 0}


def _limit(case: Case) -> str:
    """Shell that puts itself under the case's memory limit."""
    if not case.memory:
        return ""
    group = _GROUPS / f"fail-real-{case.name}"
    return f"mkdir -p {group}; echo {case.memory} >{group}/memory.limit_in_bytes; echo $$ >{group}/cgroup.procs\n"


def _fill(text: str, fields: dict[str, str]) -> str:
    return re.sub(r"@(MODEL|PORT2|PORT|RUN)@", lambda found: fields[found[1]], text)


def _mine(session: int) -> list[int]:
    """The processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            words = (path / "stat").read_text().rpartition(")")[2].split()
            if int(words[3]) == session and words[0] != "Z":
                found.append(int(path.name))
    return sorted(found)


def _called(who: str, server: int) -> list[int]:
    """The processes of a server that go by a name: by their titles, else by their order (forks keep their title)."""
    if who == "parent":
        return [server]
    mine = [pid for pid in _mine(server) if pid != server]
    titled = [pid for pid in mine if who in _title(pid)]
    if titled or any("sglang::" in _title(pid) for pid in mine):
        return titled
    order = {"scheduler": mine[:1], "scheduler_TP1": mine[1:2], "detokenizer": mine[-1:]}
    return order[who]


def _title(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    return ""


def _end(session: int) -> None:
    for _ in range(20):
        left = _mine(session)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not left:
            break
        time.sleep(0.2)


def unit(after: dict[str, object]) -> UnitEnd | None:
    """What systemd would say of such an end."""
    code = after["returncode"]
    if not isinstance(code, int) or code == 0:
        return None
    if code < 0:
        return UnitEnd(result="signal", exec_code="killed", exec_status=-code)
    return UnitEnd(result="exit-code", exec_code="exited", exec_status=code)


def judge(case: Case, out: Path) -> str:
    """One line: right, unknown or wrong, and what was said. Judged by the log alone, and with systemd's word."""
    after = json.loads((out / f"{case.name}.json").read_text())
    lines = read((out / f"{case.name}.log").read_text("utf-8", "replace"))
    alone, told = diagnose(lines), diagnose(lines, unit(after))
    signature = told.cause.signature if told.cause else "none"
    by_file = alone.cause.signature if alone.cause else "none"
    if after["ended"] == "stopped" and signature == "stopped":
        signature = "none"  # it came up, and was stopped
    said = f"{signature} {told.phase}"
    word = "right" if re.fullmatch(case.expect, said) else "unknown" if signature in ("unknown", "none") else "WRONG"
    beside = "" if by_file == signature else f" [by the log alone: {by_file}]"
    status = after["returncode"] if after["ended"] != "hung" else "hung"
    cause = told.cause.cause[:150] if told.cause else told.verdict
    return f"{word:8}{case.name:28}{status!s:>5} {after['seconds']:5}s {said}{beside}: {cause}"


def main() -> int:
    """Run and judge what was asked for; 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="beginnings of names of cases; none: all")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--judge", action="store_true", help="run nothing, judge the logs that are there")
    parser.add_argument("--new", action="store_true", help="leave out what has a log already")
    parser.add_argument("--port", type=int, default=21500)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    counts: dict[str, int] = {}
    for number, case in enumerate(CASES):
        there = (options.out / f"{case.name}.json").exists()
        if options.names and not case.name.startswith(tuple(options.names)):
            continue
        if options.judge and not there:
            continue
        if not options.judge and not (options.new and there):
            run(case, options.out, options.port + 4 * number)
        line = judge(case, options.out)
        counts[line.split()[0]] = counts.get(line.split()[0], 0) + 1
        print(line, flush=True)
    Forked.end()
    print(counts)
    return 1 if "WRONG" in counts else 0


if __name__ == "__main__":
    sys.exit(main())
