"""From the recorded transition to a live release, or back.

A state machine over `Steps`. Everything it needs is on the host (the release and the transition), so `apply`,
`rollback` and `resume` all enter here, at the step they are in. Whatever goes wrong leads to `restore`, which ends with
the live release serving again or says that nothing does; after the promotion no way leads back and none is needed.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from deployer.deploy.outcomes import EXIT_CODES
from deployer.deploy.restore import Restored, restore
from deployer.deploy.steps import Steps
from deployer.deploy.stop import explain_death
from deployer.errors import (
    CandidateRejected,
    ChannelLost,
    DeployerError,
    GateInconclusive,
    HostError,
    LeaseHeld,
    LeaseLost,
    WorldMoved,
)
from deployer.records.failure import Failure
from deployer.records.host import ServiceState
from deployer.records.outcome import Outcome
from deployer.records.step import RESUMABLE, Step
from deployer.records.verdict import Verdict


class Rollout:
    """One candidate on one host, from any step of a transition on."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.session, self.candidate, self.reporter = steps.session, steps.candidate, steps.reporter
        self.progress = steps.progress
        self.step = Step.TRANSITION

    def run(self, first: Step = Step.TRANSITION) -> Outcome:
        """Go through the steps from ``first`` on and return the outcome.

        Raise what stopped it before anything was changed; after that every end is an outcome.
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
            except CandidateRejected as rejected:
                return self._go_back(rejected.failure, rejected.state, rejected.verdict)
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
                self._go_back(Failure("bug", repr(bug), self.step), "failed")
                raise

    # -- the connection -----------------------------------------------------------------------------------------

    def _connect_again(self) -> Outcome | None:
        """Return None once the connection stands again and `step` is where the host is; else the outcome."""
        self.reporter.warn("The connection to the host broke")
        try:
            self.session.reconnect(self.reporter.progress)
            self.step = self._where()
        except KeyboardInterrupt:
            return self._hand_over()
        except (LeaseHeld, LeaseLost, HostError) as error:
            return self._lost_control(error)
        except CandidateRejected as damaged:
            return self._go_back(damaged.failure, damaged.state)
        self.reporter.note(f"Connected again; going on with: {self.step}")
        return None

    def _where(self) -> Step:
        """Return the step that the host is in. Raise CandidateRejected if its transition names no such step."""
        state = self.session.state()
        if is_promoted(state, self.candidate.release):
            return Step.FINISH
        if state.transition is None and self.step is Step.TRANSITION:
            return Step.TRANSITION
        ours = state.transition_to(self.candidate.release)
        if ours and ours.step in RESUMABLE:
            return Step(ours.step)
        if ours and ours.step != Step.RESTORE:
            cause = f"the transition on the host is damaged: its step is {ours.step!r}"
            raise CandidateRejected(Failure("damaged-transition", cause, self.step))
        live = state.live_name or "nothing"
        raise LeaseLost(f"while the connection was down the host's guard took over; {live} is live there now")

    def _lost_control(self, error: DeployerError) -> Outcome:
        """Somebody else decides now: the guard, or another operator. What was promoted is live all the same."""
        message = error.message
        with suppress(DeployerError):
            state = self.session.state()
            if is_promoted(state, self.candidate.release):
                self.progress.notes.append(f"after the promotion: {message}; the host completes the change by itself")
                return self._live()
            message += f"; live is {state.live_name or 'nothing'}, running is {state.running_name or 'nothing'}"
        if self.step is Step.FINISH:
            message = f"{self.candidate.release} was promoted and is the live release; {message}"
        self.reporter.failed("the change is out of our hands")
        outcome = self._outcome("interrupted", message, self._describe(error))
        return replace(outcome, exit_code=error.exit_code)

    def _hand_over(self, failure: Failure | None = None) -> Outcome:
        """The operator will not wait: end without farewell, so that the guard on the host does the rest."""
        self.session.close(bye=False)
        if self.step is Step.FINISH:
            message = f"interrupted after the promotion: {self.candidate.release} is live"
        else:
            back = self.steps.before or "the state without a live release"
            message = f"interrupted; the guard on {self.session.host_config.name} restores {back} by itself"
        return self._outcome("interrupted", f"{message}. Look with `deployer status`.", failure)

    # -- the way back -------------------------------------------------------------------------------------------

    def _interrupted(self) -> Outcome:
        what = f"going back to {self.steps.before or 'nothing live'}"
        if self.step is Step.FINISH:
            what = f"{self.candidate.release} is live already"
        self.reporter.warn(f"Interrupted: {what}. Press Ctrl-C again to leave the rest to the host's guard.")
        failure = Failure("interrupted", f"interrupted by the operator during {self.step}", self.step)
        return self._go_back(failure, "interrupted", interrupted=True)

    def _go_back(
        self, failure: Failure, state: str, verdict: Verdict | None = None, *, interrupted: bool = False
    ) -> Outcome:
        self.reporter.failed(failure.in_short)
        looked = lost = False
        while True:
            try:
                if lost:
                    self.session.reconnect(self.reporter.progress)
                    lost = False
                if is_promoted(self.session.state(), self.candidate.release):
                    return self._finish_late(failure, interrupted=interrupted)
                # Once, before anything is stopped: afterwards it is we who ended the candidate.
                died, looked = (None if looked else self._death()), True
                if died:
                    failure, state = died, "failed"
                kept = None if self.steps.proven else state
                restored = restore(self.session, self.candidate, self.reporter, failure, kept, self.progress.timeline)
                return self._restored(failure, state, verdict, restored, interrupted=interrupted)
            except ChannelLost:
                lost = True
            except KeyboardInterrupt:
                return self._hand_over(failure)
            except (LeaseHeld, LeaseLost, HostError) as error:
                return self._lost_control(error)

    def _death(self) -> Failure | None:
        """Return how the candidate died, if that is why a step after the launch failed."""
        if self.step not in (Step.VERIFY, Step.BENCH, Step.PROMOTE):
            return None
        unit = self.session.state().unit
        started = self.steps.started()
        if unit.ok and unit.invocation_id == started.invocation_id and not unit.restarts:
            return None
        return explain_death(self.session, started, unit, self.step)

    def _restored(
        self, failure: Failure, state: str, verdict: Verdict | None, restored: Restored, *, interrupted: bool
    ) -> Outcome:
        if not restored.serving:
            word = "down"
        elif interrupted:
            word = "interrupted"
        else:
            word = "inconclusive" if state == "inconclusive" else "rolled_back"
        outcome = self._outcome(word, restored.message, failure)
        return replace(outcome, previous=restored.live, verdict=verdict or self.progress.verdict)

    def _finish_late(self, failure: Failure, *, interrupted: bool) -> Outcome:
        """Something went wrong after the promotion, from where no way leads back and none is needed."""
        try:
            self.steps.perform(Step.FINISH)
        except (DeployerError, KeyboardInterrupt) as error:
            reason = error.message if isinstance(error, DeployerError) else "interrupted"
            self.progress.notes.append(f"tidying up did not end ({reason}); the host's guard completes it")
        if not interrupted:
            self.progress.notes.append(f"after the promotion: {failure.cause}")
            return self._live()
        return self._outcome("interrupted", f"interrupted after the promotion: {self._live().message}")

    def _begun(self) -> bool:
        """Return whether the host knows of this change, so that leaving would leave a transition behind."""
        return self.session.state().transition_to(self.candidate.release) is not None

    def _forget(self) -> None:
        """The transition could not even begin: the release was never tried."""
        with suppress(DeployerError):
            if not self.steps.proven:
                self.session.client.release_update(
                    self.candidate.service, self.candidate.release, patch={"state": "abandoned"}
                )

    # -- ends ---------------------------------------------------------------------------------------------------

    def _describe(self, error: DeployerError) -> Failure:
        signature = "world-moved" if isinstance(error, WorldMoved) else type(error).__name__
        return Failure(signature, error.message, error.phase or self.step, error.remedy)

    def _live(self) -> Outcome:
        candidate = self.candidate
        text = f"{candidate.profile} is live on {candidate.service} as release {candidate.release}"
        return self._outcome("live", text)

    def _outcome(self, word: str, message: str, failure: Failure | None = None) -> Outcome:
        return Outcome(
            outcome=word,
            service=self.candidate.service,
            profile=self.candidate.profile,
            release=self.candidate.release,
            previous=self.steps.before,
            phases=tuple(self.progress.phases) or self.progress.timeline,
            bench=self.progress.bench,
            verdict=self.progress.verdict,
            in_effect=self.progress.in_effect,
            failure=failure,
            drained=self.progress.drained,
            exit_code=EXIT_CODES[word],
            message=message,
            notes=tuple(self.progress.notes),
        )


def is_promoted(state: ServiceState, release: str) -> bool:
    """Return whether the live pointer has moved to the candidate."""
    before = state.transition.from_ if state.transition else None
    return state.live_name == release and before != release
