"""Checks of scheduling: queue, micro-batches, the KV pool, the prefix cache."""

from __future__ import annotations

import re

from deployer.config.profile import Profile
from deployer.inspect.doctor.base import COMPARE, Answer, Fine, Hit, Theme, Unknown, try_profile
from deployer.inspect.doctor.evidence import Evidence, Json
from deployer.records.release import Release
from deployer.sglang.log.batches import visible_slots
from deployer.sglang.rules.base import Severity

THEME = Theme("Scheduling")

#: Usage of the KV pool from which on it counts as full.
FULL = 0.9
#: Share of decode lines with a queue that is more than bursts of arrivals.
OFTEN = 0.2
#: Prompts without anything from the prefix cache that are worth a remark.
PROMPTS = 20
_RETRACT = re.compile(r"KV cache pool is full\. Retract requests\.(?: #retracted_reqs: (\d{1,9}))?")


def _async(profile: Profile) -> bool:
    return (
        profile.parallelism.pp > 1 and bool(profile.pipeline.async_batch_depth) and profile.cuda_graph.enabled
    )


@THEME.check(
    "requests-wait",
    Severity.ADVICE,
    "requests wait in the queue",
    trips=f"the queue is not empty in most answers of /v1/loads, or in {100 * OFTEN:.0f} % of the decode "
    "lines of the last minutes",
    next="the service is at its limit for this load: see which limit it is (requests at once, KV pool) "
    "before raising one",
    measure=COMPARE,
)
def requests_wait(e: Evidence) -> Answer:
    if e.waiting is None:
        return Unknown("neither /v1/loads nor the log tells the queue")
    running = "an unknown number" if e.running is None else str(e.running)
    limit = e.computed.capacity if e.computed else None
    text = f"{e.waiting} wait, {running} run" + (f", {limit} can" if limit else "")
    share = e.batches.waiting_share
    lines = f"requests waited in {100 * share:.0f} % of {len(e.batches.decodes)} decode lines"
    if not e.waiting and share <= OFTEN:
        return Fine(f"{text}; {lines}")
    usage = e.batches.usage
    if usage is not None and usage >= FULL:
        advice = "the KV pool is full: a larger memory.mem_fraction_static or a smaller KV type may hold more requests"
        change = "another [memory] mem_fraction_static"
    elif limit and e.running is not None and e.running >= 0.9 * limit:
        advice = "all places are taken: more of them (limits.max_running_requests, the micro-batch cap) may help or not"
        change = f"[limits] max_running_requests above {limit}"
    else:
        advice = (
            "places are free and requests wait: prefills may take their turn first; a smaller "
            "prefill chunk may help"
        )
        change = "a smaller [memory] chunked_prefill_size"
    evidence = (
        [f"/v1/loads, {len(e.loads)} times: waiting {_list(e.loads, 'num_waiting_reqs')}"] if e.loads else []
    )
    evidence += [lines] if e.batches.decodes else []
    return Hit(text, tuple(evidence), next=advice, measure=try_profile(e, None, change))


@THEME.check(
    "slot-is-not-total",
    Severity.ADVICE,
    "what looks like a cap is one micro-batch of several",
    trips="under a pipeline, requests run: the log's #running-req is the size of one micro-batch, and so "
    "is what /v1/loads "
    "and /metrics count as running",
    next="nothing to repair; take the number of requests from your clients or from the open connections, "
    "not from the log",
    measure="deployer doctor",
)
def slot_is_not_total(e: Evidence) -> Answer:
    if e.slots == 1:
        return Fine("no pipeline: the log's #running-req is all that runs")
    if not e.batches.decodes:
        return Unknown("no decode line in the last minutes")
    largest, cap = max(e.batches.sizes), e.computed.micro_batch_cap if e.computed else None
    total = "an unknown number of" if e.running is None else f"about {e.running}"
    text = (
        f"#running-req: {largest} is one micro-batch of {e.slots} in turn, not a scheduler cap: {total} "
        f"requests run in "
        f"all, {e.waiting if e.waiting is not None else '?'} wait"
    )
    if e.computed and e.computed.capacity:
        text += f"; {e.computed.capacity} could run"
    evidence = [
        f"{e.slots} = {e.pp} stages + {e.depth} in flight beyond them; the cap of one is {cap or 'not told'}"
    ]
    evidence += [e.largest] if e.largest else []
    if e.batches.mean_size is not None:
        mean = f"by the growth of #token a micro-batch has {e.batches.mean_size:.1f} requests on average"
        busy = round(e.running / e.batches.mean_size) if e.running else 0
        evidence.append(mean + (f": about {min(busy, e.slots)} of {e.slots} hold requests" if busy else ""))
    if e.turns:
        evidence.append(
            f"/v1/loads, {len(e.turns)} times: running {_list(e.loads, 'num_running_reqs')} (one in turn)"
        )
    if e.sampled and e.sampled.connections is not None:
        evidence.append(f"{e.sampled.connections:.0f} connections are open")
    return Hit(text, tuple(evidence))


@THEME.check(
    "cap-is-no-limit",
    Severity.ADVICE,
    "raising the micro-batch cap is not expected to help",
    trips="under a pipeline a micro-batch reaches the cap while nothing waits and other micro-batches are free",
    next="leave it: what is not waiting gains nothing from more room. On eight PCIe GPUs (Kimi K2.6, 32 "
    "requests) a cap of 8 "
    "gave 248 tok/s and one of 64 gave 251",
    measure="deployer apply {profile}; deployer compare {live} {profile}",
)
def cap_is_no_limit(e: Evidence) -> Answer:
    cap = e.computed.micro_batch_cap if e.computed else None
    if e.slots == 1 or cap is None:
        return Fine("no pipeline, so no micro-batch cap")
    if not e.batches.decodes:
        return Unknown("no decode line in the last minutes")
    largest = max(e.batches.sizes)
    if largest < cap:
        return Fine(f"the largest micro-batch had {largest} of {cap} requests")
    if e.waiting or e.batches.waiting_share > OFTEN:
        return Fine(f"micro-batches are full ({cap}) and requests wait: see requests-wait")
    capacity = e.computed.capacity if e.computed else None
    evidence = [
        f"{e.slots} micro-batches of {cap}: {e.slots * cap} places, and {capacity or '?'} requests at once at most"
    ]
    evidence.append(f"about {e.running if e.running is not None else '?'} run, {e.waiting or 0} wait")
    evidence += [_speed(item) for item in e.twins()]
    roomy = e.other_profile(lambda profile: _larger_cap(profile, cap) and profile.loop_size == e.slots)
    measure = try_profile(e, roomy, f"[pipeline] max_micro_batch_size above {cap}")
    return Hit(
        f"a micro-batch is full with {cap}, and no request waits for a place",
        tuple(evidence),
        measure=measure,
    )


def _larger_cap(profile: Profile, cap: int) -> bool:
    size = profile.pipeline.max_micro_batch_size
    return isinstance(size, int) and size > cap


def _speed(release: Release) -> str:
    """A release's cap and what it was measured at."""
    arguments = release.requested.arguments
    cap = arguments.get("pp_max_micro_batch_size", arguments.get("max_micro_batch_size", "auto"))
    return f"measured: {release.release} (cap {cap}): {release.bench_summary}"


@THEME.check(
    "nothing-in-flight",
    Severity.ADVICE,
    "the pipeline keeps nothing in flight",
    trips="pipeline stages without an async depth: pp_async_batch_depth is 0",
    next="try an async depth as large as the pipeline and measure. On eight PCIe GPUs depth 8 (with "
    "graphs) turned 25 tok/s "
    "alone and 96 at 8 requests into 34 and 112; on two NVLink GPUs depth 2 made every level slower",
    measure="deployer apply pp8-async; deployer compare {live} pp8-async",
)
def nothing_in_flight(e: Evidence) -> Answer:
    if not e.effective:
        return Unknown("the server does not tell its arguments")
    if e.pp == 1:
        return Fine("no pipeline")
    if e.depth:
        return Fine(f"{e.depth} micro-batches in flight beyond {e.pp} stages")
    evidence = [f"pp_size {e.pp}, pp_async_batch_depth 0: {e.slots} micro-batches in turn"]
    if e.sampled and e.busy and (use := e.sampled.mean(lambda gpu: gpu.utilization)):
        evidence.append(
            f"GPU utilisation {min(use.values()):.0f} to {max(use.values()):.0f} % while requests run"
        )
    name = e.other_profile(lambda profile: _async(profile) and profile.parallelism.pp == e.pp)
    measure = try_profile(e, name, f"[pipeline] async_batch_depth = {e.pp}")
    return Hit(f"{e.pp} stages and an async depth of 0", tuple(evidence), measure=measure)


@THEME.check(
    "log-hides-slots",
    Severity.ADVICE,
    "the log shows some micro-batches only",
    trips="--decode-log-interval has a common divisor with the number of micro-batches in turn",
    next="take an interval that has none (deployer chooses one where the profile does not), or do not judge by the log",
    measure="remove decode-log-interval from [extra_args]; deployer apply {live}; deployer doctor",
)
def log_hides_slots(e: Evidence) -> Answer:
    if not e.effective:
        return Unknown("the server does not tell its arguments")
    seen = visible_slots(e.interval, e.slots)
    text = f"interval {e.interval}, {e.slots} micro-batches in turn: the log shows {seen}"
    if seen >= e.slots:
        return Fine(text)
    evidence = [text]
    if e.batches.mean_size is not None and e.batches.sizes:
        shown = sorted(set(e.batches.sizes))
        evidence.append(
            f"lines show sizes {shown}; by the growth of #token the mean of all is {e.batches.mean_size:.1f}"
        )
    return Hit(text, tuple(evidence))


@THEME.check(
    "kv-full",
    Severity.WARNING,
    "the KV pool is full",
    trips=f"token usage of {FULL:g} or more, in the lines of the last minutes or in /v1/loads",
    next="a larger pool (memory.mem_fraction_static), a smaller KV type, or fewer requests at once may "
    "keep requests from "
    "waiting or being retracted",
    measure="write a profile PROFILE with another [memory]; " + COMPARE.replace("{profile}", "PROFILE"),
)
def kv_full(e: Evidence) -> Answer:
    told = [
        float(load["token_usage"]) for load in e.loads if isinstance(load.get("token_usage"), int | float)
    ]
    usages = told + ([e.batches.usage] if e.batches.usage is not None else [])
    if not usages:
        return Unknown("neither /v1/loads nor the log tells the usage")
    tokens = f" of {e.computed.kv_tokens:,} tokens" if e.computed and e.computed.kv_tokens else ""
    text = f"{100 * max(usages):.0f} %{tokens} at most"
    return Hit(text, (text,)) if max(usages) >= FULL else Fine(text)


@THEME.check(
    "retractions",
    Severity.WARNING,
    "requests were retracted",
    trips="the KV pool ran full in mid-generation, and requests had to begin again: the log says so, or /metrics does",
    next="raise --schedule-conservativeness (1.3) or the KV pool, if it is more than about once a minute",
    measure="set [extra_args] schedule-conservativeness = 1.3 in a profile PROFILE; "
    + COMPARE.replace("{profile}", "PROFILE"),
)
def retractions(e: Evidence) -> Answer:
    found = [(line.t, line.text) for line in e.lines if line.engine and _RETRACT.search(line.text)]
    now = (e.metrics or {}).get("num_retracted_reqs", 0.0)
    if not found and not now:
        return Fine(f"none in {len(e.lines)} lines" + ("" if e.metrics is None else ", none in /metrics"))
    minutes = max((e.now - min((line.t for line in e.lines), default=e.now)) / 60, 1 / 60)
    evidence = [f"{len(found)} lines in {minutes:.0f} min", *(text for _, text in found[-2:])]
    evidence += [f"/metrics: num_retracted_reqs {now:g}"] if now else []
    return Hit(f"{len(found)} retractions in {minutes:.0f} min", tuple(evidence))


@THEME.check(
    "prefix-cache",
    Severity.ADVICE,
    "prompts get nothing from the prefix cache",
    trips=f"the prefix cache is off, or {PROMPTS} prefills and more found next to nothing in it",
    next="if your prompts begin alike (a system prompt, a conversation), find out why they are not "
    "found: another text at the "
    "very beginning, a pool too small to keep them, or --disable-radix-cache",
    measure="remove disable-radix-cache if it is set; deployer apply {live}; deployer doctor",
)
def prefix_cache(e: Evidence) -> Answer:
    if e.argument("disable_radix_cache"):
        return Hit("it is off", ("disable_radix_cache is true",))
    share, count = e.batches.cached_share, len(e.batches.prefills)
    if share is None:
        return Unknown("no prompt in the last minutes")
    text = f"{100 * share:.1f} % of the prompts' tokens in {count} prefills came from it"
    return Hit(text, (text,)) if count >= PROMPTS and share < 0.01 else Fine(text)


def _list(loads: tuple[Json, ...], key: str) -> str:
    return ", ".join(str(load.get(key)) for load in loads)
