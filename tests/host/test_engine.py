"""The stand-in engine as real processes: start, readiness, endpoints, speed, failures and ends."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.patience import PATIENCE, one_within, until

ENGINE = Path(__file__).resolve().parents[2] / "deployer_rehearsal" / "engine"
HOST = "127.0.77.1"
#: Without this httpx reads all certificates for each request, which takes a busy machine long.
PLAIN: dict[str, Any] = {"trust_env": False, "verify": False}
OLD, NEW = "0.5.12.post1", "0.5.23"
VERSIONS = pytest.mark.parametrize("version", [OLD, NEW])


class Engine:
    """One stand-in process under test."""

    def __init__(
        self, folder: Path, version: str, *argv: str, scale: float = 0.03, faults: Any = None, **env: str
    ) -> None:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            self.port = int(probe.getsockname()[1])
        self.state = folder / "state"
        self.state.mkdir(exist_ok=True)
        (self.state / "faults.json").write_text(json.dumps({"faults": faults or []}))
        self.log_path = folder / f"log-{self.port}"
        model = folder / "model"
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text(
            json.dumps({"architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 61, "kv_lora_rank": 512})
        )
        environment = {
            **os.environ,
            "PYTHONPATH": str(ENGINE),
            "SGLANG_STANDIN_CONFIG": str(folder / "none.json"),
            "SGLANG_STANDIN_VERSION": version,
            "SGLANG_STANDIN_SCALE": str(scale),
            "SGLANG_STANDIN_STATE": str(self.state),
            **env,
        }
        words = ["--model-path", str(model), "--host", HOST, "--port", str(self.port), *argv]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sglang.launch_server", *words],
                stderr=log,
                stdout=log,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )
        self.url = f"http://{HOST}:{self.port}"

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def get(self, path: str, timeout: float = PATIENCE, **kwargs: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=timeout, **PLAIN, **kwargs)

    def post(self, path: str, body: Any, timeout: float = PATIENCE, **kwargs: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=timeout, **PLAIN, **kwargs)

    def wait_for(self, text: str) -> None:
        end = time.monotonic() + PATIENCE
        while text not in self.log:
            assert time.monotonic() < end, f"{text!r} did not come; the log:\n{self.log[-3000:]}"
            assert self.process.poll() is None or text in self.log, f"ended early:\n{self.log[-3000:]}"
            time.sleep(0.02)

    def ready(self) -> Engine:
        self.wait_for("The server is fired up and ready to roll!")
        self.wait_for("Uvicorn running on")
        return self

    def end(self) -> int:
        return self.process.wait(PATIENCE)

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.end()

    def members(self) -> list[int]:
        """Processes of our session that are still alive."""
        result = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                text = path.read_bytes()
            except OSError:
                continue
            if f"SGLANG_STANDIN_STATE={self.state}".encode() in text.split(b"\0"):
                result.append(int(path.parent.name))
        return result

    def clean(self) -> None:
        for pid in self.members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(PATIENCE)


Start = Callable[..., Engine]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    engines: list[Engine] = []

    def begin(version: str = OLD, *argv: str, **options: Any) -> Engine:
        engines.append(Engine(tmp_path, version, *argv, **options))
        return engines[-1]

    yield begin
    for engine in engines:
        engine.clean()


def port_open(engine: Engine) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, engine.port)) == 0


# start and readiness


@VERSIONS
def test_refused_then_503_then_200(start: Start, version: str) -> None:
    # A machine that does other work may not look while the answer is 503, which is for a third of a second at first.
    for scale in (0.5, 1.0, 3.0):
        engine = start(version, "--pp-size", "2", "--max-running-requests", "16", scale=scale)
        seen, early_models = statuses_until_ready(engine)
        if "503" in seen:
            break
    assert seen == ["refused", "503", "200"]
    assert early_models == 200
    text = engine.log
    assert text.index("Memory pool end") < text.index("Uvicorn running on") < text.index("ready to roll")


def statuses_until_ready(engine: Engine) -> tuple[list[str], int | None]:
    """What /health says from the start on, each once, and how /v1/models is answered meanwhile."""
    seen: list[str] = []
    early_models = None
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        begin = time.monotonic()
        try:
            status = str(engine.get("/health").status_code)
            if status == "503":
                early_models = engine.get("/v1/models").status_code
        except httpx.ConnectError:
            status = "refused"
            assert "Uvicorn running on" not in engine.log or seen == ["refused"]
        if not seen or seen[-1] != status:
            seen.append(status)
        if status == "200":
            assert time.monotonic() - begin >= 1.0
            break
        time.sleep(0.02)
    return seen, early_models


def test_never_ready(start: Start) -> None:
    engine = start(OLD, "--tp-size", "2", faults=[{"name": "never-ready"}])
    engine.wait_for("Uvicorn running on")
    time.sleep(0.5)
    assert engine.get("/health").status_code == 503
    assert "ready to roll" not in engine.log


def test_skipping_the_warm_up_is_ready_at_once(start: Start) -> None:
    engine = start(OLD, "--tp-size", "2", "--skip-server-warmup").ready()
    text = engine.log
    assert text.index("ready to roll") < text.index("Uvicorn running on")
    assert engine.get("/health").status_code == 200


def test_a_taken_port_is_noticed_after_the_load_and_the_process_stays(start: Start) -> None:
    first = start(OLD, "--tp-size", "2").ready()
    second = start(OLD, "--tp-size", "2", "--base-gpu-id", "4", "--port", str(first.port))
    second.wait_for("ERROR:    [Errno 98] error while attempting to bind on address")
    assert f"('{HOST}', {first.port}): address already in use" in second.log
    assert "max_total_num_tokens" in second.log
    second.process.terminate()
    time.sleep(0.3)
    assert second.process.poll() is None
    assert second.stop(signal.SIGKILL) == -signal.SIGKILL


@VERSIONS
def test_a_wrong_model_path(start: Start, version: str) -> None:
    engine = start(version, "--model-path", "/nonexistent/model")
    assert engine.end() == 1
    assert engine.log.splitlines()[-1].startswith("OSError: Repo id must be in the form 'repo_name' or")


def test_a_flag_of_another_version(start: Start) -> None:
    engine = start(NEW, "--cuda-graph-max-bs", "8")
    assert engine.end() == 2
    assert engine.log.splitlines()[-1].startswith("sglang serve: error: ambiguous option: --cuda-graph-max-bs")


# processes and memory


def test_one_process_a_rank_and_a_detokenizer(start: Start) -> None:
    engine = start(OLD, "--pp-size", "4").ready()
    names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in engine.members()]
    assert sorted(name for name in names if name.startswith("sglang::")) == [
        "sglang::detoken",
        *["sglang::schedul"] * 4,
    ]
    state = json.loads(next(engine.state.glob("gpu-*.json")).read_text())
    assert [entry["gpu"] for entry in state["processes"]] == [0, 1, 2, 3]
    assert all(entry["mib"] > 60_000 for entry in state["processes"])
    before = sum(os.stat(f"/proc/{pid}").st_uid == 0 for pid in engine.members())
    assert before == 6
    engine.process.kill()
    engine.end()
    until(lambda: engine.members() == [])


def test_a_scheduler_that_dies_takes_the_server_down(start: Start) -> None:
    engine = start(OLD, "--tp-size", "2").ready()
    victim = next(pid for pid in engine.members() if "schedul" in Path(f"/proc/{pid}/comm").read_text())
    os.kill(victim, signal.SIGKILL)
    assert engine.end() == -signal.SIGKILL
    assert f"(pid={victim}) crashed with exit code -9. Triggering SIGQUIT for cleanup..." in engine.log
    until(lambda: engine.members() == [])


@VERSIONS
def test_a_crash_while_loading(start: Start, version: str) -> None:
    engine = start(version, "--pp-size", "8", faults=[{"name": "crash-in-load", "when_argv_contains": "--pp-size"}])
    assert engine.end() == -signal.SIGKILL
    assert "Scheduler hit an exception: Traceback (most recent call last):" in engine.log
    assert "Received sigquit from a child process" in engine.log
    until(lambda: engine.members() == [])
    assert list(engine.state.glob("gpu-*")) == []


def test_a_crash_while_serving(start: Start) -> None:
    engine = start(OLD, "--tp-size", "2", faults=[{"name": "crash-while-serving", "at": 2}]).ready()
    engine.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
    time.sleep(0.7)
    assert engine.process.poll() is None
    engine.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
    assert engine.end() == -signal.SIGKILL
    assert "Scheduler hit an exception" in engine.log


# endpoints


def test_completions(start: Start) -> None:
    engine = start(NEW, "--tp-size", "8", "--served-model-name", "kimi", SGLANG_STANDIN_SPEED="10").ready()
    body = {
        "model": "kimi",
        "prompt": "one two three",
        "max_tokens": 12,
        "temperature": 0,
        "ignore_eos": True,
    }
    first, again = engine.post("/v1/completions", body).json(), engine.post("/v1/completions", body).json()
    other = engine.post("/v1/completions", {**body, "prompt": "four five"}).json()
    assert first["choices"][0]["text"] == again["choices"][0]["text"] != other["choices"][0]["text"]
    assert first["object"] == "text_completion"
    assert first["choices"][0]["finish_reason"] == "length"
    usage = {key: first["usage"][key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")}
    assert usage == {"prompt_tokens": 3, "completion_tokens": 12, "total_tokens": 15}
    natural = engine.post("/v1/completions", {**body, "ignore_eos": False, "max_tokens": 5000}).json()
    assert natural["choices"][0]["finish_reason"] == "stop"
    assert 20 <= natural["usage"]["completion_tokens"] <= 200
    chat = engine.post(
        "/v1/chat/completions",
        {"model": "kimi", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
    ).json()
    assert chat["object"] == "chat.completion"
    assert len(chat["choices"][0]["message"]["content"].split()) == 5
    own = engine.post("/generate", {"text": "hi", "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}).json()
    assert own["meta_info"]["completion_tokens"] == 4
    assert own["meta_info"]["finish_reason"] == {"type": "length", "length": 4}
    assert engine.post("/v1/completions", {"max_tokens": 3}).status_code == 400
    assert engine.post("/v1/completions", {"prompt": "x", "max_tokens": 0}).status_code == 400
    assert httpx.post(engine.url + "/v1/completions", content=b"{", trust_env=False).status_code == 400
    assert engine.get("/nowhere").status_code == 404
    assert engine.get("/v1/completions").status_code == 405


def stream(engine: Engine, path: str, body: dict[str, Any]) -> list[Any]:
    events: list[Any] = []
    with httpx.stream("POST", engine.url + path, json=body, timeout=30, **PLAIN) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            if line:
                assert line.startswith("data: ")
                events.append(line[6:] if line == "data: [DONE]" else json.loads(line[6:]))
    return events


def test_streams(start: Start) -> None:
    engine = start(OLD, "--tp-size", "8", SGLANG_STANDIN_SPEED="10").ready()
    body = {"prompt": "a b", "max_tokens": 6, "ignore_eos": True, "stream": True, "temperature": 0}
    events = stream(engine, "/v1/completions", {**body, "stream_options": {"include_usage": True}})
    assert events[-1] == "[DONE]"
    assert events[-2]["usage"]["completion_tokens"] == 6
    assert events[-2]["choices"] == []
    pieces = [event["choices"][0] for event in events[:-2]]
    assert [piece["finish_reason"] for piece in pieces] == [None] * 5 + ["length"]
    whole = engine.post("/v1/completions", {**body, "stream": False}).json()["choices"][0]["text"]
    assert "".join(piece["text"] for piece in pieces) == whole
    assert all(event["usage"] is None for event in events[:-2])
    assert len(stream(engine, "/v1/completions", body)) == 7
    chat = stream(
        engine,
        "/v1/chat/completions",
        {**body, "messages": [{"role": "user", "content": [{"text": "x", "type": "text"}]}]},
    )
    assert chat[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chat[0]["choices"][0]["delta"]["content"] == ""
    assert len(chat) == 1 + 6 + 1
    own = stream(
        engine,
        "/generate",
        {"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}},
    )
    assert [event["meta_info"]["completion_tokens"] for event in own[:-1]] == [1, 2, 3]
    assert own[2]["text"].startswith(own[0]["text"])


def test_garbage_output(start: Start) -> None:
    engine = start(OLD, "--tp-size", "8", faults=[{"name": "garbage-output", "text": "!"}], SGLANG_STANDIN_SPEED="10")
    answer = engine.ready().post("/v1/completions", {"prompt": "x", "max_tokens": 5, "ignore_eos": True}).json()
    assert answer["choices"][0]["text"] == "!!!!!"


def test_keys(start: Start) -> None:
    engine = start(OLD, "--tp-size", "2", "--api-key", "sesame", "--admin-api-key", "root", "--enable-metrics").ready()
    key, admin = {"Authorization": "Bearer sesame"}, {"Authorization": "Bearer root"}
    for path in ("/health", "/metrics"):
        assert engine.get(path).status_code == 200
    for path in ("/ping", "/v1/models", "/model_info", "/server_info", "/v1/loads"):
        assert engine.get(path).status_code == 401
        assert engine.get(path, headers={"Authorization": "sesame"}).status_code == 401
        assert engine.get(path, headers=key).status_code == 200
    assert engine.post("/flush_cache", {}, headers=key).status_code == 401
    assert engine.post("/flush_cache", {}, headers=admin).status_code == 200
    assert engine.get("/server_info", headers=key).json()["api_key"] == "sesame"


# What the real /server_info of each version has beside the arguments (and what its scheduler states have).
SERVER_INFO = {
    OLD: {"status", "max_total_num_tokens", "max_req_input_len", "internal_states", "version"},
    NEW: {
        "launch_command",
        "status",
        "max_total_num_tokens",
        "max_req_input_len",
        "startup_time",
        "hicache_object_layout",
        "kv_events",
        "internal_states",
        "version",
        "frontend",
    },
}
INTERNAL = {
    OLD: {"last_gen_throughput", "memory_usage", "effective_max_running_requests_per_dp", "use_mla_backend"},
    NEW: {
        "world_size",
        "startup_time",
        "effective_max_running_requests_per_dp",
        "last_gen_throughput",
        "memory_usage",
        "decode_cuda_graph_bs",
        "decode_cuda_graph_memory_gb",
    },
}
MEMORY_USAGE = {
    OLD: {"weight", "kvcache", "token_capacity", "graph"},
    NEW: {"weight", "kvcache", "startup_available", "token_capacity", "token_capacity_swa", "graph"},
}


@VERSIONS
def test_server_info_has_the_real_shape(start: Start, version: str) -> None:
    flag = "--cuda-graph-max-bs" if version == OLD else "--cuda-graph-max-bs-decode"
    engine = start(version, "--pp-size", "8", "--max-running-requests", "64", "--pp-async-batch-depth", "8", flag, "8")
    info = engine.ready().get("/server_info").json()
    table = json.loads((ENGINE.parents[1] / "deployer" / "sglang" / "data" / f"args-{version}.json").read_text())
    fields = {field["name"] for field in table["fields"]}
    assert set(info) - fields == SERVER_INFO[version]
    assert fields - set(info) == set()
    state = info["internal_states"][0]
    assert set(state) - fields == INTERNAL[version]
    assert set(state["memory_usage"]) == MEMORY_USAGE[version]
    assert info["pp_max_micro_batch_size"] is None
    assert state["pp_max_micro_batch_size"] == 8
    assert state["effective_max_running_requests_per_dp"] == 64
    assert (info["pp_size"], info["pp_async_batch_depth"], info["version"]) == (8, 8, version)
    assert info["served_model_name"] == info["model_path"]
    if version == OLD:
        assert info["cuda_graph_bs"] == [1, 2, 4, 8]
    else:
        assert state["decode_cuda_graph_bs"] == [1, 2, 4, 8]
        assert "--pp-size 8" in info["launch_command"]
    assert engine.get("/get_server_info").json().keys() == info.keys()
    assert engine.get("/get_model_info").json()["architectures"] == ["DeepseekV3ForCausalLM"]
    assert engine.get("/v1/models").json()["data"][0]["owned_by"] == "sglang"
    assert engine.get("/metrics").status_code == 404
    load = engine.get("/v1/loads").json()["loads"][0]
    assert load["max_running_requests"] == 64
    assert load["memory"]["token_capacity"] == info["max_total_num_tokens"]


def test_a_wrong_argument_shows(start: Start) -> None:
    fault = {"name": "wrong-argument", "argument": "pp_async_batch_depth", "value": 0}
    engine = start(OLD, "--pp-size", "2", "--pp-async-batch-depth", "8", faults=[fault]).ready()
    assert engine.get("/server_info").json()["pp_async_batch_depth"] == 0


def test_the_micro_batch_cap_can_be_set(start: Start) -> None:
    engine = start(OLD, "--pp-size", "2", "--max-running-requests", "64").ready()

    def change(value: Any) -> Any:
        return engine.post("/set_internal_state", {"server_args": {"pp_max_micro_batch_size": value}}).json()

    assert change(4) == [True]
    assert engine.get("/server_info").json()["internal_states"][0]["pp_max_micro_batch_size"] == 4
    assert change(33) == [False]
    assert engine.post("/set_internal_state", {"server_args": {"tp_size": 4}}).json() == [False]


def test_batch_lines_of_every_stage(start: Start) -> None:
    engine = start(
        OLD,
        "--pp-size",
        "2",
        "--cuda-graph-max-bs",
        "1",
        "--decode-log-interval",
        "5",
        SGLANG_STANDIN_SPEED="5",
    ).ready()
    engine.post("/v1/completions", {"prompt": "a b c", "max_tokens": 30, "ignore_eos": True})
    lines = [line for line in engine.log.splitlines() if "Decode batch, #running-req: 1, " in line]
    assert len([line for line in lines if " PP0] " in line]) == len([line for line in lines if " PP1] " in line]) >= 5
    assert all("cuda graph: True" in line for line in lines)
    assert " PP1] Prefill batch, #new-seq: 1, #new-token: 3, #cached-token: 0, token usage: 0.00" in engine.log
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        body = {"prompt": "a", "max_tokens": 60, "ignore_eos": True}
        list(pool.map(lambda number: engine.post("/v1/completions", body), range(4)))
    assert any("cuda graph: False" in line for line in engine.log.splitlines() if "Decode batch" in line)


def test_hanging_generation_turns_health_503(start: Start) -> None:
    engine = start(
        OLD, "--tp-size", "2", faults=[{"name": "hang-at-request", "at": 2}], SGLANG_HEALTH_CHECK_TIMEOUT="2"
    ).ready()
    assert engine.post("/v1/completions", {"prompt": "x", "max_tokens": 1}).status_code == 200
    with pytest.raises(httpx.ReadTimeout):
        engine.post("/v1/completions", {"prompt": "x", "max_tokens": 1}, timeout=0.5)
    begin = time.monotonic()
    assert engine.get("/health").status_code == 503
    assert 2.0 <= time.monotonic() - begin < 20.0, "20 s are usual"
    assert engine.get("/v1/models").status_code == 200
    with pytest.raises(httpx.ReadTimeout):
        engine.get("/server_info", timeout=0.5)


# speed


def test_tokens_come_at_the_speed_of_the_model(start: Start) -> None:
    engine = start(OLD, "--tp-size", "8", "--max-running-requests", "64").ready()
    body = {"prompt": "a b", "max_tokens": 33, "ignore_eos": True, "stream": True}

    def error(_: int) -> float:
        stamps = []
        with httpx.stream("POST", engine.url + "/v1/completions", json=body, timeout=PATIENCE, **PLAIN) as response:
            for chunk in response.iter_raw():
                stamps.append((time.monotonic(), chunk.count(b"finish_reason")))
        seen = [moment for moment, count in stamps if count]
        return abs(32 / (seen[-1] - seen[0]) / 26.0 - 1)

    one_within(0.15, error)


def test_slowness_can_come_while_it_serves(start: Start) -> None:
    engine = start(OLD, "--tp-size", "8").ready()

    def seconds() -> float:
        begin = time.monotonic()
        engine.post("/v1/completions", {"prompt": "x", "max_tokens": 10, "ignore_eos": True})
        return time.monotonic() - begin

    before = min(seconds() for _ in range(3))
    (engine.state / "faults.json").write_text(json.dumps({"faults": [{"name": "slow", "percent": 400}]}))
    assert seconds() > 2.0 * before


# ends


@pytest.mark.parametrize(("version", "status"), [(OLD, -signal.SIGKILL), (NEW, 0)])
def test_sigterm_when_idle(start: Start, version: str, status: int) -> None:
    engine = start(version, "--tp-size", "2", scale=0.1).ready()
    assert engine.stop() == status
    assert "SIGTERM received. signum=None frame=None. Draining requests and shutting down..." in engine.log
    assert "Gracefully exiting... Remaining number of requests 0. Remaining requests remaining_rids=[]." in engine.log
    assert ("Finished server process" in engine.log) == (version == NEW)
    until(lambda: engine.members() == [])
    assert not port_open(engine)
    assert list(engine.state.glob("gpu-*")) == []


@VERSIONS
def test_sigterm_waits_for_what_is_under_way(start: Start, version: str) -> None:
    engine = start(version, "--tp-size", "8").ready()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        body = {"prompt": "x", "max_tokens": 120, "ignore_eos": True}
        answer = pool.submit(engine.post, "/v1/completions", body)
        until(lambda: engine.get("/v1/loads").json()["loads"][0]["num_running_reqs"] == 1)
        engine.process.send_signal(signal.SIGTERM)
        engine.wait_for("Remaining number of requests 1.")
        assert engine.get("/health").status_code == 503
        assert answer.result(PATIENCE).json()["usage"]["completion_tokens"] == 120
    engine.end()
    assert "Health check request received during shutdown. Returning 503." in engine.log


def test_sigterm_while_loading(start: Start) -> None:
    engine = start(OLD, "--pp-size", "8", scale=1.0)
    engine.wait_for("Load weight begin")
    assert engine.stop() == -signal.SIGTERM
    assert "Load weight end" not in engine.log, "nothing is waited for"
    until(lambda: engine.members() == [])


def test_deaf_to_sigterm(start: Start) -> None:
    engine = start(OLD, "--tp-size", "2", faults=[{"name": "ignore-sigterm"}]).ready()
    for pid in engine.members():
        os.kill(pid, signal.SIGTERM)
    time.sleep(0.7)
    assert engine.process.poll() is None
    assert engine.get("/health").status_code == 200
    assert engine.stop(signal.SIGKILL) == -signal.SIGKILL


def test_a_port_that_is_never_released(start: Start) -> None:
    engine = start(NEW, "--tp-size", "2", faults=[{"name": "port-never-released"}]).ready()
    assert engine.stop() == 0
    (orphan,) = engine.members()
    assert port_open(engine)
    os.kill(orphan, signal.SIGTERM)
    time.sleep(0.3)
    assert engine.members() == [orphan]
    os.kill(orphan, signal.SIGKILL)
    until(lambda: not port_open(engine))


def test_memory_that_is_never_released_stops_the_next_start(start: Start) -> None:
    fault = {"name": "memory-never-released", "when_argv_contains": "--pp-size"}
    first = start(OLD, "--pp-size", "2", faults=[fault]).ready()
    first.stop()
    (orphan,) = first.members()
    second = start(OLD, "--tp-size", "2")
    assert second.end() == -signal.SIGKILL
    assert "torch.OutOfMemoryError: CUDA out of memory" in second.log
    os.kill(orphan, signal.SIGKILL)
    until(lambda: first.members() == [])
    start(OLD, "--tp-size", "2").ready()
