"""Python tracebacks in a log: of several ranks, chained, interleaved, cut short, or without indentation. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from deployer.sglang.log.native import native_error, native_message
from deployer.sglang.log.record import message_of, rank_of, record_in
from deployer.sglang.log.text import Line

HEAD = "Traceback (most recent call last):"
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_FRAME = re.compile(r'\s*File "[^"]{1,400}", line \d{1,7}')
#: A frame of a traceback whose head is missing (faulthandler's dumps have no comma; native frames
#: name no Python file).
_HEADLESS = re.compile(r'\s*File "(?:[^"]{1,400}\.py|<(?!unknown)[^">]{1,80}>)", line [1-9]\d{0,6}, in \S')
#: A frame that every model passes through and that says nothing of where an error belongs.
_GLUE = re.compile(r"torch/nn/modules/module\.py\", line \d{1,7}, in (?:__getattr__|_call_impl|_wrapped_call_impl)")
_CARETS = re.compile(r"[\s~^]*\^[\s~^]*$|\s*\.\.\.<\d{1,5} lines?>\.\.\.$|\s*\[Previous line repeated")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]{1,150}(?:: ?|$| \()", re.ASCII)
_ERROR_NAME = re.compile(
    r"(?:[A-Za-z_]\w{0,60}\.){0,8}(?:Exception\b|[A-Za-z_]\w{0,80}?"
    r"(?:Error|Exception|Interrupt|Exit|Timeout|Warning|OutOfResources|NotFound|Failed|Failure|Group|Cancelled)\b)",
    re.ASCII,
)
#: Printed before a traceback that was only logged: its process went on.
_HARMLESS = re.compile(
    r"Exception ignored (?:in|on)|Exception in ASGI application|Task exception was never retrieved|Ignore import error"
    r"|Exception in callback|Unhandled exception in event loop|Error in (?:atexit|sys\.excepthook)|UserWarning"
    r"|--- Logging error"
)
#: An exception with its message, alone on its line.
_BARE = re.compile(r"[A-Za-z_][\w.]{1,150}: ?\S", re.ASCII)
_DOTTED = re.compile(r"(?:[a-z_]\w{0,60}\.){1,8}[A-Z]\w{1,80}: \S", re.ASCII)
#: What is printed after an exception and is not part of its message.
_BEHIND = re.compile(
    r"(?:\[\.\.\.\] ?)?(?:Received sigquit|SIGQUIT received|(?:RuntimeError: )?Rank \d{1,5} scheduler )|Killed$"
    r"|Possible solutions:$"
)
_LEVEL = re.compile(r"(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL|NOTE|note|warning|error)\b")
_NATIVE = re.compile(r"\s*what\(\):")
_NATIVE_WORDS = re.compile(
    r"(?i)error|fail|terminate called|panicked|fatal|fault|exception by gpu|rocdevice|^\[?F\d{3}|ninja: "
)
#: Lines of other processes that may stand between the lines of a traceback.
_PATIENCE = 200
_MESSAGE_LINES = 60
#: Lines of an exception's message that make its summary; a compiler's output may be longer.
_SUMMARY_LINES = 12


@dataclass
class Trace:
    """One traceback with those it is chained to.

    ``errors`` are its exceptions, the root cause first, one line each; ``text`` is all of it. ``fatal``: it ended its
    process (it was not merely logged). ``rank``: whose it is by its own prefix (``PP0 TP1``), empty without one.
    """

    first: int
    last: int
    rank: str
    fatal: bool
    #: Positions of the lines that show it best: its head, the frames that raised, the errors.
    shown: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    #: For each of ``errors``, the frame that raised it with its line of code.
    places: list[str] = field(default_factory=list)
    #: Its head says explicitly that a process ends (a bare head may belong to something the process survived).
    explicit: bool = False
    #: The last frame that was read.
    deepest: str = ""
    #: The process or rank that printed it, by what stands in front of its lines.
    who: str = ""
    #: Printed by native code, not by Python.
    native: bool = False
    _message_lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def origin(self) -> str:
        """The frame that raised the root cause: file, function, line of code."""
        return self.places[0] if self.places else ""

    @property
    def messages(self) -> str:
        """The exceptions, the root cause first."""
        return "\n".join(self.errors)

    @property
    def full_messages(self) -> str:
        """The exceptions' whole messages: first one line each, then as they stand in the log."""
        return "\n".join((*self.errors, *self._message_lines))


@dataclass
class _Open:
    """A traceback that is being read. ``error``: the position of its exception, once that was seen."""

    trace: Trace
    patience: int = _PATIENCE
    code_next: bool = False
    frame: int | None = None
    error: int | None = None
    message: list[str] = field(default_factory=list)
    complete: bool = False
    place: str = ""


def tracebacks(lines: Sequence[Line]) -> list[Trace]:
    """Return every traceback in the log, in the order of their heads, and what native code printed as it aborted."""
    found: list[Trace] = []
    open_: list[_Open] = []
    ended = -1
    for index, line in enumerate(lines):
        text = line.text
        if line.piece or line.source == "kernel":
            continue
        if HEAD in text:
            _head(lines, index, open_, found)
        elif index <= ended:
            continue
        elif _NATIVE.match(text) or (_NATIVE_WORDS.search(text) and _is_native(open_, line, index)):
            trace = Trace(index, index, rank_of(text), fatal=True, shown=[index], native=True)
            message, ended = native_message(lines, index)
            trace.errors.append(message.split("what():", 1)[-1].strip())
            trace.shown += [at for at in (ended,) if at > index]
            trace.last = max(index, ended)
            trace.lines = [other.text for other in lines[max(0, index - 1) : index + 12]]
            found.append(trace)
        elif _HEADLESS.match(text) and not any(one.error is None for one in _of(open_, line.who)):
            trace = Trace(index, index, "", fatal=True, shown=[], who=line.who)
            found.append(trace)
            open_.append(_Open(trace))
            _frame(open_[-1], index, text)
        elif open_:
            _feed(_of(open_, line.who), index, text)
            open_ = [one for one in open_ if one.patience > 0]
    for one in open_:
        _close(one)
    for trace in found:
        trace.errors = [error for error in trace.errors if error]
    return found


def _is_native(open_: list[_Open], line: Line, index: int) -> bool:
    """Return whether a line is native code's own error, not part of a traceback that is being read."""
    for one in _of(open_, line.who):
        if one.error is None and (one.code_next or line.text[:1] in " \t"):
            return False
        if one.error is not None and not one.complete and not record_in(line.text):
            return False
    return native_error(line.text)


def _of(open_: list[_Open], who: str) -> list[_Open]:
    """Return the tracebacks that a line of ``who`` can belong to: all of them if the line does not say whose it is."""
    return [one for one in open_ if one.trace.who == who] if who else open_


def bare_errors(lines: Sequence[Line], known: Sequence[Trace]) -> list[Trace]:
    """Return exceptions whose traceback has no head: only the end of the log, or only its errors, were kept."""
    inside = [(trace.first, trace.last) for trace in known]
    found: list[Trace] = []
    for index, line in enumerate(lines):
        text = message_of(line.text)
        if line.piece or not _ERROR_NAME.match(text) or not _BARE.match(text):
            continue
        if any(first <= index <= last for first, last in inside):
            continue
        first = index
        while first and index - first < _MESSAGE_LINES and lines[first - 1].text[:1] in (" ", "\t"):
            first -= 1
        trace = Trace(first, index, rank_of(line.text), fatal=False, shown=[index], errors=[text.strip()])
        trace.lines = [other.text for other in lines[first : index + 1]]
        found.append(trace)
    return found


def _head(lines: Sequence[Line], index: int, open_: list[_Open], found: list[Trace]) -> None:
    text = lines[index].text
    mine = _of(open_, lines[index].who)
    linked = next((one for one in reversed(mine) if one.error is not None and _linked(one)), None)
    if linked is not None and text.strip() == HEAD:  # the next link of a chain
        linked.error, linked.frame, linked.message, linked.complete = None, None, [], False
        linked.trace.lines.append(text)
        linked.patience = _PATIENCE
        return
    for one in [one for one in mine if one.error is not None]:
        _close(one)
        open_.remove(one)
    before = text[: text.index(HEAD)]
    above = lines[index - 1].text if index and not before.strip() else ""
    trace = Trace(index, index, rank_of(text), fatal=_is_fatal(before, above), shown=[index], lines=[text])
    trace.explicit = bool(message_of(before).strip()) and trace.fatal
    trace.who = lines[index].who
    found.append(trace)
    open_.append(_Open(trace))


def _is_fatal(before: str, above: str) -> bool:
    """Return whether a traceback ended its process, by what stands before its head and in the line above."""
    if _HARMLESS.search(before) or _HARMLESS.search(above):
        return False
    words = message_of(before).strip()
    if not words:
        return True
    return bool(
        re.search(r"hit an exception|Initialization failed|(?:raised|got) an exception|ERROR:|Error|fail", words)
    )


def _linked(one: _Open) -> bool:
    return next((text.strip() for text in reversed(one.trace.lines) if text.strip()), "") in _CHAINED


def _feed(open_: list[_Open], index: int, text: str) -> None:
    """Add a line to the traceback it belongs to."""
    stripped = text.strip()
    reading = [one for one in open_ if one.error is None]
    raised = bool(_ERROR_NAME.match(text) and _EXCEPTION.match(text))
    if reading and (_FRAME.match(text) or text[:1] in (" ", "\t", "") or (reading[-1].code_next and not raised)):
        _frame(reading[-1], index, text)
        return
    if stripped in _CHAINED:
        one = next((one for one in reversed(open_) if one.error is not None and not _linked(one)), None)
        if one is not None:
            _close(one, keep=True)
            one.trace.lines.append(text)
            return
    record = record_in(text)
    if reading and not record and (raised or (_EXCEPTION.match(text) and not _LEVEL.match(text))):
        headed = _DOTTED.match(text)  # no frame was kept
        framed = [one for one in reading if one.frame is not None or headed]
        if framed or raised:
            one = (framed or reading)[-1]
            one.error, one.message = index, [stripped]
            one.trace.lines.append(text)
            one.trace.last = index
            return
    unfinished = next((one for one in reversed(open_) if one.error is not None and not one.complete), None)
    if unfinished is not None and not record and not _linked(unfinished):
        if stripped and len(unfinished.message) < _MESSAGE_LINES and not _BEHIND.match(stripped):
            unfinished.trace.lines.append(text)
            unfinished.message.append(stripped)
            unfinished.trace.last = index
            return
        unfinished.complete = True  # a blank line ends the message; a chained traceback may follow
    for one in open_:
        one.patience -= 1 if one.error is None else (_PATIENCE if record else 20)
        if one.patience <= 0:
            _close(one)


def _frame(one: _Open, index: int, text: str) -> None:
    if not text.strip():
        return
    one.trace.lines.append(text)
    one.trace.last = index
    if _FRAME.match(text):
        one.frame, one.code_next = index, True
        if not _GLUE.search(text):
            one.place = one.trace.deepest = text.strip()[:500]
    elif not _CARETS.match(text):
        one.place += f"\n{text.strip()}" if one.code_next else ""
        one.code_next = False


def _close(one: _Open, *, keep: bool = False) -> None:
    """Record what was raised. ``keep``: the chain goes on."""
    if one.error is not None:
        one.trace.errors.append(" ".join(one.message[:_SUMMARY_LINES])[:2000])
        one.trace.places.append(one.place)
        shown = [position for position in (one.frame, one.error) if position is not None]
        one.trace.shown += [position for position in shown if position not in one.trace.shown]
        one.trace._message_lines += one.message
        one.message = []
    elif one.frame is not None:
        one.trace.shown.append(one.frame)
    if not keep:
        one.patience = 0
