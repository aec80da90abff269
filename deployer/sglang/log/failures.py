"""Why a launch failed: the first cause, from the log, systemd's word and the kernel's messages. Pure.

Consequences such as "Received sigquit", a peer that went away and exit status 137 explain nothing. What is not
recognised is `UNKNOWN`, with the innermost exception and the lines around it; nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from deployer.sglang.log import endings
from deployer.sglang.log.evidence import NOISE, SERVING, STOPPED, UNKNOWN, Evidence, Failure
from deployer.sglang.log.launch import PHASES
from deployer.sglang.log.signatures import FATAL_LINES, Signature, any_of, found_in
from deployer.sglang.log.text import Line, read_lines, without_routine
from deployer.sglang.log.tracebacks import Trace, bare_errors, message_of, tracebacks

__all__ = ["STOPPED", "UNKNOWN", "Failure", "classify", "fatal_patterns", "find"]

_SECONDARY = re.compile(
    r"(?m)^(?:EOFError|BrokenPipeError|ConnectionResetError|ConnectionRefusedError)\b|died during initialization"
    r"|Connection (?:closed|reset) by peer|remote process exited|collective operation timeout|recv, got 0 bytes"
    r"|Connection was likely closed|[Ww]atchdog timeout|Broken pipe|DistStoreError|rank 0 could finish the model load"
    r"|[Tt]imed out waiting for clients|got error: (?:Socket )?Timeout|Timeout waiting for key"
    r"|client socket has timed out|wait timeout after \d|scheduler is dead"
)
_DIED = re.compile(r"died during initialization|crashed with exit code|scheduler is dead")
_EMPTY_EXCEPTIONS = (
    "EOFError",
    "BrokenPipeError",
    "ConnectionResetError",
    "KeyboardInterrupt",
    "SystemExit",
    "StopIteration",
)
#: What the server does to its own processes once it has begun to end them, and then reports as their crash.
_OWN_DOING = ("rank_killed", "rank_died")
_KILLED_BY = re.compile(r"Killed process (\d+) \(([^)]{1,40})\)|task=([^,]{1,40}),pid=(\d+)")
_BEGINNING = re.compile(r"\bserver_args=|sglang/launch_server\.py|sglang/cli/|^usage: ")
#: So much of what the log says is kept with the cause.
_SAID = 160
#: A telling line is looked for so many lines before a generic traceback.
_BEFORE = 400


def fatal_patterns() -> list[str]:
    """Regular expressions for single lines, each certain proof that the launch has failed. None is in a good log."""
    return list(FATAL_LINES)


def classify(
    lines: Sequence[str],
    unit: Mapping[str, Any] | None = None,
    *,
    stalled: str | None = None,
    kernel: Iterable[str] = (),
) -> Failure:
    """The cause of a launch that is known to have failed.

    ``unit``: what systemd says (``result``, ``exec_code``, ``exec_status``). ``stalled``: the phase that stopped
    moving, where that is how the launch failed. ``kernel``: messages of the kernel from that time. Never raises;
    what is not recognised is `UNKNOWN`, with the innermost exception.
    """
    read = without_routine(read_lines(lines))
    return find(read, unit, stalled=stalled, kernel=list(read_lines(kernel))) or endings.silent(read)


def find(
    lines: Sequence[Line],
    unit: Mapping[str, Any] | None = None,
    *,
    stalled: str | None = None,
    kernel: Sequence[Line] = (),
) -> Failure | None:
    """As `classify`, for a log that may hold no failure at all: None then."""
    return Search(lines, unit, kernel, stalled).answer()


class Search(Evidence):
    """One log under examination."""

    def __init__(
        self,
        lines: Sequence[Line],
        unit: Mapping[str, Any] | None,
        kernel: Sequence[Line] = (),
        stalled: str | None = None,
    ) -> None:
        super().__init__(lines)
        self.unit = dict(unit or {}) or endings.unit_of(self.lines)
        self.kernel = [*(line for line in self.lines if line.source in ("kernel", "systemd")), *kernel]
        self.stalled = stalled
        self._cured: dict[str, int] = {}
        self.traces = tracebacks(self.lines)
        for trace in self.traces:
            trace.fatal = trace.fatal and not self.survived(trace)
        self.reached = self.phase_at(len(self.lines))
        #: Whether the log holds the start of the launch: else what looks early may not have been.
        self.whole = bool(self.unit) or any(_begins(line) for line in self.lines[:400])

    def answer(self) -> Failure | None:
        """The first cause; None where nothing failed."""
        stop = endings.stop_index(self, self.traces)
        fatal = [trace for trace in self.traces if trace.fatal and not endings.is_stop(_last(trace))]
        primary = [trace for trace in fatal if not _SECONDARY.search(trace.messages)]
        primary = [trace for trace in primary if trace.errors] or primary  # those cut short come last
        events: list[tuple[float, int, Trace | Signature]] = [
            (self.stamp(trace.first), trace.first, trace) for trace in primary
        ]
        events += [(self.stamp(index), index, one) for index, one in self.decisive()]
        if any(stamp < 0 for stamp, _, _ in events):
            events = [(0.0, index, event) for _, index, event in events]
        events.sort(key=lambda event: event[:2])
        if stop is not None and not any(index < stop for _, index, _ in events):
            return endings.stopped(self, stop) if self.unit_says() != "host_oom" else self.by_kernel()
        found = next((found for _, index, event in events if (found := self.known(event, index))), None)
        if found is not None and not _generic(found):
            return found
        return self.by_kernel() or found or self.by_consequence(fatal, primary)

    # What happened first

    def decisive(self) -> list[tuple[int, Signature]]:
        """Lines that prove a failure by themselves, outside of tracebacks."""
        inside = [(trace.first, trace.last) for trace in self.traces]
        quick, hits = any_of("line"), []
        for index in self.telling:
            line = self.lines[index]
            message = message_of(line.text)
            if not quick.search(message) or NOISE.search(line.text):
                continue
            if not any(first <= index <= last for first, last in inside):
                hits += [(index, one) for one in found_in("line") if one.regex.search(message)][:1]
        return hits

    def known(self, event: Trace | Signature, index: int) -> Failure | None:
        if isinstance(event, Signature):
            said = message_of(self.lines[index].text)
            return self.failure(event, self.around(index, 2, 1), self.phase_at(index), said)
        signature = match(event)
        if signature is None:
            return None
        phase = self.phase_of(event)
        if signature.generic:
            near = self.lines[max(0, event.first - _BEFORE) : event.first]
            for position, line in enumerate(near, max(0, event.first - _BEFORE)):
                told = _telling(line.text)
                if told is not None:
                    shown = [*self.around(position, 0, 1), *event.shown]
                    return self.failure(told, shown, phase, message_of(line.text), event.rank)
        return self.failure(signature, event.shown, phase, _innermost(event), event.rank)

    def by_kernel(self) -> Failure | None:
        """What the kernel's messages, or systemd's, prove."""
        for line in self.kernel:
            for one in found_in("kernel"):
                if not one.regex.search(line.text):
                    continue
                killed = _KILLED_BY.search(line.text)
                failure = self.failure(one, [], self.reached)
                if killed:
                    who = killed[2] or killed[3]
                    failure = replace(
                        failure, cause=f"{failure.cause} (process {killed[1] or killed[4]}, {who})"
                    )
                at = line.number if line in self.lines else 0
                return replace(failure, evidence=(line.text[:500],), numbers=(at,))
        if self.unit_says() == "host_oom":
            one = next(one for one in found_in("kernel") if one.id == "host_oom")
            return self.failure(one, self.tail(), self.reached)
        return None

    def by_consequence(self, fatal: Sequence[Trace], primary: Sequence[Trace]) -> Failure | None:
        """Nothing known happened first: what followed, what systemd says, or the unknown exception itself."""
        if primary and primary[0].errors:
            head = next((trace for trace in fatal if trace.explicit and trace.first < primary[0].first), None)
            return (self.of_trace(head) if head else None) or self.unknown(primary[0])
        harmless = [
            trace for trace in self.traces if not trace.fatal and not _SECONDARY.search(trace.messages)
        ]
        if self.stalled and (stalled := self.by_stall(self.stalled)):
            return stalled
        bare = [one for one in bare_errors(self.lines, self.traces) if not _SECONDARY.search(one.messages)]
        said = endings.by_unit(self, self.unit, self.reached)
        ended = said is not None or bool(self.consequences)
        ended = ended or bool(fatal) or any(_DIED.search(self.lines[at].text) for at in self.telling)
        ended = ended or self.ends_with(bare)
        if primary and not bare:
            return self.unknown(primary[0])
        if found := next((found for trace in bare if ended and (found := self.of_trace(trace))), None):
            return found
        if found := self.by_secondary():
            return found
        if said is not None and said.signature != UNKNOWN:
            return said
        if fatal:
            return self.of_trace(fatal[0]) or self.unknown(fatal[0])
        if not ended:
            return None
        if found := next((found for trace in harmless if (found := self.of_trace(trace))), None):
            return found
        if harmless or bare:
            return self.unknown((bare or harmless)[0])
        return said or endings.silence(self, self.unit, self.reached)

    def of_trace(self, trace: Trace) -> Failure | None:
        """The known failure that a traceback shows, without a look at what is around it."""
        one = match(trace)
        if one is None:
            return None
        return self.failure(one, trace.shown, self.phase_of(trace), _innermost(trace), trace.rank)

    def by_secondary(self) -> Failure | None:
        quick = any_of("secondary")
        hits = [
            (index, text)
            for index in self.telling
            if quick.search(text := self.lines[index].text) and not NOISE.search(text)
        ]
        kills = [at for at in self.consequences if "kill_process_tree called" in self.lines[at].text]
        own = kills[0] if kills else len(self.lines)
        for one in found_in("secondary"):
            for index, text in hits:
                if index > own and one.id in _OWN_DOING and "Subprocess " in text:
                    continue
                if not (one.regex.search(text) or one.regex.search(message_of(text))):
                    continue
                if self.cured(one) > index:
                    continue
                inside = next((trace for trace in self.traces if trace.first <= index <= trace.last), None)
                phase = self.phase_of(inside) if inside else self.phase_at(index)
                return self.failure(one, self.around(index, 2, 1), phase, message_of(text))
        return None

    def cured(self, one: Signature) -> int:
        """The last line that says that ``one`` passed; -1 where there is none."""
        if one.cured_by is None:
            return -1
        if one.id not in self._cured:
            places = reversed(range(len(self.lines)))
            self._cured[one.id] = next((at for at in places if one.cured_by.search(self.lines[at].text)), -1)
        return self._cured[one.id]

    def by_stall(self, phase: str) -> Failure:
        lines, numbers = self.show(self.tail())
        for one in (one for one in found_in("stall") if one.phase == phase):
            if any(one.regex.search(line.text) for line in self.lines):
                return Failure(one.id, phase, one.cause, one.remedy, lines, one.reference, numbers)
        return Failure(
            "stalled",
            phase,
            f"nothing moved in phase {phase}: no log line, no bytes read, no work done",
            "look at the processes on the host (py-spy dump, nvidia-smi); raise deadlines.stall if it is only slow",
            lines,
            None,
            numbers,
        )

    # What systemd says

    def unit_says(self) -> str:
        return "host_oom" if self.unit.get("result") == "oom-kill" else str(self.unit.get("result") or "")

    # Unknown

    def unknown(self, trace: Trace) -> Failure:
        before = [] if trace.errors else self.around(trace.first, 2, 0)
        after = range(trace.last + 1, min(trace.last + 3, len(self.lines)))
        lines, numbers = self.show([*before, *trace.shown, *after])
        remedy = "read the evidence and the log; `deployer logs` shows all of it"
        here = self.here(self.phase_of(trace))
        return Failure(UNKNOWN, here, _innermost(trace)[:500], remedy, lines, None, numbers, trace.rank)

    # Help

    def here(self, phase: str) -> str | None:
        """A phase, or None: the first one means nothing in a log that does not hold the start."""
        return phase if phase != PHASES[0] or self.whole else None

    def failure(
        self, one: Signature, positions: Sequence[int], phase: str, said: str = "", rank: str = ""
    ) -> Failure:
        """A known failure; ``said`` is what the log says of it, kept with the cause."""
        lines, numbers = self.show(positions)
        here = self.here(phase) or one.phase
        signature = one.id
        if signature == "cuda_oom_load" and here in ("capture", *SERVING):
            signature = "capture_oom" if here == "capture" else "cuda_oom"
        said = " ".join(said.split())
        said = said if len(said) <= _SAID else f"{said[: _SAID - 3]}..."
        cause = f"{one.cause} ({said})" if said else one.cause
        return Failure(signature, here, cause, one.remedy, lines, one.reference, numbers, rank, said)


def match(trace: Trace) -> Signature | None:
    """The signature of what a traceback raised."""
    said, text = trace.said, trace.text
    for one in found_in("line"):
        if one.regex.search(said):
            return one
    for one in found_in("exception"):
        where = (one.frames is None or one.frames.search(text)) and (
            one.raised is None or one.raised.search(trace.origin)
        )
        if where and one.regex.search(said):
            return one
    return None


def _telling(text: str) -> Signature | None:
    """A signature that a plain line shows, worth more than a generic exception after it."""
    if NOISE.search(text) or not re.search(r"[Ee]rror|WARN|fail|No space|not found", text):
        return None
    message = message_of(text)
    wanted = (
        "nccl_shm",
        "jit_headers",
        "jit_no_nvcc",
        "disk_full",
        "memlock",
        "gpu_fault",
        "gpu_index",
        "tllmgen_arch",
    )
    return next(
        (one for one in found_in("exception") if one.id in wanted and one.regex.search(message)), None
    )


def _begins(line: Line) -> bool:
    return bool(_BEGINNING.search(line.text, 0, 300)) or (
        line.source == "systemd" and line.text.startswith(("Starting ", "Started "))
    )


def _generic(found: Failure) -> bool:
    return any(one.generic for one in found_in("exception") if one.id == found.signature)


def _innermost(trace: Trace) -> str:
    """The exception that began it, unless that says nothing (an EOFError of a pipe)."""
    telling = [error for error in trace.errors if not error.startswith(_EMPTY_EXCEPTIONS)]
    cut = (
        f"a traceback that is cut short, in {trace.deepest}" if trace.deepest else message_of(trace.lines[0])
    )
    return (telling or trace.errors or [cut])[0]


def _last(trace: Trace) -> str:
    return trace.errors[-1] if trace.errors else ""
