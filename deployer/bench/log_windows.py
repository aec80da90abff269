"""What the server's log says about a benchmark: its batch lines, level by level, added to the document."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

from deployer.bench.load.server import with_log
from deployer.errors import AgentError
from deployer.host.client import HostClient
from deployer.sglang.log.batches import read_batches

Json = dict[str, Any]
Lines = Sequence[tuple[float, str]]

#: A decode line comes once in this many steps (``--decode-log-interval``'s default); only counting needs it.
_INTERVAL = 40


def read_log(client: HostClient, service: str, since: float) -> list[tuple[float, str]]:
    """Return the batch lines of the service's journal from ``since`` on (epoch seconds of the host)."""
    lines: list[tuple[float, str]] = []
    with contextlib.suppress(AgentError), client.journal(service, since=since) as stream:
        while True:
            try:
                line = stream.next(timeout=30.0)
            except StopIteration:
                break
            if line is None:  # a journal that is silent for this long will not answer
                stream.cancel()
                break
            if " batch" in line.text and line.t is not None:
                lines.append((line.t, line.text))
    return lines


def _window(one: Json, level: Json, began: float) -> tuple[float, float]:
    """When a pass had all its streams busy, on the log's clock: while they begin and end there is less to be seen.

    That is its steady time. Without one (a server that queues has answered some streams before it turns to the last)
    the time in which each stream had a request under way; all of the pass where that is not known either.
    """
    start = began + one["started_s"]
    whole = start, start + (one["wall_s"] or 0.0)
    if one.get("steady_s") is not None:
        opens = start + (one.get("ramp_s") or 0.0)
        return opens, opens + one["steady_s"]
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    for sample in level.get("samples") or ():
        if sample.get("pass") != one.get("repeat"):
            continue
        if sample["start_s"] is None or sample["seconds"] is None:
            return whole
        stream = sample["index"] % level["concurrency"]
        first[stream] = min(first.get(stream, math.inf), sample["start_s"])
        last[stream] = max(last.get(stream, 0.0), sample["start_s"] + sample["seconds"])
    opens, closes = max(first.values(), default=0.0), min(last.values(), default=0.0)
    if len(first) < level["concurrency"] or closes <= opens:
        return whole
    return start + opens, start + closes


def with_batches(bench: Json, lines: Lines, *, slots: int, began: float) -> Json:
    """The document with the log's part in each level's ``server``.

    ``began`` is when the run began on the log's clock; ``slots`` how many micro-batches the server turns over.
    """
    levels = []
    for level in bench.get("levels") or []:
        windows = [_window(one, level, began) for one in level.get("passes") or ()]
        inside = [line for line in lines if any(begin <= line[0] <= end for begin, end in windows)]
        batches = read_batches(inside, _INTERVAL)
        found = with_log(
            level.get("server"),
            level["concurrency"],
            batches=batches.sizes,
            queued=[batch.queued for batch in batches.decodes if batch.queued is not None],
            graphs=[batch.graph for batch in batches.decodes if batch.graph is not None],
            slots=slots,
        )
        levels.append({**level, "server": found})
    return {**bench, "levels": levels}
