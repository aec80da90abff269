"""The steps that change a host, one by one: each looks at the host first, does its part and names the next one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from deployer.bench.gate import Verdict, unanswered
from deployer.bench.load.server import sentences
from deployer.bench.runner import run_benchmark
from deployer.config.inventory import ServiceConfig
from deployer.deploy.figures import earlier_start, summary
from deployer.deploy.gating import Case, build_case
from deployer.deploy.host_events import converge_arguments, describe_bench_event, drain
from deployer.deploy.model import Json, Step, Trial, TrialFailed, failure_document
from deployer.deploy.plan import endpoint
from deployer.deploy.reporter import Reporter
from deployer.deploy.service_log import start_log
from deployer.deploy.session import Session
from deployer.deploy.stop import stop_unit
from deployer.deploy.verify import verify
from deployer.deploy.wait import WaitResult, wait_ready


@dataclass
class Progress:
    """What an attempt has measured so far."""

    started: Json = field(default_factory=dict)
    phases: list[Json] = field(default_factory=list)
    timeline: list[Json] = field(default_factory=list)
    bench: Json | None = None
    verdict: Json | None = None
    in_effect: Json | None = None
    notes: list[str] = field(default_factory=list)


class Steps:
    """One trial on one host. ``before`` is the release that is live while it is tried."""

    def __init__(
        self,
        session: Session,
        trial: Trial,
        reporter: Reporter,
        *,
        proven: bool,
        ask: Callable[[Json], bool] | None = None,
    ) -> None:
        self.session = session
        self.trial = trial
        self.reporter = reporter
        self.proven = proven
        self.ask = ask
        self.before = trial.previous
        self.address, self.port = endpoint(trial.argv, (session.service.bind, session.service.port))
        self.progress = Progress()
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
    def service(self) -> ServiceConfig:
        return self.session.service

    @property
    def api_key(self) -> str | None:
        """The key that the trial's server wants."""
        return self.session.api_key(self.trial.release)

    def perform(self, step: Step) -> Step:
        """Do one step and return the next. TrialFailed where the candidate is not good enough."""
        self.reporter.step(step)
        began = time.monotonic()
        following = self._handlers[step]()
        if step in (Step.STOP, Step.VERIFY, Step.BENCH):
            self.progress.phases.append({"name": str(step), "seconds": round(time.monotonic() - began, 3)})
        elif step is Step.WAIT:
            self.progress.phases.extend(self.progress.timeline)
        return following

    def recall(self, step: Step) -> None:
        """What the host tells of this attempt: which release was live, what an earlier operator measured."""
        state = self.session.state()
        if state.transition is None or state.transition.to != self.trial.release:
            self.before = state.live.release if state.live else None
            return
        self.before = state.transition.from_
        if step not in (Step.TRANSITION, Step.STOP):
            self.progress.timeline = list(state.transition.raw.get("timeline") or ())
            self.progress.phases = list(self.progress.timeline)

    def _transition(self) -> Step:
        """Write the intent to disk and start the guard: from here on the host finishes this by itself if we do not."""
        service, trial = self.service, self.trial
        # Where the release listens that the guard would go back to.
        address, port = self.session.endpoint(self.session.state(), self.before or trial.release)
        self.session.client.transition_begin(
            service.name,
            {
                "from": self.before,
                "to": trial.release,
                "profile": trial.profile,
                "step": str(Step.STOP),
                "grace": service.deadlines.grace,
                "port": port,
                "address": address,
                "drain": service.deadlines.drain,
                "stop_timeout": service.deadlines.stop,
                "ready_timeout": service.deadlines.start,
                "gpus": service.gpus,
                "proven": self.proven,
            },
        )
        if not self.proven:
            self.session.client.release_update(service.name, trial.release, patch={"state": "candidate"})
        self.reporter.done("recorded; the guard watches")
        return Step.STOP

    def _enter(self, step: Step, patch: Json | None = None) -> Step:
        """Write down that ``step`` begins, before it does."""
        self.session.client.transition_step(self.trial.service, str(step), patch)
        return step

    def _stop(self) -> Step:
        state = self.session.state()
        if state.running is not None and state.running.release == self.trial.release:
            self.reporter.done("the candidate runs already")
            return self._enter(Step.SWITCH)
        if state.at_rest:
            self.reporter.done("nothing was running")
            return self._enter(Step.SWITCH)
        stopped = stop_unit(self.session, state, self.reporter)
        self.reporter.done(stopped)
        return self._enter(Step.SWITCH)

    def _switch(self) -> Step:
        state = self.session.state()
        running = state.running
        if running is not None and running.release == self.trial.release:
            self.reporter.done(f"{self.trial.release} runs already (pid {running.pid})")
            return self._enter(Step.WAIT)
        started = self.session.client.unit_start(self.trial.service, self.trial.release, self.trial.candidate)
        self.progress.started = {"invocation_id": started.invocation_id, "cursor": started.cursor}
        self.reporter.done(f"{self.session.unit} started with {self.trial.release}")
        return self._enter(Step.WAIT)

    def _wait(self) -> Step:
        result = self._watch()
        self.progress.timeline = result.timeline
        if not result.ready:
            failure = result.failure
            assert failure is not None, "a wait that is not ready names its failure"
            raise TrialFailed(
                failure_document(
                    failure.signature,
                    failure.cause,
                    phase=failure.phase,
                    remedy=failure.remedy,
                    log_tail=result.log_tail,
                    evidence=failure.evidence,
                )
            )
        parts = [
            f"{item['name']} {item['seconds']:.1f}" for item in result.timeline if item["seconds"] >= 0.1
        ]
        self.reporter.done(f"ready after {result.seconds:.1f} s: {', '.join(parts)}")
        return self._enter(Step.VERIFY, {"timeline": result.timeline})

    def _watch(self) -> WaitResult:
        started = self.started()
        timeline, source = earlier_start(self.session.state().releases, self.trial.profile) or (None, None)
        return wait_ready(
            self.session.client.host,
            service=self.trial.service,
            port=self.port,
            address=self.address,
            started=started,
            stall=self.service.deadlines.stall,
            deadline=self.service.deadlines.start,
            on_update=self.reporter.launch,
            api_key=self.api_key,
            estimate=timeline,
            estimate_from=source,
            model_bytes=self.session.model_bytes(self.trial.argv),
        )

    def started(self) -> Json:
        """Which start of the unit is ours: remembered, or as the host wrote it into the transition."""
        if not self.progress.started:
            state = self.session.state()
            known = state.transition.raw if state.transition else {}
            self.progress.started = {
                "invocation_id": known.get("invocation_id") or state.unit.invocation_id,
                "cursor": known.get("cursor") or "",
            }
        return self.progress.started

    def _verify(self) -> Step:
        checked = verify(
            self.session.client.host,
            service=self.trial.service,
            bundle_requested=self.trial.requested,
            invocation_id=str(self.started()["invocation_id"]),
            port=self.port,
            address=self.address,
            advertised=self.service.advertised,
            api_key=self.api_key,
            allow_changed=self.trial.allow_changed,
            version=self.trial.sglang,
            learned=self.session.learned,
            log=lambda: start_log(self.session, str(self.started()["invocation_id"])),
        )
        if checked.effective:
            self.progress.in_effect = checked.summary()
            self.session.client.release_update(
                self.trial.service,
                self.trial.release,
                patch={"in_effect": self.progress.in_effect},
                files={"in_effect.json": json.dumps(checked.details(), indent=1, ensure_ascii=False) + "\n"},
            )
        if not checked.ok:
            cause = "; ".join(checked.problems)
            raise TrialFailed(failure_document("not-in-effect", cause, phase="verify", remedy=checked.remedy))
        self.reporter.done(checked.sentence())
        for note in checked.notes():
            self.reporter.note(note)
        return self._enter(Step.BENCH)

    def _bench(self) -> Step:
        if self.proven:
            self.progress.verdict = {
                "result": "pass",
                "reasons": [f"{self.trial.release} was proven when it first went live; not measured again"],
            }
            self.reporter.done("proven before; not measured again")
            return self._enter(Step.PROMOTE)
        case = build_case(self.session, self.trial, self.before)
        earlier = [*case.baseline, *([case.beside[1]] if case.beside else [])]
        bench = run_benchmark(
            self.session.client.host,
            # The release's own key and endpoint count, whatever the inventory says by now.
            self.service.model_copy(update={"api_key": None, "bind": self.address, "port": self.port}),
            self.trial.bench,
            on_event=lambda event: self.reporter.progress(describe_bench_event(event)),
            api_key=self.api_key,
            baseline=earlier[0] if earlier else None,
            again=case.again,
            slots=((self.progress.in_effect or {}).get("computed") or {}).get("slots") or 1,
        )
        self.progress.bench = bench
        verdict = case.verdict(bench)
        document = self.progress.verdict = case.document(verdict)
        if verdict.result != "fail" and unanswered(bench):
            self._see_that_it_serves(bench, document)
        self._keep(bench, document)
        why = self._promoted_all_the_same(case, verdict, bench)
        if why:
            document["promoted"] = why
            self._keep(bench, document)
        elif verdict.result != "pass":
            failure = failure_document(
                f"gate-{verdict.result}",
                "; ".join(verdict.reasons),
                phase="bench",
                remedy=case.remedy(verdict, self.trial.profile, bench),
            )
            state = "inconclusive" if verdict.result == "inconclusive" else "failed"
            raise TrialFailed(failure, state, document)
        self.reporter.done(why or document["summary"])
        for said in (*verdict.reasons, *sentences(bench)):
            self.reporter.note(said)
        return self._enter(Step.PROMOTE)

    def _see_that_it_serves(self, bench: Json, verdict: Json) -> None:
        """A server that left requests unanswered may hang. TrialFailed, with a verdict that says so, where it does."""
        health = self.session.health(self.session.state())
        if health.ok:
            return
        left = f"{unanswered(bench)} requests of the benchmark were not answered"
        cause = f"{left}, and now it does not serve (/health: {health.status})"
        verdict.update(result="fail", reasons=[cause, *verdict["reasons"]], summary=f"fail: {cause}")
        self._keep(bench, verdict)
        raise TrialFailed(
            failure_document("gate-fail", cause, phase="bench", remedy="`deployer logs` shows where it hung"),
            "failed",
            verdict,
        )

    def _keep(self, bench: Json, verdict: Json) -> None:
        """Write what was measured, and what came of it, into the release."""
        self.session.client.release_update(
            self.trial.service,
            self.trial.release,
            patch={"verdict": verdict, "bench_summary": summary(bench)},
            files={"bench.json": json.dumps(bench, indent=1, ensure_ascii=False) + "\n"},
        )

    def _promoted_all_the_same(self, case: Case, verdict: Verdict, bench: Json) -> str:
        """Why a benchmark that cannot tell is promoted: by the policy or by who was asked; empty where it is not."""
        policy = case.settings.inconclusive
        if policy == "refuse" or not case.may_promote(verdict, bench):
            return ""
        if policy == "promote":
            return 'promoted although it cannot be told (relative_gate.inconclusive = "promote")'
        agreed = self.ask is not None and self.ask(self.progress.verdict or {})
        return "promoted although it cannot be told: agreed at the terminal" if agreed else ""

    def _promote(self) -> Step:
        started = self.started()
        self.session.client.promote(
            self.trial.service,
            self.trial.release,
            self.trial.unit,
            expect_live=self.before,
            expect_invocation=str(started["invocation_id"]),
        )
        self.reporter.done(f"{self.trial.release} is the live release")
        return self._enter(Step.FINISH)

    def _finish(self) -> Step:
        client, trial = self.session.client, self.trial
        patch: Json = {"state": "live", "was_live": True, "failure": None}
        state = self.session.state()
        if (state.manifest(trial.release) or {}).get("state") != "live":
            patch["promoted"] = time.time()
        if self.progress.timeline:
            patch["timeline"] = self.progress.timeline
        if self.progress.verdict and not self.proven:
            patch["verdict"] = self.progress.verdict
        patch["invocation_id"] = self.started().get("invocation_id")
        client.release_update(trial.service, trial.release, patch=patch)
        with client.converge(**converge_arguments(self.session, state), repair=False) as stream:
            converged = drain(stream, self.reporter)
        if not converged.get("serving", True):
            self.progress.notes.append(
                "after promotion the server did not answer /health; see `deployer status`"
            )
        client.transition_end(trial.service)
        fragment = self.session.state().unit.fragment
        if not fragment.startswith("/usr/local/lib/"):
            self.progress.notes.append(f"the unit in force is {fragment}, not the live one: move it away")
        removed = client.prune(trial.service, keep=20)
        if removed:
            self.progress.notes.append(f"pruned {len(removed)} old releases")
        self.reporter.done("converged, without a restart")
        return Step.DONE
