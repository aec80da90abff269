"""`apply`: the steps from connecting to the recorded transition; what follows is `rollout`."""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from deployer.config.profile import Profile, effective_bench, effective_gate, effective_relative_gate
from deployer.deploy.changes import engine_ref
from deployer.deploy.drift import differences
from deployer.deploy.engine_preflight import ENGINE_REMEDY, engine_complaint, engine_notes
from deployer.deploy.facts import with_host
from deployer.deploy.hooks import keep_on_host
from deployer.deploy.outcomes import DRIFT, EXIT_CODES
from deployer.deploy.plan import make_plan
from deployer.deploy.preflight import needed_gpus, notes, objections, overruled, restart_objections
from deployer.deploy.reporter import Reporter
from deployer.deploy.restore import converge_and_prove
from deployer.deploy.rollout import Rollout
from deployer.deploy.saved_plan import basis, refuse_moved
from deployer.deploy.session import HealthProbe, Session
from deployer.deploy.steps import Steps
from deployer.deploy.traffic import with_traffic
from deployer.deploy.validate import ask_engine, validate
from deployer.errors import AgentError, PreflightRefused
from deployer.records.codec import Json, encode
from deployer.records.host import HostState, Transition
from deployer.records.outcome import Objection, Outcome, Plan, SavedPlan
from deployer.records.release import ModelRef, Release, Requested
from deployer.records.step import RESUMABLE, Step
from deployer.records.verdict import Verdict
from deployer.sglang.rules import Facts, judge
from deployer.text import count_of
from deployer.units.bundle import Bundle, build_bundle

#: Objections with which SGLang cannot judge arguments.
ANSWERLESS = frozenset({"engine-missing", "sglang-missing", "model-missing", "model-config-missing"})


class Consent(Protocol):
    """Somebody who agrees to the restart of what is live, or does not."""

    def possible(self, plan: Plan) -> None:
        """Raise ConsentRequired if consent is needed and there is nobody to ask."""

    def given(self, plan: Plan) -> bool:
        """Show the plan, ask, and return the answer; True without asking if nothing live is interrupted."""

    def unclear(self, verdict: Verdict) -> bool:
        """Show an inconclusive verdict and ask whether to promote anyway; False if there is nobody to ask."""


@dataclass(frozen=True)
class Preview:
    """A profile rendered for a host, and what an apply of it would do and meet there.

    ``files`` are staged with the release; they may hold secrets.
    """

    release: Release
    files: Mapping[str, Mapping[str, Any]] = field(repr=False)
    plan: Plan
    objections: tuple[Objection, ...]
    notes: tuple[str, ...]
    saved: SavedPlan

    def as_json(self) -> Json:
        """Return the document of ``plan --json`` (docs/cli.md)."""
        return self.plan.as_json() | {"objections": encode(self.objections), "notes": list(self.notes)}


def preview(session: Session, profile: Profile) -> Preview:
    """Look and compare, without a lease and without changing anything."""
    probe = session.health_probe()
    observed = session.observe(facts=True)
    prepared = prepare(session, profile, observed, probe)
    if prepared.plan.action != "deploy" or ANSWERLESS & {item.code for item in prepared.objections}:
        return prepared
    release, against = prepared.release, prepared.objections
    answer = ask_engine(session, release, observed)
    if answer.verdict == "refused":
        against += (Objection("engine-refuses", engine_complaint(answer, release.sglang), ENGINE_REMEDY),)
    return replace(prepared, objections=against, notes=(*prepared.notes, *engine_notes(answer, release)))


def planned(session: Session, release: Release, observed: HostState, probe: HealthProbe) -> Plan:
    """Compare ``release`` with what runs on the host as it was observed."""
    service = session.service.name
    state = observed.services[service]
    return make_plan(
        state,
        release,
        healthy=probe.result(state).ok,
        differences=differences(service, observed),
        displaces=session.displaced(),
        host=session.host_config.name,
    )


def prepare(session: Session, profile: Profile, observed: HostState, probe: HealthProbe) -> Preview:
    """Render ``profile`` for the host as it was observed, and compare it with what runs there."""
    service, host = session.service, session.host_config
    release, bundle = render_release(session, profile, observed)
    state = observed.services[service.name]
    plan = with_traffic(session, planned(session, release, observed, probe), state)
    facts = Facts.of(profile, service, host, release.sglang, session.learned)
    findings = judge(with_host(facts, observed)).findings
    if plan.action == "deploy":
        against = objections(observed, host, service, release, findings)
    elif plan.restart:
        against = restart_objections(observed, host, service)
    else:
        against = list(overruled(service, state))
    return Preview(
        release,
        bundle.files,
        plan,
        tuple(against),
        (*bundle.notes, *notes(observed, service, findings)),
        SavedPlan(host.name, time.time(), plan, basis(plan, release, observed)),
    )


def render_release(session: Session, profile: Profile, observed: HostState) -> tuple[Release, Bundle]:
    """Return the release of ``profile`` for the host as it was observed, and the bundle that it was made of."""
    service = session.service
    state = observed.services[service.name]
    number = state.next_number
    name = f"{number:04d}-{profile.name}"
    version = observed.engine.sglang if observed.engine else None
    bundle = build_bundle(
        service,
        session.host_config,
        profile,
        version,
        name,
        templates=session.templates,
        learned=session.learned,
    )
    release = Release(
        service=service.name,
        release=name,
        number=number,
        profile=profile.name,
        previous=state.live_name,
        created=time.time(),
        operator=f"{getpass.getuser()}@{socket.gethostname()}",
        argv=tuple(bundle.argv),
        environment=dict(bundle.environment),
        restart_keys=dict(bundle.restart_keys),
        sglang=version,
        ready_timeout=session.limits.ready,
        engine=engine_ref(observed.engine),
        model=ModelRef(service.model, observed.model.fingerprint if observed.model else None),
        requested=Requested(
            arguments=dict(bundle.requested),
            allow_changed=tuple(profile.verify.allow_changed),
            bench=effective_bench(service, profile).model_dump(),
            gate=effective_gate(service, profile),
            relative_gate=effective_relative_gate(service, profile).model_dump(),
        ),
        unit=bundle.unit,
        candidate=bundle.candidate,
    )
    return replace(release, gpus=needed_gpus(observed, service, release)), bundle


def apply(
    session: Session, profile: Profile, reporter: Reporter, consent: Consent, *, saved: SavedPlan | None = None
) -> Outcome:
    """Make ``profile`` live on the session's service, or leave the host as it was and say why.

    ``saved``: only if that plan still holds.
    """
    service = session.service
    start = take_up(session, reporter, profile.name)
    if isinstance(start, Outcome):
        return start
    observed, probe = start

    reporter.step(Step.PLAN)
    prepared = prepare(session, profile, observed, probe)
    release, plan = prepared.release, prepared.plan
    if saved is not None:
        refuse_moved(saved, prepared.saved)
    if plan.action != "deploy":
        return stay(session, prepared, reporter, consent)
    reporter.done(summary(plan))
    for difference in plan.differences:
        reporter.note(str(difference))
    consent.possible(plan)

    reporter.step(Step.PREFLIGHT)
    for note in prepared.notes:
        reporter.note(note)
    preflight(prepared.objections, reporter)
    stage(session, prepared, reporter)
    agreed = False
    try:
        reporter.step(Step.VALIDATE)
        validate(session, release, reporter, observed)
        refused = refusal(plan, reporter, consent)
        agreed = refused is None
    finally:
        if not agreed:
            # Nothing refers to its folder, so it does not matter if the disk is full.
            with suppress(AgentError):
                session.client.release_update(service.name, release.release, patch={"state": "abandoned"})
    return refused or Rollout(Steps(session, release, reporter, ask=consent.unclear)).run()


def stay(session: Session, prepared: Preview, reporter: Reporter, consent: Consent) -> Outcome:
    """End an apply whose release is live already: the host is made equal to it, if it is not."""
    plan, service = prepared.plan, session.service.name
    if prepared.objections:
        reporter.done(summary(plan))
        preflight(prepared.objections, reporter)
    if plan.action == "nothing":
        reporter.done(f"{plan.profile} is live as {plan.live} and healthy; nothing to change")
        return Outcome(
            "unchanged",
            service,
            plan.profile,
            plan.live,
            prepared.release.previous,
            message=f"{plan.profile} is live already as release {plan.live} and healthy; nothing was changed",
            notes=tuple(map(str, plan.differences)),
        )
    return make_equal(session, plan, reporter, consent)


def make_equal(session: Session, plan: Plan, reporter: Reporter, consent: Consent) -> Outcome:
    """Make the host equal to its live release, as the plan says, after consent to a restart."""
    reporter.done(summary(plan))
    for difference in plan.differences:
        reporter.note(str(difference))
    consent.possible(plan)
    if plan.interrupts and (refused := refusal(plan, reporter, consent)):
        return refused
    restored = converge_and_prove(session, reporter, restart=plan.restart_reasons)
    outcome = restored.outcome("live", plan.service, plan.profile, restored.live, plan.live)
    left = differences(plan.service, session.observe(facts=True)) if restored.serving else ()
    if any(item.converges for item in left):
        text = f"{outcome.message}, but the host still differs from it: does somebody else change it?"
        outcome = replace(outcome, message=text, exit_code=DRIFT)
    return replace(outcome, notes=tuple(map(str, left)))


def take_up(
    session: Session, reporter: Reporter, profile: str | None = None
) -> tuple[HostState, HealthProbe] | Outcome:
    """Take the lease, observe the host, and end a change that an operator left there.

    An unfinished change to ``profile`` is gone on with, any other is undone. Return the outcome if that ends the
    command, else the host as it then is.
    """
    session.begin_health()
    take_lease(session, reporter)
    probe = session.health_probe()
    reporter.step(Step.OBSERVE)
    observed = session.observe(facts=True)
    state = observed.services[session.service.name]
    version = (observed.engine.sglang if observed.engine else None) or "unknown"
    reporter.done(f"live: {state.live_name or 'nothing yet'}; SGLang {version}")
    left = state.transition
    if left is None:
        return observed, probe
    reporter.note(f"A change to {left.to} was left at the step '{left.step}'")
    if left.profile == profile and left.step in RESUMABLE:
        return resume_transition(session, left, reporter)
    restored = converge_and_prove(session, reporter)
    if (stuck := session.state().transition) is not None:
        return restored.outcome("down", session.service.name, stuck.profile, stuck.to, restored.live)
    probe = session.health_probe()
    return session.observe(facts=True), probe


def take_lease(session: Session, reporter: Reporter) -> None:
    """Take the exclusive right to change the host, kept alive from here on. Raise LeaseHeld or OnHold."""
    reporter.step(Step.LEASE)
    session.take_lease(reporter.progress)
    keep_on_host(session, reporter)
    reporter.done(f"{session.host_config.name} is reserved for this command")


def summary(plan: Plan) -> str:
    """Return a plan in a few words."""
    if plan.action == "nothing":
        return f"{plan.live} is live, and the host is equal to it"
    if plan.action == "converge":
        count = count_of(len(plan.differences), "difference")
        how = "it has to be started again" if plan.restart else "no restart is needed"
        return f"{plan.live} is live; {count} on the host: {how}"
    if plan.live is None:
        return f"the first release: {count_of(len(plan.changes), 'setting')}"
    return f"{count_of(len(plan.changes), 'change')} against {plan.live}: a restart is needed"


def preflight(against: Sequence[Objection], reporter: Reporter) -> None:
    """End the step if nothing speaks against the change. Raise PreflightRefused with all objections."""
    if not against:
        reporter.done("GPUs, port, engine, model and disk are fit")
        return
    lines = "\n".join(f"  - {item.message}\n    remedy: {item.remedy}" for item in against)
    raise PreflightRefused(
        f"the host is not fit for this profile ({count_of(len(against), 'objection')}); nothing was changed:\n{lines}",
        phase=Step.PREFLIGHT,
        remedy="remove the objections and apply again",
        detail={"objections": [item.as_json() for item in against]},
    )


def stage(session: Session, prepared: Preview, reporter: Reporter) -> None:
    """Put the release on the host: an unused folder until something refers to it."""
    reporter.step(Step.STAGE)
    try:
        path = session.client.stage(prepared.release, prepared.files, user=session.service.user)
    except AgentError as error:
        if error.code == "no-user":
            remedy = f"create it, or correct services.{session.service.name}.user"
            preflight([Objection("no-user", error.message, remedy)], reporter)
        raise
    reporter.done(path)


def refusal(plan: Plan, reporter: Reporter, consent: Consent) -> Outcome | None:
    """Ask for consent and end the step if it is given; else return the outcome."""
    reporter.step(Step.CONSENT)
    if consent.given(plan):
        reporter.done("agreed" if plan.interrupts else "nothing live is interrupted")
        return None
    return Outcome(
        "refused",
        plan.service,
        plan.profile,
        plan.release,
        plan.live,
        exit_code=EXIT_CODES["refused"],
        message=f"nothing was changed; {plan.live or 'nothing'} is live on {plan.service}",
    )


def resume_transition(session: Session, transition: Transition, reporter: Reporter) -> Outcome:
    """Go on with a transition in the step it is in; one that was being restored is restored."""
    release = replace(read_release(session, transition.to), previous=transition.from_)
    if not release.provable:
        reporter.note(f"The manifest of {release.release} is damaged: what it has to show is not known")
    if transition.step not in RESUMABLE or not release.provable:
        restored = converge_and_prove(session, reporter)
        return restored.outcome("rolled_back", release.service, release.profile, release.release, restored.live)
    reporter.note(f"Going on with {release.release} at the step '{transition.step}'")
    steps = Steps(session, release, reporter, proven=transition.proven)
    return Rollout(steps).run(Step(transition.step))


def read_release(session: Session, name: str) -> Release:
    """Return a staged release from the host, with its unit texts."""
    try:
        release, files = session.client.release_read(session.service.name, name, ["unit", "unit.candidate"])
    except AgentError as error:
        raise AgentError(
            error.code,
            f"release {name} cannot be read on the host: {error.message}",
            remedy="see `deployer history` for the releases that are there",
        ) from error
    return replace(release, unit=files["unit"] or "", candidate=files["unit.candidate"] or "")
