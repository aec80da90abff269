"""Why a launch failed: the first cause, from the log, systemd's report and the kernel's messages. Pure.

Consequences such as "Received sigquit", a peer that went away and exit status 137 explain nothing. A cause that no
signature recognises is `UNKNOWN`, with the innermost exception and the lines around it; nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest

from deployer.sglang.log import endings
from deployer.sglang.log.components import component, tracker_search
from deployer.sglang.log.endings import UnitEnd
from deployer.sglang.log.indexed_log import NOISE, SERVING, IndexedLog
from deployer.sglang.log.launch import PHASES
from deployer.sglang.log.native import hint, is_compiler
from deployer.sglang.log.record import message_of
from deployer.sglang.log.signatures import FATAL_LINES, STOPPED, UNKNOWN, Cause, Signature, any_of, found_in
from deployer.sglang.log.text import Line, read_lines, without_routine
from deployer.sglang.log.tracebacks import Trace, bare_errors, tracebacks

__all__ = ["STOPPED", "UNKNOWN", "Cause", "UnitEnd", "classify", "fatal_patterns", "find"]

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
#: What the server does to its own processes once it is ending, and then reports as their crash.
_OWN_DOING = ("rank_killed", "rank_died")
_KILLED_BY = re.compile(r"Killed process (\d+) \(([^)]{1,40})\)|task=([^,]{1,40}),pid=(\d+)")
_BEGINNING = re.compile(r"\bserver_args=|sglang/launch_server\.py|sglang/cli/|^usage: ")
#: Characters of the log's own message that are kept with the cause.
_QUOTED = 160
#: Lines before a failure in which native code's own words for it are looked for.
_NEAR = 30
#: Words in which the engine says beforehand what an exception then only reports.
_TELLING = re.compile(
    r"(?i)\brequires? |\bonly supports? |\bplease (?:set|use|install|upgrade)\b|\bis not supported\b"
    r"|\bnot found in params_dict"
)
#: Secondary signatures that name how native code ended.
_CRASHES = ("bus_error", "native_crash")
#: Lines before a generic traceback in which a more specific one is looked for.
_BEFORE = 400


def fatal_patterns() -> list[str]:
    """Return regular expressions for single lines, each certain proof that the launch has failed."""
    return list(FATAL_LINES)


def classify(
    lines: Sequence[str],
    unit: UnitEnd | None = None,
    *,
    stalled: str | None = None,
    kernel: Iterable[str] = (),
) -> Cause:
    """Return the cause of a launch that is known to have failed. Never raises.

    ``unit`` is what systemd reports, ``kernel`` the kernel's messages of that time; ``stalled`` is the phase that
    stopped moving, if that is how the launch failed.
    """
    search = Search(without_routine(read_lines(lines)), unit, list(read_lines(kernel)), stalled)
    return search.answer() or endings.first_error(search.lines, search.reached)


def find(
    lines: Sequence[Line],
    unit: UnitEnd | None = None,
    *,
    stalled: str | None = None,
    kernel: Sequence[Line] = (),
) -> Cause | None:
    """Like `classify`, for a log that may not hold a failure: None then."""
    return Search(lines, unit, kernel, stalled).answer()


class Search(IndexedLog):
    """The search for the cause in one log."""

    def __init__(
        self,
        lines: Sequence[Line],
        unit: UnitEnd | None,
        kernel: Sequence[Line] = (),
        stalled: str | None = None,
    ) -> None:
        super().__init__(lines)
        self.unit = unit or endings.unit_end(self.lines)
        self.kernel = [*(line for line in self.lines if line.source in ("kernel", "systemd")), *kernel]
        self.stalled = stalled
        self._cured: dict[str, int] = {}
        self.traces = tracebacks(self.lines)
        for trace in self.traces:
            trace.fatal = trace.fatal and not self.survived(trace)
        self.reached = self.phase_at(len(self.lines))
        #: Whether the log holds the start of the launch: without it, what looks early may have been late.
        self.whole = unit is not None or bool(self.unit) or any(_begins(line) for line in self.lines[:400])

    def answer(self) -> Cause | None:
        """Return the first cause; None if nothing failed."""
        stop = endings.stop_index(self, self.traces)
        fatal = [trace for trace in self.traces if trace.fatal and not endings.is_stop(_last(trace))]
        primary = [trace for trace in fatal if not _SECONDARY.search(trace.messages)]
        primary = [trace for trace in primary if trace.errors] or primary  # complete ones first
        events: list[tuple[float, int, Trace | Signature]] = [
            (self.stamp(trace.first), trace.first, trace) for trace in primary
        ]
        events += [(self.stamp(index), index, one) for index, one in self.decisive()]
        if any(stamp < 0 for stamp, _, _ in events):
            events = [(0.0, index, event) for _, index, event in events]
        events.sort(key=lambda event: event[:2])
        if stop is not None and not any(index < stop for _, index, _ in events):
            return self.by_kernel() if self.oom_killed else endings.stopped(self, stop)
        cause = next((cause for _, index, event in events if (cause := self.known(event, index))), None)
        if cause is not None and not _generic(cause):
            return cause
        return self.by_kernel() or cause or self.by_consequence(fatal, primary)

    @property
    def oom_killed(self) -> bool:
        """Whether systemd reports that the OOM killer ended the unit."""
        return self.unit.get("result") == "oom-kill"

    def decisive(self) -> list[tuple[int, Signature]]:
        """Return the lines outside of tracebacks that prove a failure by themselves."""
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

    def known(self, event: Trace | Signature, index: int) -> Cause | None:
        """Return the known cause that a traceback or a decisive line shows."""
        if isinstance(event, Signature):
            quote = message_of(self.lines[index].text)
            return self.cause(event, self.around(index, 2, 1), self.phase_at(index), quote)
        signature = match(event)
        if signature is None:
            return None
        phase = self.phase_of(event)
        if signature.generic:
            near = self.lines[max(0, event.first - _BEFORE) : event.first]
            for position, line in enumerate(near, max(0, event.first - _BEFORE)):
                specific = _specific(line.text)
                if specific is not None:
                    shown = [*self.around(position, 0, 1), *event.shown]
                    return self.cause(specific, shown, phase, message_of(line.text), event.rank)
        return self.cause(signature, self.shown(event), phase, _innermost(event), event.rank)

    def by_kernel(self) -> Cause | None:
        """Return what the kernel's messages, or systemd's, prove."""
        for line in self.kernel:
            for one in found_in("kernel"):
                if not one.regex.search(line.text):
                    continue
                killed = _KILLED_BY.search(line.text)
                cause = self.cause(one, [], self.reached)
                if killed:
                    who = f"process {killed[1] or killed[4]}, {killed[2] or killed[3]}"
                    cause = replace(cause, cause=f"{cause.cause} ({who})")
                at = line.number if line in self.lines else 0
                return replace(cause, evidence=(line.text[:500],), numbers=(at,))
        if self.oom_killed:
            one = next(one for one in found_in("kernel") if one.id == "host_oom")
            return self.cause(one, self.tail(), self.reached)
        return None

    def by_consequence(self, fatal: Sequence[Trace], primary: Sequence[Trace]) -> Cause | None:
        """Return a consequence, what systemd reports, or the unknown exception: nothing known happened first."""
        if primary and primary[0].native:
            return self.by_native(primary)
        if primary and primary[0].errors:
            head = next((trace for trace in fatal if trace.explicit and trace.first < primary[0].first), None)
            return (self.of_trace(head) if head else None) or self.unknown(primary[0])
        harmless = [trace for trace in self.traces if not trace.fatal and not _SECONDARY.search(trace.messages)]
        if self.stalled and (stalled := self.by_stall(self.stalled)):
            return stalled
        bare = [one for one in bare_errors(self.lines, self.traces) if not _SECONDARY.search(one.messages)]
        by_unit = endings.by_unit(self, self.unit, self.reached)
        ended = by_unit is not None or bool(self.consequences)
        ended = ended or bool(fatal) or any(_DIED.search(self.lines[at].text) for at in self.telling)
        ended = ended or self.ends_with(bare)
        if primary and not bare:
            return self.unknown(primary[0])
        if cause := next((cause for trace in bare if ended and (cause := self.of_trace(trace))), None):
            return cause
        if cause := self.by_secondary():
            return cause
        if by_unit is not None and by_unit.signature != UNKNOWN:
            return by_unit
        if fatal:
            return self.of_trace(fatal[0]) or self.unknown(fatal[0])
        if not ended:
            return None
        if cause := next((cause for trace in harmless if (cause := self.of_trace(trace))), None):
            return cause
        if harmless or bare:
            return self.unknown((bare or harmless)[0])
        return by_unit or endings.silence(self, self.unit, self.reached)

    def by_native(self, primary: Sequence[Trace]) -> Cause:
        """Return what native code's own error means, if nothing known was raised; a compiler only serves a caller."""
        for trace in bare_errors(self.lines, self.traces):
            if not _SECONDARY.search(trace.messages) and (cause := self.of_trace(trace)):
                return cause
        first = next((one for one in primary if not (one.native and is_compiler(one.lines[0]))), primary[0])
        secondary = (one for one in found_in("secondary") if one.id in _CRASHES and one.regex.search(first.messages))
        if first.native and (one := next(secondary, None)):
            return self.cause(one, self.shown(first), self.phase_of(first), first.messages, first.rank)
        return self.unknown(first)

    def shown(self, trace: Trace) -> list[int]:
        """Return the lines that show a failure best: those of native code before it, and its own."""
        before = range(max(0, trace.first - _NEAR), trace.first)
        near = [at for at in before if self.lines[at].source == "engine" and not NOISE.search(self.lines[at].text)]
        hints = [at for at in near if hint(self.lines[at].text)]
        said = [at for at in near if _TELLING.search(message_of(self.lines[at].text), 0, 1000)]
        return [*sorted({*hints[-2:], *said[-1:]}), *trace.shown]

    def of_trace(self, trace: Trace) -> Cause | None:
        """Return the known cause that a traceback shows, without a look at the lines around it."""
        one = match(trace)
        if one is None:
            return None
        return self.cause(one, self.shown(trace), self.phase_of(trace), _innermost(trace), trace.rank)

    def by_secondary(self) -> Cause | None:
        """Return the first consequence that is not the server's own doing and did not pass."""
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
                if text == "Killed" and any(at < index for at in self.consequences):
                    continue  # the server does that to itself
                if self.cured(one) > index:
                    continue
                inside = next((trace for trace in self.traces if trace.first <= index <= trace.last), None)
                phase = self.phase_of(inside) if inside else self.phase_at(index)
                return self.cause(one, self.around(index, 2, 1), phase, message_of(text))
        return None

    def cured(self, one: Signature) -> int:
        """Return the last line that says that ``one`` passed; -1 if there is none."""
        if one.cured_by is None:
            return -1
        if one.id not in self._cured:
            places = reversed(range(len(self.lines)))
            self._cured[one.id] = next((at for at in places if one.cured_by.search(self.lines[at].text)), -1)
        return self._cured[one.id]

    def by_stall(self, phase: str) -> Cause:
        """Return why nothing moved in ``phase``."""
        lines, numbers = self.show(self.tail())
        for one in (one for one in found_in("stall") if one.phase == phase):
            if any(one.regex.search(line.text) for line in self.lines):
                return Cause(one.id, phase, one.cause, one.remedy, lines, one.reference, numbers)
        return Cause(
            "stalled",
            phase,
            f"nothing moved in phase {phase}: no log line, no bytes read, no CPU time used",
            "look at the processes on the host (py-spy dump, nvidia-smi); raise deadlines.stall if it is only slow",
            lines,
            None,
            numbers,
        )

    def unknown(self, trace: Trace) -> Cause:
        """Return an unknown cause: the traceback's innermost exception and the lines around it."""
        before = [] if trace.errors else self.around(trace.first, 2, 0)
        after = range(trace.last + 1, min(trace.last + 3, len(self.lines)))
        lines, numbers = self.show([*before, *self.shown(trace), *after])
        here, cause = self.here(self.phase_of(trace)), _innermost(trace)[:500]
        part = component(trace.text, trace.rank)
        search = tracker_search(cause, trace.origin)
        remedy = f"{f'{part}; ' if part else ''}no remedy is known. Search the tracker: {search}"
        return Cause(UNKNOWN, here, cause, remedy, lines, None, numbers, trace.rank, "", part, search)

    def here(self, phase: str) -> str | None:
        """Return the phase; None for the first one in a log that does not hold the start."""
        return phase if phase != PHASES[0] or self.whole else None

    def cause(self, one: Signature, positions: Sequence[int], phase: str, quote: str = "", rank: str = "") -> Cause:
        """Return the cause that a signature stands for; ``quote`` is the log's own message."""
        lines, numbers = self.show(positions)
        here = self.here(phase) or one.phase
        signature = one.id
        if signature == "cuda_oom_load" and here in ("capture", *SERVING):
            signature = "capture_oom" if here == "capture" else "cuda_oom"
        quote = " ".join(quote.split())
        quote = quote if len(quote) <= _QUOTED else f"{quote[: _QUOTED - 3]}..."
        cause = f"{one.cause} ({quote})" if quote else one.cause
        return Cause(signature, here, cause, one.remedy, lines, one.reference, numbers, rank, quote)


def match(trace: Trace) -> Signature | None:
    """Return the signature of what a traceback raised."""
    messages, text = trace.full_messages, trace.text
    for one in found_in("line"):
        if one.regex.search(messages):
            return one
    for one in found_in("exception"):
        where = (one.frames is None or one.frames.search(text)) and (
            one.raised is None or one.raised.search(trace.origin)
        )
        if where and one.regex.search(messages):
            return one
    return None


#: Signatures of exceptions that a plain line shows, too; it then says more than a generic exception after it.
_SPECIFIC = frozenset({
    "nccl_shm", "jit_headers", "jit_no_nvcc", "disk_full", "memlock", "gpu_fault", "gpu_index", "tllmgen_arch",
})  # fmt: skip


def _specific(text: str) -> Signature | None:
    if NOISE.search(text) or not re.search(r"[Ee]rror|WARN|fail|No space|not found", text):
        return None
    message = message_of(text)
    known = (one for one in found_in("exception") if one.id in _SPECIFIC)
    return next((one for one in known if one.regex.search(message)), None)


def _begins(line: Line) -> bool:
    return bool(_BEGINNING.search(line.text, 0, 300)) or (
        line.source == "systemd" and line.text.startswith(("Starting ", "Started "))
    )


def _generic(cause: Cause) -> bool:
    return any(one.generic for one in found_in("exception") if one.id == cause.signature)


def _innermost(trace: Trace) -> str:
    """Return the root exception, or the first that says more than a bare EOFError does."""
    specific = [
        _with_code(error, place)
        for error, place in zip_longest(trace.errors, trace.places, fillvalue="")
        if error and not error.startswith(_EMPTY_EXCEPTIONS)
    ]
    cut = f"a traceback cut short in {trace.deepest}" if trace.deepest else message_of(trace.lines[0])
    return (specific or trace.errors or [cut])[0]


def _with_code(error: str, place: str) -> str:
    """Return an exception; one without a message with the line of code that raised it, which is all it says."""
    if not re.fullmatch(r"[\w.]+:? {0,3}", error) or "\n" not in place:
        return error
    frame, code = place.split("\n", 1)
    where = re.match(r'File "(?:[^"]*/)?([^"/]+)", line \d+, in (\S+)', frame)
    return f"{error.rstrip(': ')} at `{code.strip()[:200]}`" + (f" ({where[1]}, {where[2]})" if where else "")


def _last(trace: Trace) -> str:
    return trace.errors[-1] if trace.errors else ""
