"""The spec: what a run measures."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

Json = dict[str, Any]

API_KEY_VARIABLE = "DEPLOYER_BENCH_API_KEY"

#: What is under way when the time is up may go on for this share of it, in case it is about to end.
GRACE = 0.1


@dataclass(frozen=True)
class Spec:
    """What to measure. Times in seconds, lengths in tokens.

    ``base_url`` has no ``/v1`` at its end. A level of n runs n streams side by side, ``repeats`` times
    (passes); in a pass each stream sends ``waves`` requests one after another, or more where the pass is to
    have at least ``requests``. With ``discard`` one more wave comes before a level's first pass and is not
    counted. Where all of that is fewer than ``requests_at_least``, passes of the highest level are added. All
    of it has ``budget`` seconds. A pass that has not ended after ``level_deadline`` (default:
    ``request_timeout`` a wave, and 5 s) is cut. ``salt`` keeps the prompts of two runs apart, so that no
    prefix cache answers; by default it is drawn anew. ``shared_prefix`` is what all prompts have in common.
    With ``nvidia_smi`` this machine's GPUs are looked at meanwhile: ``gpus``, None for all of them.
    ``fixed_prompt``: that one is sent before and after the levels. A run that goes on where another ended has
    its ``salt``, its ``length_factor``, and counts its passes from ``first_repeat``.
    """

    base_url: str
    model: str
    levels: tuple[int, ...] = (8, 16, 32, 48, 64)
    waves: int = 1
    repeats: int = 2
    requests: int = 1
    requests_at_least: int = 200
    discard: bool = True
    budget: float = 300.0
    prompt_tokens: int = 128
    output_tokens: int = 128
    shared_prefix: int = 0
    warmups: int = 2
    warmup_tokens: int = 16
    singles: int = 2
    sanity: str = "report"
    request_timeout: float = 900.0
    level_deadline: float | None = None
    seed: int = 0
    salt: str | None = None
    progress_interval: float = 1.0
    sample_interval: float = 1.0
    nvidia_smi: bool = False
    gpus: tuple[int, ...] | None = None
    fixed_prompt: bool = True
    first_repeat: int = 0
    length_factor: float | None = None

    @classmethod
    def from_json(cls, document: Json) -> Spec:
        """Return the spec in a document. Raise ValueError, with all problems, if it is not a valid one."""
        known = {f.name for f in fields(cls)}
        problems = [f"unknown key {key!r}" for key in sorted(set(document) - known)]
        problems += [f"{key} is missing" for key in ("base_url", "model") if not document.get(key)]
        above = (
            *("waves", "repeats", "requests", "budget", "prompt_tokens", "output_tokens", "warmup_tokens"),
            *("request_timeout", "progress_interval", "sample_interval"),
        )
        problems += [f"{key} must be above 0" for key in above if document.get(key, 1) <= 0]
        counts = ("warmups", "singles", "shared_prefix", "requests_at_least")
        problems += [f"{key} must not be below 0" for key in counts if document.get(key, 0) < 0]
        if document.get("sanity", "report") not in ("report", "gate"):
            problems.append(f"sanity must be report or gate, not {document['sanity']!r}")
        levels = document.get("levels", ())
        if any(not isinstance(level, int) or level < 1 for level in levels) or len(set(levels)) != len(levels):
            problems.append(f"levels must be distinct whole numbers from 1, not {levels!r}")
        if problems:
            raise ValueError("; ".join(problems))
        values = dict(document)
        for name in ("levels", "gpus"):
            if values.get(name) is not None:
                values[name] = tuple(values[name])
        base = values["base_url"].rstrip("/")
        values["base_url"] = base[:-3] if base.endswith("/v1") else base
        return cls(**values)

    def rounds(self, level: int) -> int:
        """Return the requests of one stream in a pass of this level, one after another."""
        return max(self.waves, -(-self.requests // level))

    def grace(self) -> float:
        """Return the seconds that what is under way at the end of the budget has left."""
        return self.budget * GRACE

    def deadline(self, rounds: int) -> float:
        """Return the seconds after which a stage of ``rounds`` requests one after another is cut."""
        return self.request_timeout * rounds + 5

    def worst_case(self) -> float:
        """Return the seconds after which a run has certainly ended, whatever the server does."""
        highest = max(self.levels, default=0)
        further = -(-self.requests_at_least // (highest * self.rounds(highest))) if highest else 0
        stages = len(self.levels) * (self.repeats + 1) + further + 4
        # 30 s: the looks at the server's counters, before and after.
        return self.budget + self.grace() + 30 * stages

    def workload(self) -> Json:
        """Return the ``workload`` of the bench document: what has to be equal for two results to be comparable."""
        names = ("prompt_tokens", "output_tokens", "shared_prefix", "seed")
        requests = {str(level): level * self.rounds(level) for level in self.levels}
        return {**{name: getattr(self, name) for name in names}, "requests": requests}
