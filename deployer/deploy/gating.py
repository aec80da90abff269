"""What a trial's benchmark is held against: thresholds, earlier starts read from the host, and the learnt noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deployer.bench.document import read_document
from deployer.bench.gate import Verdict, evaluate, unfinished
from deployer.bench.noise import Noise, learn
from deployer.bench.relative import Tolerance
from deployer.bench.repeating import Policy, worth_repeating
from deployer.config.bench import RelativeGate
from deployer.deploy.baseline import Choice, choose
from deployer.deploy.model import Json, Trial
from deployer.deploy.session import Session
from deployer.errors import AgentError


@dataclass(frozen=True)
class Case:
    """Everything the gate needs to judge a trial's benchmark, but the benchmark."""

    policy: Policy
    baseline: list[Json]
    noise: Noise
    choice: Choice
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
            "profile": self.choice.name or None,
            "releases": list(self.choice.baseline),
            "earlier": list(self.choice.earlier),
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


def build_case(session: Session, trial: Trial, live: str | None) -> Case:
    """Choose earlier starts and read their benchmarks. One that cannot be read is left out."""
    settings = RelativeGate.model_validate(trial.relative_gate)
    manifests = session.state().releases
    own = trial.manifest(created=0.0, operator="")
    choice = choose(manifests, own, live, baseline=settings.baseline, starts=settings.starts)
    read = {name: bench for name in sorted(choice.releases) if (bench := _bench(session, name))}
    tolerance = Tolerance(settings.max_loss, settings.max_level_loss)
    return Case(
        policy=Policy(
            gate=trial.gate,
            tolerance=tolerance,
            name=choice.name,
            earlier=[read[name] for name in choice.earlier if name in read],
        ),
        baseline=[read[name] for name in choice.baseline if name in read],
        noise=learn([[read[name] for name in group if name in read] for group in choice.groups]),
        choice=choice,
        settings=settings,
        beside=(choice.beside, read[choice.beside]) if choice.beside in read else None,
    )


def _bench(session: Session, release: str) -> Json | None:
    try:
        text = session.client.release_read(session.service.name, release, ["bench.json"]).files["bench.json"]
        found = read_document(text) if text else None
    except (AgentError, ValueError):
        return None  # only the comparison with it is lost
    return found if isinstance(found, dict) else None
