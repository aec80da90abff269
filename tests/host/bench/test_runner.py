"""The runner: where the load comes from, what is sent there, and what happens when it goes wrong."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from deployer.bench import runner
from deployer.bench.runner import Target, run_benchmark
from deployer.errors import AgentError, ChannelLost, ConfigError, GateInconclusive
from deployer.host.client import HostClient
from deployer.host.protocol import Stream
from deployer.host.ship import Program
from deployer.records.answers import Hello
from deployer.records.bench import BenchRun, SanityCheck
from deployer.records.endpoint import Endpoint
from tests.patience import PATIENCE

SMALL = {
    "levels": [2],
    "repeats": 1,
    "requests_at_least": 0,
    "discard": False,
    "output_tokens": 16,
    "warmups": 0,
    "singles": 1,
    "request_timeout": 20.0,
}

HERE = {**SMALL, "place": "operator"}


def target(
    port: int = 1,
    address: str = "127.0.0.1",
    *,
    key: str | None = None,
    model: str = "fast",
    python: str = sys.executable,
    advertised: str | None = None,
    user: str | None = None,
) -> Target:
    """A server to measure."""
    return Target(Endpoint("kimi", address, port, key), model, python, advertised, user)


class ChildStream:
    """The agent's ``run``, played by a child process in a folder with the files that were sent."""

    def __init__(self, args: dict[str, Any], folder: Path) -> None:
        for name, text in args["files"].items():
            (folder / name).write_text(text)
        self.cancelled = False
        self._answer: dict[str, Any] | None = None
        self._errors = (folder / "stderr").open("w+")
        self._process = subprocess.Popen(
            args["argv"],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={"PATH": os.environ["PATH"], **args["env"]},
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # a program that does not read it
            self._process.stdin.write(args["stdin"])
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def next(self, timeout: float | None = None) -> dict[str, Any] | None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return {"line": line.rstrip("\n")}
        status = self._process.wait(timeout=PATIENCE)
        self._errors.seek(0)
        self._answer = {"status": status, "stderr": self._errors.read()}
        raise StopIteration

    @property
    def result(self) -> dict[str, Any]:
        if self._answer is None:
            raise RuntimeError("not ended")
        return self._answer

    def cancel(self) -> None:
        self.cancelled = True
        self._process.terminate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdout is not None
        self._process.wait(timeout=PATIENCE)
        self._process.stdout.close()
        self._errors.close()


class ScriptedStream:
    """Events as given; an exception among them is raised, None is a second without any."""

    def __init__(self, events: list[Any], *, raw: bool = False) -> None:
        self.events = events
        self.raw = raw
        self.cancelled = False
        self.result: dict[str, Any] = {"status": 0, "stderr": ""}

    def next(self, timeout: float | None = None) -> dict[str, Any] | None:
        if not self.events:
            raise StopIteration
        event = self.events.pop(0)
        if isinstance(event, BaseException):
            raise event
        if event is None:
            time.sleep(0.05)
            return None
        return event if self.raw else {"line": json.dumps(event)}

    def cancel(self) -> None:
        self.cancelled = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class FakeHost:
    """A host that knows whether its engine has httpx, and runs things as told."""

    name = "gpu1"

    def __init__(self, folder: Path, *, has_httpx: bool = True, script: list[Any] | None = None) -> None:
        self.folder = folder
        self.has_httpx = has_httpx
        self.script = script
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.stream_made: Any = None
        self.log: list[Any] = []

    def call(self, op: str, args: dict[str, Any] | None = None, *, timeout: float = 30.0) -> dict[str, Any]:
        self.asked.append((op, args or {}))
        if op == "hello":
            return Hello(1, "fake", "3.11.0", 0, self.name, "boot", 252, time.time(), 0.0).as_json()
        engine = {"python": "p", "exists": True, "httpx": "0.28.1" if self.has_httpx else None}
        return {"boot_id": "boot", "services": {}, "engine": engine}

    def stream(self, op: str, args: dict[str, Any] | None = None) -> Stream:
        if op == "journal":
            return ScriptedStream(self.log, raw=True)
        self.asked.append((op, args or {}))
        made: Any = ScriptedStream(self.script) if self.script is not None else ChildStream(args or {}, self.folder)
        self.stream_made = made
        return made  # type: ignore[no-any-return]

    def close(self, *, bye: bool = True) -> None:
        pass


@pytest.fixture
def port(mock_server: str) -> int:
    httpx.get(mock_server + "/seen")
    return int(mock_server.rpartition(":")[2])


def test_on_the_host(port: int, mock_server: str, tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    events: list[dict[str, Any]] = []
    server = target(port, key="k-77", user="sglang")
    bench = run_benchmark(HostClient(host), server, {**SMALL, "place": "auto"}, on_event=events.append)
    assert bench.place == "host"
    assert bench.levels[0].completed == 2
    assert {event["event"] for event in events} == {"single", "fixed", "level"}
    op, args = host.asked[-1]
    assert op == "run"
    assert args["argv"] == [sys.executable, "load.py"]
    assert args["user"] == "sglang"
    assert args["env"] == {"DEPLOYER_BENCH_API_KEY": "k-77"}
    assert "k-77" not in json.dumps([args["argv"], args["stdin"], args["files"]])
    assert args["timeout"] > 60
    seen = httpx.get(mock_server + "/seen").json()
    assert {request["headers"]["authorization"] for request in seen} == {"Bearer k-77"}


def test_levels_are_measured_again_while_somebody_asks_for_them(port: int, mock_server: str, tmp_path: Path) -> None:
    lefts: list[float] = []

    def again(bench: BenchRun, left: float) -> list[int]:
        lefts.append(left)
        return [2] if len(bench.levels[0].passes) < 3 else []

    values = {**SMALL, "levels": [2, 3], "budget": 60}
    baseline = run_benchmark(HostClient(FakeHost(tmp_path)), target(port), values)
    httpx.get(mock_server + "/seen")
    bench = run_benchmark(HostClient(FakeHost(tmp_path)), target(port), values, again=again, baseline=baseline)
    assert [len(level.passes) for level in bench.levels] == [3, 1]
    assert [one.repeat for one in bench.levels[0].passes] == [0, 1, 2]
    assert bench.levels[0].completed == 6
    assert 60 > lefts[0] > lefts[1] > lefts[2] > 0
    prompts = [request["body"]["prompt"] for request in httpx.get(mock_server + "/seen").json()]
    assert len(prompts) - len(set(prompts)) == 1, "only the fixed prompt came twice"
    assert bench.sanity is not None
    assert bench.sanity.ok is True
    text = "the fixed prompt was answered as on the baseline"
    assert bench.sanity.checks[-1] == SanityCheck("as-baseline", True, text)


def test_the_record_is_the_document(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every key that the load client writes comes back, and nothing of it is unknown."""
    documents: list[Any] = []
    decode = BenchRun.from_json

    def keep(document: Any) -> BenchRun:
        documents.append(document)
        return decode(document)

    monkeypatch.setattr(BenchRun, "from_json", keep)
    spec = {**SMALL, "warmups": 1, "discard": True}
    bench = run_benchmark(HostClient(FakeHost(tmp_path)), target(port), spec)
    written = json.loads(json.dumps(bench.as_json()))
    [document] = documents
    assert document.keys() | {"place"} == written.keys()
    for name in ("warmups", "singles", "fixed", "budget", "foreign_traffic", "client", "workload", "spec"):
        assert written[name] == document[name], name
    found, level = written["levels"][0], document["levels"][0]
    assert {**found, "server": None} == {**level, "server": None}
    assert bench.extra == bench.levels[0].extra == bench.levels[0].samples[0].extra == {}


def test_from_here_when_the_host_has_no_httpx(port: int, tmp_path: Path) -> None:
    host = FakeHost(tmp_path, has_httpx=False)
    events: list[dict[str, Any]] = []
    server = target(advertised=f"http://127.0.0.1:{port}/v1")
    bench = run_benchmark(HostClient(host), server, SMALL, on_event=events.append)
    assert bench.place == "operator"
    assert bench.levels[0].completed == 2
    assert "no httpx" in events[0]["text"]
    assert [op for op, _ in host.asked] == ["observe", "hello"]


def test_the_key_reaches_the_child_by_its_environment(port: int, mock_server: str, tmp_path: Path) -> None:
    server = target(key="k-5", advertised=f"http://127.0.0.1:{port}")
    run_benchmark(HostClient(FakeHost(tmp_path)), server, HERE)
    seen = httpx.get(mock_server + "/seen").json()
    assert {request["headers"]["authorization"] for request in seen} == {"Bearer k-5"}


def test_the_host_is_asked_for_and_cannot(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no httpx") as caught:
        run_benchmark(HostClient(FakeHost(tmp_path, has_httpx=False)), target(), {**SMALL, "place": "host"})
    assert "operator" in (caught.value.remedy or "")


@pytest.mark.parametrize(
    ("wanted", "has_httpx", "place", "noted"),
    [
        ("auto", True, "host", False),
        ("auto", False, "operator", True),
        ("host", True, "host", False),
        ("operator", True, "operator", False),
        ("operator", False, "operator", False),
    ],
)
def test_the_choice_of_place(wanted: str, has_httpx: bool, place: str, noted: bool) -> None:
    chosen = runner.choose_place(target(7, advertised="http://a"), wanted, has_httpx=has_httpx)
    assert (chosen.name, chosen.url) == (place, "http://127.0.0.1:7" if place == "host" else "http://a")
    assert (chosen.note is not None) == noted


@pytest.mark.parametrize("bind", ["127.0.0.1", "127.0.0.9", "::1", "localhost", "0.0.0.0", "::"])
def test_from_here_a_loopback_or_wildcard_address_means_nothing(bind: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="as seen from here is unknown"):
        run_benchmark(HostClient(FakeHost(tmp_path)), target(address=bind), HERE)


@pytest.mark.parametrize(
    ("bind", "local", "remote"),
    [
        ("10.1.2.3", "http://10.1.2.3:7", "http://10.1.2.3:7"),
        ("fd00::5", "http://[fd00::5]:7", "http://[fd00::5]:7"),
        ("0.0.0.0", "http://127.0.0.1:7", None),
        ("127.0.0.9", "http://127.0.0.9:7", None),
    ],
)
def test_addresses(bind: str, local: str, remote: str | None) -> None:
    assert target(7, bind).local_url == local
    if remote is not None:
        assert target(7, bind).operator_url == remote
    assert target(7, bind, advertised="https://llm.example").operator_url == "https://llm.example"


@pytest.mark.parametrize(
    ("spec", "said"),
    [({"place": "moon"}, "bench.place"), ({"levels": [0]}, "levels"), ({"wavs": 1}, "'wavs'")],
)
def test_a_spec_that_cannot_be(spec: dict[str, Any], said: str, tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    with pytest.raises(ConfigError, match=said):
        run_benchmark(HostClient(host), target(), spec)
    assert "run" not in [op for op, _ in host.asked]


def test_a_client_that_dies_on_the_host(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    with pytest.raises(GateInconclusive, match="status 1"):
        run_benchmark(HostClient(host), target(python="/bin/false"), SMALL)


def as_client(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Have this program sent in the load client's place."""
    monkeypatch.setattr(runner, "load_client", lambda: Program("load.py", text))


def test_a_client_that_dies_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_client(monkeypatch, "raise SystemExit('no such thing')")
    with pytest.raises(GateInconclusive, match="status 1: no such thing"):
        run_benchmark(HostClient(FakeHost(tmp_path)), target(advertised="http://x"), HERE)


@pytest.mark.parametrize("place", ["host", "operator"])
def test_a_client_that_is_killed(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_client(monkeypatch, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    with pytest.raises(GateInconclusive, match=r"killed \(SIGKILL\), and what it had measured is lost") as found:
        run_benchmark(HostClient(FakeHost(tmp_path)), target(advertised="http://x"), {**SMALL, "place": place})
    assert "memory" in (found.value.remedy or "")


@pytest.mark.parametrize("place", ["host", "operator"])
def test_a_client_that_falls_silent(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_client(monkeypatch, "import time; time.sleep(600)")
    monkeypatch.setattr(runner, "SILENCE", 0.5)
    host = FakeHost(tmp_path, script=[None] * 100)
    with pytest.raises(GateInconclusive, match=r"was silent for 0\.5 s"):
        run_benchmark(HostClient(host), target(advertised="http://x"), {**SMALL, "place": place})
    if place == "host":
        assert host.stream_made.cancelled


@pytest.mark.parametrize(
    ("error", "becomes"),
    [
        (AgentError("timeout", "it ran too long"), GateInconclusive),
        (ChannelLost("gone"), ChannelLost),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_trouble_on_the_way(error: BaseException, becomes: type[BaseException], tmp_path: Path) -> None:
    host = FakeHost(tmp_path, script=[{"event": "level", "done": 1}, error])
    with pytest.raises(becomes):
        run_benchmark(HostClient(host), target(), SMALL)
    assert host.stream_made.cancelled or becomes is GateInconclusive


def test_no_result_is_not_a_result(tmp_path: Path) -> None:
    host = FakeHost(tmp_path, script=[{"event": "level", "done": 1}])
    with pytest.raises(GateInconclusive, match="without a result"):
        run_benchmark(HostClient(host), target(), SMALL)


def test_other_lines_are_passed_over(tmp_path: Path) -> None:
    bench: dict[str, Any] = {"levels": [], "started": 5.0}
    host = FakeHost(tmp_path, script=["a warning", [1], {"event": "result", "bench": bench}])
    assert run_benchmark(HostClient(host), target(), SMALL) == BenchRun(started=5.0, place="host")


@pytest.mark.parametrize("place", ["host", "operator"])
def test_ctrl_c_stops_the_load(place: str, port: int, mock_server: str, tmp_path: Path) -> None:
    host = FakeHost(tmp_path)

    def interrupt(event: dict[str, Any]) -> None:
        if event["event"] == "level":
            raise KeyboardInterrupt

    server = target(port, model="slow", advertised=mock_server)
    spec = {**SMALL, "singles": 0, "output_tokens": 100_000, "place": place}
    before = set(_children())
    with pytest.raises(KeyboardInterrupt):
        run_benchmark(HostClient(host), server, spec, on_event=interrupt)
    if place == "host":
        assert host.stream_made.cancelled
    assert set(_children()) == before
    assert not [thread for thread in threading.enumerate() if "pump" in thread.name]


def _children() -> Iterator[int]:
    for task in Path("/proc/self/task").iterdir():
        yield from map(int, (task / "children").read_text().split())
