"""From the recorded transition to a live release, or back.

A state machine over `Steps`. Everything it needs is on the host (the release and the transition), so `apply`,
`rollback` and `resume` all enter here, at the step they are in. Whatever goes wrong leads to `restore`, which ends with
the live release serving again or says that nothing does; after the promotion no way leads back and none is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from deployer.deploy.model import Json, Outcome, Step, Trial, TrialFailed, failure_document, in_short
from deployer.deploy.reporter import Reporter
from deployer.deploy.restore import Restored, restore
from deployer.deploy.session import Session
from deployer.deploy.steps import Steps
from deployer.deploy.stop import explain_death
from deployer.errors import (
    ChannelLost,
    DeployerError,
    GateInconclusive,
    HostError,
    LeaseHeld,
    LeaseLost,
    WorldMoved,
)
from deployer.records.host import ServiceState


class Attempt:
    """One trial on one host, from any step of a transition on.

    ``proven``: it was live before, so no benchmark. ``ask`` is asked about an inconclusive verdict, where the policy is
    to ask; None: nobody is there.
    """

    def __init__(
        self,
        session: Session,
        trial: Trial,
        reporter: Reporter,
        *,
        proven: bool = False,
        ask: Callable[[Json], bool] | None = None,
    ) -> None:
        self.session = session
        self.trial = trial
        self.reporter = reporter
        self.proven = proven
        self.steps = Steps(session, trial, reporter, proven=proven, ask=ask)
        self.progress = self.steps.progress
        self.step = Step.TRANSITION

    def run(self, first: Step = Step.TRANSITION) -> Outcome:
        """Go through the steps from ``first`` on and say what came of it.

        Raises what stopped it before anything was changed; after that every end is an outcome.
        """
        self.step = first
        self.session.changing = True
        recalled = False
        while True:
            try:
                if not recalled:
                    self.steps.recall(first)
                    recalled = True
                while self.step is not Step.DONE:
                    self.step = self.steps.perform(self.step)
                return self._live()
            except ChannelLost:
                ended = self._connect_again()
                if ended is not None:
                    return ended
            except TrialFailed as failed:
                return self._go_back(failed.failure, failed.state, failed.verdict)
            except KeyboardInterrupt:
                return self._interrupted()
            except LeaseLost as lost:
                return self._lost_control(lost)
            except GateInconclusive as error:
                return self._go_back(self._describe(error), "inconclusive")
            except DeployerError as error:
                if self.step is Step.TRANSITION and not self._begun():
                    self._forget()
                    raise
                return self._go_back(self._describe(error), "failed")
            except Exception as bug:
                # A bug of ours is reported as one, but not before the host is left in order.
                self._go_back(failure_document("bug", repr(bug), phase=str(self.step)), "failed")
                raise

    # -- the connection -----------------------------------------------------------------------------------------

    def _connect_again(self) -> Outcome | None:
        """After a lost connection: None when it stands again and `step` is where the host is; else the end."""
        self.reporter.warn("The connection to the host broke")
        try:
            self.session.reconnect(self.reporter.progress)
            self.step = self._where()
        except KeyboardInterrupt:
            return self._hand_over()
        except (LeaseHeld, LeaseLost, HostError) as error:
            return self._lost_control(error)
        self.reporter.note(f"Connected again; going on with: {self.step}")
        return None

    def _where(self) -> Step:
        """The step that the host says we are in."""
        state = self.session.state()
        if is_promoted(state, self.trial.release):
            return Step.FINISH
        transition = state.transition
        if transition is not None and transition.to == self.trial.release and transition.step != Step.RESTORE:
            return Step(transition.step)
        if transition is None and self.step is Step.TRANSITION:
            return Step.TRANSITION
        live = state.live.release if state.live else "nothing"
        raise LeaseLost(f"while the connection was down the host's guard took over; {live} is live there now")

    def _lost_control(self, error: DeployerError) -> Outcome:
        """Somebody else decides now: the guard, or another operator."""
        message = error.message
        with suppress(DeployerError):
            state = self.session.state()
            running = state.running.release if state.running else "nothing"
            message += f"; live is {state.live.release if state.live else 'nothing'}, running is {running}"
        self.reporter.failed("the change is out of our hands")
        return self._outcome("interrupted", error.exit_code, message, failure=self._describe(error))

    def _hand_over(self, failure: Json | None = None) -> Outcome:
        """The operator will not wait: end without farewell, so that the guard on the host does the rest."""
        self.session.close(bye=False)
        if self.step is Step.FINISH:
            message = f"interrupted after the promotion: {self.trial.release} is live"
        else:
            back = self.steps.before or "the state without a live release"
            message = f"interrupted; the guard on {self.session.host_config.name} restores {back} by itself"
        return self._outcome("interrupted", 130, f"{message}. Look with `deployer status`.", failure=failure)

    # -- the way back -------------------------------------------------------------------------------------------

    def _interrupted(self) -> Outcome:
        what = f"going back to {self.steps.before or 'nothing live'}"
        if self.step is Step.FINISH:
            what = f"{self.trial.release} is live already"
        self.reporter.warn(f"Interrupted: {what}. Press Ctrl-C again to leave the rest to the host's guard.")
        cause = f"interrupted by the operator during {self.step}"
        failure = failure_document("interrupted", cause, phase=str(self.step))
        return self._go_back(failure, "interrupted", interrupted=True)

    def _go_back(
        self, failure: Json, state: str, verdict: Json | None = None, *, interrupted: bool = False
    ) -> Outcome:
        self.reporter.failed(in_short(failure))
        looked = False
        while True:
            try:
                if is_promoted(self.session.state(), self.trial.release):
                    return self._finish_late(failure, interrupted=interrupted)
                # Once, before anything is stopped: afterwards it is we who ended the candidate.
                died, looked = (None if looked else self._death()), True
                if died:
                    failure, state = died, "failed"
                kept = None if self.proven else state
                restored = restore(
                    self.session, self.trial, self.reporter, failure, kept, self.progress.timeline
                )
                return self._restored(failure, state, verdict, restored, interrupted=interrupted)
            except ChannelLost:
                try:
                    self.session.reconnect(self.reporter.progress)
                except KeyboardInterrupt:
                    return self._hand_over(failure)
                except (LeaseHeld, LeaseLost, HostError) as error:
                    return self._lost_control(error)
            except KeyboardInterrupt:
                return self._hand_over(failure)
            except (LeaseLost, HostError) as error:
                return self._lost_control(error)

    def _death(self) -> Json | None:
        """How the candidate died, where that is why a step after the launch failed."""
        if self.step not in (Step.VERIFY, Step.BENCH, Step.PROMOTE):
            return None
        unit = self.session.state().unit
        started = self.steps.started()
        if unit.ok and unit.invocation_id == started["invocation_id"] and not unit.restarts:
            return None
        return explain_death(self.session, started, unit, self.step)

    def _restored(
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
        outcome = self._outcome(word, code, restored.message, failure=failure)
        outcome.previous = restored.live
        outcome.verdict = verdict or self.progress.verdict
        return outcome

    def _finish_late(self, failure: Json, *, interrupted: bool) -> Outcome:
        """Something went wrong after the promotion, from where no way leads back and none is needed."""
        try:
            self.steps.perform(Step.FINISH)
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

    def _begun(self) -> bool:
        """Whether the host knows of this attempt, so that leaving would leave a transition behind."""
        transition = self.session.state().transition
        return transition is not None and transition.to == self.trial.release

    def _forget(self) -> None:
        """The transition could not even begin: the release was never tried."""
        with suppress(DeployerError):
            if not self.proven:
                self.session.client.release_update(
                    self.trial.service, self.trial.release, patch={"state": "abandoned"}
                )

    # -- ends ---------------------------------------------------------------------------------------------------

    def _describe(self, error: DeployerError) -> Json:
        signature = "world-moved" if isinstance(error, WorldMoved) else type(error).__name__
        return failure_document(
            signature, error.message, phase=error.phase or str(self.step), remedy=error.remedy
        )

    def _live(self) -> Outcome:
        trial = self.trial
        return self._outcome(
            "live", 0, f"{trial.profile} is live on {trial.service} as release {trial.release}"
        )

    def _outcome(self, word: str, code: int, message: str, *, failure: Json | None = None) -> Outcome:
        return Outcome(
            outcome=word,
            service=self.trial.service,
            profile=self.trial.profile,
            release=self.trial.release,
            previous=self.steps.before,
            phases=self.progress.phases or self.progress.timeline,
            bench=self.progress.bench,
            verdict=self.progress.verdict,
            in_effect=self.progress.in_effect,
            failure=failure,
            exit_code=code,
            message=message,
            notes=self.progress.notes,
        )


def is_promoted(state: ServiceState, release: str) -> bool:
    """Whether the live pointer has moved to the release on trial."""
    before = state.transition.from_ if state.transition else None
    return state.live is not None and state.live.release == release and before != release
