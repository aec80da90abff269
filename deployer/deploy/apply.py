"""`apply`: the steps from connecting to the recorded transition; what follows is `attempt`."""

from __future__ import annotations

import getpass
import socket
import time
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from deployer.config.profile import Profile, effective_bench, effective_gate, effective_relative_gate
from deployer.deploy.advice import advise, warnings
from deployer.deploy.engine_preflight import (
    ENGINE_REMEDY,
    asking_notes,
    engine_complaint,
)
from deployer.deploy.model import RESUMABLE, Json, Objection, Outcome, Step, Trial, count_of
from deployer.deploy.plan import Plan, make_plan
from deployer.deploy.preflight import notes, objections
from deployer.deploy.reporter import Reporter
from deployer.deploy.restore import converge_and_prove
from deployer.deploy.rollout import Attempt
from deployer.deploy.session import Session
from deployer.deploy.validate import ask_engine, validate
from deployer.errors import AgentError, PreflightRefused
from deployer.records.host import HostState, Transition
from deployer.sglang.rules import Finding
from deployer.units.bundle import build_bundle, comparable

#: Objections with which SGLang cannot judge arguments.
ANSWERLESS = frozenset({"engine-missing", "sglang-missing", "model-missing", "model-config-missing"})


class Consent(Protocol):
    """Somebody who agrees to the restart of what is live, or does not."""

    def possible(self, plan: Plan) -> None:
        """Raise ConsentRequired where consent is needed and nobody can be asked for it."""

    def given(self, plan: Plan) -> bool:
        """Show the plan, ask, and return the answer; True without asking where nothing live is interrupted."""

    def unclear(self, verdict: Json) -> bool:
        """Show a verdict that is inconclusive, ask whether to promote all the same; False where nobody can be asked."""


def make_trial(
    session: Session, profile: Profile, observed: HostState
) -> tuple[Trial, dict[str, Json], list[str]]:
    """Render ``profile`` for the host as it was observed: the trial, the files to stage with it, remarks."""
    service = session.service
    state = observed.services[service.name]
    number = state.next_number
    release = f"{number:04d}-{profile.name}"
    version = observed.engine.sglang if observed.engine else None
    bundle = build_bundle(
        service,
        session.host_config,
        profile,
        version,
        release,
        templates=session.templates,
        learned=session.learned,
    )
    model = observed.model
    bench = effective_bench(service, profile).model_dump()
    trial = Trial(
        service=service.name,
        release=release,
        number=number,
        profile=profile.name,
        previous=state.live.release if state.live else None,
        unit=bundle.unit,
        candidate=bundle.candidate,
        argv=tuple(bundle.argv),
        environment=dict(bundle.environment),
        restart_keys=dict(bundle.restart_keys),
        requested=dict(bundle.requested),
        sglang=version,
        model={"path": service.model, "fingerprint": model.fingerprint if model else None},
        bench=bench,
        gate=effective_gate(service, profile),
        relative_gate=effective_relative_gate(service, profile).model_dump(),
        allow_changed=tuple(profile.verify.allow_changed),
    )
    return trial, {name: dict(file) for name, file in bundle.files.items()}, list(bundle.notes)


def plan(session: Session, profile: Profile) -> tuple[Plan, Trial, list[Objection], list[str]]:
    """Look, render and compare, without a lease and without changing anything."""
    observed = session.observe(facts=True)
    trial, _, remarks = make_trial(session, profile, observed)
    made = _plan(session, observed, trial)
    findings = _findings(session, profile, observed)
    against = objections(observed, session.host_config, session.service, trial, findings)
    said = [*notes(observed, session.service), *remarks, *warnings(findings)]
    if made.action == "deploy" and not ANSWERLESS & {item.code for item in against}:
        asked = ask_engine(session, trial, observed)
        said += asking_notes(asked, trial)
        if asked.verdict == "refused":
            against.append(Objection("engine-refuses", engine_complaint(asked, trial.sglang), ENGINE_REMEDY))
    return made, trial, against, said


def _findings(session: Session, profile: Profile, observed: HostState) -> tuple[Finding, ...]:
    """What the rules say about the profile on this host."""
    version = observed.engine.sglang if observed.engine else None
    report = advise(
        profile, session.service, session.host_config, version, observed=observed, learned=session.learned
    )
    return report.findings


def _plan(session: Session, observed: HostState, trial: Trial) -> Plan:
    state = observed.services[session.service.name]
    healthy = state.running is not None and session.health(state).ok
    return make_plan(state, trial, healthy=healthy, comparable=comparable)


def apply(session: Session, profile: Profile, reporter: Reporter, consent: Consent) -> Outcome:
    """Make ``profile`` live on the session's service, or leave the host as it was and say why."""
    service = session.service
    take_lease(session, reporter)
    reporter.step(Step.OBSERVE)
    observed = session.observe(facts=True)
    state = observed.services[service.name]
    live = state.live.release if state.live else None
    reporter.done(f"live: {live or 'nothing yet'}; SGLang {_version(observed)}")
    if state.transition is not None:
        resumed = _leftover(session, state.transition, profile, reporter)
        if resumed is not None:
            return resumed
        observed = session.observe(facts=True)
        state = observed.services[service.name]

    reporter.step(Step.PLAN)
    trial, files, remarks = make_trial(session, profile, observed)
    made = _plan(session, observed, trial)
    if made.action == "nothing":
        reporter.done(f"{profile.name} is live as {made.live} and healthy; nothing to change")
        return Outcome(
            outcome="unchanged",
            service=service.name,
            profile=profile.name,
            release=made.live,
            previous=trial.previous,
            message=f"{profile.name} is live already as release {made.live} and healthy; nothing was changed",
        )
    reporter.done(_summary(made))
    consent.possible(made)
    if made.action == "converge":
        return _start_again(session, made, reporter)

    reporter.step(Step.PREFLIGHT)
    findings = _findings(session, profile, observed)
    for note in [*notes(observed, service), *remarks, *warnings(findings)]:
        reporter.note(note)
    against = objections(observed, session.host_config, service, trial, findings)
    if against:
        raise preflight_error(against)
    reporter.done("GPUs, port, engine, model and disk are fit")

    stage(session, trial, files, reporter)
    agreed = False
    try:
        reporter.step(Step.VALIDATE)
        validate(session, trial, reporter, observed)
        reporter.step(Step.CONSENT)
        agreed = consent.given(made)
    finally:
        if not agreed:
            with suppress(
                AgentError
            ):  # a full disk, say: it is a folder that nothing refers to, whatever it says
                session.client.release_update(service.name, trial.release, patch={"state": "abandoned"})
    if not agreed:
        return _refused(session, trial, made)
    reporter.done("agreed" if made.interrupts else "nothing live is interrupted")
    return Attempt(session, trial, reporter, ask=consent.unclear).run()


def take_lease(session: Session, reporter: Reporter) -> None:
    """The exclusive right to change the host, kept alive from here on. LeaseHeld where somebody else has it."""
    reporter.step(Step.LEASE)
    session.acquire()
    reporter.done(f"{session.host_config.name} is ours to change")


def _version(observed: HostState) -> str:
    return (observed.engine.sglang if observed.engine else None) or "unknown"


def _summary(made: Plan) -> str:
    if made.action == "converge":
        return f"{made.live} is live and equal, but not running as it should"
    return f"{count_of(len(made.changes), 'change')} against {made.live or 'nothing'}: a restart is needed"


def preflight_error(against: list[Objection]) -> PreflightRefused:
    """All objections as one error."""
    lines = "\n".join(f"  - {item.message}\n    remedy: {item.remedy}" for item in against)
    count = "one objection" if len(against) == 1 else f"{len(against)} objections"
    return PreflightRefused(
        f"the host is not fit for this profile ({count}); nothing was changed:\n{lines}",
        phase=Step.PREFLIGHT,
        remedy="remove the objections and apply again",
        detail={"objections": [item.as_dict() for item in against]},
    )


def stage(session: Session, trial: Trial, files: dict[str, Json], reporter: Reporter) -> None:
    """Put the release on the host: an unused folder until something refers to it."""
    reporter.step(Step.STAGE)
    manifest = trial.manifest(created=time.time(), operator=f"{getpass.getuser()}@{socket.gethostname()}")
    try:
        path = session.client.stage(
            trial.service, trial.release, files=files, manifest=manifest, user=session.service.user
        )
    except AgentError as error:
        if error.code != "no-user":
            raise
        raise preflight_error(
            [Objection("no-user", error.message, f"create it, or correct services.{trial.service}.user")]
        ) from error
    reporter.done(path)


def _refused(session: Session, trial: Trial, made: Plan) -> Outcome:
    return Outcome(
        outcome="refused",
        service=trial.service,
        profile=trial.profile,
        release=trial.release,
        previous=trial.previous,
        exit_code=2,
        message=f"nothing was changed; {made.live or 'nothing'} is live on {session.service.name}",
    )


def _start_again(session: Session, made: Plan, reporter: Reporter) -> Outcome:
    """The live release is the one wanted but does not serve: converge, and prove it."""
    restored = converge_and_prove(session, reporter)
    return Outcome(
        outcome="live" if restored.serving else "down",
        service=session.service.name,
        profile=made.profile,
        release=restored.live,
        previous=made.live,
        exit_code=0 if restored.serving else 6,
        message=restored.message,
    )


def _leftover(
    session: Session, transition: Transition, profile: Profile, reporter: Reporter
) -> Outcome | None:
    """A transition that nobody finished: go on with it if it is the same profile's, else converge first."""
    reporter.note(f"A change to {transition.to} was left at the step '{transition.step}'")
    if transition.profile == profile.name and transition.step in RESUMABLE:
        return resume_transition(session, transition, reporter)
    return settle(session, reporter)


def settle(session: Session, reporter: Reporter) -> Outcome | None:
    """End what an operator left by converging; None when the host is free for something new, else the end of it."""
    restored = converge_and_prove(session, reporter)
    transition = session.state().transition
    if transition is None:
        return None
    return Outcome(
        outcome="down",
        service=session.service.name,
        profile=transition.profile,
        release=transition.to,
        previous=restored.live,
        exit_code=6,
        message=restored.message,
    )


def resume_transition(session: Session, transition: Transition, reporter: Reporter) -> Outcome:
    """Go on with a transition in the step it is in. One that was being restored is restored."""
    trial = read_trial(session, transition.to)
    trial = replace(trial, previous=transition.from_)
    if transition.step not in RESUMABLE:
        restored = converge_and_prove(session, reporter)
        return Outcome(
            outcome="rolled_back" if restored.serving else "down",
            service=trial.service,
            profile=trial.profile,
            release=trial.release,
            previous=restored.live,
            exit_code=5 if restored.serving else 6,
            message=restored.message,
        )
    reporter.note(f"Going on with {trial.release} at the step '{transition.step}'")
    proven = bool(transition.raw.get("proven"))
    return Attempt(session, trial, reporter, proven=proven).run(Step(transition.step))


def read_trial(session: Session, release: str) -> Trial:
    """A staged release as a trial, from the host."""
    try:
        read = session.client.release_read(session.service.name, release, ["unit", "unit.candidate"])
    except AgentError as error:
        raise AgentError(
            error.code,
            f"release {release} cannot be read on the host: {error.message}",
            remedy="see `deployer history` for the releases that are there",
        ) from error
    return Trial.from_manifest(read.manifest, read.files["unit"] or "", read.files["unit.candidate"] or "")
