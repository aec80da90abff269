"""`doctor` under load finds why the story's profiles are slow, quickly and without leaving a trace."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.e2e.conftest import Site, finished
from tests.patience import PATIENCE, one_right, until

METRICS = "[services.kimi.extra_args]\nenable-metrics = true\n"


class Load:
    """Clients that stream endless answers until the block ends."""

    def __init__(self, site: Site, clients: int) -> None:
        self.site, self.ended = site, threading.Event()
        self.tokens = 0
        self.threads = [threading.Thread(target=self._client, daemon=True) for _ in range(clients)]

    def _client(self) -> None:
        connection = http.client.HTTPConnection(self.site.host.address, 30000, timeout=PATIENCE)
        body = {"model": "kimi", "prompt": "a b c", "max_tokens": 100_000, "ignore_eos": True, "stream": True}
        with contextlib.closing(connection):
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            while not self.ended.is_set() and answer.readline():
                self.tokens += 1


@contextmanager
def load(site: Site, clients: int) -> Iterator[Load]:
    """So many requests that run all the time, and have for long enough to be in the log."""
    made = Load(site, clients)
    for thread in made.threads:
        thread.start()
    try:
        until(lambda: made.tokens > 100 * clients)
        yield made
    finally:
        made.ended.set()
        for thread in made.threads:
            thread.join()


def findings(document: Any) -> dict[str, Any]:
    return {item["id"]: item for item in document["findings"]}


def metric(site: Site, name: str) -> float:
    connection = http.client.HTTPConnection(site.host.address, 30000, timeout=PATIENCE)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"sglang:{name}{{"))


def apply(site: Site, profile: str) -> None:
    """Make a shipped profile live, with its level in the benchmark and thresholds that a busy machine meets."""
    # What is looked at here are causes, not speeds: a busy machine may not tell whether they are right.
    relative = 'baseline = "none"\ninconclusive = "promote"'
    site.write_inventory(grace=20, lease=20, relative_gate=relative)
    text = site.inventory.read_text().replace("levels = [2, 4]", "levels = [2, 32]")
    site.inventory.write_text(text.replace("[services.kimi.bench]", f"{METRICS}\n[services.kimi.bench]"))
    (site.folder / "profiles").mkdir(exist_ok=True)
    (site.folder / "profiles" / f"{profile}.toml").write_text(
        f'extends = "{profile}"\n[gate]\nsingle_stream_tok_s = 0.1\n"aggregate_tok_s@32" = 0.1\n'
    )
    (site.folder / "deployer.toml").write_text('profiles = "profiles"\n')
    assert site.json("apply", profile, "--yes")["outcome"] == "live"


def test_nothing_serves(site: Site) -> None:
    document = site.json("doctor", "--seconds", "0", expect=6)
    assert document["ok"] is False
    assert "not-serving" in findings(document)
    assert "nothing healthy serves" in site.run("doctor", "--seconds", "0", expect=6)


def test_the_forgotten_flag_and_nothing_in_flight(site: Site) -> None:
    apply(site, "pp8")
    with load(site, 8):
        document = site.json("doctor", "--seconds", "2")
    found = findings(document)
    graphs = found["graphs-off"]
    assert graphs["severity"] == "warning"
    assert "--disable-cuda-graph" in graphs["evidence"][0]
    share = graphs["evidence"][1].split()
    assert share[4] == share[6] != "0"  # `cuda graph: False` in N of N decode lines
    flight = found["nothing-in-flight"]
    assert "pp_async_batch_depth 0" in flight["evidence"][0]
    for item in (graphs, flight):
        assert item["measure"] == "deployer apply pp8-async; deployer compare pp8 pp8-async"


def test_eight_running_is_no_cap(site: Site) -> None:
    apply(site, "pp8-async")
    before = site.status()
    served, restarts = metric(site, "num_requests_total"), site.invocation()
    with load(site, 32):
        document = site.json("doctor")
        text = site.run("doctor", "--seconds", "1")
    found = findings(document)
    slots = found["slot-is-not-total"]
    # On a busy machine a client may just be between two requests.
    assert re.search(r"#running-req: [78] is one micro-batch of 16 in turn, not a scheduler cap", slots["message"])
    assert "about 32 requests run in all, 0 wait; 64 could run" in slots["message"]
    cap = found["cap-is-no-limit"]
    assert "16 micro-batches of 8: 128 places, and at most 64 requests at once" in cap["evidence"]
    assert any(line.startswith("measured: 0001-pp8-async (cap 8): ") for line in cap["evidence"])
    assert "248 tok/s and one of 64 gave 251" in cap["next"]
    assert cap["measure"] == "deployer apply pp8-async-mb64; deployer compare pp8-async pp8-async-mb64"
    assert "not a scheduler cap" in text
    assert {
        "graphs-off",
        "nothing-in-flight",
        "requests-wait",
        "argument-changed",
        "drift",
        "gpu-shared",
    } <= {item["id"] for item in document["fine"]}
    assert document["seconds"] < 60

    # No trace: the same process, no request of ours among those served, no lease, nothing in the audit.
    after = site.status()
    assert site.invocation() == restarts
    assert after["unit"]["restarts"] == before["unit"]["restarts"] == 0
    until(lambda: metric(site, "num_requests_total") == served + 32)  # those of the load, given up
    assert after["lease"] is None


@pytest.mark.parametrize("fault", ["graphs-lost"])
def test_graphs_that_are_not_replayed(live_site: Site, fault: str) -> None:
    live_site.fault(fault)
    with load(live_site, 4):
        found = findings(live_site.json("doctor", "--seconds", "1"))
    assert "graphs-off" not in found
    assert "captured: [" in found["graphs-unused"]["evidence"][1]


#: Ways in which an nvidia-smi does not answer, and what the finding then says of it.
TROUBLES = {
    "exec sleep 600": "did not answer within 5 s",
    'sleep 200; exec /usr/local/bin/nvidia-smi "$@"': "did not answer within 5 s",
    "exec yes 0, garbage": "prints more than",
    "echo; echo garbage": "lists no",
}


SILENT, *OTHERS = TROUBLES


@pytest.mark.alone
def test_an_nvidia_smi_that_never_answers_costs_seconds(live_site: Site) -> None:
    def within_seconds() -> None:
        assert looked_with(live_site, SILENT)["seconds"] < 15

    one_right(within_seconds)


def alone_if_slow(script: str) -> Any:
    """Doctor gives a silent nvidia-smi 5 s of its own limit, which a machine full of other tests uses up."""
    return pytest.param(script, marks=pytest.mark.alone if "sleep" in script else ())


@pytest.mark.parametrize("script", [alone_if_slow(script) for script in OTHERS])
def test_an_nvidia_smi_in_trouble_is_told(live_site: Site, script: str) -> None:
    # On a busy machine doctor may run out of its time before it has seen this.
    one_right(lambda: told(live_site, script))


def told(live_site: Site, script: str) -> None:
    assert looked_with(live_site, script)["seconds"] < 90, "it is not waited for"


def looked_with(live_site: Site, script: str) -> Any:
    """What doctor says where nvidia-smi is this script."""
    tool = "/usr/local/sbin/nvidia-smi"  # found before the real one
    live_site.host.run(["sh", "-c", f"cat > {tool}; chmod +x {tool}"], stdin=f"#!/bin/sh\n{script}\n")
    try:
        document = live_site.json("doctor")
    finally:
        live_site.host.run(["rm", tool])
    assert document["ok"] is True
    assert TROUBLES[script] in findings(document).get("gpus-unseen", {}).get("message", "")
    assert "drift" not in findings(document)
    assert "gpu-shared" in {item["id"] for item in document["unknown"]}
    return document


def test_beside_somebody_elses_apply(live_site: Site) -> None:
    """A candidate in mid-start is told with whose it is; another apply waits for nobody and is told why."""
    live_site.fault("hang-in-load", when_argv_contains="--pp-size")
    other = live_site.start("apply", "pp2", "--yes")
    until(lambda: live_site.step() == "wait")
    refused = live_site.json("apply", "tp2", "--yes", expect=4)
    assert "(apply pp2, pid" in refused["message"]
    document = live_site.json("doctor", "--seconds", "0", expect=6)
    found = findings(document)
    assert "is changing it to 0002-pp2, in step wait" in found["change-under-way"]["message"]
    assert "0002-pp2 is starting, in phase" in found["not-serving"]["message"]
    assert "converge" not in str(found["not-serving"])
    assert "drift" not in found
    checked = live_site.json("check", "pp2", "--on-host")["checked"][0]
    assert "is being changed for kimi by" in checked["changing"]
    assert live_site.json("sglang", "learn")["learned"]
    other.send_signal(signal.SIGINT)
    finished(other, expect=130)
    assert "change-under-way" not in findings(live_site.json("doctor", "--seconds", "0"))
