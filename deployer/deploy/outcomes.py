"""Outcomes of changes that ended early: refused by an error, or interrupted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from deployer.deploy.session import Session
from deployer.errors import DeployerError
from deployer.records.failure import Failure
from deployer.records.outcome import Outcome


def refused_outcome(error: DeployerError, service: str, profile: str | None) -> Outcome:
    """Return an error in the shape that the JSON of a change always has."""
    return Outcome(
        outcome=error.outcome,
        service=service,
        profile=profile,
        failure=Failure(type(error).__name__, error.message, error.phase, error.remedy),
        exit_code=error.exit_code,
        message=error.message,
    )


def interrupted_outcome(
    service: str,
    profile: str | None,
    *,
    changing: bool,
    reopen: Callable[[], AbstractContextManager[Session]],
) -> Outcome:
    """Return the outcome of a Ctrl-C outside a rollout: nothing was changed yet, or a converge was cut short.

    ``reopen`` gives a new session, to look at what the second case has left.
    """
    message = "interrupted before anything was changed; what was serving still serves"
    if changing:
        message = "interrupted while the host was being made equal to its live release"
        try:
            with reopen() as second:
                state = second.state()
            message += f"; live is {state.live_name or 'nothing'}, the unit is {state.unit.active}. "
            message += "`deployer converge` completes it"
        except (DeployerError, KeyboardInterrupt):
            message += "; `deployer status` shows its state, `deployer converge` completes it"
    return Outcome(
        outcome="interrupted",
        service=service,
        profile=profile,
        exit_code=130,
        message=message,
    )
