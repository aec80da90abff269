"""Sizes that do not fit together, or do not fit the GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from deployer.sglang.flags.devices import last_place
from deployer.sglang.rules.base import Hit, Severity, Theme
from deployer.sglang.rules.facts import Facts

THEME = Theme("sizes", "Sizes")

GPU_REMEDY = "choose a smaller profile, or give the service more GPUs"


@THEME.rule(
    "one-host-only",
    Severity.ERROR,
    "a service runs on one host",
    about="""A model that spans hosts needs a server on each of them, started and stopped together. deployer
    manages one host per service.""",
    remedy="set parallelism.nnodes to 1, and choose a profile that fits one host",
    references=["docs/configuration.md"],
    shape=True,
)
def one_host_only(facts: Facts) -> Iterator[Hit]:
    nodes = facts.profile.parallelism.nnodes
    if nodes != 1:
        yield Hit(f"{nodes}; a service runs on one host", ("parallelism", "nnodes"))


@THEME.rule(
    "ep-divides-tp",
    Severity.ERROR,
    "the expert parallel size divides the tensor parallel size",
    about="""The ranks of one tensor parallel group are divided into ep groups of tp / ep ranks. SGLang accepts
    ep = 3 with tp = 8 and ep = 4 with tp = 2 silently when it parses its arguments, and fails or shards wrongly
    after it has loaded (seen with 0.5.23; for weights quantised in blocks the model's initialisation refuses
    it).""",
    remedy="choose an ep that divides tp: 1 keeps all experts together, tp gives every rank its own",
    references=["measured: 0.5.23 accepts tp 8 with ep 3", "0.5.12.post1:srt/model_executor/model_runner.py"],
    shape=True,
)
def ep_divides_tp(facts: Facts) -> Iterator[Hit]:
    if facts.tp % facts.ep:
        yield Hit(f"{facts.ep} does not divide tp = {facts.tp}", ("parallelism", "ep"))


@THEME.rule(
    "dp-attention-groups",
    Severity.ERROR,
    "the groups of DP attention divide the tensor parallel group",
    about="""With DP attention the tensor parallel ranks are divided into dp groups, each of which serves its
    own requests in the attention layers. If dp does not divide tp, SGLang 0.5.23 exits with an assertion that
    has no message (srt/arg_groups/parallel_hook.py:326).""",
    remedy="choose a dp above 1 that divides tp, or turn dp_attention off",
    references=["0.5.23:srt/arg_groups/parallel_hook.py:326"],
    shape=True,
)
def dp_attention_groups(facts: Facts) -> Iterator[Hit]:
    dp = facts.profile.parallelism.dp
    if facts.profile.parallelism.dp_attention and (dp == 1 or facts.tp % dp):
        yield Hit(
            f"{dp}; with dp_attention it must be above 1 and divide tp = {facts.tp}", ("parallelism", "dp")
        )


@THEME.rule(
    "dp-meaning",
    Severity.ADVICE,
    "dp without DP attention means whole replicas",
    about="""dp = N means N copies of the model, each on tp x pp GPUs, behind one port. With dp_attention the
    same number means groups inside one tensor parallel group and needs no further GPUs. Up to 0.5.16 both are
    written --dp-size. In 0.5.23 the second has its own flag (--attn-dp-size), --dp-size alone counts towards
    the world size (tp x pp x dp), and the old pair --dp-size with --enable-dp-attention is announced to be
    removed after 2026-12-31.""",
    remedy="nothing, if replicas are intended; for attention groups set parallelism.dp_attention = true",
    references=["0.5.23:srt/server_args.py compute_world_size"],
)
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


@THEME.rule(
    "too-few-gpus",
    Severity.ERROR,
    "there are tp x pp x dp GPUs",
    about="""Every rank needs a GPU of its own: tp x pp, times dp if that means replicas. SGLang notices only
    when a rank requests a device that does not exist, after all others have begun to load.""",
    remedy=GPU_REMEDY,
    references=["0.5.23:srt/server_args.py compute_world_size"],
    blocks=True,
)
def gpus_missing(facts: Facts) -> Iterator[Hit]:
    present, needed = facts.gpus, facts.profile.gpus
    if present is not None and needed > present:
        yield Hit(too_few_gpus(needed, facts.service.name, present, gpu_source(facts)))


@THEME.rule(
    "gpus-unused",
    Severity.ADVICE,
    "all GPUs of the service are used",
    about="""The GPUs of a service are reserved for it; those that its profile does not use stay idle.""",
    remedy="choose a larger profile, add replicas (dp), or give the others to another service with `gpus`",
    references=["docs/configuration.md"],
)
def gpus_unused(facts: Facts) -> Iterator[Hit]:
    present, needed = facts.gpus, facts.profile.gpus
    if present is not None and needed < present:
        yield Hit(
            f"profile {facts.profile.name} uses {needed} of the {present} GPUs of service {facts.service.name}"
        )


@THEME.rule(
    "base-gpu-id",
    Severity.ERROR,
    "--base-gpu-id and --gpu-id-step stay within the service's GPUs",
    about="""deployer shows a service exactly its own GPUs (CUDA_VISIBLE_DEVICES), so inside the server they are
    numbered from 0. --base-gpu-id and --gpu-id-step count within that list, not within the host. The step is
    between tensor parallel ranks and between replicas; pipeline stages follow each other tp GPUs apart.""",
    remedy="leave out --base-gpu-id and --gpu-id-step, and list the GPUs in the service's `gpus`",
    references=[
        "0.5.12.post1:srt/entrypoints/engine.py:603",
        "0.5.12.post1:srt/managers/data_parallel_controller.py:264",
    ],
)
def base_gpu_id(facts: Facts) -> Iterator[Hit]:
    base, step, present = facts.whole("--base-gpu-id") or 0, facts.whole("--gpu-id-step") or 1, facts.gpus
    last = last_place(**facts.layout)
    if (
        present is not None
        and (base or step != 1)
        and facts.profile.gpus <= present
        and not 0 <= last < present
    ):
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


@THEME.rule(
    "below-the-least",
    Severity.ERROR,
    "no size is below the minimum that SGLang works with",
    about="""SGLang's parser accepts any number. In 0.5.23, 0 or less ends the start: with a division by zero
    (page size, attention context parallel size), an assertion (tokenizer workers, base GPU, conservativeness),
    a shape that does not fit (page size -4); for the log interval, the queue and the watchdog only at the
    server's own first request, after the whole load.""",
    remedy="leave the flag out, or give it at least the minimum that the rule names",
    references=["observed with SGLang 0.5.23"],
)
def below_the_least(facts: Facts) -> Iterator[Hit]:
    for option, minimum in _MINIMUM.items():
        value = facts.number(option)
        if value is not None and value < minimum:
            yield Hit(f"{option} is {value} (minimum {minimum})", facts.at(option))
