"""A pipeline of two stages, looked at closely: health on the way, micro-batches in the log, the cap changed live."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

from deployer.sglang.log.batches import Batch, parse_batch
from tests.e2e.conftest import finished
from tests.e2e.sglang.conftest import PATIENCE, SglangSite
from tests.e2e.sglang.seen import journal, strays, watching
from tests.engines import behaviour
from tests.patience import until

#: Phases of a launch on the CPU, in order: there are no graphs to capture.
PHASES = ["launch", "dist-init", "load", "kv-pool", "http-up", "warm-up", "ready"]


#: How often eight requests are sent at once, at most. On a busy machine half of the times they split in the usual way.
WAVES = 20


def wave_of_eight(site: SglangSite) -> tuple[list[int], set[int]]:
    """Send eight requests at once: how many each prefill took, and the sizes of micro-batches that decoded."""
    before = len(journal(site))
    body = {"prompt": "the of and", "max_tokens": 120, "ignore_eos": True}
    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda _: site.ask("/v1/completions", body, timeout=120), range(8)))
    assert [answer["usage"]["completion_tokens"] for answer in answers] == [120] * 8

    def batches() -> list[Batch]:
        return [batch for line in journal(site)[before:] if (batch := parse_batch(line))]

    until(lambda: any(batch.decode for batch in batches()))  # the journal may be a moment behind
    assert {batch.pp for batch in batches()} == {0, 1}  # each stage tells
    first = [batch for batch in batches() if batch.leading]
    new = [batch.new_requests or 0 for batch in first if not batch.decode]
    return new, {batch.running for batch in first if batch.decode}


def test_pp2_closely(tp1_site: SglangSite) -> None:
    site = tp1_site
    with watching(site.host.address) as health:
        child = site.start("apply", "pp2", "--yes", "--json")
        document = json.loads(finished(child, expect=0, timeout=PATIENCE))
    assert document["outcome"] == "live"
    # The old one serves, drains (nothing: that is over at once), is gone; the new one loads, warms up, serves.
    assert behaviour.fits(health.states, ["200", "503?", *behaviour.kept("launch", "0.5.23")["health"]])
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

    # Whoever comes first takes a slot alone, and the others share the next, unless they come late or in bits.
    waves: list[tuple[list[int], set[int]]] = []
    while ([1, 7], {1, 7}) not in waves:
        assert len(waves) < WAVES, waves
        waves.append(wave_of_eight(site))
    assert all(sum(new) == 8 for new, _ in waves)

    change = {"server_args": {"pp_max_micro_batch_size": 2}}
    assert site.ask("/set_internal_state", change) == [True]
    assert site.ask("/server_info")["internal_states"][0]["pp_max_micro_batch_size"] == 2
    assert site.ask("/set_internal_state", {"server_args": {"pp_max_micro_batch_size": 33}}) == [False]
    assert site.ask("/set_internal_state", {"server_args": {"max_running_requests": 5}}) == [False]
    assert strays(site) == []
