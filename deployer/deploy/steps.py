"""The steps that change a host, one by one: each looks at the host first, does its part and names the next one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from deployer.bench.runner import Target, run_benchmark
from deployer.bench.server import sentences
from deployer.deploy.gating import GateCase, build_case, summary
from deployer.deploy.hooks import facts_of, report_hooks, run_hooks
from deployer.deploy.launch_progress import estimate
from deployer.deploy.reporter import Reporter, follow
from deployer.deploy.session import Session
from deployer.deploy.stop import stop_others, stop_unit
from deployer.deploy.verify import verify
from deployer.deploy.wait import Wait
from deployer.errors import AgentError, CandidateRejected, HookRefused
from deployer.records.answers import Started
from deployer.records.bench import BenchRun
from deployer.records.codec import encode
from deployer.records.effect import InEffect
from deployer.records.endpoint import Endpoint
from deployer.records.failure import Failure, PhaseTime
from deployer.records.host import Transition
from deployer.records.outcome import Drained
from deployer.records.release import Release
from deployer.records.step import Step
from deployer.records.verdict import Verdict

#: Lines of a start in which its reasons are looked for.
_LOG_LINES = 20_000


@dataclass
class Progress:
    """What a rollout has measured so far. ``phases`` are its steps and launch phases, ``timeline`` the launch alone."""

    started: Started | None = None
    phases: list[PhaseTime] = field(default_factory=list)
    timeline: tuple[PhaseTime, ...] = ()
    bench: BenchRun | None = None
    verdict: Verdict | None = None
    in_effect: InEffect | None = None
    drained: Drained | None = None
    notes: list[str] = field(default_factory=list)


@dataclass
class Steps:
    """One candidate on one host. ``before`` is the release that is live while it is tried.

    ``proven``: it was live before, so no benchmark. ``ask`` is asked about an inconclusive verdict, if the policy is
    to ask; None: nobody is there.
    """

    session: Session
    candidate: Release
    reporter: Reporter
    proven: bool = False
    ask: Callable[[Verdict], bool] | None = None
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        self.before = self.candidate.previous
        self._over = set[str]()
        self._handlers: dict[Step, Callable[[], Step]] = {
            Step.TRANSITION: self._transition,
            Step.STOP: self._stop,
            Step.SWITCH: self._switch,
            Step.WAIT: self._wait,
            Step.VERIFY: self._verify,
            Step.BENCH: self._bench,
            Step.PROMOTE: self._promote,
            Step.FINISH: self._finish,
        }

    @property
    def endpoint(self) -> Endpoint:
        """Where the candidate's server listens, with the key that it requires."""
        return self.session.endpoint(self.candidate, key=True)

    def perform(self, step: Step) -> Step:
        """Do one step and return the next. Raise CandidateRejected if the candidate is not good enough."""
        self.reporter.step(step)
        began = time.monotonic()
        following = self._handlers[step]()
        if step in (Step.STOP, Step.VERIFY, Step.BENCH):
            self.progress.phases.append(PhaseTime(step, round(time.monotonic() - began, 3)))
        elif step is Step.WAIT:
            self.progress.phases.extend(self.progress.timeline)
        return following

    def recall(self, step: Step) -> None:
        """Read from the host which release was live before, and what an earlier operator measured."""
        state = self.session.state()
        transition = state.transition_to(self.candidate.release)
        if transition is None:
            self.before = state.live_name
            return
        self.before = transition.from_
        if step not in (Step.TRANSITION, Step.STOP):
            self.progress.timeline = transition.timeline
            self.progress.phases = list(self.progress.timeline)

    def _ask_hook(self, event: str) -> str | None:
        facts = facts_of(self.session, event, self.candidate, self.before)
        return run_hooks(self.session.service.hooks, facts, self.reporter)

    def _after(self, event: str) -> None:
        """Run the hooks of a moment that is over, once: they do not run again when its step is repeated."""
        if event in self._over:
            return
        self._over.add(event)
        facts = facts_of(self.session, event, self.candidate, self.before)
        report_hooks(self.session.service.hooks, facts, self.reporter)

    def _transition(self) -> Step:
        # Here the old server still serves: a refusal leaves it alone.
        for event in ("before_stop", "before_start"):
            if complaint := self._ask_hook(event):
                raise HookRefused(f"{complaint}; nothing was changed", phase=Step.TRANSITION)
        # From here on the host's guard finishes this by itself if we do not.
        candidate, limits = self.candidate, self.session.limits
        # Where the release listens that the guard would go back to.
        endpoint = self.session.endpoint(self.session.state().release(self.before) or candidate)
        transition = Transition(
            to=candidate.release,
            from_=self.before,
            profile=candidate.profile,
            step=Step.STOP,
            grace=self.session.service.deadlines.grace,
            lease=self.session.service.deadlines.lease,
            port=endpoint.port,
            address=endpoint.address,
            drain=limits.drain,
            stop_timeout=limits.stop,
            ready_timeout=limits.ready,
            gpus=None if limits.gpus is None else tuple(limits.gpus),
            proven=self.proven,
            exclusive=self.session.exclusive,
        )
        self.session.client.transition_begin(candidate.service, transition)
        if not self.proven:
            self._patch({"state": "candidate"})
        self.reporter.done("recorded; the guard is watching")
        return Step.STOP

    def _patch(self, patch: Mapping[str, object], **files: object) -> None:
        """Write into the release: keys of its manifest, and JSON files by their names without the ending."""
        texts = {
            f"{name}.json": json.dumps(encode(data), indent=1, ensure_ascii=False) + "\n"
            for name, data in files.items()
        }
        self.session.client.release_update(self.candidate.service, self.candidate.release, patch=patch, files=texts)

    def _enter(self, step: Step, patch: Mapping[str, object] | None = None) -> Step:
        """Record that ``step`` begins, before it does."""
        self.session.client.transition_step(self.candidate.service, step, patch)
        return step

    def _stop(self) -> Step:
        state = self.session.state()
        if state.running_name == self.candidate.release:
            how = "the candidate runs already"
        elif state.at_rest:
            how = "nothing was running"
        else:
            stopped = stop_unit(self.session, state, self.reporter)
            seconds = round(stopped.seconds, 3)
            self.progress.drained = Drained(stopped.inflight, stopped.aborted, stopped.refused, seconds)
            how = str(stopped)
        others = stop_others(self.session, state, self.reporter)
        self.reporter.done("; ".join([how, *(f"{name} stopped and disabled" for name in others)]))
        self._after("after_stop")
        return self._enter(Step.SWITCH)

    def _switch(self) -> Step:
        candidate, running = self.candidate, self.session.state().running
        if running is not None and running.release == candidate.release:
            self.reporter.done(f"{candidate.release} runs already (pid {running.pid})")
            return self._enter(Step.WAIT)
        started = self.session.client.unit_start(candidate.service, candidate.release, candidate.candidate)
        # Not its time: the host keeps that in the transition, with the boot that it belongs to.
        self.progress.started = Started(started.invocation_id, started.cursor)
        self.reporter.done(f"{self.session.unit} started with {candidate.release}")
        return self._enter(Step.WAIT)

    def _wait(self) -> Step:
        result = Wait(
            self.session.client,
            self.endpoint,
            self.started(),
            self.session.service.deadlines,
            self.reporter.launch,
            estimate(self.session.state().releases, self.candidate.profile),
            self.session.model_bytes(self.candidate),
        ).run()
        self.progress.timeline = result.timeline
        if result.failure is not None:
            raise CandidateRejected(result.failure)
        parts = [f"{phase.name} {phase.seconds:.1f}" for phase in result.timeline if phase.seconds >= 0.1]
        self.reporter.done(f"ready after {result.seconds:.1f} s: {', '.join(parts)}")
        self._after("after_start")
        return self._enter(Step.VERIFY, {"timeline": result.timeline})

    def started(self) -> Started:
        """Return which start of the unit is ours: remembered, or as the host wrote it into the transition."""
        if self.progress.started is None:
            state = self.session.state()
            transition = state.transition
            self.progress.started = Started(
                (transition.invocation_id if transition else "") or state.unit.invocation_id,
                transition.cursor if transition else "",
            )
        return self.progress.started

    def _verify(self) -> Step:
        verification = verify(
            self.session.client,
            self.candidate,
            self.endpoint,
            self.started().invocation_id,
            advertised=self.session.service.advertised,
            learned=self.session.learned,
            log=self._start_log,
        )
        if verification.effective:
            self.progress.in_effect = verification.in_effect.summary
            self._patch({"in_effect": self.progress.in_effect}, in_effect=verification.in_effect)
        if not verification.ok:
            cause = "; ".join(verification.problems)
            raise CandidateRejected(Failure("not-in-effect", cause, Step.VERIFY, verification.remedy))
        self.reporter.done(verification.sentence())
        for note in verification.notes():
            self.reporter.note(note)
        return self._enter(Step.BENCH)

    def _start_log(self) -> list[str]:
        """Return what this start has printed; empty if the host cannot read its journal."""
        try:
            log = self.session.log(lines=_LOG_LINES, invocation_id=self.started().invocation_id)
            return [line.text for line in log if not line.piece and line.engine]
        except AgentError:
            return []

    def _bench(self) -> Step:
        if self.proven:
            why = f"{self.candidate.release} was proven when it first went live; not measured again"
            self.progress.verdict = Verdict("pass", (why,))
            self.reporter.done("proven before; not measured again")
            return self._enter(Step.PROMOTE)
        case = build_case(self.session, self.candidate, self.before)
        bench = self.progress.bench = run_benchmark(
            self.session.client,
            # The release's own key and endpoint count, whatever the inventory says by now.
            Target.of(self.session.service, self.endpoint),
            self.candidate.requested.bench,
            on_event=self.reporter.bench,
            baseline=case.reference,
            again=case.again,
            slots=self.progress.in_effect.slots if self.progress.in_effect else 1,
        )
        verdict = self.progress.verdict = case.verdict(bench)
        if verdict.result != "fail" and bench.unanswered:
            self._see_that_it_serves(bench, verdict)
        self._keep(bench, verdict)
        why = self._promoted_all_the_same(case, verdict, bench)
        if why:
            self.progress.verdict = replace(verdict, promoted=why)
            self._keep(bench, self.progress.verdict)
        elif verdict.result != "pass":
            failure = Failure(
                f"gate-{verdict.result}",
                "; ".join(verdict.reasons),
                Step.BENCH,
                case.remedy(verdict, self.candidate.profile, bench),
            )
            state = "inconclusive" if verdict.result == "inconclusive" else "failed"
            raise CandidateRejected(failure, state, verdict)
        self.reporter.done(why or verdict.summary or verdict.result)
        for text in (*verdict.reasons, *sentences(bench)):
            self.reporter.note(text)
        return self._enter(Step.PROMOTE)

    def _see_that_it_serves(self, bench: BenchRun, verdict: Verdict) -> None:
        """A server that left requests unanswered may hang. Raise CandidateRejected, with such a verdict, if it does."""
        health = self.session.health(self.session.state())
        if health.ok:
            return
        left = f"{bench.unanswered} requests of the benchmark were not answered"
        cause = f"{left}, and now it does not serve (/health: {health.status})"
        verdict = replace(verdict, result="fail", reasons=(cause, *verdict.reasons), summary=f"fail: {cause}")
        self.progress.verdict = verdict
        self._keep(bench, verdict)
        failure = Failure("gate-fail", cause, Step.BENCH, "`deployer logs` shows where it hung")
        raise CandidateRejected(failure, "failed", verdict)

    def _keep(self, bench: BenchRun, verdict: Verdict) -> None:
        """Write what was measured, and what came of it, into the release."""
        self._patch({"verdict": verdict, "bench_summary": summary(bench)}, bench=encode(bench))

    def _promoted_all_the_same(self, case: GateCase, verdict: Verdict, bench: BenchRun) -> str:
        """Return why an inconclusive benchmark is promoted (by the policy, or by the operator); empty if it is not."""
        policy = case.settings.inconclusive
        if policy == "refuse" or not case.may_promote(verdict, bench):
            return ""
        if policy == "promote":
            return 'promoted although the verdict is inconclusive (relative_gate.inconclusive = "promote")'
        agreed = self.ask is not None and self.ask(verdict)
        return "promoted although the verdict is inconclusive: agreed at the terminal" if agreed else ""

    def _promote(self) -> Step:
        candidate = self.candidate
        if complaint := self._ask_hook("before_promote"):
            raise CandidateRejected(Failure("hook", complaint, Step.PROMOTE, HookRefused.default_remedy))
        self.session.client.promote(
            candidate.service,
            candidate.release,
            candidate.unit,
            expect_live=self.before,
            expect_invocation=self.started().invocation_id,
        )
        self.reporter.done(f"{candidate.release} is the live release")
        return self._enter(Step.FINISH)

    def _finish(self) -> Step:
        self._after("after_promote")  # here, so that a connection lost behind the promotion does not skip it
        client, candidate = self.session.client, self.candidate
        state = self.session.state()
        patch: dict[str, object] = {
            "state": "live",
            "was_live": True,
            "failure": None,
            "invocation_id": self.started().invocation_id,
        }
        release = state.release(candidate.release)
        if release is None or release.state != "live":
            patch["promoted"] = time.time()
        if self.progress.timeline:
            patch["timeline"] = self.progress.timeline
        if self.progress.verdict and not self.proven:
            patch["verdict"] = self.progress.verdict
        self._patch(patch)
        endpoint = self.session.endpoint(state.live_release)
        with client.converge(endpoint, self.session.limits, repair=False) as stream:
            converged = follow(stream, self.reporter)
        notes = self.progress.notes
        if not converged.serving:
            notes.append("after promotion the server did not answer /health; see `deployer status`")
        client.transition_end(candidate.service)
        fragment = self.session.state().unit.fragment
        if not fragment.startswith("/usr/local/lib/"):
            notes.append(f"the unit in force is {fragment}, not the live one: move it away")
        if removed := client.prune(candidate.service, keep=20):
            notes.append(f"pruned {len(removed)} old releases")
        self.reporter.done("converged, without a restart")
        return Step.DONE
