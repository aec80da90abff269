"""What the server did while a level was measured: samples and the log's batch lines as figures and one sentence."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from deployer.errors import AgentError
from deployer.host.client import HostClient
from deployer.records.bench import BenchRun, GpuUse, Level, Pass, ServerUse, Slots, Spread
from deployer.sglang.log.batches import Batches, read_batches

Lines = Sequence[tuple[float, str]]

#: A decode line comes once in this many steps (``--decode-log-interval``'s default); only counting needs it.
_INTERVAL = 40
#: Decode lines from which slots are inferred: a line is of one micro-batch, and those are not all of one size.
FEWEST_LINES = 3


def read_log(client: HostClient, service: str, since: float) -> list[tuple[float, str]]:
    """Return the batch lines of the service's journal from ``since`` on (epoch seconds of the host)."""
    lines: list[tuple[float, str]] = []
    with contextlib.suppress(AgentError), client.journal(service, since=since) as stream:
        for line in stream.until_end(30.0):
            if line is None:  # a journal that is silent for this long will not answer
                stream.cancel()
                break
            if " batch" in line.text and line.t is not None:
                lines.append((line.t, line.text))
    return lines


def with_server(bench: BenchRun, lines: Lines, *, slots: int, began: float) -> BenchRun:
    """Return the benchmark with the log's part, and a sentence, in each level's ``server``.

    ``began`` is when the run began on the log's clock; ``slots`` how many micro-batches the server turns over (1
    without pipeline parallelism).
    """
    levels = []
    for level in bench.levels:
        windows = [_window(one, level, began) for one in level.passes]
        inside = [line for line in lines if any(begin <= line[0] <= end for begin, end in windows)]
        use = _with_log(level, read_batches(inside, _INTERVAL), slots)
        levels.append(replace(level, server=use and replace(use, sentence=sentence(use, level.concurrency))))
    return replace(bench, levels=tuple(levels))


def _window(one: Pass, level: Level, began: float) -> tuple[float, float]:
    """When a pass had all its streams busy, on the log's clock: while they begin and end there is less to be seen.

    That is its steady time. Without one (a server that queues has answered some streams before it turns to the last)
    it is the time in which each stream had a request under way; all of the pass if that is unknown too.
    """
    start = began + (one.started_s or 0.0)
    whole = start, start + (one.wall_s or 0.0)
    if one.steady_s is not None:
        opens = start + (one.ramp_s or 0.0)
        return opens, opens + one.steady_s
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    for sample in level.samples:
        if sample.repeat != one.repeat:
            continue
        if sample.start_s is None or sample.seconds is None or sample.index is None:
            return whole
        stream = sample.index % level.concurrency
        first[stream] = min(first.get(stream, math.inf), sample.start_s)
        last[stream] = max(last.get(stream, 0.0), sample.start_s + sample.seconds)
    opens, closes = max(first.values(), default=0.0), min(last.values(), default=0.0)
    if len(first) < level.concurrency or closes <= opens:
        return whole
    return start + opens, start + closes


def _with_log(level: Level, batches: Batches, slots: int) -> ServerUse | None:
    """What was seen of the server, with sizes of decode batches, queue lengths, graph or not.

    How many slots were at work (``seen``) follows from the lines, each of one micro-batch and of all in turn: what is
    not queued is in flight, in batches of their mean size. None if there are too few lines.
    """
    size = spread(batches.sizes)
    if size is None:
        return level.server
    use = level.server or ServerUse()
    queued = spread(batch.queued for batch in batches.decodes) or use.queued or Spread()
    graphs = [batch.graph for batch in batches.decodes if batch.graph is not None]
    seen = None
    if len(batches.sizes) >= FEWEST_LINES or slots == 1:
        flying = max(level.concurrency - queued.mean, 1.0)
        seen = min(max(round(flying / max(size.mean, 1.0)), 1), slots)
    share = round(sum(graphs) / len(graphs), 4) if graphs else None
    return replace(use, queued=queued, slots=Slots(seen, slots, size), graph_share=share)


def spread(values: Iterable[float | None]) -> Spread | None:
    """Return the spread of what is known; None of nothing."""
    known = [value for value in values if value is not None]
    return Spread(round(sum(known) / len(known), 4), min(known), max(known)) if known else None


def sentence(use: ServerUse, concurrency: int) -> str:
    """Return all of it in one line.

    ``C=32: 8 in flight in 1 of 16 slots, 24 queued, GPUs 40-100 % busy at 310 W of 600 W``
    """
    return f"C={concurrency}: {', '.join(_parts(use, concurrency)) or 'nothing was observed'}"


def _parts(use: ServerUse, concurrency: int) -> Iterator[str]:
    slots, queued = use.slots, use.queued
    if slots:
        flying = max(concurrency - (queued.mean if queued else 0.0), 0.0)
        yield f"{flying:.0f} in flight" + (
            f" in {slots.seen} of {slots.of} slots" if slots.of > 1 and slots.seen else ""
        )
    elif use.running and use.running.mean >= 0.5:  # less: the looks fell between the requests, which shows nothing
        yield f"{use.running.mean:.0f} in flight"
    if queued:
        yield f"{queued.mean:.0f} queued" if queued.mean >= 0.5 else "none queued"
    if use.graph_share is not None and use.graph_share < 0.995:
        share = "no step" if use.graph_share == 0 else f"{use.graph_share:.0%} of steps"
        yield f"{share} by a captured graph"
    if use.kv_use and use.kv_use.max >= 0.5:
        yield f"KV pool up to {use.kv_use.max:.0%} full"
    if words := _gpu_words(use.gpus):
        yield words


def _gpu_words(gpus: Sequence[GpuUse]) -> str:
    busy = [gpu.utilization.mean for gpu in gpus if gpu.utilization]
    power = [gpu.power_w.mean for gpu in gpus if gpu.power_w]
    limits = [gpu.power_limit_w for gpu in gpus if gpu.power_limit_w]
    words = []
    if busy:
        low, high = f"{min(busy):.0f}", f"{max(busy):.0f}"
        words.append(f"{low if low == high else f'{low}-{high}'} % busy")
    if power:
        of = f" of {max(limits):.0f} W" if limits else ""
        words.append(f"at {sum(power) / len(power):.0f} W{of}")
    return f"GPUs {' '.join(words)}" if words else ""


def sentences(bench: BenchRun) -> list[str]:
    """Return what the server did during each level; a level of which nothing was seen has none."""
    return [level.server.sentence for level in bench.levels if level.server and level.server.sentence]
