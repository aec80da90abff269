"""What a benchmark run asks for: the spec, and the prompts that follow from it.

Travels to the host with ``load.py``: Python 3.9, standard library only.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields
from typing import Any

Json = dict[str, Any]

#: Common words, nearly all of them one token in the usual vocabularies.
_TEXT = """
time year people way day man thing woman life child world school state family student group country
problem hand part place case week company system program question work government number night point
home water room mother area money story fact month lot right study book eye job word business issue
side kind head house service friend father power hour game line end member law car city community
name president team minute idea body information back parent face others level office door health
person art war history party result change morning reason research girl guy moment air teacher force
education foot boy age policy music market sense nation plan college interest death experience
effect use class control field development role effort rate heart drug show leader light voice wife
police mind price report decision son view relationship town road arm difference value building
action season society tax director position player record paper space ground form event official
matter center couple site project activity star table need court oil situation cost industry figure
street image phone data picture practice piece land product doctor wall patient worker news test
movie north love support technology step baby computer type attention film tree source organization
hair look window culture chance brother energy period course summer plant opportunity term letter
condition choice
"""
WORDS = _TEXT.split()


@dataclass(frozen=True)
class Spec:
    """What to measure. Times in seconds, lengths in tokens.

    ``base_url`` has no ``/v1`` at its end. A level of n runs n streams side by side, each ``waves``
    requests long. A level that has not ended after ``level_deadline`` (default: ``request_timeout`` a wave,
    and 5 s) is cut. ``salt`` keeps the prompts of two runs apart, so that no prefix cache answers; by
    default it is drawn anew.
    """

    base_url: str
    model: str
    levels: tuple[int, ...] = (8, 16, 32, 48, 64)
    waves: int = 1
    prompt_tokens: int = 128
    output_tokens: int = 128
    warmups: int = 2
    warmup_tokens: int = 16
    singles: int = 2
    request_timeout: float = 900.0
    level_deadline: float | None = None
    seed: int = 0
    salt: str | None = None
    progress_interval: float = 1.0

    @classmethod
    def from_json(cls, document: Json) -> Spec:
        """ValueError, with all problems, where the document is not a spec."""
        known = {f.name for f in fields(cls)}
        problems = [f"unknown key {key!r}" for key in sorted(set(document) - known)]
        problems += [f"{key} is missing" for key in ("base_url", "model") if not document.get(key)]
        counts = (
            "waves",
            "prompt_tokens",
            "output_tokens",
            "warmup_tokens",
            "request_timeout",
            "progress_interval",
        )
        problems += [f"{key} must be above 0" for key in counts if document.get(key, 1) <= 0]
        problems += [
            f"{key} must not be below 0" for key in ("warmups", "singles") if document.get(key, 0) < 0
        ]
        levels = document.get("levels", ())
        if any(not isinstance(level, int) or level < 1 for level in levels) or len(set(levels)) != len(
            levels
        ):
            problems.append(f"levels must be distinct whole numbers from 1, not {levels!r}")
        if problems:
            raise ValueError("; ".join(problems))
        values = dict(document)
        if "levels" in values:
            values["levels"] = tuple(values["levels"])
        base = values["base_url"].rstrip("/")
        values["base_url"] = base[:-3] if base.endswith("/v1") else base
        return cls(**values)

    def deadline(self, rounds: int) -> float:
        """Seconds after which a stage of ``rounds`` requests one after another is cut."""
        return self.request_timeout * rounds + 5

    def worst_case(self) -> float:
        """Seconds after which a run has certainly ended, whatever the server does."""
        level = self.level_deadline or self.deadline(self.waves)
        around = 30 * (len(self.levels) + 2)  # the looks at the server's counters, before and after
        return self.deadline(self.warmups) + self.deadline(self.singles) + level * len(self.levels) + around


def prompt(spec: Spec, salt: str, stage: str, index: int, words: int) -> str:
    """A text of ``words`` common words, the same for the same arguments and unlike any other."""
    draw = random.Random(f"{spec.seed}/{salt}/{stage}/{index}")
    chosen = [draw.choice(WORDS) for _ in range(max(words, 1))]
    for start in range(0, len(chosen), 12):
        chosen[start] = chosen[start].capitalize()
        if start:
            chosen[start - 1] += "."
    return " ".join(chosen)
