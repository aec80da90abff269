"""`rollback`, `resume` and `converge`: the ways back, and the way on."""

from __future__ import annotations

from dataclasses import replace

from deployer.deploy.apply import (
    Consent,
    make_equal,
    planned,
    preflight,
    read_release,
    refusal,
    resume_transition,
    summary,
    take_lease,
    take_up,
)
from deployer.deploy.drift import differences, proof_differences
from deployer.deploy.plan import make_plan, rollback_target
from deployer.deploy.preflight import objections, overruled, restart_objections
from deployer.deploy.reporter import Reporter
from deployer.deploy.restore import converge_and_prove
from deployer.deploy.rollout import Rollout
from deployer.deploy.session import Session
from deployer.deploy.steps import Steps
from deployer.deploy.traffic import with_traffic
from deployer.deploy.validate import validate
from deployer.errors import Refused
from deployer.records.drift import Difference
from deployer.records.host import HostState
from deployer.records.outcome import Outcome, Plan
from deployer.records.step import Step


def rollback(session: Session, reporter: Reporter, consent: Consent, *, to: int | None = None) -> Outcome:
    """Put a release that was live before back in its place: started and verified like a candidate, then promoted.

    It was measured when it first went live, so it is not benchmarked again. If it does not come up, the release that
    is live now is restored.
    """
    service = session.service
    start = take_up(session, reporter)
    if isinstance(start, Outcome):
        return start
    observed, probe = start
    state = observed.services[service.name]

    reporter.step(Step.PLAN)
    target, why_not = rollback_target(state, to)
    if target is None:
        raise Refused(
            f"cannot roll back {service.name}: {why_not}; nothing was changed",
            phase=Step.PLAN,
            remedy="`deployer history` lists the releases and which of them were live"
            if state.releases
            else "`deployer apply PROFILE` puts a first release live",
        )
    release = replace(read_release(session, target.release), previous=target.previous)
    plan = planned(session, release, observed, probe)
    plan = replace(plan, action="deploy", release=release.release, restart=True, strays=state.strays)
    plan = with_traffic(session, replace(plan, interrupts=bool(plan.displaces) or not state.at_rest), state)
    reporter.done(f"back to {release.release} ({release.profile})")
    for difference in (*plan.differences, *proof_differences(release, observed)):
        reporter.note(str(difference))
    consent.possible(plan)

    reporter.step(Step.PREFLIGHT)
    preflight(objections(observed, session.host_config, service, release, measured=False), reporter)
    reporter.step(Step.VALIDATE)
    validate(session, release, reporter)
    if refused := refusal(plan, reporter, consent):
        return refused
    outcome = Rollout(Steps(session, release, reporter, proven=True)).run()
    if outcome.outcome != "live":
        return outcome
    message = f"rolled back: {release.profile} is live on {service.name} again as release {release.release}"
    return replace(outcome, message=message)


def resume(session: Session, reporter: Reporter) -> Outcome:
    """Go on with a change that an operator left, in the step it is in."""
    take_lease(session, reporter)
    state = session.state()
    if state.transition is None:
        live = state.live_name or "nothing"
        raise Refused(
            f"no change is under way on {session.service.name}, so there is nothing to resume; {live} is live",
            remedy="`deployer apply PROFILE` begins one",
        )
    return resume_transition(session, state.transition, reporter)


def converge(session: Session, reporter: Reporter, consent: Consent) -> Outcome:
    """Make the host equal to its live release, prove that it serves, and end a change that was left unfinished.

    A server that serves is started again only if it runs something else than its release, and after consent.
    """
    take_lease(session, reporter)
    reporter.step(Step.OBSERVE)
    observed = session.observe(facts=True)
    state = observed.services[session.service.name]
    reporter.done(f"live: {state.live_name or 'nothing'}")
    # A hung server is found out, and started again, by the host itself.
    plan = equal_plan(session, observed, healthy=True)
    if plan is None or state.transition is not None:
        restored = converge_and_prove(session, reporter)
        profile = plan.profile if plan else None
        return restored.outcome("live", session.service.name, profile, restored.live, restored.live)
    reporter.step(Step.PLAN)
    if state.running is not None:  # one that is down is brought up, whatever it then runs
        against = restart_objections(observed, session.host_config, session.service) if plan.interrupts else None
        if against or (against := list(overruled(session.service, state))):
            reporter.done(summary(plan))
            preflight(against, reporter)
    return make_equal(session, plan, reporter, consent)


def converge_plan(session: Session) -> Plan:
    """Return what `converge` would do, without a lease and without changing anything."""
    probe = session.health_probe()
    observed = session.observe(facts=True)
    state = observed.services[session.service.name]
    plan = equal_plan(session, observed, healthy=probe.result(state).ok)
    if plan is None:
        raise Refused(
            f"no release is live on {session.service.name}, so there is nothing to be equal to",
            remedy="`deployer apply PROFILE` makes one live; `deployer converge` ends a change that was left",
        )
    if (left := state.transition) is None:
        return plan
    undone = Difference("transition", f"a change to {left.to} was left at the step '{left.step}'", converges=True)
    return replace(plan, action="converge", differences=(undone, *plan.differences))


def equal_plan(session: Session, observed: HostState, *, healthy: bool) -> Plan | None:
    """Return how the host is made equal to its live release; None if there is none, or its folder is gone.

    Consent is needed if what serves has to be started again, or old processes have to be ended.
    """
    service = session.service.name
    state = observed.services[service]
    if (live := state.live_release) is None:
        return None
    if state.transition is None and state.at_rest and (others := session.displaced()):
        raise Refused(
            f"{' and '.join(others)} runs on the GPUs or the port of {service}, which is therefore not started",
            remedy=f"`deployer apply {live.profile} -s {service}` stops and disables it, with a way back",
        )
    found = differences(service, observed)
    plan = make_plan(state, live, healthy=healthy, differences=found, host=session.host_config.name)
    interrupts = bool(plan.restart_reasons or plan.strays) and not state.at_rest
    return with_traffic(session, replace(plan, interrupts=interrupts), state)
