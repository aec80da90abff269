"""A log indexed for the search: where things stand, how far the launch was there, which lines to show. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from math import inf

from deployer.sglang.log.launch import PHASES
from deployer.sglang.log.launch_file import CONSEQUENCE, Start, read_start
from deployer.sglang.log.record import record_in
from deployer.sglang.log.signatures import telling
from deployer.sglang.log.text import Line
from deployer.sglang.log.tracebacks import Trace

NOISE = re.compile(
    r"server_args=|^usage: |^ {10,}\[|UserWarning: |^ *warnings\.warn\(|Ignore import error when loading"
    r"|INFO: +\d|Completed \| \d|Capturing batches|(?:Decode|Prefill) batch"
)
#: Frames of a traceback that show how far its rank was; the last phase that matches counts.
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


#: Characters of a line that are searched: error messages are shorter, the dump of a request may be a megabyte.
_LOOK = 8192


class IndexedLog:
    """The lines of one log, without pieces of progress bars and with long lines cut."""

    def __init__(self, lines: Sequence[Line]) -> None:
        kept = [(at, line) for at, line in enumerate(lines) if not line.piece]
        self.lines = [line if len(line.text) <= _LOOK else replace(line, text=line.text[:_LOOK]) for _, line in kept]
        #: How the launch went.
        self.start: Start = read_start(lines)
        self._at = [at for at, _ in kept]
        #: The lines that a signature can be in, by a quick first look.
        self.telling = [at for at, line in enumerate(self.lines) if telling(line.text)]
        self.consequences = [at for at in self.telling if CONSEQUENCE.search(self.lines[at].text)]
        #: Where the server says that it is ready (position), and where that it works (negated position).
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
        """Return when a line was written, by the log's own records; negative if unknown."""
        for position in range(index, max(-1, index - 50), -1):
            record = record_in(self.lines[position].text)
            if record and record.time is not None:
                return record.time
        return -1.0

    def phase_at(self, index: int, rank: str | None = None) -> str:
        """Return how far the launch was before line ``index``; with ``rank``, how far that rank was."""
        position = self._at[index] if index < len(self._at) else inf
        phase = self.start.phase_before(position)
        mine, loaded = self.start.rank_before(position, rank) if rank else (PHASES[0], False)
        if mine == PHASES[0] or phase in SERVING:
            return phase
        return "kv-pool" if mine == "load" and loaded else mine

    def survived(self, trace: Trace) -> bool:
        """Return whether the server went on after a traceback that does not say that it ended its process."""
        if trace.explicit:
            return False
        end = next((index for index in self.consequences if index > trace.last), None)
        after = [index for index in self._signs if abs(index) > trace.last]
        if end is not None:  # what a later stop kills says nothing about a start that succeeded in between
            return any(0 <= index < end for index in after)
        ready = next((index for index in self._signs if index >= 0), len(self.lines))
        return (ready < trace.first and not trace.native) or any(index >= 0 for index in after) or len(after) > 1

    def ends_with(self, bare: Sequence[Trace]) -> bool:
        """Return whether an exception is the last thing a launch printed (in a log that holds little but its end)."""
        if not bare or self.phase_at(len(self.lines)) in SERVING:
            return False
        return not any(line.text.strip() for line in self.lines[bare[-1].last + 1 :][8:])

    def phase_of(self, trace: Trace) -> str:
        """Return the phase in which a traceback's rank was, by its frames and by the log before it."""
        context = self.phase_at(trace.first + trace.native, trace.rank)  # a bar may stand before it in its line
        text = trace.text
        by_frames = [phase for phase, regex in _FRAME_PHASES if re.search(regex, text)]
        if not by_frames or (by_frames[-1] == "warm-up" and context in SERVING):
            return context
        return by_frames[-1]


def _unglued(text: str) -> str:
    """Return a line without the progress bars that its record is glued to."""
    record = record_in(text)
    return (text[record.start :] if record else text).strip()
