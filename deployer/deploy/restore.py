"""The way back: keep the evidence, converge to the live release, prove that it is healthy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from deployer.deploy.figures import earlier_start
from deployer.deploy.host_events import converge_arguments, drain
from deployer.deploy.model import Json, Step, Trial
from deployer.deploy.reporter import Reporter
from deployer.deploy.session import Session
from deployer.deploy.wait import wait_ready
from deployer.errors import AgentError


@dataclass(frozen=True)
class Restored:
    """What serves after a restoration. ``live`` is None where no release was ever live."""

    live: str | None
    serving: bool
    message: str


def restore(
    session: Session, trial: Trial, reporter: Reporter, failure: Json, state: str | None, timeline: list[Json]
) -> Restored:
    """Undo a trial. May be called again after a lost connection: every part looks before it acts.

    ``state`` is what the release becomes; None for one that was proven before and stays what it was.
    """
    with suppress_refusals():
        session.client.transition_step(trial.service, str(Step.RESTORE))
    keep_evidence(session, trial, failure, state, timeline)
    return converge_and_prove(session, reporter)


@contextmanager
def suppress_refusals() -> Iterator[None]:
    """What is only written down must not stop the way back (a full disk); a lost lease or connection does."""
    try:
        yield
    except AgentError:
        return


def keep_evidence(
    session: Session, trial: Trial, failure: Json, state: str | None, timeline: list[Json]
) -> None:
    """Write what happened into the release. A release that cannot be written must not stop the way back."""
    patch: Json = {"failure": failure}
    transition = session.state().transition
    if transition is not None and transition.to == trial.release and transition.raw.get("invocation_id"):
        patch["invocation_id"] = transition.raw["invocation_id"]  # whose log `logs` and `diagnose` read
    if state is not None:
        patch |= {"state": state, "timeline": timeline or None}
    with suppress_refusals():
        session.client.release_update(
            trial.service,
            trial.release,
            patch=patch,
            files={"log.txt": "\n".join(failure.get("log_tail") or []) + "\n"},
        )


def converge_and_prove(session: Session, reporter: Reporter) -> Restored:
    """Make the host equal to its live release and prove it with /health and one generation of our own."""
    reporter.step(Step.RESTORE)
    session.changing = True
    restored = _converge(session, reporter)
    if restored.serving:
        reporter.done(restored.message)
    else:  # why is told with the outcome
        reporter.failed(f"{restored.live} does not serve" if restored.live else "nothing is serving")
    return restored


def _converge(session: Session, reporter: Reporter) -> Restored:
    """The transition ends with a converge that succeeds; one that fails stays for the guard, which tries again."""
    state = session.state()
    live = state.live.release if state.live else None
    reporter.progress(f"to {live}" if live else "no release is live here: stopping the candidate")
    try:
        with session.client.converge(
            **converge_arguments(session, state), repair=True, await_ready=False
        ) as stream:
            answer = drain(stream, reporter)
    except AgentError as error:
        wanted = live or "its state before"
        again = "; the host's guard goes on trying" if state.transition else ""
        return Restored(live, False, f"the host could not be made equal to {wanted}: {error.message}{again}")
    if live is None:
        return Restored(None, False, "nothing is serving: no release was ever live on this service")
    if not answer.get("invocation_id"):
        return Restored(live, False, f"{live} is live on disk but is not running")
    address, port = session.endpoint(state, live)
    started = {"invocation_id": answer["invocation_id"], "cursor": answer.get("cursor")}
    manifest = state.manifest(live) or {}
    timeline, source = earlier_start(state.releases, str(manifest.get("profile"))) or (None, None)
    result = wait_ready(
        session.client.host,
        service=session.service.name,
        port=port,
        address=address,
        started=started if answer.get("started") else {**started, "attach": True},
        stall=session.service.deadlines.stall,
        deadline=session.service.deadlines.start,
        on_update=reporter.launch,
        api_key=session.api_key(live),
        estimate=timeline if answer.get("started") else None,
        estimate_from=source,
        model_bytes=session.model_bytes(manifest.get("argv") or ()) if answer.get("started") else None,
    )
    did = "was started again but does not serve" if answer.get("started") else "runs but does not serve"
    if not result.ready:
        cause = result.failure.cause if result.failure else "it did not become ready"
        return Restored(live, False, f"{live} {did}: {cause}")
    return Restored(live, True, f"{live} is serving {'again ' if answer.get('started') else ''}and healthy")
