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
    """The end of a log as it is shown and kept with a failure."""
    return [line for line in lines if not _USAGE.match(line)][-TAIL_LINES:]


def explain(
    proof: str,
    found: Cause,
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
    signature, cause, remedy = found.signature, found.cause, found.remedy
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
        phase=(found.phase if proof in ("unit", "fatal-line") else None) or state.phase,
        cause=cause,
        remedy=remedy,
        evidence=found.evidence,
        reference=found.reference if signature == found.signature else None,
        log_tail=tuple(log_tail),
    )


def _words(
    proof: str, detail: Mapping[str, Any], state: LaunchState, port: int, deadline: float
) -> tuple[str, str, str] | None:
    """Signature, cause and remedy of the proofs that speak for themselves."""
    if proof == "not-ours":
        return (
            "port_not_ours",
            f"port {port} is answered by {_stranger(detail)}, which does not belong to the unit",
            f"find it (`ss -ltnp 'sport = :{port}'`) and stop it, or choose another port",
        )
    if proof == "deadline":
        return (
            "deadline",
            f"not ready within {deadline:g} s: {_where(state)}",
            "raise deadlines.start if the model is only large; else read the log",
        )
    if proof == "generation":
        return (
            "generation_failed",
            f"/health answers 200, but a generation of our own does not work: {detail.get('answer')}",
            "read the log for what the request met",
        )
    if proof == "restart":
        return (
            "restarted",
            f"systemd started the server again, so its first start had failed: {_where(state)}",
            "read the log of the first start",
        )
    if proof == "vanished":
        return ("vanished", f"the unit is gone: {_where(state)}", "see systemd's journal for who removed it")
    return None


def _stranger(detail: Mapping[str, Any]) -> str:
    known = [f"{name} {detail[name]}" for name in ("pid", "unit") if detail.get(name)]
    comm = detail.get("comm") or "a process"
    return f"{comm} ({', '.join(known)})" if known else str(comm)


def _where(state: LaunchState) -> str:
    waiting = f", waiting for {state.waiting_for}" if state.waiting_for else ""
    last = f'the last line was "{state.last_line[:200]}"' if state.last_line else "nothing was printed"
    return f"phase {state.phase}{waiting}; {last}"


def _unit(detail: Mapping[str, Any]) -> str:
    shown = {
        name: detail[name]
        for name in ("result", "exec_code", "exec_status")
        if detail.get(name) not in (None, "")
    }
    return (
        "systemd says " + ", ".join(f"{name} {value}" for name, value in shown.items())
        if shown
        else "unit failed"
    )
