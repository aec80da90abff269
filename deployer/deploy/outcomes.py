"""Outcomes of changes that ended outside a rollout: by an error or by Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from deployer.errors import DeployerError
from deployer.records.failure import Failure
from deployer.records.outcome import Outcome

if TYPE_CHECKING:
    from deployer.deploy.session import Session

#: The exit code that belongs to an outcome, unless an error has its own.
EXIT_CODES = {"live": 0, "refused": 2, "rolled_back": 5, "down": 6, "inconclusive": 7, "interrupted": 130}
#: The exit code of what found, or left, a host that differs from its live release.
DRIFT = 10


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
            message += (
                f"; live is {state.live_name or 'nothing'}, the unit is {state.unit.active}. "
                "`deployer converge` completes it"
            )
        except (DeployerError, KeyboardInterrupt):
            message += "; `deployer status` shows its state, `deployer converge` completes it"
    return Outcome("interrupted", service, profile, exit_code=EXIT_CODES["interrupted"], message=message)
