"""Statistics of a benchmark, as functions of data.

All times are seconds of one monotonic clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import floor

from deployer.bench.load.spec import Json

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

    ``intent`` is the moment the client meant to send, ``sent`` the moment the request had been handed to the
    socket, ``stamps`` the arrival of every chunk that carried text, ``end`` the arrival of the last event.
    ``max_tokens`` is the requested length. ``tokens`` and ``prompt_tokens`` are the server's own count (``usage``),
    never the number of chunks. ``kind`` is None for a completed request, else how it failed.
    """

    index: int
    max_tokens: int
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
        """Whether the whole answer arrived and everything about it is known."""
        return self.kind is None

    @property
    def tokens_per_chunk(self) -> float:
        """Mean tokens in a chunk; 1.0 is the usual case. Only for completed requests."""
        return (self.tokens or 0) / len(self.stamps) if self.stamps else 0.0


def percentile(values: Sequence[float], q: float) -> float:
    """Return the ``q``-th percentile (0 to 100) of ascending values, linear in between. Raise ValueError if empty."""
    if not values:
        raise ValueError("a percentile of nothing")
    place = (len(values) - 1) * q / 100
    low = floor(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def distribution(values: Iterable[float]) -> Json:
    """Return ``{mean, p50, p95, p99, n}``; what the number of samples does not support is None."""
    ordered = sorted(values)
    n = len(ordered)
    return {
        "mean": rounded(sum(ordered) / n) if n else None,
        "p50": rounded(percentile(ordered, 50)) if n else None,
        "p95": rounded(percentile(ordered, 95)) if n >= SAMPLES_FOR_P95 else None,
        "p99": rounded(percentile(ordered, 99)) if n >= SAMPLES_FOR_P99 else None,
        "n": n,
    }


def ttft(request: Request) -> float | None:
    """Return the seconds from intent to the first text."""
    return None if request.intent is None or not request.stamps else request.stamps[0] - request.intent


def ttft_sent(request: Request) -> float | None:
    """Return the seconds from the request being on the wire to the first text."""
    return None if request.sent is None or not request.stamps else request.stamps[0] - request.sent


def end_to_end(request: Request) -> float | None:
    """Return the seconds from intent to the last event."""
    return None if request.intent is None or request.end is None else request.end - request.intent


def tpot(request: Request) -> float | None:
    """Return the seconds a token after the first: (last text - first text) / (tokens - 1)."""
    if not request.completed or (request.tokens or 0) < 2 or len(request.stamps) < 2:
        return None
    return (request.stamps[-1] - request.stamps[0]) / ((request.tokens or 0) - 1)


def token_gaps(request: Request) -> list[float]:
    """Return the seconds between tokens: the gaps between chunks, divided by the request's mean tokens in a chunk.

    With one token a chunk (the usual case) these are the observed gaps. With several the true gaps cannot be
    seen and the division shares them out evenly.
    """
    if not request.completed or len(request.stamps) < 2:
        return []
    share = max(request.tokens_per_chunk, 1.0)
    return [(request.stamps[i] - request.stamps[i - 1]) / share for i in range(1, len(request.stamps))]


def one_token_repeated(text: str) -> bool:
    """Return whether the whole text is one short unit over and over (``!!!!!!!!``), as broken numerics produce."""
    for unit in range(1, LONGEST_REPEATED_UNIT + 1):
        if len(text) < unit * FEWEST_REPEATS:
            return False
        if text[unit:] == text[:-unit]:
            return True
    return False


def failures(requests: Iterable[Request]) -> dict[str, int]:
    """Return how many requests failed in which way, most frequent first."""
    return dict(Counter(r.kind for r in requests if r.kind is not None).most_common())


def steady_window(requests: Sequence[Request], concurrency: int) -> tuple[float, float] | None:
    """Return the time in which every stream was busy; None if there was none.

    It opens when the last stream has the first text of its first request and closes when the first stream
    has nothing more to send. A request's stream is its index modulo ``concurrency``. All requests have to
    be completed, and every stream must have one.
    """
    if not requests or not all(r.completed and r.stamps for r in requests):
        return None
    opens = max((r.stamps[0] for r in requests if r.index < concurrency), default=0.0)
    last: dict[int, float] = {}
    for r in requests:
        stream = r.index % concurrency
        last[stream] = max(last.get(stream, 0.0), r.end or 0.0)
    closes = min(last.values())
    return (opens, closes) if closes > opens and len(last) == concurrency else None


def steady_tokens(requests: Sequence[Request], window: tuple[float, float]) -> float:
    """Return the output tokens that arrived within the window."""
    opens, closes = window
    return sum(r.tokens_per_chunk * sum(1 for t in r.stamps if opens < t <= closes) for r in requests)


def steady_rate(tokens: float, seconds: float, concurrency: int) -> float | None:
    """Return the output tokens a second of the steady-state time; None if it holds too few for a rate."""
    enough = tokens >= STEADY_TOKENS_PER_STREAM * concurrency
    return tokens / seconds if enough and seconds > 0 else None


def sample(request: Request, origin: float) -> Json:
    """Return one request as it is kept in ``bench.json``; times relative to ``origin``."""
    kept: Json = {
        "index": request.index,
        "failed": request.kind,
        "start_s": rounded(None if request.intent is None else request.intent - origin),
        "ttft_s": rounded(ttft(request)),
        "ttft_sent_s": rounded(ttft_sent(request)),
        "tpot_s": rounded(tpot(request)),
        "seconds": rounded(end_to_end(request)),
        "chunks": len(request.stamps),
        "output_tokens": request.tokens,
        "prompt_tokens": request.prompt_tokens,
    }
    if request.detail:
        kept["detail"] = request.detail
    if one_token_repeated(request.text):
        kept["repeats"] = request.text[:40]
    return kept


def stage_summary(requests: Sequence[Request]) -> Json:
    """Return what warm-ups, single runs and levels have in common; ``completed`` plus ``failed`` is ``requests``."""
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
    """Return the single-stream runs: one request at a time. ``tok_s`` of a run is output tokens / (end - intent)."""
    done = [r for r in requests if r.completed]
    spent = [(r.tokens or 0, end_to_end(r) or 0.0) for r in done]
    return {
        **stage_summary(requests),
        "tok_s": [rounded(tokens / seconds) for tokens, seconds in spent if seconds > 0],
        "ttft_s": distribution(known(ttft(r) for r in done)),
        "tpot_s": distribution(known(tpot(r) for r in done)),
    }


def single_stream_rate(requests: Sequence[Request]) -> float | None:
    """Return the output tokens a second of one request on its own, end to end.

    The output tokens of all completed single runs, divided by the sum of their times from intent to the last
    event. Queueing and prefill are in it; it is what a lone user gets. None if no run was completed.
    """
    done = [r for r in requests if r.completed]
    seconds = sum(end_to_end(r) or 0.0 for r in done)
    return rounded(sum(r.tokens or 0 for r in done) / seconds) if seconds > 0 else None


def known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def rounded(value: float | None) -> float | None:
    """Return a time to microseconds: more than the clock is worth; the rest is noise in a file."""
    return None if value is None else round(value, 6)
