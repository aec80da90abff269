"""The load client against a real server of known schedule, over real sockets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from deployer.bench.load import client as load
from deployer.bench.load import stream
from deployer.bench.load.spec import API_KEY_VARIABLE, Spec
from deployer.bench.load.stats import Request
from deployer.bench.runner import load_client
from tests.paths import ROOT
from tests.patience import PATIENCE, one_right, one_within


def measure(base: str, model: str = "fast", *, key: str | None = None, **more: Any) -> tuple[dict[str, Any], list[Any]]:
    """Run the client in this process. Returns the bench document and the events."""
    values = {"levels": [4], "output_tokens": 32, "warmups": 0, "singles": 0, "request_timeout": 20.0}
    values |= {"repeats": 1, "requests_at_least": 0, "discard": False, "fixed_prompt": False, **more}
    events: list[Any] = []
    bench = load.run(Spec.from_json({"base_url": base, "model": model, **values}), events.append, key)
    for stage in [bench["warmups"], bench["singles"], *bench["levels"]]:
        if stage:
            assert stage["completed"] + sum(stage["failed"].values()) == stage["requests"]
    json.dumps(bench)
    return bench, events


@pytest.mark.alone
def test_measures_the_known_schedule(mock_server: str) -> None:
    one_right(lambda: measure_the_known_schedule(mock_server))


def measure_the_known_schedule(mock_server: str) -> None:
    bench, _ = measure(mock_server, "slow", levels=[8], singles=1, warmups=1, output_tokens=48)
    level, alone = bench["levels"][0], bench["singles"]
    assert (level["completed"], level["output_tokens"], level["failed"]) == (8, 8 * 48, {})
    assert level["ttft_sent_s"]["p50"] == pytest.approx(0.200, abs=0.03)
    assert level["ttft_s"]["p50"] == pytest.approx(0.200, abs=0.08)
    assert level["ttft_s"]["p50"] >= level["ttft_sent_s"]["p50"]
    assert level["itl_s"]["p50"] == pytest.approx(0.020, abs=0.003)
    assert level["tpot_s"]["mean"] == pytest.approx(0.020, abs=0.002)
    assert level["itl_s"]["mean"] == pytest.approx(level["tpot_s"]["mean"], rel=0.05)
    assert level["steady_tok_s"] == pytest.approx(8 / 0.020, rel=0.1)
    truth = 8 * 48 / (0.2 + 47 * 0.02)
    assert level["aggregate_tok_s"] == pytest.approx(truth, rel=0.1)
    assert level["aggregate_tok_s"] < level["steady_tok_s"]
    assert alone["ttft_s"]["p50"] == pytest.approx(0.2, abs=0.04)
    assert bench["single_stream_tok_s"] == pytest.approx(48 / (0.2 + 47 * 0.02), rel=0.06)
    assert not level["client"]["client_limited"]
    assert level["tokens_per_chunk"] == 1.0


def test_several_tokens_a_chunk_are_counted_and_not_slower(mock_server: str) -> None:
    def error(_: int) -> float:
        bench, _events = measure(mock_server, "four", levels=[2], output_tokens=48)
        level = bench["levels"][0]
        assert level["output_tokens"] == 96
        assert level["tokens_per_chunk"] == 4.0
        return abs(float(level["itl_s"]["p50"]) - 0.020)

    one_within(0.003, error)


def test_answers_cut_anywhere_are_read(mock_server: str) -> None:
    bench, _ = measure(mock_server, "split")
    level = bench["levels"][0]
    assert level["completed"] == 4
    assert all(sample["chunks"] == 32 for sample in level["samples"])


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("http-500", "http-500"),
        ("http-429", "http-429"),
        ("no-usage", "no-usage"),
        ("short", "short"),
        ("empty", "empty"),
        ("error", "error"),
        ("garbage", "protocol"),
        ("not-http", "protocol"),
        ("reset", "reset"),
        ("close", "reset"),
    ],
)
def test_failures_are_counted_by_kind(mock_server: str, model: str, kind: str) -> None:
    bench, events = measure(mock_server, model, levels=[4, 8])
    assert len(bench["levels"]) == 1, "a level in which nothing works is the last one"
    level = bench["levels"][0]
    assert level["failed"] == {kind: 4}
    assert level["aggregate_tok_s"] is None
    assert kind in bench["stopped"]
    assert sum(kind in event.get("text", "") for event in events) == 4


def test_nobody_listens() -> None:
    bench, _ = measure("http://127.0.0.1:1", "fast", warmups=1)
    assert bench["warmups"]["failed"] == {"connect": 1}
    assert bench["levels"] == []


def test_some_fail_and_the_rest_is_measured(mock_server: str) -> None:
    httpx.get(mock_server + "/seen")
    bench, _ = measure(mock_server, "mixed", levels=[6], waves=2)
    level = bench["levels"][0]
    assert (level["completed"], level["failed"]) == (8, {"http-500": 4})
    assert level["output_tokens"] == 8 * 32
    assert level["steady_tok_s"] is None
    assert len(httpx.get(mock_server + "/seen").json()) == 12, "nothing is sent twice"


def test_a_request_that_hangs_times_out(mock_server: str) -> None:
    began = time.monotonic()
    bench, _ = measure(mock_server, "hang", levels=[2], request_timeout=0.5)
    assert bench["levels"][0]["failed"] == {"timeout": 2}
    assert time.monotonic() - began < PATIENCE, "it would hang for longer"


def test_a_level_has_a_hard_deadline(mock_server: str) -> None:
    bench, _ = measure(mock_server, "slow", levels=[2], waves=90, output_tokens=40, level_deadline=3.5)
    level = bench["levels"][0]
    assert level["failed"].keys() == {"deadline"}
    assert level["completed"] >= 2
    assert level["wall_s"] < 45, "all of its waves take twice as long"


def test_what_is_sent(mock_server: str) -> None:
    httpx.get(mock_server + "/seen")
    spec = {"warmups": 1, "prompt_tokens": 60, "waves": 2, "salt": "b"}
    bench, _ = measure(mock_server, "fast", key="k-123", **spec)
    seen = httpx.get(mock_server + "/seen").json()
    assert len(seen) == 9
    bodies = [request["body"] for request in seen]
    assert all(request["headers"]["authorization"] == "Bearer k-123" for request in seen)
    assert all(request["headers"]["accept-encoding"] == "identity" for request in seen)
    assert all(b["stream"] and b["ignore_eos"] and b["temperature"] == 0 for b in bodies)
    assert all(b["stream_options"] == {"include_usage": True} for b in bodies)
    assert [b["max_tokens"] for b in bodies] == [16] + [32] * 8
    assert len({b["prompt"] for b in bodies}) == 9
    # The mock counts twice what is estimated; after the warm-up has told so, prompts have the length asked for.
    assert bench["levels"][0]["prompt_tokens_per_request"] == pytest.approx(60, rel=0.05)
    assert "k-123" not in json.dumps(bench)


def test_the_key_is_taken_out_of_what_a_server_says(mock_server: str) -> None:
    bench, _ = measure(mock_server, "http-401", key="k-very-secret")
    assert "k-very-secret" not in json.dumps(bench)
    assert "***" in bench["levels"][0]["samples"][0]["detail"]
    assert "***" in bench["stopped"]


@pytest.mark.parametrize(
    ("prefix", "value", "said"),
    [
        ("/quiet", False, "the server generated 128 tokens, ours are 128"),
        ("/busy", True, "the server generated"),
        ("/elsewhere", None, "not (only) of the server"),
        ("", None, "--enable-metrics"),
    ],
)
def test_foreign_traffic(mock_server: str, prefix: str, value: bool | None, said: str) -> None:
    bench, _ = measure(mock_server + prefix, "fast")
    assert bench["foreign_traffic"]["value"] is value
    assert said in " ".join(bench["foreign_traffic"]["evidence"])
    assert bench["levels"][0]["foreign_traffic"] is value


def test_a_saturated_client_says_so(mock_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = stream.absorb

    def slow(request: Request, data: bytes, now: float) -> None:
        until = time.perf_counter() + 0.01
        while time.perf_counter() < until:
            pass
        real(request, data, now)

    monkeypatch.setattr(stream, "absorb", slow)
    bench, _ = measure(mock_server, "fast", levels=[16])
    assert bench["levels"][0]["completed"] == 16
    assert bench["levels"][0]["client"]["client_limited"]
    assert bench["client_limited"]


def test_one_token_over_and_over_is_seen(mock_server: str) -> None:
    bench, _ = measure(mock_server, "repeat")
    assert bench["levels"][0]["repetitive"] == 4
    assert bench["levels"][0]["samples"][0]["repeats"].startswith("!!!")


def test_progress_is_bounded_and_ends(mock_server: str) -> None:
    bench, events = measure(mock_server, "slow", levels=[4], output_tokens=100, progress_interval=0.25)
    levels = [event for event in events if event["event"] == "level"]
    assert 3 <= len(levels) <= bench["levels"][0]["wall_s"] / 0.25 + 2
    assert levels[-1]["ended"]
    assert (levels[-1]["done"], levels[-1]["total"]) == (4, 4)
    assert levels[-2]["tok_s"] > 0


def start(base: str, model: str, folder: Path | None = None, **more: Any) -> subprocess.Popen[str]:
    """The client as it runs on a host: its program alone in a folder, or (without one) from the package."""
    argv = [sys.executable, "-m", "deployer.bench.load"]
    if folder is not None:
        client = load_client()
        (folder / client.file).write_text(client.text)
        argv = [sys.executable, "-I", client.file]
    process = subprocess.Popen(
        argv,
        cwd=folder or ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, API_KEY_VARIABLE: "k-9", "PYTHONPATH": ""},
    )
    assert process.stdin is not None
    values = {"warmups": 0, "singles": 0, "repeats": 1, "requests_at_least": 0, "discard": False}
    values |= {"fixed_prompt": False, **more}
    process.stdin.write(json.dumps({"base_url": base, "model": model, **values}))
    process.stdin.close()
    process.stdin = None
    return process


def test_the_program_alone_in_a_folder(mock_server: str, tmp_path: Path) -> None:
    httpx.get(mock_server + "/seen")
    process = start(mock_server, "fast", tmp_path, levels=[2], output_tokens=16)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (0, "")
    events = [json.loads(line) for line in out.splitlines()]
    assert events[-1]["event"] == "result"
    assert events[-1]["bench"]["levels"][0]["completed"] == 2
    seen = httpx.get(mock_server + "/seen").json()
    assert {request["headers"]["authorization"] for request in seen} == {"Bearer k-9"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_at_once_and_the_cut_is_reported(mock_server: str, number: signal.Signals) -> None:
    process = start(mock_server, "slow", levels=[4, 8], output_tokens=100_000, progress_interval=0.2)
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    assert first["event"] == "level"
    process.send_signal(number)
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    bench = json.loads(out.splitlines()[-1])["bench"]
    assert bench["interrupted"] == number.name
    assert [level["failed"] for level in bench["levels"]] == [{"cut": 4}]


def test_it_stops_when_nobody_reads(mock_server: str) -> None:
    process = start(mock_server, "slow", levels=[4], output_tokens=100_000, progress_interval=0.2)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=PATIENCE) == 1
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()


def test_an_invalid_spec_is_refused_by_the_program() -> None:
    process = start("", "m", levles=[3], waves=0)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    for part in ("'levles'", "base_url", "waves"):
        assert part in err


@pytest.mark.parametrize("levels", [[0], [8, 8], ["8"], [-1]])
def test_levels_that_cannot_be(levels: list[Any]) -> None:
    with pytest.raises(ValueError, match="levels"):
        Spec.from_json({"base_url": "http://x", "model": "m", "levels": levels})


def test_the_address_may_end_in_v1() -> None:
    for text in ("http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"):
        assert Spec.from_json({"base_url": text, "model": "m"}).base_url == "http://h:1"
