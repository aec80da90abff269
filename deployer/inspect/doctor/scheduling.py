"""Symptoms of scheduling: queue, micro-batches, the KV pool, the prefix cache."""

from __future__ import annotations

import re

from deployer.config.profile import Profile
from deployer.inspect.doctor.evidence import Evidence
from deployer.inspect.doctor.symptom import (
    Absent,
    Answer,
    Present,
    Theme,
    Unclear,
    present_if,
    span,
    try_profile,
)
from deployer.records.release import Release
from deployer.sglang.log.batches import visible_slots
from deployer.text import count_of

THEME = Theme("Scheduling")

#: Usage of the KV pool from which on it counts as full.
FULL = 0.9
#: Share of decode lines with a queue that is more than bursts of arrivals.
OFTEN = 0.2
#: So many prompts without anything from the prefix cache are worth a remark.
PROMPTS = 20
_RETRACT = re.compile(r"KV cache pool is full\. Retract requests\.(?: #retracted_reqs: (\d{1,9}))?")
_NO_DECODES = Unclear("no decode line in the last minutes")
_NO_ARGUMENTS = Unclear("the server does not report its arguments")


@THEME.symptom("requests-wait", limit=100 * OFTEN)
def requests_wait(e: Evidence) -> Answer:
    if e.waiting is None:
        return Unclear("neither /v1/loads nor the log shows the queue")
    limit, share, usage = e.computed.capacity, e.batches.waiting_share, e.batches.usage
    text = f"{e.waiting} wait, {_number(e.running)} run" + (f", {limit} can" if limit else "")
    lines = f"requests waited in {100 * share:.0f} % of {len(e.batches.decodes)} decode lines"
    if not e.waiting and share <= OFTEN:
        return Absent(f"{text}; {lines}")
    if usage is not None and usage >= FULL:
        advice = "the KV pool is full: a larger memory.mem_fraction_static or a smaller KV type may hold more requests"
        change = "another [memory] mem_fraction_static"
    elif limit and e.running is not None and e.running >= 0.9 * limit:
        advice = "all places are taken: a higher limits.max_running_requests or micro-batch cap may help, or not"
        change = f"[limits] max_running_requests above {limit}"
    else:
        advice = "places are free although requests wait: prefills may go first; a smaller prefill chunk may help"
        change = "a smaller [memory] chunked_prefill_size"
    evidence = _answers("waiting", [load.waiting for load in e.loads])
    evidence += [lines] if e.batches.decodes else []
    return Present(text, tuple(evidence), next=advice, measure=try_profile(e, change))


@THEME.symptom("slot-is-not-total")
def slot_is_not_total(e: Evidence) -> Answer:
    if e.computed.slots == 1:
        return Absent("no pipeline: the log's #running-req is all that runs")
    if not e.batches.decodes:
        return _NO_DECODES
    total = "an unknown number of" if e.running is None else f"about {e.running}"
    slots = e.computed.slots
    text = (
        f"#running-req: {max(e.batches.sizes)} is one micro-batch of {slots} in turn, not a scheduler cap: {total} "
        f"requests run in all, {_number(e.waiting)} wait"
        + (f"; {e.computed.capacity} could run" if e.computed.capacity else "")
    )
    cap = f"the cap of one is {e.computed.micro_batch_cap or 'unknown'}"
    evidence = [f"{slots} = {e.pp} stages + {e.depth} in flight beyond them; {cap}", *e.largest]
    if (mean := e.batches.mean_size) is not None:
        average = f"judging by the growth of #token, a micro-batch has {mean:.1f} requests on average"
        busy = round(e.running / mean) if e.running else 0
        evidence.append(average + (f": about {min(busy, slots)} of {slots} hold requests" if busy else ""))
    evidence += _answers("running", [load.running for load in e.loads])
    if e.sampled.connections is not None:
        evidence.append(f"{e.sampled.connections:.0f} connections are open")
    return Present(text, tuple(evidence))


@THEME.symptom("cap-is-no-limit")
def cap_is_no_limit(e: Evidence) -> Answer:
    cap, slots = e.computed.micro_batch_cap, e.computed.slots
    if slots == 1 or cap is None:
        return Absent("no pipeline, so no micro-batch cap")
    if not e.batches.decodes:
        return _NO_DECODES
    largest = max(e.batches.sizes)
    if largest < cap:
        return Absent(f"the largest micro-batch had {largest} of {cap} requests")
    if e.waiting or e.batches.waiting_share > OFTEN:
        return Absent(f"micro-batches are full ({cap}) and requests wait: see requests-wait")
    places = f"{slots} micro-batches of {cap}: {slots * cap} places"
    evidence = [
        f"{places}, and at most {_number(e.computed.capacity)} requests at once",
        f"about {_number(e.running)} run, {e.waiting or 0} wait",
        *map(_speed, e.twins()),
    ]

    def roomy(profile: Profile) -> bool:
        size = profile.pipeline.max_micro_batch_size
        return isinstance(size, int) and size > cap and profile.loop_size == slots

    text = f"a micro-batch is full with {cap}, and no request waits for a place"
    measure = try_profile(e, f"[pipeline] max_micro_batch_size above {cap}", roomy)
    return Present(text, tuple(evidence), measure=measure)


def _speed(release: Release) -> str:
    """Return a release's cap and its measured speed."""
    arguments = release.requested.arguments
    cap = arguments.get("pp_max_micro_batch_size", arguments.get("max_micro_batch_size", "auto"))
    return f"measured: {release.release} (cap {cap}): {release.bench_summary}"


@THEME.symptom("nothing-in-flight")
def nothing_in_flight(e: Evidence) -> Answer:
    if not e.verification.effective:
        return _NO_ARGUMENTS
    if e.pp == 1:
        return Absent("no pipeline")
    if e.depth:
        return Absent(f"{e.depth} micro-batches in flight beyond {e.pp} stages")
    evidence = [f"pp_size {e.pp}, pp_async_batch_depth 0: {e.computed.slots} micro-batches in turn"]
    if e.busy and (use := e.sampled.mean(lambda gpu: gpu.utilization)):
        evidence.append(f"GPU utilisation {span(use)} % while requests run")

    def in_flight(profile: Profile) -> object:
        deep = profile.parallelism.pp == e.pp and profile.pipeline.async_batch_depth
        return deep and profile.cuda_graph.enabled

    measure = try_profile(e, f"[pipeline] async_batch_depth = {e.pp}", in_flight)
    return Present(f"{e.pp} stages and an async depth of 0", tuple(evidence), measure=measure)


@THEME.symptom("log-hides-slots")
def log_hides_slots(e: Evidence) -> Answer:
    if not e.verification.effective:
        return _NO_ARGUMENTS
    slots = e.computed.slots
    visible = visible_slots(e.interval, slots)
    text = f"interval {e.interval}, {slots} micro-batches in turn: the log shows {visible}"
    if visible >= slots:
        return Absent(text)
    evidence = [text]
    if e.batches.mean_size is not None and e.batches.sizes:
        sizes = f"lines show sizes {sorted(set(e.batches.sizes))}"
        evidence.append(f"{sizes}; by the growth of #token the mean of all is {e.batches.mean_size:.1f}")
    return Present(text, tuple(evidence))


@THEME.symptom("kv-full", limit=FULL)
def kv_full(e: Evidence) -> Answer:
    usages = [usage for usage in (e.batches.usage, *(load.usage for load in e.loads)) if usage is not None]
    if not usages:
        return Unclear("neither /v1/loads nor the log shows the usage")
    tokens = f" of {e.computed.kv_tokens:,} tokens" if e.computed.kv_tokens else ""
    return present_if(max(usages) >= FULL, f"at most {100 * max(usages):.0f} %{tokens}")


@THEME.symptom("retractions")
def retractions(e: Evidence) -> Answer:
    lines = [text for text in e.engine_lines if _RETRACT.search(text)]
    counter = (e.metrics or {}).get("num_retracted_reqs", 0.0)
    if not lines and not counter:
        return Absent(f"none in {len(e.lines)} lines" + ("" if e.metrics is None else ", none in /metrics"))
    minutes = max((e.now - min((line.t or 0.0 for line in e.lines), default=e.now)) / 60, 1 / 60)
    evidence = [f"{count_of(len(lines), 'line')} in {minutes:.0f} min", *lines[-2:]]
    evidence += [f"/metrics: num_retracted_reqs {counter:g}"] if counter else []
    return Present(f"{count_of(len(lines), 'retraction')} in {minutes:.0f} min", tuple(evidence))


@THEME.symptom("prefix-cache", limit=PROMPTS)
def prefix_cache(e: Evidence) -> Answer:
    if e.argument("disable_radix_cache"):
        return Present("it is off", ("disable_radix_cache is true",))
    share, count = e.batches.cached_share, len(e.batches.prefills)
    if share is None:
        return Unclear("no prompt in the last minutes")
    text = f"{100 * share:.1f} % of the prompts' tokens in {count} prefills came from it"
    return present_if(count >= PROMPTS and share < 0.01, text)


def _number(count: int | None) -> str:
    return "an unknown number" if count is None else str(count)


def _answers(what: str, counts: list[int]) -> list[str]:
    """Return in words what /v1/loads answered, if it did."""
    one = " (of the micro-batch in turn)" if what == "running" else ""
    return [f"/v1/loads, {len(counts)} times: {what} {', '.join(map(str, counts))}{one}"] if counts else []
