"""`bench`: put load on what runs and keep the figures with its release. Nothing that serves is changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deployer.bench.comparison import Subject
from deployer.bench.runner import Target, run_benchmark
from deployer.deploy.gating import summary
from deployer.deploy.reporter import Reporter
from deployer.deploy.session import Session
from deployer.errors import DeployerError, GateInconclusive, HostError, Interrupted, NothingServing, Refused
from deployer.inspect.compare import BenchStore
from deployer.records.bench import About, BenchRun
from deployer.records.host import ServiceState
from deployer.records.release import LaterBench, Release
from deployer.records.step import Step
from deployer.units.text import served_model_name

#: What the lease is taken for; others see it in `status` and when they are refused.
REASON = "bench (load on what runs; nothing is changed)"


@dataclass(frozen=True)
class Measured:
    """A benchmark of what runs. ``name`` is what `compare` calls it.

    ``trouble`` belongs to the figures: they could not be kept, or the server did not survive them.
    """

    name: str
    release: str
    bench: BenchRun
    about: About
    trouble: DeployerError | None = None

    def subject(self) -> Subject:
        """Return it as `compare` takes it: one start, that of its release."""
        return Subject(self.name, (self.bench,), (self.release,), self.about)


def measure(
    session: Session,
    settings: Mapping[str, Any],
    reporter: Reporter,
    store: BenchStore,
    *,
    profile: str | None = None,
) -> Measured:
    """Measure the running server and keep ``bench-N.json`` in its release.

    ``profile`` has to be running (None: whatever does). ``settings`` replace those of the release's own benchmark
    (fields of `deployer.config.bench.BenchConfig`), without its ``requests_at_least``. The lease is held meanwhile, so
    that no other benchmark and no apply disturb the figures. A benchmark that the host does not take (its disk is full,
    the connection broke), or after which another server runs or none serves, is returned with its ``trouble``.

    Raise LeaseHeld; Refused if a change is under way or another profile runs; NothingServing before it, or after one
    without figures; GateInconclusive if nothing could be measured; Interrupted (what was measured is dropped).
    """
    service = session.service
    reporter.step(Step.LEASE)
    session.take_lease(reporter.progress)
    reporter.done(f"nobody else can change {session.host_config.name} meanwhile")
    state = session.state()
    running = _running(session, state)
    release = running.release
    if profile is not None and running.profile != profile:
        raise Refused(
            f"{running.profile} runs (release {release}), not {profile}, and bench changes nothing that serves",
            remedy=f"`deployer apply {profile}` first, or leave out --profile to measure what runs",
        )
    reporter.step(Step.BENCH)
    endpoint = session.endpoint(running, key=True)
    served = served_model_name(running.argv) or service.served_model_name
    effective = {
        **(running.requested.bench or service.bench.model_dump()),
        "requests_at_least": 0,  # that is for a server that has just been started
        **settings,
    }
    try:
        bench = run_benchmark(
            session.client,
            # The inventory may have changed since it was started.
            Target.of(service, endpoint, served),
            effective,
            on_event=reporter.bench,
            baseline=store.bench(release),
            slots=running.in_effect.slots if running.in_effect else 1,
        )
    except KeyboardInterrupt as error:
        raise Interrupted(
            "interrupted during the benchmark; nothing was changed, and what was measured so far is dropped",
            remedy="measure again; --budget and --levels make it shorter",
        ) from error
    about = store.describe([running])
    name, trouble, unkept = f"{release}@?", None, ""
    try:
        after = session.state()
        trouble = _aftermath(session, state, after, release, bench)
        if bench.measured_anything and not isinstance(trouble, GateInconclusive):
            name = _keep(session, after, release, bench)
        else:
            unkept = "the server was restarted meanwhile"
    except DeployerError as error:
        unkept = error.message
        trouble = HostError(
            f"the figures could not be kept on the host: {error.message}",
            remedy="check its disk and the connection; the figures are shown, and exported if requested",
        )
    if not bench.measured_anything:
        raise trouble or _nothing_measured(bench)
    if unkept:
        reporter.failed(f"measured, but not kept: {unkept}")
    else:
        reporter.done(f"kept as {name}")
    return Measured(name, release, bench, about, trouble)


def _nothing_measured(bench: BenchRun) -> GateInconclusive:
    why = bench.stopped or "no request was completed"
    return GateInconclusive(
        f"nothing could be measured: {why}",
        remedy="give it more time with --budget"
        if "time was used up" in why
        else "`deployer status` and `deployer logs` show the state of the server",
    )


def _aftermath(
    session: Session, before: ServiceState, after: ServiceState, release: str, bench: BenchRun
) -> DeployerError | None:
    """Return what is wrong with the server after its benchmark; None if it is the same one and answered everything."""
    was, now = ((seen.running and seen.running.pid, seen.unit.invocation_id) for seen in (before, after))
    same = was == now
    if same and not bench.unanswered:
        return None
    health = session.health(after) if after.running else None
    if health is not None and health.ok:
        if same:
            return None
        return GateInconclusive(
            f"{release} was restarted while it was measured, so the figures are not kept",
            remedy="`deployer logs` shows why; then measure again",
        )
    how = f"/health: {health.status}" if health else "it does not run"
    return NothingServing(
        f"{release} did not survive its benchmark: {bench.unanswered} requests were not answered, and it no longer "
        f"serves ({how})",
        remedy="`deployer logs` shows why, `deployer converge` starts it again",
    )


def _running(session: Session, state: ServiceState) -> Release:
    """Return the release that runs."""
    if state.transition is not None:
        raise Refused(
            f"a change to {state.transition.to} was left unfinished",
            remedy="`deployer resume` or `deployer converge` finishes it",
        )
    health = session.health(state) if state.running else None
    if health is None or not health.ok:
        how = f"is not healthy (/health: {health.status})" if health else "is not running"
        raise NothingServing(
            f"{session.service.name} {how}; there is nothing to measure",
            remedy="`deployer status` shows its state, `deployer converge` starts what is live",
        )
    release = state.release(state.running_name)
    if release is None:
        raise Refused(
            "the running server was not deployed by deployer, so its benchmark cannot be stored",
            remedy="apply a profile first",
        )
    return release


def _keep(session: Session, state: ServiceState, release: str, bench: BenchRun) -> str:
    """Write the benchmark into its release and return its name, such as ``0007-pp8@2``."""
    record = state.release(release)
    kept = record.benches if record else ()
    number = max((item.number for item in kept), default=0) + 1
    # Where the list is damaged, files may be there that it does not name.
    while session.client.release_file(session.service.name, release, f"bench-{number}.json") is not None:
        number += 1
    damaged = [*record.benches_damaged, *record.unreadable_benches] if record else []
    entry = LaterBench(number, bench.started, bench.seconds, summary(bench))
    session.client.release_update(
        session.service.name,
        release,
        patch={"benches": [*kept, entry], **({"benches_damaged": damaged} if damaged else {})},
        files={f"bench-{number}.json": json.dumps(bench.as_json(), indent=1, ensure_ascii=False) + "\n"},
    )
    return f"{release}@{number}"
