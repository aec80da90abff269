"""Pipelines: what is in flight, how many requests a micro-batch holds, what SGLang turns off."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from deployer.sglang.rules.base import Hit, Need, Severity, Theme
from deployer.sglang.rules.facts import Facts

THEME = Theme("pipeline", "Pipeline")

_DEPTH, _CAP, _PP = (
    ("pipeline", "async_batch_depth"),
    ("pipeline", "max_micro_batch_size"),
    ("parallelism", "pp"),
)
MEASURED = (
    "measured: 8 PCIe GPUs, Kimi K2.6: pp8 without graphs and depth 25 tok/s alone and 96 at 8; "
    "depth 8 with graphs 34 alone, 112 at 8, 248 at 32"
)
MEASURED_H200 = (
    "measured: 2 x H200 (NVLink), 0.5.11, 34B: pp2 54 alone, 1352 at 32, 2551 at 64; depth 2: 51, 1175, 1672"
)
MEASURED_CAP = "measured: 8 PCIe GPUs, 32 requests: cap 8 gives 248 tok/s, cap 64 gives 251"
MEASURED_CAP_H200 = (
    "measured: 2 x H200, 8B, 32 / 64 requests: cap 32 gives 2887 / 3698 tok/s, cap 64 2181 / 3888"
)


@THEME.rule(
    "depth-without-pipeline",
    Severity.ERROR,
    "an async depth needs a pipeline",
    about="""--pp-async-batch-depth is the number of micro-batches in flight beyond the stages. With one stage
    there is no pipeline, and SGLang silently ignores it.""",
    remedy="leave pipeline.async_batch_depth out, or set parallelism.pp",
    references=["0.5.12.post1:srt/managers/scheduler_pp_mixin.py:523"],
    shape=True,
)
def depth_without_pipeline(facts: Facts) -> Iterator[Hit]:
    if facts.depth and facts.pp == 1:
        yield Hit(f"{facts.depth}, but there is no pipeline: pp is 1", _DEPTH)


@THEME.rule(
    "micro-batch-above-limit",
    Severity.ERROR,
    "a micro-batch is not larger than all requests together",
    about="""A micro-batch holds some of the running requests, so its cap makes no sense above
    limits.max_running_requests. SGLang runs with such a cap, which then limits nothing: if the limit comes from
    the service, this is a warning.""",
    remedy="lower pipeline.max_micro_batch_size, or raise limits.max_running_requests",
    references=["0.5.12.post1:srt/managers/scheduler.py:742"],
    shape=True,
)
def micro_batch_above_limit(facts: Facts) -> Iterator[Hit]:
    micro = facts.profile.pipeline.max_micro_batch_size
    if facts.running is not None and isinstance(micro, int) and micro > facts.running:
        yield Hit(
            f"{micro} is more than limits.max_running_requests = {facts.running}",
            _CAP,
            Severity.WARNING if facts.service.limits.max_running_requests == facts.running else None,
        )


@THEME.rule(
    "depth-zero",
    Severity.ADVICE,
    "no micro-batch is in flight beyond the stages",
    about="""The loop has pp + depth micro-batches. At depth 0 a stage waits for its neighbour before it starts
    the next one. Whether a depth helps depends on the machine: on 8 PCIe GPUs the step from depth 0 without
    graphs to depth 8 with graphs took Kimi K2.6 from 25 to 34 tok/s alone and from 96 to 112 at 8; on 2 H200
    joined by NVLink depth 2 was slower than depth 0 at every level (34B at 64 requests: 1672 instead of 2551).
    Only a benchmark of your own can decide.""",
    remedy="try a profile with pipeline.async_batch_depth = pp, and let its benchmark decide",
    references=[MEASURED, MEASURED_H200],
)
def depth_zero(facts: Facts) -> Iterator[Hit]:
    if facts.pp > 1 and not facts.depth:
        yield Hit(
            f"pp = {facts.pp} and depth 0: {facts.pp} micro-batches take turns, none is in flight beyond the stages",
            _DEPTH,
        )


@THEME.rule(
    "async-depth",
    Severity.ADVICE,
    "an async depth helps on one machine and hurts on another",
    about="""See depth-zero: the figures of two machines disagree. A depth keeps more micro-batches in flight,
    and each of them is smaller. With a depth above 0 outputs are exchanged before the forward pass.""",
    remedy="compare with the same profile at depth 0 (`deployer compare`); keep what is faster here",
    references=[MEASURED, MEASURED_H200],
)
def async_depth(facts: Facts) -> Iterator[Hit]:
    if facts.pp > 1 and facts.depth:
        yield Hit(
            f"the loop has pp {facts.pp} + depth {facts.depth} = {facts.profile.loop_size} micro-batches",
            _DEPTH,
        )


@THEME.rule(
    "async-depth-output",
    Severity.WARNING,
    "async depth above 1 gave wrong output in builds of December 2025",
    about="""Output was wrong with a depth above 1, because tensors received from the previous stage were freed
    while kernels still read them; the log shows nothing of it. The report is of 2025-12-20, and the pull
    request that names the cause was closed without being merged; 0.5.9 is the first known release with the
    flag. Whether a release is affected shows only in its answers.""",
    remedy="compare answers at temperature 0 with those at depth 0 before trusting it",
    references=["issue 15527", "PR 15545"],
)
def async_depth_output(facts: Facts) -> Iterator[Hit]:
    if facts.pp > 1 and facts.depth > 1:
        old = facts.before("0.5.9")
        yield Hit(
            f"depth {facts.depth}" + (f" with SGLang {facts.version}, a build of that time" if old else ""),
            _DEPTH,
            None if old else Severity.ADVICE,
        )


@THEME.rule(
    "micro-batch-cap",
    Severity.ADVICE,
    "how many requests a micro-batch holds, and what that means at each level",
    about="""By default SGLang allows max_running_requests // pp requests in a micro-batch; it divides by pp,
    not by the loop size pp + depth. So at most min(max_running_requests, loop size x cap) run at a time. Slots
    fill in order of arrival: a first request gets one to itself and the burst after it gets the next (32
    requests under pp2: 27 + 5). Raising the cap looked like a remedy and was not: on 8 PCIe GPUs 8 -> 64 moved
    248 to 251 tok/s, on 2 H200 32 -> 64 moved 3698 to 3888 at 64 requests and 2887 to 2181 at 32.""",
    remedy="nothing; to change it set pipeline.max_micro_batch_size (or POST /set_internal_state at run time)",
    references=["0.5.12.post1:srt/managers/scheduler.py:742", MEASURED_CAP, MEASURED_CAP_H200],
)
def micro_batch_cap(facts: Facts) -> Iterator[Hit]:
    cap, most = facts.cap, facts.at_a_time
    if cap is None or most is None:
        return
    own = isinstance(facts.profile.pipeline.max_micro_batch_size, int)
    how = "as set" if own else f"{facts.running} // {facts.pp}"
    loop = facts.profile.loop_size
    levels = ", ".join(
        f"C={level}: {min(level, most)} run, about {-(-min(level, most) // loop)} in each of {loop}"
        for level in facts.levels
    )
    yield Hit(
        f"the cap is {cap} ({how}), loop size {loop}, so at most {most} run at a time; {levels}",
        _CAP,
    )


@THEME.rule(
    "micro-batch-cap-large",
    Severity.ADVICE,
    "the micro-batch cap is above its share",
    about="""With a cap above max_running_requests // pp a few micro-batches may hold all requests while other
    slots of the loop are empty, and stages idle in turn. Measurements moved little either way.""",
    remedy='let SGLang choose (pipeline.max_micro_batch_size = "auto"), or compare both',
    references=[MEASURED_CAP, MEASURED_CAP_H200],
)
def micro_batch_cap_large(facts: Facts) -> Iterator[Hit]:
    if facts.cap is None or not facts.running:
        return
    share = max(facts.running // facts.pp, 1)
    if facts.cap > share:
        slots = -(-facts.running // facts.cap)
        yield Hit(
            f"{facts.cap}; the share is {facts.running} // {facts.pp} = {share}, and {slots} of "
            f"{facts.profile.loop_size} slots may hold all {facts.running} requests",
            _CAP,
        )


@THEME.rule(
    "pp-overlap-schedule",
    Severity.ADVICE,
    "a pipeline turns the overlap scheduler off",
    about="""SGLang prepares the next batch on the CPU while the GPU computes the current one. With pp > 1 it
    turns that off by itself ("Pipeline parallelism is incompatible with overlap schedule."), so tp and pp
    profiles differ in this, too.""",
    remedy="nothing; extra_args.disable-overlap-schedule = true makes it explicit",
    references=["0.5.23:srt/arg_groups/overrides.py:1624"],
)
def pp_overlap(facts: Facts) -> Iterator[Hit]:
    if facts.pp > 1 and not facts.on("--disable-overlap-schedule"):
        yield Hit(f"pp = {facts.pp}: SGLang sets disable_overlap_schedule", _PP)


@THEME.rule(
    "pp-speculative",
    Severity.ERROR,
    "speculative decoding in a pipeline",
    about="""Up to 0.5.16 an assertion refuses speculative decoding with pp > 1. 0.5.23 accepts EAGLE (NEXTN is
    another name for it), but only on the prefill side of a disaggregated pair unless SGLANG_ENABLE_PP_SPEC is
    set; DSPARK only on the prefill side.""",
    remedy="leave speculative decoding out, or use a profile with pp = 1",
    references=[
        "0.5.16:srt/server_args.py:7598",
        "0.5.23:srt/arg_groups/validation_hook.py:119-165",
    ],
)
def pp_speculative(facts: Facts) -> Iterator[Hit]:
    algorithm = facts.word("--speculative-algorithm")
    if facts.pp == 1 or not algorithm:
        return
    new = facts.since("0.5.23")
    prefill = facts.word("--disaggregation-mode") == "prefill"
    eagle = algorithm.upper() in ("EAGLE", "NEXTN") and facts.truthy("SGLANG_ENABLE_PP_SPEC")
    if new and (eagle or (prefill and algorithm.upper() in ("EAGLE", "NEXTN", "DSPARK"))):
        return
    severity = None if new or facts.before("0.5.17") else Severity.WARNING
    yield Hit(f"{algorithm} with pp = {facts.pp}", facts.at("--speculative-algorithm"), severity)


@THEME.rule(
    "pp-mixed-chunk",
    Severity.ERROR,
    "mixed chunked prefill in a pipeline",
    about="""Up to 0.5.10.post1 an assertion refuses --enable-mixed-chunk with pp > 1. It was removed in April
    2026 after tests with Qwen3 32B on tp 2 x pp 3; 0.5.12.post1, 0.5.16 and 0.5.23 accept it.""",
    remedy="leave extra_args.enable-mixed-chunk out, or compare a profile with it to one without",
    references=["issue 10589", "PR 22920", "0.5.10.post1:srt/server_args.py:6073"],
)
def pp_mixed_chunk(facts: Facts) -> Iterator[Hit]:
    if facts.pp > 1 and facts.on("--enable-mixed-chunk"):
        unknown = None if facts.before("0.5.11") else Severity.WARNING
        severity = Severity.ADVICE if facts.since("0.5.12.post1") else unknown
        yield Hit(f"pp = {facts.pp}", facts.at("--enable-mixed-chunk"), severity)


@THEME.rule(
    "decode-log-interval",
    Severity.ADVICE,
    "the log shows all micro-batches in turn",
    about="""The line "Decode batch" is printed every --decode-log-interval results of one counter that runs
    over the slots of the loop. The default of 40 is a multiple of many loop sizes, and then the log shows only
    one slot. Unless it is set, deployer chooses an interval coprime to the loop size.""",
    remedy="leave decode-log-interval out, or choose a number without a common factor with the loop size",
    references=["measured: 0.5.11, loop sizes 2 and 4"],
)
def decode_log_interval(facts: Facts) -> Iterator[Hit]:
    interval, loop = facts.whole("--decode-log-interval"), facts.profile.loop_size
    if facts.pp > 1 and interval and interval > 0 and gcd(interval, loop) != 1:
        yield Hit(
            f"{interval} with loop size {loop}: the log shows {loop // gcd(interval, loop)} of {loop} slots",
            facts.at("--decode-log-interval"),
        )


@THEME.rule(
    "pp-unsupported-flag",
    Severity.ERROR,
    "flags that a pipeline does not support",
    about="""SGLang refuses these with pp > 1 when it checks its arguments: --min-free-slots-delay,
    --enable-return-aux-hidden-states, --enable-pdmux, --elastic-ep-backend, and --moe-dp-size above 1. Up to
    0.5.10 it accepts --elastic-ep-backend.""",
    remedy="leave the flag out, or use a profile with pp = 1",
    references=[
        "0.5.23:srt/arg_groups/validation_hook.py",
        "0.5.10:srt/server_args.py:2826",
        "0.5.12.post1:srt/server_args.py:3322",
    ],
    needs=[Need.VERSION],
)
def pp_unsupported_flag(facts: Facts) -> Iterator[Hit]:
    if facts.pp == 1:
        return
    unsupported = [name for name in ("--enable-return-aux-hidden-states", "--enable-pdmux") if facts.on(name)]
    unsupported += [name for name in ("--min-free-slots-delay", "--elastic-ep-backend") if facts.flag(name)]
    if (facts.whole("--moe-dp-size") or 1) > 1:
        unsupported.append("--moe-dp-size")
    for option in unsupported:
        accepted = option == "--elastic-ep-backend" and facts.before("0.5.12.post1")
        yield Hit(f"{option} with pp = {facts.pp}", facts.at(option), Severity.WARNING if accepted else None)
