from __future__ import annotations

import json
import re
import threading
from typing import Any

import pytest

from deployer.config.inventory import Deadlines
from deployer.deploy.launch_failure import TAIL_LINES, log_tail
from deployer.deploy.launch_progress import Estimate
from deployer.deploy.wait import Wait, WaitResult, WaitUpdate
from deployer.errors import ChannelLost
from deployer.host.client import HostClient
from deployer.records.answers import Started
from deployer.records.codec import Json
from deployer.records.endpoint import Endpoint
from tests.unit.deploy.scripted import ScriptedHost, failed, health, log, no_answer, proc, real_launch, unit
from tests.unit.sglang.log.logs import failure

STARTED = Started("abc", "cursor-1", 10.0)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployer.deploy.generation.RETRY_SECONDS", 0.0)


def run(host: ScriptedHost, **options: Any) -> tuple[WaitResult, list[WaitUpdate]]:
    updates: list[WaitUpdate] = []
    deadlines = Deadlines(start=options.pop("deadline", 2700.0), stall=options.pop("stall", {}))
    endpoint = Endpoint("kimi", "127.0.0.1", 30000, options.pop("api_key", None), options.pop("hidden", ()))
    result = Wait(
        HostClient(host),
        endpoint,
        STARTED,
        deadlines,
        on_update=updates.append,
        clock=host.clock,
        sleep=host.sleep,
        **options,
    ).run()
    return result, updates


def failure_of(result: WaitResult) -> Any:
    assert result.failure is not None
    return result.failure


def test_a_real_launch_becomes_ready_after_health_and_one_generation() -> None:
    events = [
        unit(0.0),
        health(0.1, "refused"),
        *real_launch("0.5.23-cpu-pp2"),
        health(66.0, "503"),
        health(69.0, "200"),
    ]
    host = ScriptedHost(sorted(events, key=lambda event: event["t"]))
    result, updates = run(host)
    assert result.failure is None
    assert result.failure is None
    assert [item.name for item in result.timeline][:3] == ["launch", "dist-init", "load"]
    assert result.timeline[-1].name == "ready"
    assert sum(item.seconds for item in result.timeline) == pytest.approx(result.seconds, abs=0.01)
    assert 69.0 <= result.seconds < 69.4
    assert host.requests[0]["path"] == "/generate"
    assert json.loads(host.requests[0]["body"])["sampling_params"]["max_new_tokens"] in range(1, 5)
    assert host.watched["invocation_id"] == "abc"
    assert host.watched["cursor"] == "cursor-1"
    assert host.watched["started_boottime"] == 10.0
    phases = [update.phase for update in updates]
    assert phases[0] == "launch"
    assert phases[-1] == "ready"


def test_health_alone_is_not_ready_where_the_generation_fails() -> None:
    def http(args: Json) -> Json:
        return {"status": 500, "headers": {}, "body": "broken", "seconds": 0.1}

    host = ScriptedHost([unit(0.0), health(5.0, "200")], http=http)
    found = failure_of(run(host)[0])
    assert (found.proof, found.signature) == ("generation", "generation_failed")
    assert "status 500" in found.cause
    assert len(host.requests) == 3


def test_a_generation_is_tried_again_when_the_connection_fails() -> None:
    answers = iter(["reset", "ok"])

    def http(args: Json) -> Json:
        if next(answers) == "reset":
            raise no_answer("reset")
        return {"status": 200, "headers": {}, "body": "{}", "seconds": 0.1}

    assert run(ScriptedHost([unit(0.0), health(5.0, "200")], http=http))[0].failure is None


def test_servers_without_generate_are_asked_through_the_openai_path() -> None:
    def http(args: Json) -> Json:
        return {
            "status": 404 if args["path"] == "/generate" else 200,
            "headers": {},
            "body": "{}",
            "seconds": 0.1,
        }

    host = ScriptedHost([unit(0.0), health(5.0, "200")], http=http)
    assert run(host, api_key="sk-very-secret")[0].failure is None
    assert [request["path"] for request in host.requests] == ["/generate", "/v1/completions"]
    assert host.requests[0]["headers"]["Authorization"] == "Bearer sk-very-secret"


def test_refused_connections_are_never_a_failure() -> None:
    events = [
        unit(0.0),
        *[event for t in range(1, 200) for event in (health(t, "refused"), proc(t, cpu_seconds=t))],
    ]
    host = ScriptedHost([*events, health(200.0, "200")])
    assert run(host)[0].failure is None


def test_the_unit_left_active() -> None:
    lines = failure("missing_shard")
    host = ScriptedHost(
        [
            unit(0.0),
            log(1.0, *lines[:10]),
            failed(3.0, "unit", active="failed", result="exit-code", exec_status=1),
        ],
        journal=[{"t": 1.0, "text": text, "source": "engine", "piece": False} for text in lines],
    )
    result, _ = run(host)
    found = failure_of(result)
    assert (found.proof, found.signature, found.phase) == ("unit", "weights_missing", "load")
    assert host.now <= 4.0
    assert found.log_tail[-1] == [line for line in lines if line.strip()][-1]
    assert set(found.as_json()) >= {"signature", "phase", "cause", "remedy", "log_tail"}


def test_a_fatal_line_ends_the_wait_within_a_second_and_the_rest_of_the_traceback_is_read() -> None:
    lines = failure("tp3")
    head = next(number for number, line in enumerate(lines) if "hit an exception" in line)
    host = ScriptedHost(
        [unit(0.0), log(20.0, *lines[: head + 1]), failed(20.1, "fatal-line", line=lines[head])],
        journal=[{"t": 20.0, "text": text, "source": "engine", "piece": False} for text in lines],
    )
    result, updates = run(host)
    assert failure_of(result).signature == "shards_do_not_divide"
    assert host.now - 20.1 < 1.0
    shown = [line for update in updates for line in update.lines]
    assert len(shown) == len([line for line in lines if line.strip()])


def test_lines_read_after_the_proof_do_not_change_the_time() -> None:
    late = {
        "t": 1.8e9,
        "text": "[2026-01-01 00:00:00] Load weight begin. avail mem=1.00 GB",
        "source": "engine",
    }
    host = ScriptedHost([unit(0.0), failed(3.0, "unit", Result="exit-code", ExecMainStatus=1)], journal=[late])
    result, _ = run(host)
    assert result.state.phase == "load"
    assert sum(item.seconds for item in result.timeline) < 5.0


def test_systemds_own_names_are_understood() -> None:
    host = ScriptedHost([unit(0.0), failed(3.0, "unit", Result="exit-code", ExecMainStatus=203)])
    assert failure_of(run(host)[0]).signature == "unit_exec"
    host = ScriptedHost([unit(0.0), failed(3.0, "unit", Result="exit-code", ExecMainStatus=7)])
    assert "exec_status 7" in failure_of(run(host)[0]).cause


def test_a_fatal_line_without_a_journal_is_classified_from_what_was_seen() -> None:
    host = ScriptedHost([unit(0.0), log(20.0, *failure("port_in_use")), failed(20.1, "fatal-line", line="x")])
    found = failure_of(run(host)[0])
    assert (found.signature, found.phase) == ("http_port_busy", "http-up")


def test_a_restart_is_a_failure() -> None:
    host = ScriptedHost([unit(0.0), log(1.0, "starting"), failed(2.0, "restart", restarts=1)])
    found = failure_of(run(host)[0])
    assert found.signature == "restarted"
    assert "starting" in found.cause


def test_a_stranger_on_the_port_is_never_taken_for_ready() -> None:
    host = ScriptedHost([unit(0.0), *[health(float(t), "200", ours=False) for t in range(1, 9)]])
    found = failure_of(run(host)[0])
    assert host.now < 5.0
    assert found.signature == "port_not_ours"
    assert not host.requests


def test_a_stranger_is_named() -> None:
    host = ScriptedHost([unit(0.0), failed(1.0, "not-ours", pid=7, comm="nginx", unit="nginx.service", port=30000)])
    assert "nginx (pid 7, unit nginx.service)" in failure_of(run(host)[0]).cause


def test_a_generation_that_never_comes_back_is_a_stall() -> None:
    gate = threading.Event()

    def http(args: Json) -> Json:
        gate.wait(10.0)
        return {"status": 200, "headers": {}, "body": "{}", "seconds": 9.0}

    host = ScriptedHost([unit(0.0), health(5.0, "200")], http=http)
    result, updates = run(host, stall={"warm-up": 5.0})
    gate.set()
    assert (failure_of(result).proof, failure_of(result).phase) == ("stall", "ready")
    assert "a generation of our own" in failure_of(result).cause
    assert updates[-1].text == "a generation of our own"


def test_the_end_of_the_stream_is_its_answer() -> None:
    host = ScriptedHost([unit(0.0)], result={"proof": "vanished", "detail": {}})
    assert failure_of(run(host)[0]).signature == "vanished"


def test_a_stall_names_phase_and_last_line() -> None:
    begin = "[2026-01-01 00:00:00 TP0] Load weight begin. avail mem=90.00 GB"
    host = ScriptedHost([unit(0.0), log(5.0, begin)])
    result, _ = run(host, stall={"load": 60.0})
    found = failure_of(result)
    assert (found.proof, found.signature, found.phase) == ("stall", "load_stalled", "load")
    assert begin in found.cause
    assert 65.0 <= host.now < 67.0


@pytest.mark.parametrize("figure", ["read_bytes", "gpu_memory", "rss"])
def test_figures_that_move_are_progress(figure: str) -> None:
    begin = log(5.0, "[2026-01-01 00:00:00 TP0] Load weight begin. avail mem=90.00 GB")
    moving = [proc(t, **{figure: t * (1 << 24)}) for t in range(6, 200)]
    host = ScriptedHost([unit(0.0), begin, *moving])
    result, _ = run(host, stall={"load": 60.0})
    assert failure_of(result).proof == "stall"
    assert 258.0 <= host.now < 261.0


def test_own_health_probes_in_the_log_are_no_progress() -> None:
    probe = '[2026-01-01 00:00:00] INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 503 Service Unavailable'
    up = log(1.0, "[2026-01-01 00:00:00] INFO:     Uvicorn running on http://127.0.0.1:1")
    host = ScriptedHost([unit(0.0), up, *[log(t, probe) for t in range(2, 100)]])
    result, _ = run(host, stall={"warm-up": 30.0})
    assert failure_of(result).phase == "warm-up"
    assert host.now < 33.0


def test_cpu_time_alone_stretches_a_stall_but_not_for_ever() -> None:
    begin = log(0.0, "[2026-01-01 00:00:00] Capture cuda graph begin. avail mem=1.00 GB")
    host = ScriptedHost([unit(0.0), begin, *[proc(t, cpu_seconds=8.0 * t) for t in range(1, 400)]])
    assert failure_of(run(host, stall={"capture": 60.0})[0]).phase == "capture"
    assert 180.0 <= host.now < 182.0


def test_spinning_ranks_that_do_not_find_each_other_are_stalled() -> None:
    begin = log(
        0.0,
        "[2026-01-01 00:00:00 TP0] Init torch distributed begin.",
        "[2026-01-01 00:00:00 TP0] sglang is using nccl==2.28.9",
    )
    host = ScriptedHost([unit(0.0), begin, *[proc(t, cpu_seconds=8.0 * t) for t in range(1, 400)]])
    assert failure_of(run(host, stall={"dist-init": 60.0})[0]).signature == "nccl_p2p_hang"
    assert host.now < 62.0


def test_the_deadline_is_separate_from_progress() -> None:
    host = ScriptedHost([unit(0.0), *[log(t, f"still working {t}") for t in range(1, 500)]])
    result, _ = run(host, deadline=120.0)
    found = failure_of(result)
    assert found.signature == "deadline"
    assert "phase launch" in found.cause
    assert 120.0 < host.now < 122.0


def test_the_deadline_counts_from_the_start_of_the_unit_where_the_wait_is_taken_up() -> None:
    host = ScriptedHost([proc(500.0)])
    host.now = 500.0
    result, _ = run(host, deadline=510.0)
    assert failure_of(result).signature == "deadline"
    assert host.now < 512.0


def test_a_lost_connection_is_not_a_failed_launch() -> None:
    with pytest.raises(ChannelLost):
        run(ScriptedHost([unit(0.0), ChannelLost("gone")]))


def test_updates_tell_figures_estimate_and_new_lines_once() -> None:
    begin = "[2026-01-01 00:00:00] Load weight begin. avail mem=90.00 GB"
    host = ScriptedHost(
        [unit(0.0), log(4.0, begin), proc(5.0, read_bytes=1 << 30, gpu_memory=7), health(9.0, "200")],
    )
    estimate = Estimate({"load": 60.0, "capture": 30.0}, "0001-tp8")
    _, updates = run(host, estimate=estimate, model_bytes=4 << 30)
    loading = next(update for update in updates if update.bytes_read)
    assert (loading.phase, loading.bytes_read, loading.bytes_total, loading.gpu_memory) == (
        "load",
        1 << 30,
        4 << 30,
        7,
    )
    assert loading.remaining == pytest.approx(89.0)
    assert [line for update in updates for line in update.lines] == [begin]


def test_secrets_are_nowhere() -> None:
    text = "[2026-01-01 00:00:00] server_args={'api_key': 'sk-very-secret', 'x': 1} sk-very-secret, not valid: tok en7"
    host = ScriptedHost([unit(0.0), log(1.0, text), failed(2.0, "fatal-line", text=text)])
    result, updates = run(host, api_key="sk-very-secret", hidden=("tok en7",))
    assert not re.search("sk-very-secret|tok en7", repr(result) + repr(updates))
    assert "'x': 1" in failure_of(result).log_tail[0]


def test_the_usage_does_not_push_the_error_out_of_the_tail() -> None:
    usage = ["usage: sglang serve [-h]", *["                    [--flag {a,b}] [--other N]"] * 300]
    said = ["[2026-01-01 00:00:00] starting", *usage, "sglang serve: error: unrecognized arguments: --none 3"]
    assert log_tail(said) == [said[0], said[-1]]
    pointer = ['  File "x.py", line 1', "    call(argument)", "                 ^^^^^"]
    assert log_tail(pointer * 40) == (pointer * 40)[-TAIL_LINES:]
