"""Sizes that do not fit together, or do not fit the GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from deployer.sglang.flags.devices import last_place
from deployer.sglang.rules.base import Hit, Severity, Theme
from deployer.sglang.rules.facts import Facts

THEME = Theme("sizes", "Sizes")


def gpu_remedy() -> str:
    """What to do about a profile that takes more GPUs than there are."""
    return "take a smaller profile, or give the service more GPUs"


@THEME.rule(
    "one-host-only",
    Severity.ERROR,
    "a service runs on one host",
    about="""A model that spans hosts needs a server on each of them, started together and stopped together.
    deployer drives one host per service.""",
    remedy="set parallelism.nnodes to 1, and take a profile that fits one host",
    references=["docs/configuration.md"],
    shape=True,
)
def one_host_only(facts: Facts) -> Iterator[Hit]:
    nodes = facts.profile.parallelism.nnodes
    if nodes != 1:
        yield Hit(
            f"found {nodes}; a service runs on one host, so only 1 is supported", ("parallelism", "nnodes")
        )


@THEME.rule(
    "ep-divides-tp",
    Severity.ERROR,
    "the expert parallel size divides the tensor parallel size",
    about="""The ranks of one tensor parallel group are divided into ep groups of tp / ep ranks. SGLang takes ep
    = 3 with tp = 8 and ep = 4 with tp = 2 without a word when it parses its arguments, and fails or shards
    wrongly after it has loaded (seen with 0.5.23; for weights quantised in blocks the model's initialisation
    refuses it).""",
    remedy="choose an ep that divides tp: 1 keeps all experts together, tp gives every rank its own",
    references=["measured: 0.5.23 accepts tp 8 with ep 3", "0.5.12.post1:srt/model_executor/model_runner.py"],
    shape=True,
)
def ep_divides_tp(facts: Facts) -> Iterator[Hit]:
    if facts.tp % facts.ep:
        yield Hit(f"found {facts.ep}, which does not divide tp = {facts.tp}", ("parallelism", "ep"))


@THEME.rule(
    "dp-attention-groups",
    Severity.ERROR,
    "attention groups of DP attention divide the tensor parallel group",
    about="""With DP attention the tensor parallel ranks are divided into dp groups, each of which serves its
    own requests in the attention layers. SGLang 0.5.23 ends with an assertion that has no message where dp does
    not divide tp (srt/arg_groups/parallel_hook.py:326).""",
    remedy="choose a dp above 1 that divides tp, or turn dp_attention off",
    references=["0.5.23:srt/arg_groups/parallel_hook.py:326"],
    shape=True,
)
def dp_attention_groups(facts: Facts) -> Iterator[Hit]:
    sizes = facts.profile.parallelism
    if sizes.dp_attention and (sizes.dp == 1 or sizes.tp % sizes.dp):
        yield Hit(
            f"found {sizes.dp}; with dp_attention it is more than 1 and divides tp = {sizes.tp}",
            ("parallelism", "dp"),
        )


@THEME.rule(
    "dp-meaning",
    Severity.ADVICE,
    "dp without DP attention means whole replicas",
    about="""dp = N means N copies of the model, each on tp x pp GPUs, behind one port. With dp_attention the
    same number means groups inside one tensor parallel group and takes no further GPUs. Up to 0.5.16 both are
    written --dp-size; in 0.5.23 the second has its own flag (--attn-dp-size), --dp-size alone counts into the
    world size (tp x pp x dp), and the old pair --dp-size with --enable-dp-attention is announced to go after
    2026-12-31.""",
    remedy="nothing, if replicas are meant; for attention groups set parallelism.dp_attention = true",
    references=["0.5.23:srt/server_args.py compute_world_size"],
)
def dp_meaning(facts: Facts) -> Iterator[Hit]:
    sizes = facts.profile.parallelism
    if sizes.dp > 1 and not sizes.dp_attention:
        yield Hit(
            f"{sizes.dp} replicas of tp {sizes.tp} x pp {sizes.pp} take {facts.profile.gpus} GPUs; "
            f"max_running_requests is shared among them",
            ("parallelism", "dp"),
        )


def too_few_gpus(profile: str, need: int, service: str, have: int, whose: str) -> str:
    """The sentence about a profile that takes more GPUs than there are."""
    return f"profile {profile} takes {need} GPUs, but service {service} has {have} ({whose})"


def whose_gpus(facts: Facts) -> str:
    """Where the number of GPUs of a service is said."""
    if facts.service.gpus is not None:
        return f"services.{facts.service.name}.gpus"
    return f"hosts.{facts.host.name}.gpus" if facts.host.gpus else f"{facts.host.name} as it was seen"


@THEME.rule(
    "too-few-gpus",
    Severity.ERROR,
    "tp x pp x dp GPUs are there",
    about="""Every rank has a GPU of its own: tp x pp, times dp where that means replicas. SGLang finds out when
    a rank asks for a device that is not there, after all others have begun to load.""",
    remedy=gpu_remedy(),
    references=["0.5.23:srt/server_args.py compute_world_size"],
)
def gpus_missing(facts: Facts) -> Iterator[Hit]:
    have, need = facts.gpus, facts.profile.gpus
    if have is not None and need > have:
        yield Hit(too_few_gpus(facts.profile.name, need, facts.service.name, have, whose_gpus(facts)))


@THEME.rule(
    "gpus-unused",
    Severity.ADVICE,
    "all GPUs of the service are used",
    about="""The GPUs of a service are reserved for it; those that its profile does not take serve nobody.""",
    remedy="take a larger profile, add replicas (dp), or give the rest to another service with `gpus`",
    references=["docs/configuration.md"],
)
def gpus_unused(facts: Facts) -> Iterator[Hit]:
    have, need = facts.gpus, facts.profile.gpus
    if have is not None and need < have:
        yield Hit(
            f"profile {facts.profile.name} takes {need} of the {have} GPUs of service {facts.service.name}; "
            "others stay unused"
        )


@THEME.rule(
    "base-gpu-id",
    Severity.ERROR,
    "--base-gpu-id and --gpu-id-step stay within the service's GPUs",
    about="""deployer shows a service exactly its GPUs (CUDA_VISIBLE_DEVICES), so inside the server they count
    from 0. --base-gpu-id and --gpu-id-step count within that list, not within the host. The step is between
    tensor parallel ranks and between replicas; pipeline stages follow each other tp GPUs apart.""",
    remedy="leave --base-gpu-id and --gpu-id-step out, and name the GPUs in the service's `gpus`",
    references=[
        "0.5.12.post1:srt/entrypoints/engine.py:603",
        "0.5.12.post1:srt/managers/data_parallel_controller.py:264",
    ],
)
def base_gpu_id(facts: Facts) -> Iterator[Hit]:
    base, step, have = facts.whole("--base-gpu-id") or 0, facts.whole("--gpu-id-step") or 1, facts.gpus
    last = last_place(**facts.layout)
    if have is not None and (base or step != 1) and facts.profile.gpus <= have and not 0 <= last < have:
        option = "--base-gpu-id" if base else "--gpu-id-step"
        yield Hit(
            f"the last rank would take GPU {last} of a list of {have} (0 to {have - 1})", facts.at(option)
        )


#: The least that SGLang works with, of flags that it takes any number for.
_LEAST = {
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


@THEME.rule(
    "below-the-least",
    Severity.ERROR,
    "no size is below the least that SGLang works with",
    about="""SGLang's parser takes any number. Given to 0.5.23, 0 or less ended the start: a division by zero (page
    size, attention context parallel size), an assertion (tokenizer workers, base GPU, conservativeness), a
    shape that does not fit (page size -4); for the log interval, the queue and the watchdog only at the server's own
    first request, after the whole load.""",
    remedy="leave the flag out, or give it at least what the rule names",
    references=["observed with SGLang 0.5.23"],
)
def below_the_least(facts: Facts) -> Iterator[Hit]:
    for option, least in _LEAST.items():
        value = facts.flag(option)
        if isinstance(value, int | float) and not isinstance(value, bool) and value < least:
            yield Hit(f"{option} is {value}, at least {least} is needed", facts.at(option))
