"""Why a launch failed, read from its log. Pure.

What is known is data (``data/failures.json``): a signature is looked for in tracebacks (``exception``), in any line
(``line``: decisive by itself), among consequences (``secondary``: believed only if nothing better is there), or after
a stall (``stall``). Consequences such as "Received sigquit" and exit status 137 explain nothing and are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from deployer.sglang.launch import PHASES, LaunchLog

UNKNOWN = "unknown"

_HEAD = "Traceback (most recent call last):"
_RECORD = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]{0,60}\] ?")
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_NOISE = re.compile(
    r"server_args=|^usage: |^ {10,}\[|UserWarning: |^ *warnings\.warn\(|Ignore import error when loading"
    r"|INFO: +\d|Completed \| \d|Capturing batches|Set --trust-remote-code"
)
_CONSEQUENCE = re.compile(r"Received sigquit from a child proces|SIGQUIT received\.|kill_process_tree called")
_SECONDARY = re.compile(
    r"(?m)^(?:EOFError|BrokenPipeError|ConnectionResetError|ConnectionRefusedError)\b|died during initialization"
    r"|Connection (?:closed|reset) by peer|remote process exited|DistBackendError|collective operation timeout"
    r"|Connection was likely closed|[Ww]atchdog timeout"
)
_EMPTY_EXCEPTIONS = ("EOFError", "BrokenPipeError", "ConnectionResetError", "KeyboardInterrupt", "SystemExit")
_FATAL = (
    r"hit an exception: Traceback \(most recent call last\)",
    r"\[Errno \d+\] error while attempting to bind on address",
    r"^torch\.(?:cuda\.)?OutOfMemoryError: ",
    r"^(?:\w+\.)*\w*(?:Exception|Error): Capture [\w ]{0,30}graph failed: ",
    r"^[\w .-]{1,40}: error: (?:argument [^ ]|unrecognized arguments|ambiguous option|the following arguments are)",
    r"Rank \d+ scheduler (?:died during initialization|is dead)",
    r"Received sigquit from a child process",
    r"SIGQUIT received\. signum",
    r"Subprocess \S+ \(pid=\d+\) crashed with exit code",
    r"Initialization failed\. warmup error",
    r"\[sgl_kernel\] CRITICAL: Could not load any common_ops library",
)


@dataclass(frozen=True)
class Failure:
    """Why a launch failed: the known signature or `UNKNOWN`, the launch phase, cause and remedy in words.

    ``evidence`` are the log lines that prove it, ``reference`` is where more is written about it.
    """

    signature: str
    phase: str | None
    cause: str
    remedy: str
    evidence: tuple[str, ...]
    reference: str | None

    def as_dict(self) -> dict[str, Any]:
        """The failure as data, all of it."""
        return {
            "signature": self.signature,
            "phase": self.phase,
            "cause": self.cause,
            "remedy": self.remedy,
            "evidence": list(self.evidence),
            "reference": self.reference,
        }


@dataclass(frozen=True)
class Signature:
    """One known way to fail."""

    id: str
    phase: str | None
    where: str
    regex: re.Pattern[str]
    cause: str
    remedy: str
    refs: tuple[str, ...]


@dataclass(frozen=True)
class Chain:
    """One traceback with what it is chained to. ``errors`` are its exception lines, the root cause first.

    ``fatal``: it ended its process (not one that was only logged).
    """

    text: str
    errors: tuple[str, ...]
    last_frame: str
    fatal: bool

    @property
    def secondary(self) -> bool:
        """Whether it only tells that somebody else failed."""
        return bool(_SECONDARY.search("\n".join(self.errors)))

    @property
    def innermost(self) -> str:
        """The exception that began it, unless that says nothing (an EOFError of a pipe)."""
        telling = [error for error in self.errors if not error.startswith(_EMPTY_EXCEPTIONS)]
        return (telling or list(self.errors) or [self.text.splitlines()[0]])[0]


@cache
def signatures() -> tuple[Signature, ...]:
    """All known signatures, the most telling first."""
    data = json.loads((files("deployer.sglang") / "data" / "failures.json").read_text("utf-8"))
    return tuple(
        Signature(
            item["id"],
            item["phase"],
            item["where"],
            re.compile(item["regex"]),
            item["cause"],
            item["remedy"],
            tuple(item["refs"]),
        )
        for item in data
    )


def fatal_patterns() -> list[str]:
    """Regular expressions for single lines, each certain proof that the launch has failed. None is in a good log."""
    return list(_FATAL)


def tracebacks(lines: Sequence[str]) -> list[Chain]:
    """Every traceback in the log, in order, chained ones as one; and what native code said as it gave up."""
    chains: list[Chain] = []
    index = 0
    while index < len(lines):
        if _HEAD in lines[index]:
            chain, index = _chain(lines, index)
            chains.append(chain)
            continue
        if lines[index].lstrip().startswith("what():"):
            said = lines[index].strip().removeprefix("what():").strip()
            chains.append(Chain("\n".join(lines[max(0, index - 1) : index + 3]), (said,), "", fatal=True))
        index += 1
    return chains


def classify(
    lines: Sequence[str], unit: Mapping[str, Any] | None = None, *, stalled: str | None = None
) -> Failure:
    """The cause of a failed launch.

    ``unit``: what systemd says (``result``, ``exec_code``, ``exec_status``). ``stalled``: the phase that stopped
    moving, where that is how the launch failed. Never raises; what is not recognised is `UNKNOWN`, with the innermost
    exception.
    """
    lines = [part for line in lines for part in re.split(r"[\r\n]", line)]
    reached = _reached(lines)
    chains = tracebacks(lines)
    primary = [chain for chain in chains if chain.fatal and not chain.secondary]
    primary = [chain for chain in primary if chain.errors] or primary  # those cut short come last
    plain = [line for line in lines if not _NOISE.search(line) and not _CONSEQUENCE.search(line)]

    found = _by_line(plain, "line", reached) or _by_chain(primary, reached)
    if found:
        return found
    facts = _unit(unit or {}, plain, reached)
    if facts and facts.signature == "host_oom":
        return facts
    if not primary:
        found = _by_chain([chain for chain in chains if not chain.secondary], reached)
        found = found or _by_line(plain, "secondary", reached)
        found = found or (_by_stall(plain, stalled) if stalled else None) or facts
    if found:
        return found
    return _unknown(primary or chains, plain, reached)


def _by_line(lines: Sequence[str], where: str, reached: str) -> Failure | None:
    messages = [_RECORD.sub("", line) for line in lines]
    for signature in (one for one in signatures() if one.where == where):
        for number, message in enumerate(messages):
            if signature.regex.search(message):
                return _failure(signature, reached, _around(lines, number, 2, 1))
    return None


def _by_chain(chains: Sequence[Chain], reached: str) -> Failure | None:
    for chain in chains:
        for signature in (one for one in signatures() if one.where == "exception"):
            if signature.regex.search(chain.text):
                return _failure(signature, reached, _shown(chain))
    return None


def _by_stall(lines: Sequence[str], phase: str) -> Failure:
    for signature in (one for one in signatures() if one.where == "stall" and one.phase == phase):
        if any(signature.regex.search(line) for line in lines):
            return _failure(signature, phase, tuple(lines[-3:]))
    return Failure(
        "stalled",
        phase,
        f"nothing moved in phase {phase}: no log line, no bytes read, no work done",
        "look at the processes on the host (py-spy dump, nvidia-smi); raise deadlines.stall if it is only slow",
        tuple(lines[-3:]),
        None,
    )


def _unit(unit: Mapping[str, Any], lines: Sequence[str], reached: str) -> Failure | None:
    """What systemd's word alone proves."""
    result, status = unit.get("result"), unit.get("exec_status")
    tail = tuple(lines[-3:])
    if result == "oom-kill":
        signature = next(one for one in signatures() if one.id == "host_oom")
        return _failure(signature, reached, tail)
    known = {
        200: ("unit_workdir", "the unit's working directory cannot be entered", "check home and permissions"),
        203: ("unit_exec", "the engine's Python cannot be executed", "check engine.python on the host"),
        216: ("unit_group", "the unit's group does not exist", "check the service's user on the host"),
        217: (
            "unit_user",
            "the unit's user does not exist",
            "create the user, or name another in the inventory",
        ),
    }
    if result == "exit-code" and status in known:
        name, cause, remedy = known[status]
        return Failure(name, "launch", cause, remedy, tail, None)
    if result == "timeout":
        return Failure(
            "unit_timeout", reached, "systemd's own start time-out ended it", "raise it", tail, None
        )
    if any("SIGTERM received" in line for line in lines) or (
        result in ("success", "signal") and status == 15
    ):
        return Failure(
            "stopped",
            reached,
            "the server was told to stop (SIGTERM) while it was starting",
            "find out who stopped the unit: the journal of systemd and the shell histories know",
            tail,
            None,
        )
    return None


def _unknown(chains: Sequence[Chain], lines: Sequence[str], reached: str) -> Failure:
    remedy = "read the evidence and the log; `deployer logs` shows all of it"
    if chains:
        chain = chains[0]
        return Failure(UNKNOWN, reached, chain.innermost[:500], remedy, _shown(chain), None)
    if wrong := [
        number for number, line in enumerate(lines) if re.search(r"\b(?:ERROR|CRITICAL|FATAL)\b", line)
    ]:
        cause = _RECORD.sub("", lines[wrong[0]]).strip()[:500]
        return Failure(UNKNOWN, reached, cause, remedy, _around(lines, wrong[0], 2, 3), None)
    cause = "the server ended without an error message" if lines else "the server printed nothing"
    return Failure(UNKNOWN, reached, cause, remedy, tuple(lines[-5:]), None)


def _failure(signature: Signature, reached: str, evidence: tuple[str, ...]) -> Failure:
    phase = reached if reached != PHASES[0] else signature.phase or reached
    reference = signature.refs[0] if signature.refs else None
    return Failure(signature.id, phase, signature.cause, signature.remedy, evidence, reference)


def _reached(lines: Sequence[str]) -> str:
    log = LaunchLog()
    for line in lines:
        log.feed(line, 0.0)
    return log.state.phase


def _around(lines: Sequence[str], number: int, before: int, after: int) -> tuple[str, ...]:
    return tuple(line[:500] for line in lines[max(0, number - before) : number + after + 1] if line.strip())


def _shown(chain: Chain) -> tuple[str, ...]:
    """A traceback in a few lines: where it was raised, and what every exception of its chain said."""
    return (*([chain.last_frame] if chain.last_frame else []), *(error[:500] for error in chain.errors[:6]))


def _chain(lines: Sequence[str], start: int) -> tuple[Chain, int]:
    """The traceback that begins at ``start`` with its chained successors, and the line after it."""
    head = lines[start]
    fatal = "hit an exception" in head or "Initialization failed" in head or head.strip() == _HEAD
    errors: list[str] = []
    root_frame = ""
    index = start
    while True:
        error, frame, index = _one(lines, index + 1)
        if error:
            errors.append(error)
            root_frame = root_frame or frame
        link = _skip_blank(lines, index)
        following = _skip_blank(lines, link + 1)
        linked = link < len(lines) and lines[link].strip() in _CHAINED and following < len(lines)
        if not linked or lines[following].strip() != _HEAD:
            return Chain("\n".join(lines[start:index]), tuple(errors), root_frame, fatal), index
        index = following


def _one(lines: Sequence[str], index: int) -> tuple[str, str, int]:
    """One traceback without its head: what was raised, the last frame, the line after it."""
    frame = ""
    while index < len(lines) and (lines[index][:1] in ("", " ", "\t")):
        if lines[index].lstrip().startswith("File "):
            frame = lines[index].strip()
        index += 1
    message: list[str] = []
    while (
        index < len(lines) and lines[index].strip() and not _RECORD.match(lines[index]) and len(message) < 12
    ):
        if _HEAD in lines[index]:
            break
        message.append(lines[index].strip())
        index += 1
    return " ".join(message), frame, index


def _skip_blank(lines: Sequence[str], index: int) -> int:
    while index < len(lines) and not lines[index].strip():
        index += 1
    return index
