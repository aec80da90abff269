"""How far a launch is, read from the server's log, in the dialects from SGLang 0.4 to 0.5.23. Pure.

Two dialects are known, that of SGLang up to 0.5.12 and that of 0.5.23; they may be mixed, and any line may be
missing. Ranks log side by side; progress bars have no prefix, arrive in pieces that end in a carriage return, and
may be glued to each other and to the next record. Nothing a server prints raises here, and the phase never goes back.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

from deployer.sglang.log.fronts import COLOUR
from deployer.sglang.log.launch_state import (
    ORDER,
    PHASES,
    Count,
    LaunchState,
    RankProgress,
    Span,
    finish_timeline,
    noteworthy,
)
from deployer.sglang.log.record import records

__all__ = [
    "PHASES",
    "Count",
    "LaunchLog",
    "LaunchState",
    "RankProgress",
    "Span",
    "finish_timeline",
    "noteworthy",
]

#: The lines of a launch. Every expression is bounded: a line of a megabyte is read in linear time.
_UVICORN = re.compile(r"INFO: {1,8}(Started server process|Uvicorn running on)", re.ASCII)
SHARDS = re.compile(
    r"[Ll]oading [\w .-]{0,60}?(?:shards|files|[Ll]oader|[Ss]treamer):\s{1,8}\d{1,3}% (?:Completed )?(?:\| ?)?"
    r"(\d{1,6})/(\d{1,6}) \[",
    re.ASCII,
)
_CAPTURE = re.compile(
    r"(?:Capturing|Compiling) [\w ]{1,24}? \((?:(?:bs|num_tokens)=(\d{1,9}))?"
    r" ?(?:avail_mem=([\d.]{1,12}) GB)?[^)\r\n]{0,40}\):"
    r"\s{1,8}\d{1,3}%\|[^|\r\n]{0,200}\| (\d{1,6})/(\d{1,6}) \[",
    re.ASCII,
)
#: A bar without a name, as old versions draw while they capture.
_PLAIN_BAR = re.compile(r"\s{0,4}\d{1,3}%\|[^|\r\n]{0,200}\| (\d{1,6})/(\d{1,6}) \[", re.ASCII)
_BEGIN_CAPTURE = re.compile(
    r"Capture [\w ()-]{0,60}?graphs? begin\b(?:.{0,400}?avail mem=([\d.]{1,12}) GB)?",
    re.ASCII | re.IGNORECASE,
)
_END_CAPTURE = re.compile(r"Capture [\w ()-]{0,60}?graphs? end\b", re.ASCII | re.IGNORECASE)
_CAPTURE_SIZES = re.compile(r"Capture cuda graph (?:bs|num tokens) \[([\d, ]{1,20000})\]", re.ASCII)
#: What a scheduler says of its work; the second group is there where other requests run at the same time.
_BATCH = re.compile(r"(Decode|Prefill) batch\b(?:.{0,400}?#running-req: ([1-9]))?", re.ASCII)
_LIMITS = re.compile(r"\b(\w{1,40})=(-?\d{1,15}(?:\.\d{1,6})?)", re.ASCII)
_NUMBER = re.compile(r"(-?\d{1,12}(?:\.\d{1,6})?)", re.ASCII)
_SIZES = re.compile(r"['\"]?\b(tp_size|pp_size|dp_size|ep_size)['\"]?\s?[=:]\s?(\d{1,5})\b", re.ASCII)
#: More ranks than any machine has: whatever else looks like one is ignored.
_MAX_RANKS = 4096


@dataclass
class _Rank:
    name: str
    phase: str = "launch"
    joined: bool = False
    loaded: bool = False
    capturing: bool = False
    free_gb: float | None = None
    shards: Count | None = None
    captures: Count | None = None
    batch_size: int | None = None

    def draws(self) -> bool:
        return " TP" not in f" {self.name}" or " TP0" in f" {self.name}"

    def position(self) -> tuple[int, int]:
        done = self.captures.done if self.captures else -1
        return (done, -(self.batch_size or 10**9))

    def frozen(self) -> RankProgress:
        return RankProgress(self.name, self.phase, self.shards, self.captures, self.batch_size, self.loaded)


@dataclass
class LaunchLog:
    """Reads a launch log line by line; `state` is how far the launch has come."""

    _ranks: dict[str, _Rank] = field(default_factory=dict)
    _starts: dict[str, float] = field(default_factory=lambda: {"launch": 0.0})
    _phase: str = "launch"
    _values: dict[str, int | float | str] = field(default_factory=dict)
    _dialect: str | None = None
    _last_line: str = ""
    _t: float = 0.0
    _moved: dict[str, _Rank] = field(default_factory=dict)

    def feed(self, text: str, t: float, piece: bool = False) -> None:
        """Read one line seen at ``t`` seconds, or (``piece``) a part of one that ended in a carriage return.

        Both are read alike: bars are found wherever they stand.
        """
        del piece
        if math.isfinite(t):
            self._t = max(self._t, t)
        if "\n" not in text and "\r" not in text:
            self._part(text)
            return
        for part in re.split(r"[\r\n]", text):
            self._part(part)

    def reached(self, phase: str, t: float) -> None:
        """Note that the launch was in ``phase`` at ``t`` seconds by another witness (the log may lag behind)."""
        if math.isfinite(t):
            self._t = max(self._t, t)
        self._advance(phase)

    @property
    def phase(self) -> str:
        """The current phase."""
        return self._phase

    def moved(self) -> list[tuple[str, str, bool]]:
        """Return the ranks that advanced since the last call: name, phase, whether the weights are loaded."""
        names, self._moved = self._moved, {}
        return [(name, rank.phase, rank.loaded) for name, rank in names.items()]

    @property
    def state(self) -> LaunchState:
        """How far the launch has come."""
        starts = list(self._starts.items())
        ends = [start for _, start in starts[1:]] + [max(self._t, starts[-1][1])]
        return LaunchState(
            phase=self._phase,
            ranks=tuple(rank.frozen() for _, rank in sorted(self._ranks.items(), key=_rank_key)),
            spans=tuple(
                Span(name, start, max(0.0, end - start)) for (name, start), end in zip(starts, ends, strict=True)
            ),
            values=dict(self._values),
            dialect=self._dialect,
            waiting_for=self._waiting_for(),
            last_line=self._last_line,
            t=self._t,
        )

    def _part(self, text: str) -> None:
        if "\x1b" in text:
            text = COLOUR.sub("", text)
        if not text.strip():
            return
        if noteworthy(text):
            self._last_line = text.strip()[:400]
        if self._phase == PHASES[-1]:
            return  # it serves: what follows is not part of the launch, and may be long
        heads = list(records(text))
        ends = [*(head.start for head in heads[1:]), len(text)]
        for head, end in zip(heads, ends, strict=False):
            self._record(head.rank, text[head.end : end].strip())
        if not heads:
            self._uvicorn(text)
        if "server_args=" not in text:
            self._bars(text)

    def _uvicorn(self, text: str) -> None:
        if found := _UVICORN.search(text, 0, 400):
            self._advance("http-up")
            if found[1].startswith("Uvicorn"):
                self._advance("warm-up")

    def _advance(self, phase: str) -> None:
        if ORDER[phase] > ORDER[self._phase]:
            self._phase = phase
            self._starts[phase] = self._t

    def _rank(self, name: str, phase: str) -> _Rank:
        rank = self._ranks.get(name)
        if rank is None:
            rank = _Rank(name)
            if len(self._ranks) < _MAX_RANKS:
                self._ranks[name] = rank
        if ORDER[phase] > ORDER[rank.phase]:
            rank.phase = phase
            self._moved[rank.name] = rank
        return rank

    def _loaded(self, rank: _Rank, loaded: bool) -> None:
        if rank.loaded != loaded:
            rank.loaded = loaded
            self._moved[rank.name] = rank

    def _reach(self, name: str, phase: str) -> _Rank:
        """Bring a rank, and with it the launch, into a phase."""
        self._advance(phase)
        return self._rank(name, phase)

    def _record(self, rank: str, message: str) -> None:
        if message.startswith(("Init torch distributed ", "Init parallel ")):
            self._speaks("0.5.12" if "torch" in message else "0.5.23")
            one = self._reach(rank, "dist-init")
            one.joined = one.joined or message.startswith(("Init torch distributed ends", "Init parallel ends"))
        elif message.startswith(("Load weight begin", "Load weight end")):
            one = self._reach(rank, "load")
            one.joined = True
            self._loaded(one, message.startswith("Load weight end"))
            self._figure("weights_gb", message, "mem usage=")
            if all(other.loaded for other in self._ranks.values()):
                self._advance("kv-pool")
        elif message.startswith("KV Cache is allocated"):
            self._loaded(self._reach(rank, "kv-pool"), True)
            self._figure("kv_tokens", message, "#tokens: ")
        elif message.startswith("Memory pool end"):
            self._reach(rank, "kv-pool")
            self._figure("free_after_kv_gb", message, "avail mem=")
        elif begun := _BEGIN_CAPTURE.match(message):
            one = self._reach(rank, "capture")
            one.capturing, one.captures, one.batch_size = True, None, None
            one.free_gb = _float(begun[1])
        elif sizes := _CAPTURE_SIZES.match(message):
            one = self._reach(rank, "capture")
            one.captures = one.captures or Count(0, sizes[1].count(",") + 1)
        elif _END_CAPTURE.match(message):
            one = self._reach(rank, "capture")
            one.capturing, one.batch_size = False, None
            if one.captures:
                one.captures = Count(one.captures.total, one.captures.total)
            self._figure("free_after_capture_gb", message, "avail mem=")
        elif message.startswith("max_total_num_tokens="):
            for name, value in _LIMITS.findall(message):
                self._values[name] = float(value) if "." in value else int(value)
        elif message.startswith("sglang is using nccl=="):
            self._values["nccl"] = message.partition("==")[2].split(" ")[0][:20]
        elif message.startswith("server_args="):
            self._speaks("0.5.23" if message.startswith("server_args={") else "0.5.12")
            for name, value in _SIZES.findall(message):
                self._values.setdefault(name, int(value))
        elif message.startswith("The server is fired up and ready to roll"):
            self._advance("ready")
        elif message.startswith("INFO:"):
            self._uvicorn(message)
        elif self._phase == PHASES[0] and self._dialect is None and (batch := _BATCH.match(message)):
            # The log begins after the launch did: only the server's own first request runs alone and decodes little.
            self._advance("ready" if batch[1] == "Decode" or batch[2] else "warm-up")

    def _bars(self, text: str) -> None:
        for bar in SHARDS.finditer(text):
            count = Count(int(bar[1]), int(bar[2]))
            name = min(self._ranks, key=lambda name: _rank_key((name, self._ranks[name])), default="")
            one = self._reach(name, "load")
            if one.shards is None or count.total != one.shards.total or count.done >= one.shards.done:
                one.shards = count
        named = False
        for bar in _CAPTURE.finditer(text):
            named = True
            self._capture_bar(int(bar[1] or 0), _float(bar[2]), Count(int(bar[3]), int(bar[4])))
            self._advance("capture")
        plain = None if named else _PLAIN_BAR.match(text)
        if plain and any(one.capturing for one in self._ranks.values()):
            self._capture_bar(0, None, Count(int(plain[1]), int(plain[2])))

    def _capture_bar(self, size: int, free_gb: float | None, count: Count) -> None:
        """Bars do not name their rank: the free memory they show identifies it, or else which rank lags behind."""
        ranks = [rank for rank in self._ranks.values() if rank.capturing and rank.draws()]
        if not ranks:
            ranks = [self._rank(min(self._ranks, default=""), "capture")]
        moved = (count.done, -size)
        ranks = [rank for rank in ranks if rank.position() <= moved] or ranks

        def unlike(rank: _Rank) -> tuple[float, bool, int, int]:
            far = 0.0 if free_gb is None or rank.free_gb is None else abs(rank.free_gb - free_gb)
            done, below = rank.position()
            return (round(far, 1), rank.position() == moved, -done, -below)

        one = min(ranks, key=unlike)
        one.batch_size = None if count.done >= count.total else size or one.batch_size
        if one.captures is None or count.total != one.captures.total or count.done >= one.captures.done:
            one.captures = count
        if free_gb is not None:
            one.free_gb = free_gb

    def _speaks(self, dialect: str) -> None:
        self._dialect = self._dialect or dialect

    def _figure(self, name: str, message: str, before: str) -> None:
        found = _NUMBER.match(message.partition(before)[2])
        if found:
            self._values[name] = float(found[1]) if "." in found[1] else int(found[1])

    def _waiting_for(self) -> str:
        ranks = [rank for _, rank in sorted(self._ranks.items(), key=_rank_key)]
        state = self._phase
        if state == "launch":
            return "the ranks to start" if self._dialect else "imports and arguments"
        if state == "dist-init":
            return f"ranks to find each other{_named([r for r in ranks if not r.joined])}"
        if state == "load":
            shards = next((f"shards {r.shards}" for r in ranks if r.shards), "weights")
            return shards + _named([rank for rank in ranks if not rank.loaded])
        if state == "kv-pool":
            return "the KV pool"
        if state == "capture":
            busy = [rank for rank in ranks if rank.capturing]
            late = [rank for rank in ranks if not rank.loaded and rank.phase in ("dist-init", "load")]
            behind = f"; weights{_named(late)}" if late else ""
            counts = [r for r in busy if r.captures]
            if not counts:
                return "graph capture" + _named(busy) + behind
            slow = min(counts, key=_Rank.position)
            size = f" (batch size {slow.batch_size})" if slow.batch_size else ""
            return f"captures {slow.captures}{size}{_named([slow])}{behind}"
        later = {"http-up": "the HTTP port", "warm-up": "the server's own first request"}
        return later.get(state, "a generation of our own")


def _named(ranks: list[_Rank]) -> str:
    names = [rank.name for rank in ranks if rank.name]
    if not names:
        return ""
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f": {', '.join(names[:4])}{more}"


def _rank_key(item: tuple[str, Any]) -> list[tuple[str, int]]:
    """Sorts ``TP2`` before ``TP10``."""
    return [(word.rstrip("0123456789"), int("0" + re.sub(r"\D", "", word))) for word in item[0].split()]


def _float(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None
