"""A pipeline of two stages, looked at closely: health on the way, micro-batches in the log, the cap changed live."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

from deployer.sglang.batches import parse_batch
from tests.e2e.conftest import finished
from tests.e2e.sglang.conftest import PATIENCE, SglangSite
from tests.e2e.sglang.seen import journal, strays, watching
from tests.engines import behaviour

#: Phases of a launch on the CPU, in order: there are no graphs to capture.
PHASES = ["launch", "dist-init", "load", "kv-pool", "http-up", "warm-up", "ready"]


def test_pp2_closely(tp1_site: SglangSite) -> None:
    site = tp1_site
    with watching(site.host.address) as health:
        child = site.start("apply", "pp2", "--yes", "--json")
        document = json.loads(finished(child, expect=0, timeout=PATIENCE))
    assert document["outcome"] == "live"
    # The old one serves, drains, is gone; the new one is silent until it has loaded, warms up, serves.
    assert behaviour.fits(health.states, ["200", "503", *behaviour.kept("launch", "0.5.23")["health"]])
    assert min(health.seconds["200"]) >= 1.0

    phases = [phase for phase in document["phases"] if phase["name"] in PHASES]
    names = [phase["name"] for phase in phases]
    assert names == sorted(names, key=PHASES.index)
    taken = {phase["name"]: phase["seconds"] for phase in phases}
    assert set(PHASES) - set(taken) <= {"http-up", "load"}  # each can be over between two looks
    assert taken["launch"] > max(taken.get("load", 0), taken["kv-pool"])  # three processes import SGLang

    lines = journal(site)
    kept = behaviour.kept("launch", "0.5.23")
    assert behaviour.launch_kinds(lines) == kept["pp2"]
    assert behaviour.batch_fields(lines) == kept["batches"]

    before = len(lines)
    with ThreadPoolExecutor(8) as clients:
        body = {"prompt": "the of and", "max_tokens": 200, "ignore_eos": True}
        answers = list(clients.map(lambda _: site.ask("/v1/completions", body, timeout=120), range(8)))
    assert [answer["usage"]["completion_tokens"] for answer in answers] == [200] * 8
    batches = [batch for line in journal(site)[before:] if (batch := parse_batch(line))]
    first = [batch for batch in batches if batch.leading]
    assert {batch.pp for batch in batches} == {0, 1}  # each stage tells
    # Whoever comes first takes a slot alone, the others share the next: no micro-batch holds all eight.
    assert sum(batch.new_requests or 0 for batch in first) == 8
    sizes = [batch.running for batch in first if batch.decode]
    assert sizes
    assert max(sizes) < 8

    change = {"server_args": {"pp_max_micro_batch_size": 2}}
    assert site.ask("/set_internal_state", change) == [True]
    assert site.ask("/server_info")["internal_states"][0]["pp_max_micro_batch_size"] == 2
    assert site.ask("/set_internal_state", {"server_args": {"pp_max_micro_batch_size": 33}}) == [False]
    assert site.ask("/set_internal_state", {"server_args": {"max_running_requests": 5}}) == [False]
    assert strays(site) == []
