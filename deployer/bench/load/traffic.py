"""Whether somebody else used the server while it was being measured, by the server's own counters.

Clients reach a candidate as soon as it answers, and their tokens look like slowness of ours. Two counters
show it: ``sglang:generation_tokens_total`` of ``/metrics`` (only with ``--enable-metrics``) and the requests
in flight of ``/v1/loads``.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from deployer import metrics

#: Health probes generate a token each, about one a second; they are not foreign traffic.
ALLOWED_TOKENS = 32
ALLOWED_TOKENS_PER_SECOND = 2.0
#: Pause between two looks at counters that are not quiet, in seconds.
LOOK_AGAIN_SECONDS = 0.3


@dataclass(frozen=True)
class Counters:
    """The server's counters at one moment; None if it does not show them."""

    tokens: float | None = None
    in_flight: int | None = None


async def read_counters(client: Any, base_url: str, silent: set[str] | None = None) -> Counters:
    """Read the server's counters through an ``httpx.AsyncClient``. One that does not answer properly is not shown.

    What gives no answer at all is added to ``silent`` and not asked again, so that it costs the time-out once.
    """
    silent = set() if silent is None else silent
    page, loads = await asyncio.gather(*(_get(client, base_url, path, silent) for path in ("/metrics", "/v1/loads")))
    figures = None if loads is None else metrics.parse_loads(loads)
    return Counters(
        None if page is None else metrics.totals(page).get("generation_tokens_total"),
        None if figures is None else metrics.in_flight(figures),
    )


async def _get(client: Any, base_url: str, path: str, silent: set[str]) -> str | None:
    if path in silent:
        return None
    try:
        answer = await client.get(base_url + path)
    except Exception:  # whatever went wrong, the answer is "not shown"; the load itself meets real trouble
        silent.add(path)
        return None
    return answer.text if answer.status_code == 200 else None


async def settled(
    client: Any, base_url: str, silent: set[str] | None = None, *, at_least: float | None = None
) -> Counters:
    """Return the counters once they are quiet: up to 4 looks, `LOOK_AGAIN_SECONDS` apart.

    Looks again while requests are in flight (ours have all ended; a probe's is short) or while the token
    counter is below ``at_least`` (it may lag behind the last answer).
    """
    seen = Counters()
    for look in range(4):
        if look:
            await asyncio.sleep(LOOK_AGAIN_SECONDS)
        seen = await read_counters(client, base_url, silent)
        lagging = seen.tokens is not None and at_least is not None and seen.tokens < at_least
        if not seen.in_flight and not lagging:
            break
    return seen


def judge(before: Counters, after: Counters, *, ours: int, unsure: int, seconds: float) -> dict[str, Any]:
    """Return ``{"value": true|false|null, "evidence": [...]}`` for one stretch of load.

    ``ours`` is the tokens of our completed requests, ``unsure`` the most that our failed ones can have
    generated, ``seconds`` how long it took. ``null`` if the server does not show enough to tell.
    """
    evidence: list[str] = []
    foreign = False
    for moment, seen in (("before", before.in_flight), ("after", after.in_flight)):
        if seen and moment == "after" and unsure:  # a server that hangs does not drop what we gave up
            evidence.append(f"{seen} requests were in flight after it, perhaps ours that did not end")
        elif seen:
            foreign = True
            evidence.append(f"{seen} requests that are not ours were in flight {moment} it")
    if before.tokens is None or after.tokens is None:
        evidence.append("the server shows no token counter (it has one with --enable-metrics)")
        return {"value": True if foreign else None, "evidence": evidence}
    gained = after.tokens - before.tokens
    evidence.append(
        f"the server generated {gained:.0f} tokens, ours are {ours}" + (f" to {ours + unsure}" * bool(unsure))
    )
    if gained < ours * 0.98:
        evidence.append("so this counter is not (only) of the server that answered us")
        return {"value": True if foreign else None, "evidence": evidence}
    allowed = ALLOWED_TOKENS + ALLOWED_TOKENS_PER_SECOND * seconds
    if gained > ours + unsure + allowed:
        foreign = True
    return {"value": foreign, "evidence": evidence}


def combined(stages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one answer for all stages: true if one is, false if all are, else null; with the evidence."""
    values = [stage["value"] for stage in stages]
    value = True if any(v is True for v in values) else (False if values and None not in values else None)
    shown = [stage for stage in stages if stage["value"] is value] if value is not False else stages
    return {"value": value, "evidence": [f"{s['stage']}: {'; '.join(s['evidence'])}" for s in shown]}
