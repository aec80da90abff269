"""Sizes that do not fit together, or do not fit the GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from deployer.sglang.flags.devices import last_place
from deployer.sglang.rules.base import Hit, Theme
from deployer.sglang.rules.facts import Facts

THEME = Theme("sizes", "Sizes")


@THEME.rule("one-host-only")
def one_host_only(facts: Facts) -> Iterator[Hit]:
    nodes = facts.profile.parallelism.nnodes
    if nodes != 1:
        yield Hit(f"{nodes}; a service runs on one host", ("parallelism", "nnodes"))


@THEME.rule("ep-divides-tp")
def ep_divides_tp(facts: Facts) -> Iterator[Hit]:
    if facts.tp % facts.ep:
        yield Hit(f"{facts.ep} does not divide tp = {facts.tp}", ("parallelism", "ep"))


@THEME.rule("dp-attention-groups")
def dp_attention_groups(facts: Facts) -> Iterator[Hit]:
    dp = facts.profile.parallelism.dp
    if facts.profile.parallelism.dp_attention and (dp == 1 or facts.tp % dp):
        yield Hit(f"{dp}; with dp_attention it must be above 1 and divide tp = {facts.tp}", ("parallelism", "dp"))


@THEME.rule("dp-meaning")
def dp_meaning(facts: Facts) -> Iterator[Hit]:
    dp = facts.profile.parallelism.dp
    if dp > 1 and not facts.profile.parallelism.dp_attention:
        yield Hit(
            f"{dp} replicas of tp {facts.tp} x pp {facts.pp} need {facts.profile.gpus} GPUs and share "
            "max_running_requests",
            ("parallelism", "dp"),
        )


def too_few_gpus(needed: int, service: str, present: int, source: str) -> str:
    """Return the sentence about a profile that needs more GPUs than there are."""
    return f"the profile needs {needed} GPUs; service {service} has {present} ({source})"


def gpu_source(facts: Facts) -> str:
    """Return where the number of a service's GPUs comes from."""
    if facts.service.gpus is not None:
        return f"services.{facts.service.name}.gpus"
    return f"hosts.{facts.host.name}.gpus" if facts.host.gpus else f"as seen on {facts.host.name}"


@THEME.rule("too-few-gpus")
def gpus_missing(facts: Facts) -> Iterator[Hit]:
    present, needed = facts.gpus, facts.profile.gpus
    if present is not None and needed > present:
        yield Hit(too_few_gpus(needed, facts.service.name, present, gpu_source(facts)))


@THEME.rule("gpus-unused")
def gpus_unused(facts: Facts) -> Iterator[Hit]:
    present, needed = facts.gpus, facts.profile.gpus
    if present is not None and needed < present:
        yield Hit(f"profile {facts.profile.name} uses {needed} of the {present} GPUs of service {facts.service.name}")


@THEME.rule("base-gpu-id")
def base_gpu_id(facts: Facts) -> Iterator[Hit]:
    base, step, present = facts.whole("--base-gpu-id") or 0, facts.whole("--gpu-id-step") or 1, facts.gpus
    last = last_place(**facts.layout)
    if present is not None and (base or step != 1) and facts.profile.gpus <= present and not 0 <= last < present:
        option = "--base-gpu-id" if base else "--gpu-id-step"
        yield Hit(f"the last rank would use GPU {last} of {present} (0 to {present - 1})", facts.at(option))


#: The minimum that SGLang works with, for flags whose parser accepts any number.
_MINIMUM = {
    "--attn-cp-size": 1,
    "--base-gpu-id": 0,
    "--decode-log-interval": 1,
    "--max-queued-requests": 1,
    "--moe-dp-size": 1,
    "--page-size": 1,
    "--schedule-conservativeness": 0,
    "--tokenizer-worker-num": 1,
    "--watchdog-timeout": 1,
}


@THEME.rule("below-the-least")
def below_the_least(facts: Facts) -> Iterator[Hit]:
    for option, minimum in _MINIMUM.items():
        value = facts.number(option)
        if value is not None and value < minimum:
            yield Hit(f"{option} is {value} (minimum {minimum})", facts.at(option))
