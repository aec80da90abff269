"""The way back: keep the evidence, converge to the live release, prove that it is healthy."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from deployer.deploy.hooks import facts_of, report_hooks
from deployer.deploy.launch_progress import estimate
from deployer.deploy.outcomes import EXIT_CODES
from deployer.deploy.reporter import Reporter, follow
from deployer.deploy.session import Session
from deployer.deploy.wait import Wait
from deployer.errors import AgentError, DeployerError
from deployer.records.answers import Converged, Returned, Started
from deployer.records.failure import Failure, PhaseTime
from deployer.records.outcome import Outcome
from deployer.records.release import Release
from deployer.records.step import Step


@dataclass(frozen=True)
class Restored:
    """What serves after a restoration. ``live`` is None if no release was ever live."""

    live: str | None
    serving: bool
    message: str

    def outcome(
        self, word: str, service: str, profile: str | None, release: str | None, previous: str | None
    ) -> Outcome:
        """Return the outcome of a converge: ``word`` if the live release serves, else ``down``."""
        word = word if self.serving else "down"
        return Outcome(word, service, profile, release, previous, exit_code=EXIT_CODES[word], message=self.message)


def restore(
    session: Session,
    candidate: Release,
    reporter: Reporter,
    failure: Failure,
    state: str | None,
    timeline: Sequence[PhaseTime],
) -> Restored:
    """Undo a change. It may be called again after a lost connection: every part looks before it acts.

    ``state`` is what the candidate becomes; None for a release that was proven before and stays what it was.
    """
    # What cannot be written down (a full disk) does not stop the way back.
    with suppress(AgentError):
        session.client.transition_step(candidate.service, Step.RESTORE)
    keep_evidence(session, candidate, failure, state, timeline)
    return converge_and_prove(session, reporter, candidate.release, failure.cause)


def keep_evidence(
    session: Session, candidate: Release, failure: Failure, state: str | None, timeline: Sequence[PhaseTime]
) -> None:
    """Write what happened into the release. A release that cannot be written must not stop the way back."""
    patch: dict[str, object] = {"failure": failure}
    transition = session.state().transition_to(candidate.release)
    if transition is not None and transition.invocation_id:
        patch["invocation_id"] = transition.invocation_id  # whose log `logs` and `diagnose` read
    if state is not None:
        patch |= {"state": state, "timeline": timeline or None}
    with suppress(AgentError):
        session.client.release_update(
            candidate.service,
            candidate.release,
            patch=patch,
            files={"log.txt": "\n".join(failure.log_tail) + "\n"},
        )


def converge_and_prove(
    session: Session,
    reporter: Reporter,
    candidate: str | None = None,
    reason: str | None = None,
    restart: Sequence[str] = (),
) -> Restored:
    """Make the host equal to its live release and prove it with /health and one generation of our own.

    ``restart``: why the live server is started again although it serves. The hooks get to know which ``candidate`` it
    comes back from, and the ``reason``. None of them can stop it.
    """
    reporter.step(Step.RESTORE)
    session.changing = True
    live, hooks = session.state().live_release, session.service.hooks
    report_hooks(hooks, facts_of(session, "before_restore", live, candidate, reason=reason), reporter)
    restored = _converge(session, reporter, restart)
    reason = reason if restored.serving else restored.message
    facts = facts_of(session, "after_restore", live, candidate, reason=reason, serving=restored.serving)
    report_hooks(hooks, facts, reporter)
    if restored.serving:
        reporter.done(restored.message)
    else:  # the outcome says why
        reporter.failed(f"{restored.live} does not serve" if restored.live else "nothing is serving")
    return restored


def _converge(session: Session, reporter: Reporter, restart: Sequence[str]) -> Restored:
    """The transition ends with a converge that succeeds; one that fails stays for the guard, which tries again."""
    state = session.state()
    live, release = state.live_name, state.live_release
    reporter.progress(f"to {live}" if live else "no release is live here: stopping the candidate")
    try:
        with session.client.converge(
            session.endpoint(release),
            session.limits,
            repair=True,
            restart=restart,
            exclusive=session.service.exclusive_with,
            await_ready=False,
        ) as stream:
            converged = follow(stream, reporter)
    except AgentError as error:
        target = live or "its state before"
        again = "; the host's guard goes on trying" if state.transition else ""
        return Restored(live, False, f"the host could not be made equal to {target}: {error.message}{again}")
    if converged.returned:
        return _prove_returned(session, live, converged.returned, reporter)
    if live is None:
        return Restored(None, False, "nothing is serving: no release has been live on this service yet")
    if not converged.invocation_id:
        return Restored(live, False, f"{live} is live on disk but is not running")
    problem = _prove(session, release, converged, reporter)
    settle(session, healthy=not problem)
    if problem:
        return Restored(live, False, f"{live} {problem}")
    return Restored(live, True, f"{live} is serving {'again ' if converged.started else ''}and healthy")


def settle(session: Session, *, healthy: bool) -> None:
    """Have the host's metrics say whether its live release is healthy. It must not stop the way back."""
    with suppress(DeployerError):
        session.client.settle(session.service.name, healthy=healthy)


def _prove(session: Session, release: Release | None, started: Converged | Returned, reporter: Reporter) -> str:
    """Wait until a release serves that runs, or was just started; return what is wrong, empty if nothing is."""
    fresh = started.started
    result = Wait(
        session.client,
        session.endpoint(release, key=True),
        Started(started.invocation_id or "", started.cursor or "", attach=not fresh),
        session.service.deadlines,
        reporter.launch,
        estimate(session.state().releases, release.profile if release else "") if fresh else None,
        session.model_bytes(release) if fresh else None,
    ).run()
    if result.failure is None:
        return ""
    return f"{'was started again but does not serve' if fresh else 'runs but does not serve'}: {result.failure.cause}"


def _prove_returned(session: Session, live: str | None, returned: Sequence[Returned], reporter: Reporter) -> Restored:
    """The change had stopped other services: they serve again, and ours is down as it was."""
    rivals = {item.name: item for item in session.rivals}
    healthy, problems = [], []
    for item in returned:
        if item.service not in rivals:
            problems.append(f"{item.service} was started again, but the inventory does not say how to reach it")
            continue
        reporter.progress(f"to {item.service}, which had made room")
        other = session.beside(rivals[item.service])
        problem = _prove(other, other.state().live_release, item, reporter)
        settle(other, healthy=not problem)
        problems += [f"{item.service} {problem}"] if problem else []
        healthy += [] if problem else [item.service]
    parts = [f"{' and '.join(healthy)} is serving again and healthy"] if healthy else []
    message = "; ".join([*parts, *problems, f"{session.service.name} is down, as it was before"])
    return Restored(live, not problems, message)
