"""Every symptom: one case in which it is present, and the healthy service under load, which has none."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from deployer.deploy.session import Health
from deployer.errors import AgentError, ChannelLost
from deployer.host.beside import Beside
from deployer.inspect.doctor.checkup import SYMPTOMS, Checkup, examine
from deployer.inspect.doctor.collect import watched_for
from deployer.inspect.doctor.evidence import NOT_SAMPLED, Evidence
from deployer.inspect.doctor.symptom import KNOWLEDGE, Present
from deployer.records.effect import ArgumentInEffect
from deployer.records.events import LogLine
from deployer.records.hardware import GpuProcess, UnitOwner
from deployer.report.doctor_view import doctor_view
from deployer.resources import knowledge, package_root
from deployer.sglang.rules.base import Severity
from tests.unit.inspect.doctor.builders import (
    COMPUTED,
    EFFECTIVE,
    GIB,
    NOW,
    RELEASE,
    evidence,
    holders,
    lease,
    lines,
    loads,
    prefill,
    running,
    sampled,
    service,
)
from tools.reference.doctor import reference

RETRACT = "[2026-11-29 17:46:24 PP0] KV cache pool is full. Retract requests. #retracted_reqs: 2"
TRACE = [
    "[2026-11-29 17:46:24] Exception in callback",
    "Traceback (most recent call last):",
    '  File "/opt/sglang/srt/managers/tokenizer.py", line 5, in handle',
    "    raise ValueError(message)",
    "ValueError: something odd",
]

#: Symptom -> what brings it about, and words that its finding has.
TRIPS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "not-serving": ({"health": Health(False, "503", 0.2)}, ["/health answers 503"]),
    "change-under-way": (
        {"observed": replace(holders(), lease=lease())},
        ["ann@desk (apply tp8, pid 5) holds the lease; nothing was stopped yet", "has held the lease for 40 s"],
    ),
    "health-slow": ({"health": Health(True, "200", 7.5)}, ["7.50 s"]),
    "restarted": ({"state": service(unit={"ActiveState": "active", "NRestarts": 2})}, ["2 restarts"]),
    "just-started": ({"state": running(service(), started=NOW - 30)}, ["30 s ago"]),
    "drift": ({"drift": ("/etc/x.conf changes or replaces the unit",)}, ["/etc/x.conf"]),
    "argument-changed": (
        {"checks": (ArgumentInEffect("page_size", 16, 64, "changed"),)},
        ["page_size: requested 16, is 64", "deployer history 2"],
    ),
    "idle": ({"lines": (), "loads": loads((0, 0)), "sampled": sampled(samples=[{"connections": 0}])}, ["5 min"]),
    "log-errors": (
        {"lines": lines(*(LogLine(text, NOW - 5) for text in TRACE))},
        ["1 traceback, 1 line with errors", "something odd"],
    ),
    "log-warnings": (
        {"lines": lines(LogLine("[2026-11-29 17:46:24] Request failed to be parsed", NOW - 5))},
        ["1 line", "1 x [2026"],
    ),
    "requests-wait": (
        {"loads": loads((8, 40), (8, 44)), "sampled": sampled(samples=[{"connections": 104}])},
        ["42 wait, 62 run, 64 can", "all places are taken", "waiting 40, 44"],
    ),
    "slot-is-not-total": (
        {},
        [
            "#running-req: 7 is one micro-batch of 16 in turn, not a scheduler cap",
            "about 32 requests run in all, 0 wait; 64 could run",
            "16 = 8 stages + 8 in flight",
            "6.0 requests on average: about 5 of 16 hold requests",
            "running 7, 0, 6",
            "32 connections are open",
        ],
    ),
    "cap-is-no-limit": (
        {"lines": lines(sizes=(8, 8, 8, 7))},
        [
            "full with 8",
            "16 micro-batches of 8: 128 places, and at most 64 requests at once",
            "0002-pp8-async (cap 8): 34 tok/s for one, 112 at 8, 248 at 32",
            "0003-pp8-async-mb64 (cap 64): 36 tok/s for one, 251 at 32",
            "deployer apply pp8-async-mb64; deployer compare pp8-async pp8-async-mb64",
        ],
    ),
    "nothing-in-flight": (
        {
            "effective": {**EFFECTIVE, "pp_async_batch_depth": 0},
            "state": running(service(), release="0001-tp8"),
            "computed": replace(COMPUTED, slots=8),
        },
        ["8 stages and an async depth of 0", "80 to 80 %", "deployer apply pp8-async; deployer compare tp8 pp8-async"],
    ),
    "log-hides-slots": (
        {"effective": {**EFFECTIVE, "decode_log_interval": 40}},
        ["interval 40, 16 micro-batches in turn: the log shows 2", "the mean of all is 6.2"],
    ),
    "graphs-off": (
        {
            "computed": replace(COMPUTED, graph_sizes=()),
            "state": running(service(), argv=("python", "--disable-cuda-graph")),
            "lines": lines(graph=False),
        },
        ["the command line has --disable-cuda-graph", "`cuda graph: False` in 4 of 4 decode lines"],
    ),
    "graph-too-small": (
        {"computed": replace(COMPUTED, graph_sizes=(1, 2, 4)), "lines": lines(graph=False)},
        ["batches of 5 to 7; graphs end at 4", "max_batch_size = 7"],
    ),
    "graphs-unused": ({"lines": lines(graph=False)}, ["4 of 4 decode lines", "captured: [1, 2, 4, 8]"]),
    "graph-too-large": (
        {"computed": replace(COMPUTED, graph_sizes=(1, 2, 4, 8, 12, 16))},
        ["2 of 6 graphs are for batches of 12 to 16", "max_batch_size = 8"],
    ),
    "kv-full": ({"lines": lines(usage=0.95)}, ["at most 95 % of 100,000 tokens"]),
    "retractions": ({"lines": lines(LogLine(RETRACT, NOW - 60))}, ["1 retraction in", "#retracted_reqs: 2"]),
    "prefix-cache": ({"lines": lines(*[prefill(cached=0, new=2000)] * 60)}, ["0.8 % of the prompts' tokens in 62"]),
    "gpus-unseen": (
        {
            "observed": replace(holders(), gpus=None, gpu_problem="GPUs cannot be seen: nvidia-smi did not answer"),
            "sampled": sampled(problem="nvidia-smi did not answer within 5 s"),
        },
        ["nvidia-smi did not answer", "before that it answered 6 times", "dmesg"],
    ),
    "gpu-waits": ({"sampled": sampled(every={"utilization": 30.0})}, ["30 % on average over 8 GPUs"]),
    "gpu-uneven": ({"sampled": sampled(third={"utilization": 20.0})}, ["20 to 80 %", "3: 20 %"]),
    "gpu-memory-uneven": ({"sampled": sampled(third={"memory_used": 60 * GIB})}, ["60 to 80 of 96 GiB", "3: 60 GiB"]),
    "power-limit": ({"sampled": sampled(third={"power_w": 595.0})}, ["GPU [3]: 400 to 595 W of 600"]),
    "clock-throttled": ({"sampled": sampled(third={"throttle": 0x40})}, ["GPU 3: hardware thermal slowdown"]),
    "gpu-shared": (
        {"observed": holders(GpuProcess(2, 99, 3 * GIB, "jupyter", None, "user@0.service"))},
        ["GPU 2: jupyter (pid 99, user@0.service) holds 3.0 GiB"],
    ),
    "memory-low": ({"sampled": sampled(machine={"memory_available": 5 * GIB})}, ["5 of 512 GiB"]),
    "swapping": ({"sampled": sampled(machine={"pages_swapped": 5000})}, ["5000 pages"]),
    "disk-low": (
        {"sampled": sampled(machine={"disks": {"/": {"free": 2 * GIB, "total": 900 * GIB}}})},
        ["/: 2 of 900 GiB free"],
    ),
    "processors-busy": ({"sampled": sampled(machine={"load": [80.0]})}, ["load 80.0 on 64"]),
}  # fmt: skip


def found(checkup: Checkup, name: str) -> Present | None:
    return next((answer for symptom, answer in checkup.present if symptom.id == name), None)


def test_every_symptom_has_its_knowledge_and_a_case() -> None:
    assert list(knowledge(KNOWLEDGE)) == list(SYMPTOMS)
    assert set(TRIPS) == set(SYMPTOMS)


@pytest.mark.parametrize("name", TRIPS)
def test_what_trips_a_symptom(name: str) -> None:
    changes, words = TRIPS[name]
    findings = examine(evidence(**changes)).as_json()["findings"]
    [finding] = [item for item in findings if item["id"] == name]
    text = json.dumps(finding, ensure_ascii=False)
    for word in words:
        assert json.dumps(word, ensure_ascii=False)[1:-1] in text
    assert finding["severity"] == SYMPTOMS[name].severity
    assert finding["next"]
    assert "{" not in finding["measure"]


@pytest.mark.parametrize("name", TRIPS)
def test_a_healthy_service_under_load_does_not(name: str) -> None:
    checkup = examine(evidence())
    if name == "slot-is-not-total":  # it is always worth knowing under a pipeline, and never without one
        checkup = examine(evidence(computed=replace(COMPUTED, slots=1)))
    assert found(checkup, name) is None
    looked = {symptom.id: text for symptom, text in checkup.absent}
    assert looked[name]


def test_the_healthy_service_has_one_finding_only() -> None:
    checkup = examine(evidence())
    assert [symptom.id for symptom, _ in checkup.present] == ["slot-is-not-total"]
    assert checkup.serving
    assert not checkup.unclear


def test_only_proven_starts_are_shown_beside_the_running_one() -> None:
    state = service()
    *others, twin = state.releases
    tried = replace(state, releases=(*others, replace(twin, was_live=False, state="failed")))
    assert [item.release for item in evidence(state=tried).twins()] == ["0002-pp8-async"]


def test_the_gravest_comes_first_and_nothing_serves_without_health() -> None:
    changes = {**TRIPS["memory-low"][0], **TRIPS["not-serving"][0]}
    checkup = examine(evidence(**changes))
    assert [symptom.severity for symptom, _ in checkup.present][:2] == [Severity.ERROR, Severity.WARNING]
    assert not checkup.serving


def test_a_candidate_that_starts_is_not_a_dead_service() -> None:
    """doctor beside an apply: it says who changes what, and does not send anybody to converge."""
    transition = {"from": RELEASE, "to": "0003-tp8", "step": "wait", "started": NOW - 30}
    start = (
        LogLine("[2026-11-29 17:46:00 PP0] Init torch distributed begin.", NOW - 20),
        LogLine("[2026-11-29 17:46:10 PP0] Load weight begin. avail mem=93.50 GB", NOW - 10),
    )
    begun = {
        "state": running(service(transition=transition), release="0003-tp8"),
        "observed": replace(holders(), lease=lease()),
        "health": Health(False, "refused", 0.0),
        "lines": start,
    }
    checkup = examine(evidence(**begun))
    finding = found(checkup, "not-serving")
    assert finding is not None
    assert finding.message.startswith("0003-tp8 is starting, in phase load")
    assert "ann@desk (apply tp8, pid 5) is changing it to 0003-tp8, in step wait" in finding.message
    assert "wait until it ends" in (finding.next or "")
    assert finding.measure == "deployer status --watch"
    assert found(checkup, "drift") is None
    assert not checkup.serving

    stopped = examine(evidence(**begun | {"state": replace(service(transition=transition), running=None)}))
    finding = found(stopped, "not-serving")
    assert finding is not None
    assert "no process runs at this moment; ann@desk" in finding.message

    left = found(examine(evidence(**begun | {"observed": replace(holders(), lease=lease(valid=False))})), "drift")
    assert left is not None
    assert "a change to 0003-tp8 was left in step wait" in left.evidence


def test_a_change_of_another_service_is_reported_and_judges_nothing() -> None:
    other = replace(holders(), lease=lease(service="mini"))
    checkup = examine(evidence(observed=other))
    finding = found(checkup, "change-under-way")
    assert finding is not None
    assert finding.message == "the service mini is being changed by ann@desk (apply tp8, pid 5)"
    dead = found(examine(evidence(observed=other, health=Health(False, "503", 0.2))), "not-serving")
    assert dead is not None
    assert dead.message == "/health answers 503"


def test_a_sister_service_on_a_gpu_is_not_a_stranger() -> None:
    sister = GpuProcess(2, 99, 40 * GIB, "python", None, "sglang-mini.service")
    units = {"sglang-mini.service": UnitOwner("on-failure", "0003-x")}
    finding = found(examine(evidence(observed=replace(holders(sister), units=units))), "gpu-shared")
    assert finding is not None
    assert finding.message == "the service mini of this host"
    assert finding.evidence == ("GPU 2: the service mini (pid 99, sglang-mini.service) holds 40.0 GiB",)
    assert "different GPUs" in (finding.next or "")
    stranger = GpuProcess(2, 98, 3 * GIB, "jupyter", None, None)
    finding = found(examine(evidence(observed=replace(holders(sister, stranger), units=units))), "gpu-shared")
    assert finding is not None
    assert finding.message == "the service mini of this host and 1 other process"
    # A unit that only has such a name is none of deployer's.
    finding = found(examine(evidence(observed=holders(sister))), "gpu-shared")
    assert finding is not None
    assert finding.message == "1 other process"
    # A process of our own unit that is not among the pids (it was just forked) is ours.
    fresh = GpuProcess(2, 97, GIB, "python", None, "sglang-kimi.service")
    assert found(examine(evidence(observed=holders(fresh))), "gpu-shared") is None


def test_a_host_without_gpus_needs_no_nvidia_smi() -> None:
    none = evidence(observed=replace(holders(), gpus=None), sampled=sampled(samples=[]))
    assert found(examine(none), "gpus-unseen") is None


@pytest.mark.parametrize(
    ("seconds", "spent", "watched"),
    [
        (5.0, 0.9, 5.0),
        (5.0, 7.0, 5.0),
        (5.0, 9.0, 3.0),
        (5.0, 60.0, 1.0),
        (0.0, 1.0, 0.0),
        (0.5, 60.0, 0.5),
        (20.0, 9.0, 18.0),
    ],
)
def test_a_slow_start_shortens_the_watch(seconds: float, spent: float, watched: float) -> None:
    assert watched_for(seconds, spent) == watched


def test_what_does_not_answer_in_time_is_given_up() -> None:
    def refuse() -> int:
        raise AgentError("os-error", "no")

    def late() -> int:
        raise ChannelLost("no answer within 3 s", detail={"timeout": 3.0})

    def broken() -> int:
        raise ChannelLost("the connection broke")

    soon = time.monotonic() + 5.0
    assert Beside(lambda: 1).result(soon) == 1
    assert Beside(refuse).result(soon) is None
    assert Beside(late).result(soon) is None
    with pytest.raises(ChannelLost, match="broke"):
        Beside(broken).result(soon)
    held = threading.Event()
    slow = Beside(lambda: held.wait(30.0))
    assert slow.result(time.monotonic()) is None
    held.set()
    assert slow.result(soon) is True


def nothing() -> Evidence:
    """A host on which nothing runs and nothing could be asked."""
    return evidence(
        state=replace(service(), running=None),
        health=Health(False, "refused", 0.0),
        effective={},
        computed=None,
        checks=(),
        loads=(),
        metrics=None,
        lines=(),
        sampled=NOT_SAMPLED,
        observed=replace(holders(), gpus=None, gpu_processes=()),
    )


def test_what_cannot_be_looked_at_is_not_known() -> None:
    checkup = examine(nothing())
    assert [symptom.id for symptom, _ in checkup.present] == ["not-serving"]
    assert "no process runs" in checkup.present[0][1].message
    unclear = {symptom.id for symptom, _ in checkup.unclear}
    assert {"graphs-off", "gpu-waits", "log-errors", "argument-changed", "kv-full", "memory-low"} <= unclear


def test_a_service_that_does_not_run_is_not_judged_as_if_it_did() -> None:
    checkup = examine(replace(nothing(), sampled=sampled(), observed=holders()))
    machine = {"change-under-way", "restarted", "drift", "gpus-unseen", "gpu-shared"}
    machine |= {"memory-low", "swapping", "disk-low", "processors-busy"}
    assert {symptom.id for symptom, _ in checkup.absent} == machine
    assert {text for _, text in checkup.unclear} == {"no process of the service runs"}
    console = Console(width=100, soft_wrap=True, force_terminal=False)
    with console.capture() as capture:
        console.print(doctor_view(checkup, requested=5.0))
    [fine] = [line for line in capture.get().splitlines() if line.startswith("fine")]
    assert all(name in fine for name in machine)
    [unclear] = [line for line in capture.get().splitlines() if line.startswith("  no process of the service runs: ")]
    assert "kv-full, retractions, prefix-cache" in unclear


def test_a_stranger_on_the_port_is_not_the_service() -> None:
    finding = found(examine(evidence(health=Health(False, "200", 0.1, ours=False))), "not-serving")
    assert finding is not None
    assert "another unit" in finding.message


def test_allowed_changes_are_fine() -> None:
    checks = (ArgumentInEffect("page_size", 16, 64, "changed"),)
    assert found(examine(evidence(checks=checks, allowed=frozenset({"page_size"}))), "argument-changed") is None


def test_a_burst_of_arrivals_is_not_a_queue() -> None:
    sizes = (8,) * 10
    quiet = lines(sizes=sizes)
    burst = (*quiet[:-1], replace(quiet[-1], text=quiet[-1].text.replace("#queue-req: 0", "#queue-req: 9")))
    checkup = examine(evidence(lines=burst))
    assert found(checkup, "requests-wait") is None
    assert found(checkup, "cap-is-no-limit") is not None
    checkup = examine(evidence(lines=lines(sizes=sizes, queued=9)))
    assert found(checkup, "requests-wait") is not None
    assert found(checkup, "cap-is-no-limit") is None


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"lines": lines(usage=0.95)}, "the KV pool is full"),
        ({"lines": lines()}, "places are free"),
    ],
)
def test_why_requests_wait(changes: dict[str, Any], word: str) -> None:
    finding = found(examine(evidence(loads=loads((4, 3), (4, 3)), **changes)), "requests-wait")
    assert finding is not None
    assert word in (finding.next or "")


def test_graphs_that_sglang_turned_off_itself() -> None:
    computed = replace(COMPUTED, graph_sizes=())
    why = LogLine(
        "[2026-11-29 16:40:24] Cuda graph is disabled because of using torch native attention backend",
        NOW - 3600,
    )
    finding = found(examine(evidence(computed=computed, lines=(why, *lines()))), "graphs-off")
    assert finding is not None
    assert "torch native attention backend" in finding.evidence[1]
    assert finding.measure == "deployer history 2 --defaults"
    on_cpu = evidence(computed=computed, effective={**EFFECTIVE, "device": "cpu"})
    assert found(examine(on_cpu), "graphs-off") is None


def test_old_lines_do_not_count() -> None:
    old = evidence(lines=lines(graph=False, t=NOW - 1000))
    assert old.batches.sizes == []
    assert found(examine(old), "graphs-unused") is None


def test_a_warning_of_the_start_is_not_one_of_serving() -> None:
    early = LogLine("[2026-11-29 16:40:24] Loading failed once, retry", NOW - 3600)
    assert found(examine(evidence(lines=(early, *lines()))), "log-warnings") is None


def test_a_known_cause_is_named() -> None:
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    head = "[2026-11-29 17:46:24 TP0] Scheduler hit an exception: Traceback (most recent call last):"
    trace = [head, *TRACE[2:-1], text]
    finding = found(examine(evidence(lines=lines(*(LogLine(line, NOW - 5) for line in trace)))), "log-errors")
    assert finding is not None
    assert "known as" in finding.message


def test_people_see_evidence_and_what_to_try() -> None:
    changes, _ = TRIPS["graphs-off"]
    checkup = replace(examine(evidence(watched=3.0, **changes)), seconds=6.0)
    console = Console(width=100, soft_wrap=True, force_terminal=False)
    with console.capture() as capture:
        console.print(doctor_view(checkup, requested=5.0))
    text = capture.get()
    assert "kimi on box: pp8-async (0002-pp8-async) runs; the look took 6.0 s" in text
    assert "watched for 3 s instead of 5: the command's start took the rest" in text
    assert "CUDA graphs are off (graphs-off)" in text
    assert "│ the command line has --disable-cuda-graph" in text
    assert "measure: deployer apply pp8-async-mb64; deployer compare pp8-async pp8-async-mb64" in text
    assert "no restarts" in text
    with console.capture() as capture:
        console.print(doctor_view(checkup, requested=3.0))
    assert "instead of" not in capture.get()
    assert json.loads(json.dumps(checkup.as_json()))["watched"] == 3.0


def test_the_page_is_up_to_date() -> None:
    """``python -m tools.reference.doctor`` writes it."""
    assert Path(package_root() / "docs" / "doctor.md").read_text(encoding="utf-8") == reference()
