"""What a candidate's benchmark is judged by: thresholds, earlier starts read from the host, and the learnt noise."""

from __future__ import annotations

from dataclasses import dataclass, replace

from deployer.bench.document import read_document
from deployer.bench.gate import Policy, evaluate, unfinished
from deployer.bench.noise import learn
from deployer.bench.relative import Tolerance
from deployer.bench.repeating import worth_repeating
from deployer.config.bench import RelativeGate
from deployer.deploy.baseline import Baseline, choose
from deployer.deploy.session import Session
from deployer.records.bench import BenchRun
from deployer.records.release import BenchSummary, Release
from deployer.records.verdict import BaselineUsed, Verdict


@dataclass(frozen=True)
class GateCase:
    """Everything the gate needs to judge a candidate's benchmark, but the benchmark."""

    policy: Policy
    chosen: Baseline
    settings: RelativeGate

    @property
    def reference(self) -> BenchRun | None:
        """The benchmark whose answer to the fixed prompt is compared."""
        if self.policy.baseline:
            return self.policy.baseline[0]
        return self.policy.beside[1] if self.policy.beside else None

    def verdict(self, bench: BenchRun) -> Verdict:
        """Return the gate's verdict, with its summary and what the baseline was."""
        verdict = evaluate(bench, self.policy)
        used = BaselineUsed(self.settings.baseline, self.chosen.name or None, self.chosen.starts, self.chosen.earlier)
        return replace(verdict, summary=verdict.in_short(self.policy.name), baseline=used)

    def again(self, bench: BenchRun, seconds_left: float) -> list[int]:
        """Return the levels that are worth another pass."""
        return worth_repeating(bench, self.policy, seconds_left)

    def may_promote(self, verdict: Verdict, bench: BenchRun) -> bool:
        """Return whether an inconclusive verdict may be promoted if that is wanted: something whole was measured."""
        whole = bool(bench.levels) and not bench.interrupted and not unfinished(bench)
        return verdict.result == "inconclusive" and whole

    def remedy(self, verdict: Verdict, profile: str, bench: BenchRun) -> str:
        """Return what to do about a verdict other than pass."""
        if verdict.result == "inconclusive" and unfinished(bench):
            return "`deployer logs` shows whether the server hung; if it is only slow, bench.budget gives it more time"
        relative = verdict.relative
        accept = f"`deployer apply {profile} --baseline none` accepts it, relative_gate.max_loss sets what is tolerated"
        if verdict.broken:
            return "see bench.json of the release, and `deployer logs`; change the profile"
        if relative is None or relative.result == "pass":
            if verdict.result == "fail":
                return "see bench.json of the release; change the profile or the gate"
            return "remove what disturbed the measurement, then apply again"
        if relative.result == "fail":
            return f"look with `deployer compare` what got slower; {accept}"
        if relative.effect is None:
            return "remove what disturbed the measurement, then apply again"
        return f"apply again: both starts then count together and the interval is narrower; {accept}"


def build_case(session: Session, candidate: Release, live: str | None) -> GateCase:
    """Choose earlier starts and read their benchmarks. One that cannot be read is left out."""
    settings = RelativeGate.model_validate(candidate.requested.relative_gate)
    chosen = choose(session.state().releases, candidate, live, baseline=settings.baseline, starts=settings.starts)
    benches = {name: bench for name in sorted(chosen.releases) if (bench := _bench(session, name))}
    policy = Policy(
        thresholds=candidate.requested.gate,
        tolerance=Tolerance(settings.max_loss, settings.max_level_loss),
        name=chosen.name,
        baseline=tuple(benches[name] for name in chosen.starts if name in benches),
        earlier=tuple(benches[name] for name in chosen.earlier if name in benches),
        noise=learn([[benches[name] for name in group if name in benches] for group in chosen.groups]),
        beside=(chosen.beside, benches[chosen.beside]) if chosen.beside in benches else None,
    )
    return GateCase(policy, chosen, settings)


def _bench(session: Session, release: str) -> BenchRun | None:
    text = session.client.release_file(session.service.name, release, "bench.json")
    try:
        return read_document(text) if text else None
    except ValueError:
        return None  # only the comparison with it is lost


def summary(bench: BenchRun) -> BenchSummary:
    """Return the few figures of a benchmark that `status` and `history` show."""
    levels = {str(level.concurrency): level.aggregate_tok_s for level in bench.levels}
    return BenchSummary(bench.single_stream_tok_s, levels)
