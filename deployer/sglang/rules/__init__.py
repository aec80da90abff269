"""The rules: what is known to go wrong with SGLang, as data and one small pure function each.

`judge` applies them all to `Facts` about a profile on a service; `launch_arguments` renders the profile or raises with
the errors that make that impossible. What a rule knows is in ``data/rules.toml``; the function of the same id, in the
module of its subject, decides whether it matters.
"""

from deployer.sglang.rules.base import Finding, Need, Rule, Severity, Theme
from deployer.sglang.rules.facts import Facts, GpuFacts, HostFacts
from deployer.sglang.rules.judge import (
    RULES,
    THEMES,
    Report,
    find_rule,
    judge,
    launch_arguments,
    shape_problems,
)
from deployer.sglang.rules.shape import ModelShape, model_shape

__all__ = [
    "RULES", "THEMES", "Facts", "Finding", "GpuFacts", "HostFacts", "ModelShape", "Need", "Report", "Rule",
    "Severity", "Theme", "find_rule", "judge", "launch_arguments", "model_shape", "shape_problems",
]  # fmt: skip
