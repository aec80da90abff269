"""The steps of a change to a host."""

from __future__ import annotations

from enum import StrEnum


class Step(StrEnum):
    """The steps of an apply, in order. What follows `TRANSITION` is undone by `RESTORE` if it fails."""

    CONNECT = "connect"
    LEASE = "lease"
    OBSERVE = "observe"
    PLAN = "plan"
    PREFLIGHT = "preflight"
    STAGE = "stage"
    VALIDATE = "validate"
    CONSENT = "consent"
    TRANSITION = "transition"
    STOP = "stop"
    SWITCH = "switch"
    WAIT = "wait"
    VERIFY = "verify"
    BENCH = "bench"
    PROMOTE = "promote"
    FINISH = "finish"
    RESTORE = "restore"
    DONE = "done"


STEP_TITLES: dict[Step, str] = {
    Step.CONNECT: "Connect",
    Step.LEASE: "Take the lease",
    Step.OBSERVE: "Observe the host",
    Step.PLAN: "Plan",
    Step.PREFLIGHT: "Preflight",
    Step.STAGE: "Stage the release",
    Step.VALIDATE: "Validate the unit",
    Step.CONSENT: "Consent",
    Step.TRANSITION: "Record the transition",
    Step.STOP: "Stop the old server",
    Step.SWITCH: "Start the candidate",
    Step.WAIT: "Wait through the launch",
    Step.VERIFY: "Verify what runs",
    Step.BENCH: "Smoke benchmark",
    Step.PROMOTE: "Promote",
    Step.FINISH: "Finish",
    Step.RESTORE: "Converge to live",
}

#: Steps in which a transition on the host can be resumed.
RESUMABLE = (Step.STOP, Step.SWITCH, Step.WAIT, Step.VERIFY, Step.BENCH, Step.PROMOTE, Step.FINISH)
