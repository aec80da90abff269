"""Every error a user can meet, in one tree.

    DeployerError                 1    a bug in deployer, if nothing below fits
    ├── UsageError                2    the command line is wrong
    ├── ConfigError               2    a configuration file is not valid
    ├── ConsentRequired           2    something live would restart without consent
    ├── Refused                   3    nothing was changed
    │   ├── PreflightRefused      3    the host is not fit for it (all objections, not the first)
    │   ├── PlanMoved             3    what a saved plan depends on has changed
    │   ├── HookRefused           3    a hook of before the stop or the start refused
    │   ├── ValidationRefused     3    systemd reads the unit otherwise than intended
    │   └── WorldMoved            3    the host has changed since it was observed
    ├── LeaseHeld                 4    somebody else is changing this host
    ├── OnHold                    4    somebody put this host on hold
    ├── LeaseLost                 4    somebody else took over while we worked
    ├── CandidateFailed           5    the candidate failed; the previous live profile serves again
    ├── NothingServing            6    nothing healthy is serving
    ├── GateInconclusive          7    the measurement cannot tell; not promoted
    ├── HostError                 8    the host cannot be reached, or its state is unknown
    │   ├── HostUnreachable       8    no connection
    │   ├── HostKeyRejected       8    the host's key is unknown or has changed
    │   ├── AuthenticationFailed  8    the host does not accept us (SSH or sudo)
    │   ├── ChannelLost           8    the connection broke while it was used
    │   └── AgentError            8    an operation on the host failed
    └── Interrupted             130    Ctrl-C

Each class has its exit code; an instance says what happened, in which phase, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from deployer.records.failure import Failure
    from deployer.records.verdict import Verdict


#: Every exit code, the worst first: a bug, nobody serves, nobody knows, then what is left to be done.
WORST_FIRST = (1, 130, 6, 8, 5, 7, 2, 4, 3, 10, 0)


def worst(codes: Iterable[int]) -> int:
    """Return the exit code of several results: the worst of theirs, 0 if there are none."""
    return min(codes, key=WORST_FIRST.index, default=0)


class DeployerError(Exception):
    """What happened, in one paragraph.

    ``remedy`` says what to do, ``phase`` in which step or launch phase it happened, ``detail`` is data for ``--json``.
    """

    exit_code: ClassVar[int] = 1
    outcome: ClassVar[str] = "refused"
    default_remedy: ClassVar[str | None] = None

    def __init__(
        self,
        message: str,
        *,
        remedy: str | None = None,
        phase: str | None = None,
        detail: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy or self.default_remedy
        self.phase = phase
        self.detail = detail or {}

    def as_dict(self) -> dict[str, Any]:
        """Return the error as it appears under ``error`` in a JSON document."""
        return {
            "kind": type(self).__name__,
            "message": self.message,
            "phase": self.phase,
            "remedy": self.remedy,
            "detail": self.detail,
        }


class UsageError(DeployerError):
    """The command line is wrong."""

    exit_code = 2


class ConfigError(DeployerError):
    """A configuration file is not valid: which file and key, what was found, what was expected."""

    exit_code = 2


class ConsentRequired(DeployerError):
    """Something live would restart, and nobody consented."""

    exit_code = 2
    default_remedy = "read the plan above, then run the command again with --yes"


class Refused(DeployerError):
    """Refused before anything was changed."""

    exit_code = 3


class PreflightRefused(Refused):
    """The host is not fit for the profile. ``detail["objections"]`` holds all of them."""


class PlanMoved(Refused):
    """What a saved plan depends on has changed since it was made. ``detail["moved"]`` says what."""

    default_remedy = "look at the new plan: deployer plan PROFILE --out FILE"


class HookRefused(Refused):
    """A hook that runs before anything is stopped refused the change."""

    default_remedy = "see what the program reports, or take it out of [hooks] in the inventory"


class ValidationRefused(Refused):
    """systemd reads the rendered unit differently from what was intended."""


class WorldMoved(Refused):
    """The host is no longer what it was when it was observed (compare-and-set failed)."""

    default_remedy = "run `deployer plan` to see what changed, then apply again"


class LeaseHeld(DeployerError):
    """Somebody else holds the right to change this host."""

    exit_code = 4
    default_remedy = "wait until they are done: --wait does; `deployer status` shows how far they are"


class OnHold(DeployerError):
    """Somebody put this host on hold: no operator may change it."""

    exit_code = 4
    default_remedy = "`deployer hold --release` ends the hold; --wait waits until it ends"


class LeaseLost(DeployerError):
    """Somebody else took over this host in the meantime; this process wrote nothing after that."""

    exit_code = 4
    default_remedy = "run `deployer status` to see who holds it and what is live"


class CandidateFailed(DeployerError):
    """The candidate failed; the previous live profile was restored and is healthy."""

    exit_code = 5
    outcome = "rolled_back"


class CandidateRejected(Exception):
    """The candidate is not good enough. Internal: the rollout turns it into an outcome.

    ``state`` is what the release becomes: ``failed`` or ``inconclusive``.
    """

    def __init__(self, failure: Failure, state: str = "failed", verdict: Verdict | None = None) -> None:
        super().__init__(failure.cause)
        self.failure = failure
        self.state = state
        self.verdict = verdict


class NothingServing(DeployerError):
    """Nothing healthy is serving."""

    exit_code = 6
    outcome = "down"


class GateInconclusive(DeployerError):
    """The benchmark cannot tell whether the candidate is good enough; it was not promoted, the live release serves."""

    exit_code = 7
    outcome = "inconclusive"


class HostError(DeployerError):
    """The host cannot be reached, or its state is unknown."""

    exit_code = 8
    default_remedy = "check the connection, then run `deployer status`"


class HostUnreachable(HostError):
    """No connection could be made within the time allowed."""


class HostKeyRejected(HostError):
    """The host's key is unknown, or differs from the known one."""


class AuthenticationFailed(HostError):
    """The host refuses the login, or root."""


class ChannelLost(HostError):
    """The connection broke while in use; what the host did since is unknown."""


class AgentError(HostError):
    """An operation on the host failed; ``code`` is the host's code for it (docs/architecture.md)."""

    def __init__(self, code: str, message: str, **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        self.code = code


class Interrupted(DeployerError):
    """Ctrl-C. The message says what is serving."""

    exit_code = 130
    outcome = "interrupted"
