"""Pipelines: what is in flight, how many requests a micro-batch holds, what SGLang turns off."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from deployer.sglang.rules.base import Hit, Severity, Theme
from deployer.sglang.rules.facts import Facts

THEME = Theme("pipeline", "Pipeline")

_DEPTH, _CAP = ("pipeline", "async_batch_depth"), ("pipeline", "max_micro_batch_size")
_PP = ("parallelism", "pp")


@THEME.rule("depth-without-pipeline")
def depth_without_pipeline(facts: Facts) -> Iterator[Hit]:
    if facts.depth and facts.pp == 1:
        yield Hit(f"{facts.depth}, but there is no pipeline: pp is 1", _DEPTH)


@THEME.rule("micro-batch-above-limit")
def micro_batch_above_limit(facts: Facts) -> Iterator[Hit]:
    micro = facts.profile.pipeline.max_micro_batch_size
    if facts.running is not None and isinstance(micro, int) and micro > facts.running:
        yield Hit(
            f"{micro} is more than limits.max_running_requests = {facts.running}",
            _CAP,
            Severity.WARNING if facts.service.limits.max_running_requests == facts.running else None,
        )


@THEME.rule("depth-zero")
def depth_zero(facts: Facts) -> Iterator[Hit]:
    if facts.pp > 1 and not facts.depth:
        yield Hit(
            f"pp = {facts.pp} and depth 0: {facts.pp} micro-batches take turns, none is in flight beyond the stages",
            _DEPTH,
        )


@THEME.rule("async-depth")
def async_depth(facts: Facts) -> Iterator[Hit]:
    if facts.pp > 1 and facts.depth:
        yield Hit(
            f"the loop has pp {facts.pp} + depth {facts.depth} = {facts.profile.loop_size} micro-batches",
            _DEPTH,
        )


@THEME.rule("async-depth-output")
def async_depth_output(facts: Facts) -> Iterator[Hit]:
    if facts.pp > 1 and facts.depth > 1:
        old = facts.before("0.5.9")
        yield Hit(
            f"depth {facts.depth}" + (f" with SGLang {facts.version}, a build of that time" if old else ""),
            _DEPTH,
            None if old else Severity.ADVICE,
        )


@THEME.rule("micro-batch-cap")
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


@THEME.rule("micro-batch-cap-large")
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


@THEME.rule("pp-overlap-schedule")
def pp_overlap(facts: Facts) -> Iterator[Hit]:
    if facts.pp > 1 and not facts.on("--disable-overlap-schedule"):
        yield Hit(f"pp = {facts.pp}: SGLang sets disable_overlap_schedule", _PP)


@THEME.rule("pp-speculative")
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


@THEME.rule("pp-mixed-chunk")
def pp_mixed_chunk(facts: Facts) -> Iterator[Hit]:
    if facts.pp > 1 and facts.on("--enable-mixed-chunk"):
        unknown = None if facts.before("0.5.11") else Severity.WARNING
        severity = Severity.ADVICE if facts.since("0.5.12.post1") else unknown
        yield Hit(f"pp = {facts.pp}", facts.at("--enable-mixed-chunk"), severity)


@THEME.rule("decode-log-interval")
def decode_log_interval(facts: Facts) -> Iterator[Hit]:
    interval, loop = facts.whole("--decode-log-interval"), facts.profile.loop_size
    if facts.pp > 1 and interval and interval > 0 and gcd(interval, loop) != 1:
        yield Hit(
            f"{interval} with loop size {loop}: the log shows {loop // gcd(interval, loop)} of {loop} slots",
            facts.at("--decode-log-interval"),
        )


@THEME.rule("pp-unsupported-flag")
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
