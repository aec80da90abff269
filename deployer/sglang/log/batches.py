"""The scheduler's ``Prefill batch`` and ``Decode batch`` lines, of all versions. Pure.

Under pipeline parallelism every stage prints them. ``#running-req`` is the size of one micro-batch, not of all;
``#token``, usage, queue and throughput are the whole server's on every stage. A ``Decode batch`` line comes once every
``--decode-log-interval`` results of one counter that runs over the micro-batches in turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd
from statistics import median

from deployer.sglang.log.record import record_in

_HEAD = re.compile(r".{0,40}?\b(?P<kind>Prefill|Decode) batch(?: \[\d{1,12}\])?[.,:]? (?=[#a-z])", re.ASCII)
_RANK = re.compile(r"\b(PP|TP|DP)(\d{1,4})\b", re.ASCII)
_FIELD = re.compile(
    r"(?P<name>#?[a-zA-Z][a-zA-Z _-]{0,40}(?: \(token/s\))?): (?P<value>True|False|-?\d{1,15}(?:\.\d{1,9})?)(?![\w.])",
    re.ASCII,
)


@dataclass(frozen=True)
class Batch:
    """One line. ``t`` is when it was read, in the caller's seconds; None stands for what the line does not say.

    ``running`` is the number of requests in this micro-batch (in a prefill line: besides the new ones); ``usage`` the
    share of the KV pool in use, of the fullest pool if there are several; ``graph`` whether a captured graph was
    replayed (one on a CPU counts); ``throughput`` the whole server's tokens a second, generated or (prefill) read.
    """

    decode: bool
    t: float
    pp: int | None
    tp: int | None
    running: int
    queued: int | None
    tokens: int | None
    usage: float | None
    graph: bool | None
    throughput: float | None
    new_requests: int | None
    new_tokens: int | None
    cached_tokens: int | None

    @property
    def leading(self) -> bool:
        """Whether the first stage and rank printed it: the others repeat it."""
        return self.pp in (None, 0) and self.tp in (None, 0)


def parse_batch(line: str, t: float = 0.0) -> Batch | None:
    """Return the batch that a log line reports; None if it is another line. Never raises."""
    if len(line) > 2000:
        return None
    record = record_in(line)
    head = _HEAD.match(line, record.end if record else 0)
    if head is None:
        return None
    fields = {found["name"].strip(): found["value"] for found in _FIELD.finditer(line, head.end())}
    running = _whole(fields.get("#running-req"))
    if running is None:
        return None
    ranks = {name: int(number) for name, number in _RANK.findall(record.rank if record else "")}
    usages = [
        float(value) for name, value in fields.items() if name.endswith("usage") and value not in ("True", "False")
    ]
    graph = next((value for name, value in fields.items() if name.endswith(" graph")), None)
    rate = next((value for name, value in fields.items() if "throughput" in name), None)
    tokens = [_whole(value) for name, value in fields.items() if name.startswith("#") and name.endswith("token")]
    decode = head["kind"] == "Decode"
    return Batch(
        decode=decode,
        t=t,
        pp=ranks.get("PP"),
        tp=ranks.get("TP"),
        running=running,
        queued=_whole(fields.get("#queue-req")),
        tokens=next((token for token in tokens if token is not None), None) if decode else None,
        usage=max(usages, default=None),
        graph=None if graph is None else graph == "True",
        throughput=None if rate in (None, "True", "False") else float(rate or 0.0),
        new_requests=_whole(fields.get("#new-seq")),
        new_tokens=_whole(fields.get("#new-token")),
        cached_tokens=_whole(fields.get("#cached-token")),
    )


def _whole(value: str | None) -> int | None:
    return int(value) if value is not None and value.lstrip("-").isdigit() and not value.startswith("-") else None


def visible_slots(interval: int, loop_size: int) -> int:
    """Return how many of a loop's micro-batches the log ever shows, if all of them are busy."""
    return loop_size // gcd(max(interval, 1), max(loop_size, 1))


@dataclass(frozen=True)
class Batches:
    """The leading rank's batch lines of some stretch of log."""

    decodes: tuple[Batch, ...]
    prefills: tuple[Batch, ...]
    #: Tokens that one micro-batch's result brought on average over all of them, logged or not; None if unknown.
    mean_size: float | None

    @property
    def sizes(self) -> list[int]:
        """The micro-batch sizes of the decode lines."""
        return [batch.running for batch in self.decodes]

    @property
    def eager(self) -> list[Batch]:
        """The decode lines of batches that replayed no captured graph."""
        return [batch for batch in self.decodes if batch.graph is False]

    @property
    def queued(self) -> list[int]:
        """The length of the queue in every line that reports it."""
        return [batch.queued for batch in (*self.prefills, *self.decodes) if batch.queued is not None]

    @property
    def waiting_share(self) -> float:
        """The share of decode lines in which requests wait; a burst that is still being admitted does not count."""
        waiting = [batch for batch in self.decodes if batch.queued]
        return len(waiting) / len(self.decodes) if self.decodes else 0.0

    @property
    def usage(self) -> float | None:
        """The highest usage of the KV pool."""
        return max((batch.usage for batch in self.decodes if batch.usage is not None), default=None)

    @property
    def cached_share(self) -> float | None:
        """The share of the prompts' tokens that came from the prefix cache; None if no prompt has two tokens."""
        pairs = [(batch.cached_tokens or 0, batch.new_tokens or 0) for batch in self.prefills]
        total = sum(cached + new for cached, new in pairs if cached + new > 1)
        return sum(cached for cached, new in pairs if cached + new > 1) / total if total else None


def read_batches(lines: Iterable[tuple[float, str]], interval: int) -> Batches:
    """Read lines ``(t, text)`` in order; ``interval`` is the server's --decode-log-interval."""
    found = [batch for t, text in lines if "batch" in text and (batch := parse_batch(text, t)) and batch.leading]
    decodes = tuple(batch for batch in found if batch.decode)
    return Batches(decodes, tuple(batch for batch in found if not batch.decode), _mean_size(found, interval))


def _mean_size(found: Sequence[Batch], interval: int) -> float | None:
    """From the growth of ``#token`` between neighbouring decode lines: each result adds its batch's size to it.

    Prompts add more and ended requests take away, so only neighbours without a prefill count, and growth only.
    """
    growth = [
        (after.tokens - before.tokens) / interval
        for before, after in pairwise(found)
        if before.decode and after.decode and before.tokens is not None and after.tokens is not None
    ]
    growth = [value for value in growth if value > 0]
    return median(growth) if growth and interval > 0 else None
