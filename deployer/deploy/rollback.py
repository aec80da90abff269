"""`rollback`, `resume` and `converge`: the ways back, and the way on."""

from __future__ import annotations

from dataclasses import replace

from deployer.deploy.apply import (
    Consent,
    preflight_error,
    read_trial,
    resume_transition,
    settle,
    take_lease,
)
from deployer.deploy.model import Outcome, Step
from deployer.deploy.plan import make_plan, rollback_target
from deployer.deploy.preflight import objections
from deployer.deploy.reporter import Reporter
from deployer.deploy.restore import converge_and_prove
from deployer.deploy.rollout import Attempt
from deployer.deploy.session import Session
from deployer.deploy.validate import validate
from deployer.errors import Refused
from deployer.units.bundle import comparable


def rollback(session: Session, reporter: Reporter, consent: Consent, *, to: int | None = None) -> Outcome:
    """Put a release that was live before back in its place: started and verified like a candidate, then promoted.

    It was measured when it first went live, so it is not benchmarked again. If it does not come up, the release that
    is live now is restored.
    """
    service = session.service
    take_lease(session, reporter)
    reporter.step(Step.OBSERVE)
    observed = session.observe(facts=True)
    state = observed.services[service.name]
    if state.transition is not None:
        reporter.note(f"A change to {state.transition.to} was left unfinished; finishing it first")
        stuck = settle(session, reporter)
        if stuck is not None:
            return stuck
        observed = session.observe(facts=True)
        state = observed.services[service.name]
    live = state.live.release if state.live else None
    reporter.done(f"live: {live or 'nothing'}")

    reporter.step(Step.PLAN)
    target, why_not = rollback_target(state, to)
    if target is None:
        raise Refused(
            f"cannot roll back {service.name}: {why_not}; nothing was changed",
            phase=Step.PLAN,
            remedy="`deployer history` lists the releases and which of them were live",
        )
    trial = replace(read_trial(session, target["release"]), previous=target.get("previous"))
    made = make_plan(
        state, trial, healthy=state.running is not None and session.health(state).ok, comparable=comparable
    )
    made = replace(made, action="deploy", release=trial.release, interrupts=not state.at_rest)
    reporter.done(f"back to {trial.release} ({trial.profile})")
    consent.possible(made)

    reporter.step(Step.PREFLIGHT)
    against = objections(observed, session.host_config, service, trial, measured=False)
    if against:
        raise preflight_error(against)
    reporter.done("GPUs, port, engine, model and disk are fit")
    reporter.step(Step.VALIDATE)
    validate(session, trial, reporter)
    reporter.step(Step.CONSENT)
    if not consent.given(made):
        return Outcome(
            outcome="refused",
            service=service.name,
            profile=trial.profile,
            release=trial.release,
            previous=live,
            exit_code=2,
            message=f"nothing was changed; {live} is live on {service.name}",
        )
    reporter.done("agreed")
    outcome = Attempt(session, trial, reporter, proven=True).run()
    if outcome.outcome == "live":
        outcome.message = (
            f"rolled back: {trial.profile} is live on {service.name} again as release {trial.release}"
        )
    return outcome


def resume(session: Session, reporter: Reporter) -> Outcome:
    """Go on with a change that an operator left, in the step it is in."""
    service = session.service
    take_lease(session, reporter)
    state = session.state()
    if state.transition is None:
        live = state.live.release if state.live else None
        raise Refused(
            f"no change is under way on {service.name}, so there is nothing to resume; {live or 'nothing'} is live",
            remedy="`deployer apply PROFILE` begins one",
        )
    return resume_transition(session, state.transition, reporter)


def converge(session: Session, reporter: Reporter) -> Outcome:
    """Make the host equal to its live release and prove that it serves; ends a change that was left unfinished."""
    service = session.service
    take_lease(session, reporter)
    state = session.state()
    restored = converge_and_prove(session, reporter)
    profile = (state.manifest(restored.live) or {}).get("profile")
    return Outcome(
        outcome="live" if restored.serving else "down",
        service=service.name,
        profile=profile,
        release=restored.live,
        previous=restored.live,
        exit_code=0 if restored.serving else 6,
        message=restored.message,
    )
