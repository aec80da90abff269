"""A failed launch as people and programs see it: the cause found in the log, or what the wait itself can tell."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from deployer.records.failure import Failure
from deployer.sglang.log.failures import UNKNOWN, Cause
from deployer.sglang.log.launch import LaunchState

#: So many lines of the log are kept with a failure.
TAIL_LINES = 60
# The usage that argparse prints before its error, hundreds of lines of it.
_USAGE = re.compile(r"^usage: |^ {12,}[\[{-]")


def log_tail(lines: Iterable[str]) -> list[str]:
    """Return the end of a log as it is shown and kept with a failure."""
    return [line for line in lines if not _USAGE.match(line)][-TAIL_LINES:]


def explain(
    proof: str,
    classified: Cause,
    detail: Mapping[str, Any],
    state: LaunchState,
    *,
    port: int,
    deadline: float,
    log_tail: Sequence[str] = (),
) -> Failure:
    """Return the failure of a launch: the cause in the log, or if there is none, what the proof itself says.

    ``proof`` is what ended the wait: ``unit``, ``restart``, ``fatal-line``, ``not-ours``, ``vanished``, ``stall``,
    ``deadline`` or ``generation``; ``detail`` is what the host reported with it. A stall and a passed deadline always
    name the phase and the last line.
    """
    signature, cause, remedy = classified.signature, classified.cause, classified.remedy
    words = _words(proof, detail, state, port, deadline)
    if words and (signature == UNKNOWN or proof in ("not-ours", "deadline")):
        signature, cause, remedy = words
    elif proof == "stall":
        cause = f"{cause} ({_where(state)}; quiet for {detail.get('quiet')} s)"
    elif signature == UNKNOWN and proof == "unit":
        cause = f"{cause} ({_unit(detail)})"
    return Failure(
        proof=proof,
        signature=signature,
        phase=(classified.phase if proof in ("unit", "fatal-line") else None) or state.phase,
        cause=cause,
        remedy=remedy,
        evidence=classified.evidence,
        reference=classified.reference if signature == classified.signature else None,
        log_tail=tuple(log_tail),
    )


def _words(
    proof: str, detail: Mapping[str, Any], state: LaunchState, port: int, deadline: float
) -> tuple[str, str, str] | None:
    """Return signature, cause and remedy of the proofs that speak for themselves."""
    where = _where(state)
    return {
        "not-ours": (
            "port_not_ours",
            f"port {port} is answered by {_stranger(detail)}, which does not belong to the unit",
            f"find it (`ss -ltnp 'sport = :{port}'`) and stop it, or choose another port",
        ),
        "deadline": (
            "deadline",
            f"not ready within {deadline:g} s: {where}",
            "raise deadlines.start if the model is only large; else read the log",
        ),
        "generation": (
            "generation_failed",
            f"/health answers 200, but a generation of our own does not work: {detail.get('answer')}",
            "read the log for what the request met",
        ),
        "restart": (
            "restarted",
            f"systemd started the server again, so its first start had failed: {where}",
            "read the log of the first start",
        ),
        "vanished": ("vanished", f"the unit is gone: {where}", "see systemd's journal for who removed it"),
    }.get(proof)


def _stranger(detail: Mapping[str, Any]) -> str:
    marks = [f"{name} {detail[name]}" for name in ("pid", "unit") if detail.get(name)]
    comm = detail.get("comm") or "a process"
    return f"{comm} ({', '.join(marks)})" if marks else str(comm)


def _where(state: LaunchState) -> str:
    waiting = f", waiting for {state.waiting_for}" if state.waiting_for else ""
    last = f'the last line was "{state.last_line[:200]}"' if state.last_line else "nothing was printed"
    return f"phase {state.phase}{waiting}; {last}"


def _unit(detail: Mapping[str, Any]) -> str:
    names = ("result", "exec_code", "exec_status")
    shown = [f"{name} {detail[name]}" for name in names if detail.get(name) not in (None, "")]
    return f"systemd says {', '.join(shown)}" if shown else "unit failed"
