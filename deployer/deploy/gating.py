"""What a candidate's benchmark is judged by: thresholds, earlier starts read from the host, and the learnt noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deployer.bench.document import read_document
from deployer.bench.gate import Verdict, evaluate, unfinished
from deployer.bench.noise import Noise, learn
from deployer.bench.relative import Tolerance
from deployer.bench.repeating import Policy, worth_repeating
from deployer.config.bench import RelativeGate
from deployer.deploy.baseline import Baseline, choose
from deployer.deploy.session import Session
from deployer.records.codec import Json
from deployer.records.release import BenchSummary, Release


@dataclass(frozen=True)
class GateCase:
    """Everything the gate needs to judge a candidate's benchmark, but the benchmark."""

    policy: Policy
    baseline: list[Json]
    noise: Noise
    chosen: Baseline
    settings: RelativeGate
    beside: tuple[str, Json] | None = None

    def verdict(self, bench: Mapping[str, object]) -> Verdict:
        """The gate's word."""
        return evaluate(
            bench,
            self.policy.gate,
            baseline=self.baseline,
            earlier=self.policy.earlier,
            noise=self.noise,
            tolerance=self.policy.tolerance,
            name=self.policy.name,
            beside=self.beside,
        )

    def again(self, bench: Mapping[str, object], seconds_left: float) -> list[int]:
        """Levels worth another pass."""
        return worth_repeating(bench, self.baseline, self.noise, self.policy, seconds_left)

    def document(self, verdict: Verdict) -> Json:
        """The verdict as it is kept: with its summary, and of what the baseline was."""
        found = verdict.as_dict()
        found["summary"] = verdict.summary(self.policy.name)
        found["baseline"] = {
            "of": self.settings.baseline,
            "profile": self.chosen.name or None,
            "releases": list(self.chosen.starts),
            "earlier": list(self.chosen.earlier),
        }
        return found

    def may_promote(self, verdict: Verdict, bench: Mapping[str, object]) -> bool:
        """Whether an inconclusive verdict may be promoted where that is wanted: something whole was measured."""
        whole = bool(bench.get("levels")) and not bench.get("interrupted") and not unfinished(bench)
        return verdict.result == "inconclusive" and whole

    def remedy(self, verdict: Verdict, profile: str, bench: Mapping[str, object]) -> str:
        """What to do about a verdict that is no pass."""
        if verdict.result == "inconclusive" and unfinished(bench):
            return "`deployer logs` shows whether the server hung; if it is only slow, bench.budget gives it more time"
        relative = verdict.relative
        accept = f"`deployer apply {profile} --baseline none` accepts it, relative_gate.max_loss says what is tolerated"
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
    chosen = choose(
        session.state().releases, candidate, live, baseline=settings.baseline, starts=settings.starts
    )
    benches = {name: bench for name in sorted(chosen.releases) if (bench := _bench(session, name))}
    tolerance = Tolerance(settings.max_loss, settings.max_level_loss)
    return GateCase(
        policy=Policy(
            gate=candidate.requested.gate,
            tolerance=tolerance,
            name=chosen.name,
            earlier=[benches[name] for name in chosen.earlier if name in benches],
        ),
        baseline=[benches[name] for name in chosen.starts if name in benches],
        noise=learn([[benches[name] for name in group if name in benches] for group in chosen.groups]),
        chosen=chosen,
        settings=settings,
        beside=(chosen.beside, benches[chosen.beside]) if chosen.beside in benches else None,
    )


def _bench(session: Session, release: str) -> Json | None:
    text = session.client.release_file(session.service.name, release, "bench.json")
    try:
        document = read_document(text) if text else None
    except ValueError:
        return None  # only the comparison with it is lost
    return document if isinstance(document, dict) else None


def summary(bench: Json) -> BenchSummary:
    """Return the few figures of a benchmark that `status` and `history` show."""
    levels = {str(level["concurrency"]): level.get("aggregate_tok_s") for level in bench.get("levels") or ()}
    return BenchSummary(bench.get("single_stream_tok_s"), levels)
