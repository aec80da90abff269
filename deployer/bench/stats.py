"""Statistics of a benchmark, as functions of data.

This file travels to the host together with ``load.py`` and runs there on the engine's own Python (3.9 and
later), so it imports the standard library only. All times are seconds of one monotonic clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import floor
from typing import Any

Json = dict[str, Any]

#: A percentile needs this many samples; with fewer the highest sample would pose as a tail.
SAMPLES_FOR_P95 = 20
SAMPLES_FOR_P99 = 100

#: A steady-state window must hold this many tokens for each stream, or its rate is mostly rounding.
STEADY_TOKENS_PER_STREAM = 4

#: An output that is one unit of up to this many characters, over and over, is taken for one repeated token.
LONGEST_REPEATED_UNIT = 16
FEWEST_REPEATS = 8


@dataclass
class Request:
    """What was seen of one request.

    ``intent`` is the moment the client meant to send, ``sent`` the moment the request had been handed to
    the socket, ``stamps`` the arrival of every chunk that carried text, ``end`` the arrival of the last
    event. ``tokens`` and ``prompt_tokens`` are the server's own count (``usage``), never the number of
    chunks. ``kind`` is None for a completed request, else how it failed.
    """

    index: int
    asked: int
    intent: float | None = None
    sent: float | None = None
    stamps: list[float] = field(default_factory=list)
    end: float | None = None
    tokens: int | None = None
    prompt_tokens: int | None = None
    text: str = ""
    kind: str | None = "cut"
    detail: str = ""

    @property
    def completed(self) -> bool:
        """True when the whole answer came and everything about it is known."""
        return self.kind is None

    @property
    def tokens_per_chunk(self) -> float:
        """Mean tokens in a chunk; 1.0 is the usual case. Only for completed requests."""
        return (self.tokens or 0) / len(self.stamps) if self.stamps else 0.0


def percentile(values: Sequence[float], q: float) -> float:
    """The ``q``-th percentile (0 to 100) of ascending ``values``, linear in between; ValueError if empty."""
    if not values:
        raise ValueError("a percentile of nothing")
    place = (len(values) - 1) * q / 100
    low = floor(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def distribution(values: Iterable[float]) -> Json:
    """``{mean, p50, p95, p99, n}``; what the number of samples does not support is None."""
    ordered = sorted(values)
    n = len(ordered)
    return {
        "mean": _rounded(sum(ordered) / n) if n else None,
        "p50": _rounded(percentile(ordered, 50)) if n else None,
        "p95": _rounded(percentile(ordered, 95)) if n >= SAMPLES_FOR_P95 else None,
        "p99": _rounded(percentile(ordered, 99)) if n >= SAMPLES_FOR_P99 else None,
        "n": n,
    }


def ttft(request: Request) -> float | None:
    """Seconds from intent to the first text."""
    return None if request.intent is None or not request.stamps else request.stamps[0] - request.intent


def ttft_sent(request: Request) -> float | None:
    """Seconds from the request being on the wire to the first text."""
    return None if request.sent is None or not request.stamps else request.stamps[0] - request.sent


def end_to_end(request: Request) -> float | None:
    """Seconds from intent to the last event."""
    return None if request.intent is None or request.end is None else request.end - request.intent


def tpot(request: Request) -> float | None:
    """Seconds a token after the first: (last text - first text) / (tokens - 1)."""
    if not request.completed or (request.tokens or 0) < 2 or len(request.stamps) < 2:
        return None
    return (request.stamps[-1] - request.stamps[0]) / ((request.tokens or 0) - 1)


def token_gaps(request: Request) -> list[float]:
    """Seconds between tokens: the gaps between chunks, divided by the request's mean tokens in a chunk.

    With one token a chunk (the usual case) these are the observed gaps. With several the true gaps cannot be
    seen and the division shares them out evenly.
    """
    if not request.completed or len(request.stamps) < 2:
        return []
    share = max(request.tokens_per_chunk, 1.0)
    return [(request.stamps[i] - request.stamps[i - 1]) / share for i in range(1, len(request.stamps))]


def one_token_repeated(text: str) -> bool:
    """True when the whole text is one short unit over and over (``!!!!!!!!``), as broken numerics produce."""
    for unit in range(1, LONGEST_REPEATED_UNIT + 1):
        if len(text) < unit * FEWEST_REPEATS:
            return False
        if text[unit:] == text[:-unit]:
            return True
    return False


def failures(requests: Iterable[Request]) -> dict[str, int]:
    """How many requests failed in which way, most frequent first."""
    return dict(Counter(r.kind for r in requests if r.kind is not None).most_common())


def steady_window(requests: Sequence[Request], concurrency: int) -> tuple[float, float] | None:
    """The time in which every stream was busy, or None where there was none.

    It opens when the last stream of the first wave has its first text and closes when the first stream of the
    last wave ends. Requests are in waves of ``concurrency`` by index. All of them have to be completed.
    """
    if not requests or not all(r.completed and r.stamps for r in requests):
        return None
    last_wave = max(r.index for r in requests) // concurrency
    opens = max(r.stamps[0] for r in requests if r.index < concurrency)
    closes = min(r.end or 0.0 for r in requests if r.index // concurrency == last_wave)
    return (opens, closes) if closes > opens else None


def steady_rate(requests: Sequence[Request], concurrency: int) -> tuple[float | None, float | None]:
    """Output tokens a second in the steady-state window, and its length; None where it holds too little."""
    window = steady_window(requests, concurrency)
    if window is None:
        return None, None
    opens, closes = window
    tokens = sum(r.tokens_per_chunk * sum(1 for t in r.stamps if opens < t <= closes) for r in requests)
    if tokens < STEADY_TOKENS_PER_STREAM * concurrency:
        return None, closes - opens
    return tokens / (closes - opens), closes - opens


def sample(request: Request, origin: float) -> Json:
    """One request as it is kept in ``bench.json``; times relative to ``origin``."""
    found: Json = {
        "index": request.index,
        "failed": request.kind,
        "start_s": _rounded(None if request.intent is None else request.intent - origin),
        "ttft_s": _rounded(ttft(request)),
        "ttft_sent_s": _rounded(ttft_sent(request)),
        "tpot_s": _rounded(tpot(request)),
        "seconds": _rounded(end_to_end(request)),
        "chunks": len(request.stamps),
        "output_tokens": request.tokens,
        "prompt_tokens": request.prompt_tokens,
    }
    if request.detail:
        found["detail"] = request.detail
    if one_token_repeated(request.text):
        found["repeats"] = request.text[:40]
    return found


def stage_summary(requests: Sequence[Request]) -> Json:
    """What warm-ups, single runs and levels have in common; ``completed`` plus ``failed`` is ``requests``."""
    done = [r for r in requests if r.completed]
    origin = min((r.intent for r in requests if r.intent is not None), default=0.0)
    return {
        "requests": len(requests),
        "completed": len(done),
        "failed": failures(requests),
        "output_tokens": sum(r.tokens or 0 for r in done),
        "repetitive": sum(1 for r in done if one_token_repeated(r.text)),
        "samples": [sample(r, origin) for r in requests],
    }


def single_summary(requests: Sequence[Request]) -> Json:
    """The single-stream runs: one request at a time. ``tok_s`` of a run is output tokens / (end - intent)."""
    done = [r for r in requests if r.completed]
    spent = [(r.tokens or 0, end_to_end(r) or 0.0) for r in done]
    return {
        **stage_summary(requests),
        "tok_s": [_rounded(tokens / seconds) for tokens, seconds in spent if seconds > 0],
        "ttft_s": distribution(_known(ttft(r) for r in done)),
        "tpot_s": distribution(_known(tpot(r) for r in done)),
    }


def single_stream_rate(requests: Sequence[Request]) -> float | None:
    """Output tokens a second of one request on its own, end to end.

    The output tokens of all completed single runs, divided by the sum of their times from intent to the last
    event. Queueing and prefill are in it; it is what a lone user gets. None when no run was completed.
    """
    done = [r for r in requests if r.completed]
    seconds = sum(end_to_end(r) or 0.0 for r in done)
    return _rounded(sum(r.tokens or 0 for r in done) / seconds) if seconds > 0 else None


def level_summary(requests: Sequence[Request], concurrency: int) -> Json:
    """One level: ``concurrency`` streams side by side.

    ``wall_s`` runs from the first intent to the last event. ``aggregate_tok_s`` is output tokens / wall_s;
    ``steady_tok_s`` counts only the time in which every stream was busy.
    """
    done = [r for r in requests if r.completed]
    begun = [r.intent for r in requests if r.intent is not None]
    ended = [r.end for r in requests if r.end is not None]
    wall = max(ended) - min(begun) if begun and ended else None
    common = stage_summary(requests)
    samples = common.pop("samples")
    tokens = common["output_tokens"]
    steady, window = steady_rate(requests, concurrency)
    chunks = sum(len(r.stamps) for r in done)
    prompts = [r.prompt_tokens for r in done if r.prompt_tokens is not None]
    return {
        "concurrency": concurrency,
        **common,
        "wall_s": _rounded(wall),
        "aggregate_tok_s": _rounded(tokens / wall) if wall and done else None,
        "steady_tok_s": _rounded(steady),
        "steady_s": _rounded(window),
        "tokens_per_request": _rounded(tokens / len(done)) if done else None,
        "tokens_per_chunk": _rounded(tokens / chunks) if chunks else None,
        "prompt_tokens_per_request": _rounded(sum(prompts) / len(prompts)) if prompts else None,
        "ttft_s": distribution(_known(ttft(r) for r in done)),
        "ttft_sent_s": distribution(_known(ttft_sent(r) for r in done)),
        "itl_s": distribution(gap for r in done for gap in token_gaps(r)),
        "tpot_s": distribution(_known(tpot(r) for r in done)),
        "samples": samples,
    }


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _rounded(value: float | None) -> float | None:
    """Microseconds are more than the clock is worth; the rest is noise in a file."""
    return None if value is None else round(value, 6)
