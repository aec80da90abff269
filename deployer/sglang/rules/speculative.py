"""Speculative decoding: parameters that SGLang's own argument handling does not survive."""

from __future__ import annotations

from collections.abc import Iterator

from deployer.sglang.rules.base import Hit, Severity, Theme
from deployer.sglang.rules.facts import Facts

THEME = Theme("speculative", "Speculative decoding")

#: Algorithms whose parameters are set together or not at all.
_TREES = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
STEPS, TOPK, TOKENS = "--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens"


def _trees(facts: Facts) -> bool:
    return (facts.word("--speculative-algorithm") or "").upper() in _TREES


@THEME.rule("speculative-parameters")
def speculative_parameters(facts: Facts) -> Iterator[Hit]:
    if not _trees(facts) or facts.on("--speculative-adaptive"):
        return
    if facts.whole(STEPS) is not None and facts.whole(TOPK) is None:
        yield Hit(f"{STEPS} is set and {TOPK} is not", facts.at(STEPS))
    elif facts.whole(STEPS) is None:
        for option in (TOPK, TOKENS):
            if facts.whole(option) is not None:
                yield Hit(f"{option} is set and {STEPS} is not", facts.at(option))


@THEME.rule("spec-v2-topk")
def spec_v2_topk(facts: Facts) -> Iterator[Hit]:
    topk = facts.whole(TOPK)
    if not (_trees(facts) and facts.truthy("SGLANG_ENABLE_SPEC_V2") and topk is not None and topk > 1):
        return
    where = facts.at(TOPK)
    if facts.since("0.5.12"):
        yield Hit(f"{topk}: SGLang falls back to the scheduler without overlap", where, Severity.ADVICE)
    elif facts.since("0.5.9"):
        yield Hit(f"{topk}: this version refuses more than 1", where)
    else:
        yield Hit(f"{topk}: this version neither supports nor refuses more than 1", where, Severity.WARNING)
