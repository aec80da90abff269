"""The machine the agent runs on: its clock, programs, systemd, journal, HTTP servers and driver.

All that touches the machine is a method of `Machine`; the rest of the agent asks the one it was given.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import shutil
import socket
import subprocess
import threading
import time
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from deployer.reach import HEALTH_TIMEOUT

from .base import CHILD_ENV, Call, Fail, Json, kill_group
from .files import Files, read_text
from .outward import Outward
from .procs import Processes

OUTPUT_LIMIT = 64 << 20  # bytes that a program may print
BUS_PATIENCE = 5.0  # seconds for systemd to re-execute itself
BUS_GONE = re.compile(
    r"Connection (reset|refused|terminated|timed out)|Failed to connect to (system )?bus|Transport endpoint|"
    r"Broken pipe|disconnected from message bus"
)
SYNC_PATIENCE = 5.0  # seconds for journald to take what waits in its sockets
SMI_TIMEOUT = 5.0  # seconds; a driver in trouble can keep nvidia-smi for ever
SMI_LIMIT = 1 << 20  # bytes; one in trouble may print without end
#: What `unit_state` reports, besides timestamps, drop-ins and whether a reload is needed.
NUMBERS = "NRestarts MainPID ExecMainStatus ExecMainCode"
TEXTS = "ActiveState SubState Result InvocationID LoadState UnitFileState FragmentPath Restart"
STAMPS = "ActiveEnterTimestamp InactiveEnterTimestamp StateChangeTimestamp InactiveExitTimestamp"
#: Folders that systemd reads before the candidate's or the live one.
OUTRANKING = (
    "/etc/systemd/system.control /run/systemd/system.control /run/systemd/transient /run/systemd/generator.early "
    "/etc/systemd/system /etc/systemd/system.attached /run/systemd/system.attached /run/systemd/generator"
)

Done = subprocess.CompletedProcess


def output_of(child: subprocess.Popen[bytes], until: float, limit: int) -> Optional[List[str]]:
    """Return what a program prints (stdout, stderr) up to its end; None if it has not ended by ``until`` (monotonic).

    Raise Fail ``command`` if it prints more than ``limit`` bytes, which may be endless.
    """
    texts = [bytearray(), bytearray()]
    with selectors.DefaultSelector() as selector:
        for pipe, text in zip([child.stdout, child.stderr], texts):
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
            if sum(map(len, texts)) > limit:
                raise Fail("command", "it prints more than %d bytes" % limit)
    try:
        child.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None
    # As Python reads text: a line may end in any way.
    return [re.sub("\r\n?", "\n", bytes(text).decode("utf-8", "replace")) for text in texts]


def successful(done: Done[str]) -> Done[str]:
    if done.returncode:
        text = done.stderr.strip() or done.stdout.strip()
        words = " ".join(done.args[:4])
        raise Fail("command", "%s: %s" % (words, text), status=done.returncode, argv=done.args)
    return done


def is_up(state: Json) -> bool:
    """Running or starting, and not between two automatic restarts."""
    up = state["ActiveState"] in ("active", "activating", "reloading", "refreshing")
    return up and not state["SubState"].startswith("auto-restart")


def is_down(state: Json) -> bool:
    return state["ActiveState"] in ("inactive", "failed")


def entry_time(entry: Json) -> int:
    """When journald took an entry, in microseconds since the epoch; 0 if it does not say."""
    return int(entry.get("__REALTIME_TIMESTAMP") or 0)


def journal_lines(entry: Json) -> Iterator[Json]:
    """The lines of one journal entry: text, source, and whether a carriage return ended it (a progress bar)."""
    message = entry.get("MESSAGE")
    if isinstance(message, list) and message and not isinstance(message[0], int):
        message = message[0]  # a field that was given more than once
    if isinstance(message, list):
        message = bytes(message).decode("utf-8", "replace")
    source = "systemd" if entry.get("_PID") == "1" else "engine"
    if entry.get("_TRANSPORT") == "kernel":
        source = "kernel"
    stamp = entry_time(entry) / 1e6
    parts = re.split(r"(\r\n|[\r\n])", message or "")
    for text, end in zip(parts[::2], [*parts[1::2], ""]):
        if text:
            yield {"t": stamp, "text": text, "source": source, "piece": end == "\r"}


def journal_argv(unit: str, options: List[str], invocation: str = "", kernel: bool = False) -> List[str]:
    """How to ask journalctl for what a unit logged and what systemd logged about it.

    systemd's words come from its process 1, and from the child that is to become the server: a child that ends at once
    (no such program) is gone before journald can look up its unit, so it is known by the field that only root can set.
    """
    matches = ["_SYSTEMD_UNIT=" + unit, "+", "UNIT=" + unit, "_UID=0"]
    if invocation:
        matches = ["_SYSTEMD_INVOCATION_ID=" + invocation, "+", "INVOCATION_ID=" + invocation, "_UID=0"]
    if kernel:
        matches = ["_TRANSPORT=kernel"]
    return ["journalctl", "-q", "-o", "json", "--all"] + options + matches


class Machine(Files, Processes, Outward):
    """The machine itself. Tests give the agent another."""

    outranking: Tuple[str, ...] = tuple(OUTRANKING.split())

    def __init__(self) -> None:
        super().__init__()
        self.boot_id = (read_text("/proc/sys/kernel/random/boot_id") or "").strip()

    # -- clock and programs -------------------------------------------------------------------------------------

    def boottime(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def execute(
        self, argv: List[str], timeout: float = 90.0, check: bool = True, limit: int = OUTPUT_LIMIT
    ) -> Done[str]:
        """Run a program to its end. One that takes too long, or prints without end, is killed."""
        until = time.monotonic() + timeout
        pipes: Dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        try:
            child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, env=CHILD_ENV, start_new_session=True, **pipes)
        except FileNotFoundError as error:
            raise Fail("missing-tool", "the host has no %s" % argv[0]) from error
        except OSError as error:  # not a program, or one for another processor
            raise Fail("missing-tool", "%s cannot be run: %s" % (argv[0], error.strerror)) from error
        try:
            texts = output_of(child, until, limit)
            if texts is None:
                raise Fail("timeout", "%s took longer than %d s" % (" ".join(argv[:3]), timeout))
        except Fail as failure:
            kill_group(child)
            threading.Thread(target=child.wait, daemon=True).start()  # it may not even die when killed
            if failure.code == "command":
                failure.message = "%s: %s" % (argv[0], failure.message)
            raise
        finally:
            for pipe in (child.stdout, child.stderr):
                pipe.close()  # type: ignore[union-attr]
        done = subprocess.CompletedProcess(argv, child.returncode, *texts)
        return successful(done) if check else done

    # -- systemd ------------------------------------------------------------------------------------------------

    def ask_systemd(self, argv: List[str], check: bool = True) -> Done[str]:
        """Run a client of systemd; again, for a few seconds, while systemd re-executes itself and does not answer."""
        deadline = self.boottime() + BUS_PATIENCE
        while True:
            done = self.execute(argv, check=False)
            if not done.returncode or self.boottime() > deadline or not BUS_GONE.search(done.stderr):
                return successful(done) if check else done
            self.sleep(0.25)

    def systemctl(self, *words: str, check: bool = True) -> Done[str]:
        return self.ask_systemd(["systemctl", "--no-ask-password", *words], check)

    def booted(self) -> bool:
        """Whether systemd is the first process, as sd_booted(3) checks."""
        return os.path.isdir("/run/systemd/system")

    def systemd_version(self) -> Optional[int]:
        try:
            version = re.match(r"systemd (\d+)", self.systemctl("--version", check=False).stdout)
        except Fail as failure:
            if failure.code != "missing-tool":
                raise
            return None
        return int(version.group(1)) if version else None

    def unit_state(self, unit: str) -> Json:
        numbers, texts, stamps = NUMBERS.split(), TEXTS.split(), STAMPS.split()
        monotonic = [name + "Monotonic" for name in stamps]
        names = [*numbers, *texts, "DropInPaths", "NeedDaemonReload", *monotonic]
        shown = self.systemctl("show", "-p", ",".join(names), "--", unit).stdout
        raw = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
        state: Json = {name: raw.get(name, "") for name in texts}
        state.update({name: int(raw.get(name) or 0) for name in numbers})
        offset = time.time() - time.monotonic()
        for name in stamps:
            micros = int(raw.get(name + "Monotonic") or 0)
            state[name] = round(micros / 1e6 + offset, 2) if micros else None
        state["DropInPaths"] = raw.get("DropInPaths", "").split()
        state["NeedDaemonReload"] = raw.get("NeedDaemonReload") == "yes"
        return state

    def manager_variables(self) -> Set[str]:
        """Names of the variables that systemd gives to everything that it starts."""
        shown = self.systemctl("show-environment", check=False).stdout
        return {line.partition("=")[0] for line in shown.splitlines() if "=" in line}

    def drop_ins(self, unit: str) -> List[str]:
        """The drop-ins that systemd would merge into a unit of this name, whether or not the unit exists."""
        folders = self.systemctl("show", "-p", "UnitPath", "--value", check=False).stdout.split()
        stem, _, kind = unit.rpartition(".")
        prefixes = [stem[: at + 1] + "." + kind for at in range(len(stem) - 2, 0, -1) if stem[at] == "-"]
        paths: Dict[str, str] = {}  # by file name: the first one wins
        for name in [unit, *prefixes, kind]:
            for folder in folders:
                below = os.path.join(folder, name + ".d")
                for file in os.listdir(below) if os.path.isdir(below) else []:
                    if file.endswith(".conf"):
                        paths.setdefault(file, os.path.join(below, file))
        return [paths[file] for file in sorted(paths) if os.path.realpath(paths[file]) != "/dev/null"]

    def properties(self, unit: str, interface: str) -> Json:
        """All properties of one interface of a unit, exactly as systemd holds them (``systemctl show`` is lossy)."""
        escaped = "".join(c if c.isascii() and c.isalnum() else "_%02x" % ord(c) for c in unit)
        path = "/org/freedesktop/systemd1/unit/" + escaped
        call = ["org.freedesktop.DBus.Properties", "GetAll", "s", "org.freedesktop.systemd1." + interface]
        done = self.ask_systemd(["busctl", "--json=short", "call", "org.freedesktop.systemd1", path, *call])
        return {name: value["data"] for name, value in json.loads(done.stdout)["data"][0].items()}

    def verify(self, path: str) -> Done[str]:
        """What ``systemd-analyze verify`` says of a unit file."""
        strict = ["--recursive-errors=no"] if (self.systemd_version() or 0) >= 250 else []
        return self.ask_systemd(["systemd-analyze", "verify", "--man=no", *strict, path], check=False)

    def notify(self, text: str) -> None:
        """Tell systemd of our state, as sd_notify(3) does."""
        address = os.environ.get("NOTIFY_SOCKET")
        if address:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
                notify.sendto(text.encode("ascii"), "\0" + address[1:] if address[0] == "@" else address)

    # -- journal ------------------------------------------------------------------------------------------------

    def journal_sync(self) -> None:
        """Return once journald has taken all lines that were written before this call (journalctl(1), ``--sync``).

        They wait in its sockets while the machine is busy. Raise Fail if that takes longer than SYNC_PATIENCE or
        journald does not answer.
        """
        self.execute(["journalctl", "--sync"], timeout=SYNC_PATIENCE)

    def journal_cursor(self) -> str:
        """Where the journal ends now, with all that was written so far; empty for an empty journal."""
        with contextlib.suppress(Fail):
            self.journal_sync()  # else last words of the old server would come after it
        lines = self.execute(["journalctl", "-q", "-n", "1", "-o", "json"], check=False).stdout.splitlines()
        with contextlib.suppress(ValueError, KeyError):
            return str(json.loads(lines[-1])["__CURSOR"]) if lines else ""
        return ""

    def journal_end(self, unit: str) -> int:
        """When a unit's newest line was written (microseconds since the epoch). Raise Fail as `journal_sync` does."""
        self.journal_sync()
        done = self.execute(journal_argv(unit, ["--lines=1"]), timeout=SYNC_PATIENCE)
        lines = done.stdout.splitlines()
        return entry_time(json.loads(lines[-1])) if lines else 0

    def journal_entries(
        self,
        call: Call,
        unit: str,
        *,
        cursor: str = "",
        since: Optional[float] = None,
        lines: Optional[int] = None,
        follow: bool = False,
        invocation: str = "",
        kernel: bool = False,
    ) -> Iterator[Json]:
        options = ["--after-cursor=" + cursor] if cursor else []
        options += ["--since=@%.6f" % since] if since is not None else []
        options += ["--lines=%d" % lines] if lines is not None else ["--no-tail"] if follow else []
        options += ["--follow"] if follow else []
        argv = journal_argv(unit, options, invocation, kernel)
        child = call.spawn(argv, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert child.stdout is not None
        with child.stdout:
            for line in child.stdout:
                with contextlib.suppress(ValueError):
                    yield json.loads(line)
        child.wait()

    def was_logged(self, invocation: str, text: str) -> bool:
        """Whether a start of a unit has logged this text."""
        argv = ["journalctl", "-q", "-o", "cat", "_SYSTEMD_INVOCATION_ID=" + invocation]
        return text in self.execute(argv, check=False).stdout

    # -- servers and driver -------------------------------------------------------------------------------------

    def resolve(self, address: str) -> Set[str]:
        return {str(info[4][0]) for info in socket.getaddrinfo(address, None)}

    def http(
        self,
        address: str,
        port: int,
        path: str,
        timeout: float = HEALTH_TIMEOUT,
        method: str = "GET",
        body: Any = None,
        headers: Any = None,
    ) -> Json:
        """Make one HTTP request. Raise Fail ``http`` with ``state`` refused, timeout or reset.

        ``timeout`` is for all of it: an answer that comes drop by drop is cut off.
        """
        from http.client import HTTPConnection, HTTPException, HTTPResponse  # they take longer to load than the agent

        begun = time.monotonic()
        connection = HTTPConnection(address, port, timeout=timeout)
        late = threading.Event()
        timer: Optional[threading.Timer] = None
        answer: Optional[HTTPResponse] = None
        try:
            connection.connect()
            sock = connection.sock

            def cut_off() -> None:
                late.set()
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

            timer = threading.Timer(timeout, cut_off)
            timer.daemon = True
            timer.start()
            data = body.encode("utf-8") if isinstance(body, str) else None
            connection.request(method, path, data, dict(headers or {}))
            answer = connection.getresponse()
            text = answer.read(64 << 20).decode("utf-8", "replace")
            if late.is_set():
                raise socket.timeout
            pairs = {name.lower(): value for name, value in answer.getheaders()}
            return {
                "status": answer.status,
                "headers": pairs,
                "body": text,
                "seconds": time.monotonic() - begun,
            }
        except ConnectionRefusedError as error:
            raise Fail("http", "connection refused", state="refused") from error
        except (OSError, HTTPException) as error:
            if late.is_set() or isinstance(error, (socket.timeout, TimeoutError)):
                raise Fail("http", "no answer within %g s" % timeout, state="timeout") from error
            raise Fail("http", "connection broken: %s" % error, state="reset") from error
        finally:
            if timer:
                timer.cancel()
            if answer:
                answer.close()
            connection.close()

    def nvidia_smi(self, query: str, until: Optional[float] = None) -> Optional[List[List[Optional[str]]]]:
        """Return the rows of a query, None without nvidia-smi. Raise Fail if it fails or does not answer in time.

        ``until`` (monotonic) is when the answer must be there; it has `SMI_TIMEOUT` at most.
        """
        if not shutil.which("nvidia-smi"):
            return None
        patience = SMI_TIMEOUT if until is None else max(0.0, min(SMI_TIMEOUT, until - time.monotonic()))
        argv = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
        try:
            done = self.execute(argv, timeout=patience, limit=SMI_LIMIT)
        except Fail as failure:
            if failure.code != "timeout":
                raise
            late = "within %g s" % SMI_TIMEOUT if patience > SMI_TIMEOUT - 0.1 else "in time"
            raise Fail("timeout", "nvidia-smi did not answer " + late) from failure
        rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
        return [[None if cell.startswith("[") or cell == "N/A" else cell for cell in row] for row in rows]
