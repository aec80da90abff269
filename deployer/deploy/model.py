"""What a deployment is made of, as data: steps, the release under trial, objections, the outcome."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Json = dict[str, Any]


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

#: Steps that a transition on the host can be resumed in.
RESUMABLE = (Step.STOP, Step.SWITCH, Step.WAIT, Step.VERIFY, Step.BENCH, Step.PROMOTE, Step.FINISH)


@dataclass(frozen=True)
class Trial:
    """One release as it goes through the steps; everything a later `resume` needs is in its manifest.

    ``unit`` is the text that goes live, ``candidate`` the one that is tried. ``requested`` is what ``/server_info``
    has to show, by SGLang's field names. ``bench`` is the load to run, ``gate`` the thresholds for it,
    ``relative_gate`` how it is compared with earlier starts (the fields of `deployer.config.bench.RelativeGate`).
    """

    service: str
    release: str
    number: int
    profile: str
    previous: str | None
    unit: str
    candidate: str
    argv: tuple[str, ...]
    environment: dict[str, str]
    restart_keys: dict[str, str]
    requested: Json
    sglang: str | None
    model: Json
    bench: Json
    gate: dict[str, float]
    #: Arguments, by SGLang's field names, that may be in effect with another value than was asked for.
    allow_changed: tuple[str, ...] = ()
    relative_gate: Json = field(default_factory=dict)

    def manifest(self, *, created: float, operator: str) -> Json:
        """The manifest to stage with the release."""
        return {
            "schema": 1,
            "service": self.service,
            "release": self.release,
            "number": self.number,
            "profile": self.profile,
            "previous": self.previous,
            "created": created,
            "operator": operator,
            "argv": list(self.argv),
            "environment": self.environment,
            "restart_keys": self.restart_keys,
            "sglang": self.sglang,
            "model": self.model,
            "resolved": {
                "requested": self.requested,
                "allow_changed": list(self.allow_changed),
                "bench": self.bench,
                "gate": self.gate,
                "relative_gate": self.relative_gate,
            },
            "in_effect": None,
            "state": "staged",
            "was_live": False,
            "promoted": None,
            "verdict": None,
            "timeline": None,
            "failure": None,
            "bench_summary": None,
        }

    @classmethod
    def from_manifest(cls, manifest: Json, unit: str, candidate: str) -> Trial:
        """The trial that a staged release describes (for `resume` and `rollback`)."""
        resolved = manifest.get("resolved") or {}
        return cls(
            service=manifest["service"],
            release=manifest["release"],
            number=manifest["number"],
            profile=manifest["profile"],
            previous=manifest.get("previous"),
            unit=unit,
            candidate=candidate,
            argv=tuple(manifest["argv"]),
            environment=dict(manifest["environment"]),
            restart_keys=dict(manifest["restart_keys"]),
            requested=dict(resolved.get("requested") or {}),
            sglang=manifest.get("sglang"),
            model=dict(manifest.get("model") or {}),
            bench=dict(resolved.get("bench") or {}),
            gate=dict(resolved.get("gate") or {}),
            relative_gate=dict(resolved.get("relative_gate") or {}),
            allow_changed=tuple(resolved.get("allow_changed") or ()),
        )


class TrialFailed(Exception):
    """The candidate is not good enough. Internal: turned into an outcome where the steps are driven."""

    def __init__(self, failure: Json, state: str = "failed", verdict: Json | None = None) -> None:
        super().__init__(failure["cause"])
        self.failure = failure
        self.state = state
        self.verdict = verdict


@dataclass(frozen=True)
class Objection:
    """One reason why the host is not fit for a profile, and what to do about it."""

    code: str
    message: str
    remedy: str

    def as_dict(self) -> Json:
        return {"code": self.code, "message": self.message, "remedy": self.remedy}


@dataclass
class Outcome:
    """What an `apply`, `rollback`, `resume` or `converge` came to; its JSON form is a contract (see docs/cli.md)."""

    outcome: str
    service: str
    profile: str | None = None
    release: str | None = None
    previous: str | None = None
    phases: list[Json] = field(default_factory=list)
    bench: Json | None = None
    verdict: Json | None = None
    in_effect: Json | None = None
    failure: Json | None = None
    exit_code: int = 0
    message: str = ""
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> Json:
        return {
            "outcome": self.outcome,
            "service": self.service,
            "profile": self.profile,
            "release": self.release,
            "previous": self.previous,
            "phases": self.phases,
            "bench": self.bench,
            "verdict": self.verdict,
            "in_effect": self.in_effect,
            "failure": self.failure,
            "exit_code": self.exit_code,
            "message": self.message,
            "notes": self.notes,
        }


def in_short(failure: Json) -> str:
    """A failure in a word or two, for the line of its step; its cause is told once, with the outcome."""
    signature = str(failure["signature"])
    return "failed" if signature == "unknown" else re.sub(r"(?<=[a-z])(?=[A-Z])|[_-]", " ", signature).lower()


def failure_document(
    signature: str,
    cause: str,
    *,
    phase: str | None = None,
    remedy: str | None = None,
    log_tail: list[str] | None = None,
    evidence: Sequence[str] = (),
) -> Json:
    """A failure as the JSON contract has it. ``evidence``: the lines of the log that prove it."""
    return {
        "signature": signature,
        "phase": phase,
        "cause": cause,
        "remedy": remedy,
        "evidence": list(evidence),
        "log_tail": log_tail or [],
    }


def count_of(number: int, noun: str) -> str:
    """So many of something that has a regular plural."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
