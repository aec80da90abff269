"""From the recorded transition to a live release: stop, switch, wait, verify, benchmark, promote, finish.

A state machine: each step looks at the host first, does its part and names the next one. Everything it needs is on the
host (the release and the transition), so `apply`, `rollback` and `resume` all enter here, at the step they are in.
Whatever goes wrong leads to `restore`, which ends with the live release serving again or says that nothing does.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from deployer.bench.gate import evaluate
from deployer.bench.runner import run_benchmark
from deployer.config.inventory import ServiceConfig
from deployer.deploy.ending import explain_death, stop_unit
from deployer.deploy.figures import estimate, summary
from deployer.deploy.following import converge_arguments, describe_bench_event, drain
from deployer.deploy.model import Json, Outcome, Step, Trial, TrialFailed, failure_document
from deployer.deploy.reporter import Reporter
from deployer.deploy.restore import Restored, restore
from deployer.deploy.session import Session
from deployer.deploy.verify import verify
from deployer.deploy.wait import WaitResult, wait_ready
from deployer.errors import ChannelLost, DeployerError, LeaseLost, WorldMoved
from deployer.host.state import ServiceState


@dataclass
class Progress:
    """What an attempt has measured so far."""

    started: Json = field(default_factory=dict)
    phases: list[Json] = field(default_factory=list)
    timeline: list[Json] = field(default_factory=list)
    bench: Json | None = None
    verdict: Json | None = None
    notes: list[str] = field(default_factory=list)


class Attempt:
    """One trial on one host, from any step of a transition on."""

    def __init__(self, session: Session, trial: Trial, reporter: Reporter, *, benchmark: bool = True) -> None:
        self.session = session
        self.trial = trial
        self.reporter = reporter
        self.benchmark = benchmark
        self.progress = Progress()
        self.step = Step.STOP
        self.before = trial.previous
        self._handlers: dict[Step, Callable[[], Step]] = {
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

    def run(self, first: Step) -> Outcome:
        """Go through the steps from ``first`` on and say what came of it. Raises only where the host is lost to us."""
        self.step = first
        self._recall()
        while True:
            try:
                return self._steps()
            except ChannelLost:
                self.reporter.warn("The connection to the host broke")
                self.session.reconnect(self.reporter.progress)
                self.step = self._where()
                self.reporter.note(f"Connected again; going on with: {self.step}")
            except TrialFailed as failed:
                return self._give_up(failed.failure, failed.state, failed.verdict)
            except WorldMoved as moved:
                told = failure_document("world-moved", moved.message, phase=self.step, remedy=moved.remedy)
                return self._give_up(told, "failed")
            except KeyboardInterrupt:
                return self._interrupted()
            except LeaseLost:
                raise
            except DeployerError as error:
                return self._give_up(
                    failure_document(
                        "deployer", error.message, phase=error.phase or self.step, remedy=error.remedy
                    ),
                    "failed",
                )

    def _recall(self) -> None:
        """What the transition tells: which release was live, what an earlier operator measured in this attempt."""
        transition = self.session.state().transition
        known = transition.raw if transition else {}
        self.before = transition.from_ if transition else self.trial.previous
        if self.step is not Step.STOP:
            self.progress.timeline = list(known.get("timeline") or ())
            self.progress.phases = list(self.progress.timeline)

    def _steps(self) -> Outcome:
        while self.step is not Step.DONE:
            self.reporter.step(self.step)
            began = time.monotonic()
            following = self._handlers[self.step]()
            if self.step in (Step.STOP, Step.VERIFY, Step.BENCH):
                self.progress.phases.append(_phase(str(self.step), time.monotonic() - began))
            elif self.step is Step.WAIT:
                self.progress.phases.extend(self.progress.timeline)
            self.step = following
        return self._live()

    def _live(self) -> Outcome:
        return Outcome(
            outcome="live",
            service=self.trial.service,
            profile=self.trial.profile,
            release=self.trial.release,
            previous=self.before,
            phases=self.progress.phases,
            bench=self.progress.bench,
            verdict=self.progress.verdict,
            exit_code=0,
            message=f"{self.trial.profile} is live on {self.trial.service} as release {self.trial.release}",
            notes=self.progress.notes,
        )

    def _where(self) -> Step:
        """The step that the host says we are in."""
        state = self.session.state()
        live = state.live.release if state.live else None
        if _is_promoted(state, self.trial.release):
            return Step.FINISH
        if state.transition is None or state.transition.to != self.trial.release:
            raise LeaseLost(
                f"while the connection was down the host's guard took over; {live or 'nothing'} is live there now"
            )
        return Step(state.transition.step)

    # -- the steps ----------------------------------------------------------------------------------------------

    def _enter(self, step: Step, patch: Json | None = None) -> Step:
        """Write down that ``step`` begins, before it does."""
        self.session.client.transition_step(self.trial.service, str(step), patch)
        return step

    def _stop(self) -> Step:
        state = self.session.state()
        if state.running is None or state.running.release == self.trial.release:
            self.reporter.done(
                "nothing was running" if state.running is None else "the candidate runs already"
            )
            return self._enter(Step.SWITCH)
        stopped = stop_unit(self.session, self.reporter)
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
                )
            )
        self.reporter.done(f"ready after {result.seconds:.1f} s")
        return self._enter(Step.VERIFY, {"timeline": result.timeline})

    def _watch(self) -> WaitResult:
        started = self._started()
        return wait_ready(
            self.session.client.host,
            service=self.trial.service,
            port=self.service.port,
            address=self.service.bind,
            started=started,
            stall=self.service.deadlines.stall,
            deadline=self.service.deadlines.start,
            on_update=self.reporter.launch,
            api_key=self.session.api_key,
            estimate=estimate(self.session.state().releases, self.trial.profile),
        )

    def _started(self) -> Json:
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
            invocation_id=str(self._started()["invocation_id"]),
            port=self.service.port,
            address=self.service.bind,
            advertised=self.service.advertised,
            api_key=self.session.api_key,
        )
        if not checked.ok:
            raise TrialFailed(
                failure_document(
                    "not-in-effect",
                    "; ".join(checked.problems),
                    phase="verify",
                    remedy="see the arguments named; SGLang drops some silently, or another process answers",
                )
            )
        self.reporter.done(
            f"our process answers; {len(self.trial.requested)} requested arguments are in effect"
        )
        return self._enter(Step.BENCH)

    def _bench(self) -> Step:
        if not self.benchmark:
            self.progress.verdict = {
                "result": "pass",
                "reasons": [f"{self.trial.release} was proven when it first went live; not measured again"],
            }
            self.reporter.done("proven before; not measured again")
            return self._enter(Step.PROMOTE)
        bench = run_benchmark(
            self.session.client.host,
            self.service,
            self.trial.bench,
            on_event=lambda event: self.reporter.progress(describe_bench_event(event)),
            api_key=self.session.api_key,
        )
        self.progress.bench = bench
        verdict = evaluate(bench, self.trial.gate, baseline=self._baseline())
        self.progress.verdict = verdict.as_dict()
        self.session.client.release_update(
            self.trial.service,
            self.trial.release,
            patch={"verdict": self.progress.verdict, "bench_summary": summary(bench)},
            files={"bench.json": _dump(bench)},
        )
        if verdict.result != "pass":
            state = "inconclusive" if verdict.result == "inconclusive" else "failed"
            raise TrialFailed(
                failure_document(
                    f"gate-{verdict.result}",
                    "; ".join(verdict.reasons),
                    phase="bench",
                    remedy="see bench.json of the release; change the profile or the gate"
                    if state == "failed"
                    else "remove what disturbed the measurement, then apply again",
                ),
                state,
                self.progress.verdict,
            )
        self.reporter.done("; ".join(verdict.reasons))
        return self._enter(Step.PROMOTE)

    def _baseline(self) -> Json | None:
        """The benchmark of the release that is live, for comparison."""
        if self.before is None:
            return None
        read = self.session.client.release_read(self.trial.service, self.before, ["bench.json"])
        text = read.files.get("bench.json")
        return json.loads(text) if text else None

    def _promote(self) -> Step:
        started = self._started()
        self.session.client.promote(
            self.trial.service,
            self.trial.release,
            self.trial.unit,
            expect_live=self._live_before(),
            expect_invocation=str(started["invocation_id"]),
        )
        self.reporter.done(f"{self.trial.release} is the live release")
        return self._enter(Step.FINISH)

    def _live_before(self) -> str | None:
        state = self.session.state()
        return state.transition.from_ if state.transition else None

    def _finish(self) -> Step:
        client, trial = self.session.client, self.trial
        patch: Json = {"state": "live", "was_live": True, "failure": None}
        state = self.session.state()
        if (state.manifest(trial.release) or {}).get("state") != "live":
            patch["promoted"] = time.time()
        if self.progress.timeline:
            patch["timeline"] = self.progress.timeline
        if self.progress.verdict and self.benchmark:
            patch["verdict"] = self.progress.verdict
        patch["invocation_id"] = self._started().get("invocation_id")
        client.release_update(trial.service, trial.release, patch=patch)
        with client.converge(**converge_arguments(self.session)) as stream:
            converged = drain(stream, self.reporter)
        if not converged.get("serving", True):
            self.progress.notes.append(
                "after promotion the server did not answer /health; see `deployer status`"
            )
        client.transition_end(trial.service)
        removed = client.prune(trial.service, keep=20)
        if removed:
            self.progress.notes.append(f"pruned {len(removed)} old releases")
        self.reporter.done("converged, without a restart")
        return Step.DONE

    def _death(self) -> Json | None:
        """How the candidate died, where that is why a step after the launch failed."""
        if self.step not in (Step.VERIFY, Step.BENCH, Step.PROMOTE):
            return None
        unit = self.session.state().unit
        started = self._started()
        if unit.ok and unit.invocation_id == started["invocation_id"] and not unit.restarts:
            return None
        return explain_death(self.session, started, unit, self.step)

    # -- the way back -------------------------------------------------------------------------------------------

    def _give_up(
        self, failure: Json, state: str, verdict: Json | None = None, *, interrupted: bool = False
    ) -> Outcome:
        self.reporter.failed(failure["cause"])
        while True:
            try:
                if _is_promoted(self.session.state(), self.trial.release):
                    return self._finish_late(failure, interrupted=interrupted)
                failure = self._death() or failure
                restored = restore(
                    self.session,
                    self.trial,
                    self.reporter,
                    failure,
                    state if self.benchmark else None,
                    self.progress.timeline,
                )
                break
            except ChannelLost:
                self.session.reconnect(self.reporter.progress)
            except KeyboardInterrupt:
                return self._hand_over(failure)
        return self._outcome(failure, state, verdict, restored, interrupted=interrupted)

    def _outcome(
        self, failure: Json, state: str, verdict: Json | None, restored: Restored, *, interrupted: bool
    ) -> Outcome:
        if not restored.serving:
            word, code = "down", 6
        elif interrupted:
            word, code = "interrupted", 130
        elif state == "inconclusive":
            word, code = "inconclusive", 7
        else:
            word, code = "rolled_back", 5
        return Outcome(
            outcome=word,
            service=self.trial.service,
            profile=self.trial.profile,
            release=self.trial.release,
            previous=restored.live,
            phases=self.progress.phases or self.progress.timeline,
            bench=self.progress.bench,
            verdict=verdict or self.progress.verdict,
            failure=failure,
            exit_code=code,
            message=restored.message,
            notes=self.progress.notes,
        )

    def _finish_late(self, failure: Json, *, interrupted: bool) -> Outcome:
        """Something went wrong after the promotion, from where no way leads back and none is needed."""
        try:
            self._finish()
        except (DeployerError, KeyboardInterrupt) as error:
            said = error.message if isinstance(error, DeployerError) else "interrupted"
            self.progress.notes.append(f"tidying up did not end ({said}); the host's guard completes it")
        outcome = self._live()
        if interrupted:
            outcome.outcome, outcome.exit_code = "interrupted", 130
            outcome.message = f"interrupted after the promotion: {outcome.message}"
        else:
            outcome.notes.append(f"after the promotion: {failure['cause']}")
        return outcome

    def _interrupted(self) -> Outcome:
        what = f"going back to {self.before or 'nothing live'}"
        if self.step is Step.FINISH:
            what = f"{self.trial.release} is live already"
        self.reporter.warn(f"Interrupted: {what}. Press Ctrl-C again to leave the rest to the host's guard.")
        failure = failure_document(
            "interrupted", f"interrupted by the operator during {self.step}", phase=str(self.step)
        )
        return self._give_up(failure, "interrupted", interrupted=True)

    def _hand_over(self, failure: Json) -> Outcome:
        """The operator will not wait: end without farewell, so that the guard on the host does the rest."""
        self.session.close(bye=False)
        return Outcome(
            outcome="interrupted",
            service=self.trial.service,
            profile=self.trial.profile,
            release=self.trial.release,
            previous=self.before,
            phases=self.progress.phases,
            failure=failure,
            exit_code=130,
            message=(
                f"interrupted; the guard on {self.session.host_config.name} restores "
                f"{self.before or 'the state without a live release'} now. Look with `deployer status`."
            ),
        )


def _is_promoted(state: ServiceState, release: str) -> bool:
    """Whether the live pointer has moved to the release on trial."""
    before = state.transition.from_ if state.transition else None
    return state.live is not None and state.live.release == release and before != release


def _phase(name: str, seconds: float) -> Json:
    return {"name": name, "seconds": round(seconds, 3)}


def _dump(document: Json) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
