"""The lines of a log as evidence: where things stand, how far the launch was there, what to show. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from deployer.sglang.log.launch import PHASES
from deployer.sglang.log.launch_file import CONSEQUENCE, Start, read_start
from deployer.sglang.log.signatures import telling
from deployer.sglang.log.text import Line
from deployer.sglang.log.tracebacks import RECORD, Trace, record_in

UNKNOWN = "unknown"
STOPPED = "stopped"

NOISE = re.compile(
    r"server_args=|^usage: |^ {10,}\[|UserWarning: |^ *warnings\.warn\(|Ignore import error when loading"
    r"|INFO: +\d|Completed \| \d|Capturing batches|(?:Decode|Prefill) batch"
)
#: Where a traceback's frames say how far its rank was, the last phase that matches counts.
_FRAME_PHASES = (
    (
        "dist-init",
        r"in (?:init_torch_distributed|init_distributed_environment|initialize_model_parallel|init_parallel\w*"
        r"|init_world_group|ncclCommInitRank|init_process_group|new_group)\b"
        r"|parallel_state\.py\", line \d+, in __init__",
    ),
    (
        "load",
        r"in (?:load_model|load_weights|get_model|_initialize_model|init_lora_manager|get_model_architecture"
        r"|_prepare_weights)\b",
    ),
    (
        "kv-pool",
        r"in (?:init_memory_pool|alloc_memory_pool|profile_max_num_token\w*|init_kv_cache\w*|init_attention_backend)\b",
    ),
    (
        "capture",
        r"in (?:init_cuda_graphs?|init_device_graphs?|_?capture|_?capture_\w+|init_piecewise_cuda_graphs?)\b"
        r"|Capture .{0,40}graph failed: ",
    ),
    (
        "warm-up",
        r"Initialization failed\. warmup error|in _?(?:wait_and_warmup|execute_server_warmup|send_warmup\w*)\b"
        r"|\b(?:event_loop_\w+|\w+_event_loop)\b"
        r"|in (?:get_next_batch_to_run|run_batch|process_batch_result\w*|forward_batch_generation|handle_loop"
        r"|print_exception_wrapper)\b",
    ),
)
SERVING = {"http-up", "warm-up", "ready"}
_READY = "The server is fired up and ready to roll"
_WORKS = re.compile(r"\] (?:Prefill|Decode) batch\b")


@dataclass(frozen=True)
class Failure:
    """Why a launch failed: the known signature or `UNKNOWN`, the launch phase, cause and remedy in words.

    ``evidence`` are the log lines that prove it, ``numbers`` where they stand in the log (from 1; 0: elsewhere),
    ``reference`` is where more is written about it. ``rank`` is whose failure it is, ``said`` what the log itself says
    of it (it is part of ``cause``, in brackets).
    """

    signature: str
    phase: str | None
    cause: str
    remedy: str
    evidence: tuple[str, ...]
    reference: str | None
    numbers: tuple[int, ...] = ()
    rank: str = ""
    said: str = ""

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


#: Of a line so much is looked at; an error message is shorter, a dump of a request may be a megabyte.
_LOOK = 8192


class Evidence:
    """The lines of one log (pieces of progress bars left out, long lines cut)."""

    def __init__(self, lines: Sequence[Line]) -> None:
        kept = [(at, line) for at, line in enumerate(lines) if not line.piece]
        self.lines = [
            line if len(line.text) <= _LOOK else replace(line, text=line.text[:_LOOK]) for _, line in kept
        ]
        #: How the launch went, read once for all questions.
        self.start: Start = read_start(lines)
        self._at = [at for at, _ in kept]
        #: The lines that can tell of an end, by a quick first look.
        self.telling = [at for at, line in enumerate(self.lines) if telling(line.text)]
        self.consequences = [at for at in self.telling if CONSEQUENCE.search(self.lines[at].text)]
        #: Where the server says that it is ready (as it is), and where that it works (negative).
        self._signs = [
            at if _READY in line.text else -at
            for at, line in enumerate(self.lines)
            if _READY in line.text or ("batch" in line.text and _WORKS.search(line.text))
        ]

    def show(self, positions: Sequence[int]) -> tuple[tuple[str, ...], tuple[int, ...]]:
        kept = [position for position in dict.fromkeys(positions) if 0 <= position < len(self.lines)]
        kept = [position for position in kept if self.lines[position].text.strip()][:12]
        lines = [self.lines[position] for position in kept]
        return tuple(_unglued(line.text)[:500] for line in lines), tuple(line.number for line in lines)

    def around(self, index: int, before: int, after: int) -> list[int]:
        near = range(max(0, index - before), min(len(self.lines), index + after + 1))
        return [at for at in near if at == index or not CONSEQUENCE.search(self.lines[at].text)]

    def tail(self) -> list[int]:
        return list(range(max(0, len(self.lines) - 3), len(self.lines)))

    def stamp(self, index: int) -> float:
        """When a line was written by the log's own records; negative where that is not known."""
        for position in range(index, max(-1, index - 50), -1):
            found = record_in(self.lines[position].text)
            if found and found.re is RECORD:
                hours, minutes, seconds = map(int, found["clock"].split(":"))
                day = int((found["day"] or "0").replace("-", ""))
                return day * 86400.0 + hours * 3600 + minutes * 60 + seconds
        return -1.0

    def phase_at(self, index: int, rank: str | None = None) -> str:
        """How far the launch was before line ``index``; with ``rank``: how far that rank was."""
        position = self._at[index] if index < len(self._at) else inf
        phase = self.start.phase_before(position)
        mine, loaded = self.start.rank_before(position, rank) if rank else (PHASES[0], False)
        if mine == PHASES[0] or phase in SERVING:
            return phase
        return "kv-pool" if mine == "load" and loaded else mine

    def survived(self, trace: Trace) -> bool:
        """Whether the server went on after a traceback that does not say that it ended its process."""
        if trace.explicit:
            return False
        end = next((index for index in self.consequences if index > trace.last), None)
        after = [index for index in self._signs if abs(index) > trace.last]
        if end is not None:  # what a stop later kills says nothing of a start that succeeded in between
            return any(0 <= index < end for index in after)
        ready = next((index for index in self._signs if index >= 0), len(self.lines))
        return ready < trace.first or any(index >= 0 for index in after) or len(after) > 1

    def ends_with(self, bare: Sequence[Trace]) -> bool:
        """Whether an exception is the last word of a launch (of a log that holds little more than its end)."""
        if not bare or self.phase_at(len(self.lines)) in SERVING:
            return False
        return not any(line.text.strip() for line in self.lines[bare[-1].last + 1 :][8:])

    def phase_of(self, trace: Trace) -> str:
        context = self.phase_at(trace.first, trace.rank)
        text = trace.text
        said = [phase for phase, regex in _FRAME_PHASES if re.search(regex, text)]
        if not said:
            return context
        if said[-1] == "warm-up" and context in SERVING:
            return context
        return said[-1]


def _unglued(text: str) -> str:
    """A line without the progress bars that its record is glued to."""
    found = record_in(text)
    return (text[found.start() :] if found else text).strip()
