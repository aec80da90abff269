"""The agent's pure parts: packing, unit texts, journal lines, quoting, the guard's verdict."""

from __future__ import annotations

import ast
import json
import os
import queue
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.host import agent
from deployer.host.agent import (
    base,
    converge,
    guard,
    lease,
    procs,
    sampling,
    stopping,
    survey,
    systemd,
    transition,
    watching,
)

FOLDER = Path(agent.__file__).parent


def test_every_module_is_packed_and_after_those_it_imports() -> None:
    names = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    assert set(agent.MODULES) == names
    for place, name in enumerate(agent.MODULES):
        tree = ast.parse((FOLDER / f"{name}.py").read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                needed = [node.module] if node.module else [item.name for item in node.names]
                for module in set(needed) & names:
                    assert agent.MODULES.index(module) < place, f"{name} imports {module}"


def test_the_agent_is_python_38_and_standard_library_only() -> None:
    ast.parse(agent.source(), feature_version=(3, 8))
    for path in (FOLDER.parents[1] / "metrics.py", *(FOLDER / f"{name}.py" for name in agent.MODULES)):
        tree = ast.parse(path.read_text(), feature_version=(3, 8))
        for node in ast.walk(tree):
            modules = [item.name for item in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            names = {module.partition(".")[0] for module in modules if module != "deployer.metrics"}
            assert names <= sys.stdlib_module_names | {""}


def test_the_bootstrap_survives_any_shells_single_quotes() -> None:
    from deployer.host.channel import BOOTSTRAP

    assert not set("'\\!\n") & set(BOOTSTRAP)
    ast.parse(BOOTSTRAP)


# --- unit texts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("[X-Deployer]\nRelease=0007-pp8\n", "0007-pp8"),
        ("[Service]\nRelease=no\n[X-Deployer]\n Release=0007-pp8 \n", "0007-pp8"),
        ("[X-Deployer]\n[Install]\nRelease=no\n", None),
        ("", None),
    ],
)
def test_the_release_of_a_unit_text(text: str, release: str | None) -> None:
    assert base.unit_release(text) == release


@pytest.mark.parametrize("name", ["", "..", "a/b", "-a", ".a", "a b", "a\n", "é", None, 7, "a" * 200])
def test_names_that_are_no_file_names_are_refused(name: Any) -> None:
    with pytest.raises(base.Fail) as caught:
        base.checked(name, "service")
    assert caught.value.code == "bad-request"


def test_quoting_for_a_unit_line() -> None:
    assert transition.quoted('/a b/%h$X"\\') == '"/a b/%%h$$X\\"\\\\"'


def test_guard_and_recover_units_name_the_service() -> None:
    values = {"command": "C", "environment": "", "state": "/s", "done": 77}
    text = transition.GUARD_UNIT.format(**values)
    assert "ExecStart=C guard %i\nRestart=always" in text
    assert "RestartPreventExitStatus=77\nSuccessExitStatus=77" in text
    assert "IgnoreOnIsolate=yes" in text
    text = transition.RECOVER_UNIT.format(**values)
    assert "Before=sglang-%i.service" in text
    assert "TimeoutStartSec=20" in text


# --- journal ----------------------------------------------------------------------------------------------------


def entry(message: Any, **fields: str) -> dict[str, Any]:
    return {"MESSAGE": message, "__REALTIME_TIMESTAMP": "1500000", "_PID": "42", **fields}


@pytest.mark.parametrize(
    ("message", "lines"),
    [
        ("one", [("one", False)]),
        ("", []),
        (None, []),
        ("a\rb\rc", [("a", True), ("b", True), ("c", False)]),
        ("\r10%\r100%", [("10%", True), ("100%", False)]),
        ("a\r\nb\n", [("a", False), ("b", False)]),
        (list("grüß\rx".encode()), [("grüß", True), ("x", False)]),
        ([255, 65], [("\ufffdA", False)]),
        (["first", "second"], [("first", False)]),
    ],
)
def test_lines_of_a_journal_entry(message: Any, lines: list[tuple[str, bool]]) -> None:
    found = list(systemd.journal_lines(entry(message)))
    assert [(line["text"], line["piece"]) for line in found] == lines
    assert all((line["t"], line["source"]) == (1.5, "engine") for line in found)


def test_systemds_own_lines_are_told_apart() -> None:
    assert [line["source"] for line in systemd.journal_lines(entry("Started x.", _PID="1"))] == ["systemd"]


@given(st.text())
def test_no_character_of_a_message_is_lost(text: str) -> None:
    lines = list(systemd.journal_lines(entry(text)))
    assert "".join(line["text"] for line in lines) == text.replace("\r", "").replace("\n", "")
    assert not any(set("\r\n") & set(line["text"]) or not line["text"] for line in lines)


@given(st.binary())
def test_bytes_of_a_message_never_raise(data: bytes) -> None:
    texts = [line["text"] for line in systemd.journal_lines(entry(list(data)))]
    assert all(isinstance(text, str) for text in texts)


# --- control groups ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("init", "pid", "expected"),
    [
        ("0::/init.scope\n", "0::/system.slice/a.service\n", "/system.slice/a.service"),
        (
            "9:name=systemd:/init.scope\n0::/init.scope\n",
            "9:name=systemd:/system.slice/a.service/sub\n3:cpu:/x\n0::/\n",
            "/system.slice/a.service/sub",
        ),
        (
            "9:name=systemd:/\n0::/init.scope\n",
            "9:name=systemd:/\n0::/system.slice/a.service\n",
            "/system.slice/a.service",
        ),
        (
            "0::/outer.scope/init.scope\n",
            "0::/outer.scope/system.slice/a.service\n",
            "/system.slice/a.service",
        ),
    ],
)
def test_control_groups_of_v1_v2_and_hybrid(
    monkeypatch: pytest.MonkeyPatch, init: str, pid: str, expected: str
) -> None:
    texts = {"/proc/1/cgroup": init, "/proc/42/cgroup": pid}
    monkeypatch.setattr(procs, "read_text", texts.get)
    procs.systemd_hierarchy.cache_clear()
    try:
        assert procs.cgroup_of(42) == expected
        assert procs.unit_of(procs.cgroup_of(42)) == "a.service"
        assert procs.cgroup_of(43) == ""
    finally:
        procs.systemd_hierarchy.cache_clear()


def test_a_unit_inside_a_container_is_not_ours() -> None:
    inner = "/machine.slice/docker-1.scope/system.slice/sglang-kimi.service"
    assert procs.unit_of(inner) == "docker-1.scope"


def test_gpus_that_do_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    row = ["0", "GPU-1", "H200", "143771", "10", "[N/A]", "70.1", None]
    row[5] = None
    monkeypatch.setattr(procs, "nvidia_smi", lambda query, until=None: [row])
    assert procs.gpu_list() == [
        {
            "index": 0,
            "uuid": "GPU-1",
            "name": "H200",
            "memory_total": 143771 << 20,
            "memory_used": 10 << 20,
            "utilization": None,
            "power_w": 70.1,
            "power_limit_w": None,
        }
    ]


def test_what_is_no_row_of_nvidia_smi_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver in trouble prints anything; whoever asks (a stop, too) must go on."""
    junk: list[list[str | None]] = [["\x11\x1b"] * size for size in range(1, 10)]
    junk += [["inf", "1e999", "nan"], ["٣", "²", "0x1"], [None, None], [None, None, None]]
    monkeypatch.setattr(procs, "nvidia_smi", lambda query, until=None: junk)
    assert (procs.gpu_list(), procs.compute_caps(), procs.gpu_processes()) == ([], {}, [])
    huge = ["0", "GPU-1", "H200", "1e999", "nan", "inf", "-inf", "x"]
    monkeypatch.setattr(procs, "nvidia_smi", lambda query, until=None: [huge])
    assert procs.gpu_list() == [
        dict(
            zip(("index", "uuid", "name"), (0, "GPU-1", "H200"), strict=True),
            **dict.fromkeys(("memory_total", "memory_used"), 0),
            **dict.fromkeys(("utilization", "power_w", "power_limit_w")),
        )
    ]


@pytest.mark.parametrize(
    ("rows", "caps"),
    [
        ([["0", "12.0"], ["1", None]], {0: "12.0", 1: None}),
        (None, {}),
        (base.Fail("failed", 'Field "compute_cap" is not a valid field to query.'), {}),
    ],
)
def test_compute_capability_where_the_driver_tells_it(
    rows: Any, caps: dict[int, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(query: str, until: float | None = None) -> Any:
        assert query == "--query-gpu=index,compute_cap"
        if isinstance(rows, Exception):
            raise rows
        return rows

    monkeypatch.setattr(procs, "nvidia_smi", ask)
    assert procs.compute_caps() == caps


def test_weights_are_counted_once(tmp_path: Path) -> None:
    (tmp_path / "original").mkdir()
    for name, size in (
        ("model-1.safetensors", 10),
        ("model-2.safetensors", 20),
        ("consolidated.safetensors", 30),
        ("original/model.safetensors", 30),
        ("config.json", 2),
    ):
        (tmp_path / name).write_text("{}" if size == 2 else "x" * size)
    found = survey.model_facts(str(tmp_path))
    assert (found["weight_bytes"], found["bytes"], found["files"]) == (30, 92, 5)


def test_a_model_of_links_and_pipes_is_looked_at_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 4}')
    for name in ("back", "again"):
        (tmp_path / name).symlink_to(tmp_path)
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    os.mkfifo(tmp_path / "pipe.json")
    found = survey.model_facts(str(tmp_path))
    assert (found["files"], found["config"]) == (1, {"num_hidden_layers": 4})


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "\x00", " " * ((16 << 20) + 1) + "{}"])
def test_a_config_that_is_none_is_not_known(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    assert survey.model_facts(str(tmp_path))["config"] is None


def test_a_config_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    assert survey.model_facts(str(tmp_path))["config"] is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": 1}\nbye\n', {"a": 1}),
        ('{"a": 1}\n0\n{"b":\n', {"a": 1}),
        ("0\n", {}),
        ('{"a":' * 100_000 + "\n", {}),
        ("", {}),
    ],
)
def test_the_last_object_an_environment_prints(text: str, found: dict[str, int]) -> None:
    assert survey.last_object(text) == found


def test_a_state_file_that_nests_without_end_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a":' * 100_000)
    problems: list[str] = []
    assert base.read_intact(str(tmp_path / "x.json"), {}, problems) is None
    assert "is damaged" in problems[0]


def test_memory_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "read_text", lambda path: "MemFree:  1 kB\nMemTotal:       24 kB\n")
    assert survey.memory_total() == 24 << 10
    monkeypatch.setattr(survey, "read_text", lambda path: None)
    assert survey.memory_total() is None


# --- lease ------------------------------------------------------------------------------------------------------


def test_a_lease_of_another_boot_is_not_valid() -> None:
    raw = {
        "generation": 3,
        "token": "t",
        "state": "held",
        "boot_id": "elsewhere",
        "expires_boottime": 1e12,
    }
    view = lease.lease_view(raw)
    assert view is not None
    assert not view["valid"]
    assert "token" not in view
    view = lease.lease_view({**raw, "boot_id": base.BOOT_ID})
    assert view is not None
    assert view["valid"]


# --- the guard's verdict ----------------------------------------------------------------------------------------

TO = "0002-b"
FROM = "0001-a"
UP = {"ActiveState": "active", "SubState": "running", "NRestarts": 0, "InvocationID": "i", "MainPID": 1}


def verdict(
    monkeypatch: pytest.MonkeyPatch,
    *,
    state: dict[str, Any] | None = None,
    running: str | None = None,
    live: str | None = FROM,
    candidate: bool = False,
    since: float = 0.0,
    **changes: Any,
) -> str:
    shown = {**UP, **(state or {})}
    monkeypatch.setattr(guard, "live_release", lambda service: live)
    monkeypatch.setattr(guard, "unit_state", lambda unit: shown)
    monkeypatch.setattr(guard, "running_of", lambda state: {"release": running} if running else None)
    monkeypatch.setattr(guard, "unit_file", lambda path: {"release": TO} if candidate else None)
    document = {
        "from": FROM,
        "to": TO,
        "boot_id": base.BOOT_ID,
        "grace": 600,
        "stop_timeout": 60,
        "invocation_id": "i",
        **changes,
    }
    ended = {"boot_id": base.BOOT_ID, "expires_boottime": base.boottime() - since}
    return guard.verdict("kimi", document, ended)[0]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"boot_id": "other", "running": FROM}, "converge"),
        ({"live": TO, "running": TO, "candidate": True}, "converge"),
        ({"running": FROM}, "forget"),
        ({"running": TO}, "converge"),
        ({}, "converge"),
        ({"running": FROM, "state": {"ActiveState": "deactivating"}}, "wait"),
        ({"running": FROM, "state": {"ActiveState": "deactivating"}, "since": 61}, "converge"),
        ({"candidate": True, "running": TO}, "wait"),
        ({"candidate": True, "running": TO, "since": 601}, "converge"),
        ({"candidate": True, "running": TO, "state": {"ActiveState": "activating"}}, "wait"),
        ({"candidate": True, "state": {"ActiveState": "failed"}}, "converge"),
        ({"candidate": True, "state": {"ActiveState": "inactive"}}, "converge"),
        ({"candidate": True, "state": {"ActiveState": "activating", "SubState": "auto-restart"}}, "converge"),
        ({"candidate": True, "running": TO, "state": {"NRestarts": 1}}, "converge"),
        ({"candidate": True, "running": TO, "state": {"InvocationID": "later"}}, "converge"),
        ({"candidate": True, "running": TO, "state": {"InvocationID": "i"}, "invocation_id": None}, "wait"),
    ],
)
def test_the_guards_table(monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], expected: str) -> None:
    assert verdict(monkeypatch, **facts) == expected


# --- judging ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "proof"),
    [
        ({}, None),
        ({"ActiveState": "activating"}, None),
        ({"ActiveState": "failed"}, "unit"),
        ({"ActiveState": "deactivating"}, "unit"),
        ({"ActiveState": "activating", "SubState": "auto-restart"}, "unit"),
        ({"NRestarts": 1}, "restart"),
        ({"InvocationID": "other"}, "restart"),
        ({"ActiveState": "inactive", "LoadState": "not-found"}, "vanished"),
    ],
)
def test_what_proves_failure(changes: dict[str, Any], proof: str | None) -> None:
    judge = watching.Watch.__new__(watching.Watch)
    judge.invocation, judge.restarts = "i", None
    assert judge.judge_unit({**UP, "LoadState": "loaded"}) is None
    found = judge.judge_unit({**UP, "LoadState": "loaded", **changes})
    assert (found and found["proof"]) == proof


def test_restarts_of_long_ago_do_not_count() -> None:
    judge = watching.Watch.__new__(watching.Watch)
    judge.invocation, judge.restarts = "i", None
    assert judge.judge_unit({**UP, "LoadState": "loaded", "NRestarts": 3}) is None
    found = judge.judge_unit({**UP, "LoadState": "loaded", "NRestarts": 4})
    assert found is not None
    assert found["proof"] == "restart"


def test_all_that_a_unit_said_before_it_failed_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much of it waits: more than one look takes, and all of it delivered already."""
    told: list[dict[str, Any]] = []
    judge = watching.Watch.__new__(watching.Watch)
    judge.call, judge.fatal = base.Call(told.append), []
    judge.witnesses = witnesses = watching.Witnesses.__new__(watching.Witnesses)
    witnesses.unit, witnesses.started, witnesses.delivered, witnesses.seen = "u", 0.0, 7, queue.SimpleQueue()
    for number in range(2500):
        witnesses.seen.put(("log", {"t": 0.0, "text": str(number), "source": "systemd", "piece": False}))
    monkeypatch.setattr(watching, "journal_end", lambda unit: 7)
    judge.last_words()
    lines = [line["text"] for message in told for line in message["event"]["lines"]]
    assert lines == [str(number) for number in range(2500)]


def test_a_watch_of_a_server_that_runs_already_counts_from_its_own_beginning() -> None:
    args = {"service": "kimi", "started_boottime": 5.0}
    assert watching.start_time(args) == 5.0
    assert abs(watching.start_time({**args, "attach": True}) - base.boottime()) < 1.0


# --- hung or loading? -------------------------------------------------------------------------------------------


def hung(monkeypatch: pytest.MonkeyPatch, *, age: float, says: list[str], listens: bool = True) -> str | None:
    """What `converge` with `repair` makes of a live process, with 100 s for a start; the text, or None."""
    answers, log = list(says), "The server is fired up and ready to roll!" if age > 10 else ""
    args = {"service": "kimi", "port": 30000, "ready_timeout": 100.0}
    converging = converge.Converging(lease.Session(), base.Call(lambda message: None), args)
    monkeypatch.setattr(converging, "health", lambda address, timeout: answers.pop(0))
    monkeypatch.setattr(converging, "strangers", lambda live: [])
    monkeypatch.setattr(converging, "was_ready", lambda invocation: bool(log))
    monkeypatch.setattr(converging.call, "sleep", lambda seconds: None)
    monkeypatch.setattr(converge, "running_of", lambda state: {"started": time.time() - age})
    monkeypatch.setattr(converge, "unit_pids", lambda unit: [1])
    found = [{"address": "127.0.0.1"}] if listens else []
    monkeypatch.setattr(converge, "own_listeners", lambda port, pids: found)
    return converging.hung("0001-a", UP)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"age": 50, "says": ["200"]}, None),
        ({"age": 50, "says": ["timeout", "200"]}, None),
        ({"age": 50, "says": ["503", "503"]}, "/health answered 503"),
        ({"age": 50, "says": ["timeout", "timeout"]}, "/health: timeout"),
        ({"age": 5, "says": ["503", "503"]}, None),
        ({"age": 5, "says": ["timeout", "reset"]}, "/health: reset"),
        ({"age": 50, "says": [], "listens": False}, None),
        ({"age": 101, "says": [], "listens": False}, "it does not listen 101 s after its start"),
    ],
)
def test_a_hung_server_is_told_from_one_that_loads(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], why: str | None
) -> None:
    assert hung(monkeypatch, **facts) == why


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([{"num_running_reqs": 2, "num_waiting_reqs": 3}], 5),
        ([{"num_running_reqs": 0, "num_waiting_reqs": 0, "num_used_tokens": 0}], 0),
        # Under a pipeline the micro-batch in turn may be empty while others run: their tokens are held.
        ([{"num_running_reqs": 0, "num_waiting_reqs": 0, "num_used_tokens": 900}], 1),
        ([{"num_running_reqs": 0}, {"num_running_reqs": 1}], 1),
    ],
)
def test_requests_in_flight(
    monkeypatch: pytest.MonkeyPatch, ranks: list[dict[str, int]], expected: int
) -> None:
    answer = {"status": 200, "body": json.dumps({"loads": ranks})}
    monkeypatch.setattr(stopping, "http_exchange", lambda *asked: answer)
    assert stopping.requests_in_flight("127.0.0.1", 1) == expected


def test_addresses_as_the_kernel_writes_them() -> None:
    assert procs.socket_address("0100007F") == "127.0.0.1"
    assert procs.socket_address("0" * 32) == "::"
    assert procs.socket_address("0000000000000000FFFF00000100007F") == "127.0.0.1"


def test_the_newest_query_that_the_driver_knows_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def smi(query: str, until: float) -> list[list[str | None]]:
        asked.append(query)
        if "throttle" in query or "event" in query:
            raise base.Fail("command", "not a valid field to query")
        return [["0", "50", "300.5", "600", "1024", "2048", "60", None, "3000"]]

    monkeypatch.setattr(sampling, "nvidia_smi", smi)
    gpus = sampling.Gpus()
    (first,) = gpus.look(60.0) or []
    assert (first["utilization"], first["power_w"], first["memory_used"], first["clock_mhz"]) == (
        50,
        300.5,
        1 << 30,
        None,
    )
    assert first["throttle"] is None
    gpus.look(60.0)
    assert len(asked) == 4  # two refused, then the one that works, twice
    assert gpus.problem is None


def test_a_driver_that_does_not_answer_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def smi(query: str, until: float) -> None:
        asked.append(query)
        raise base.Fail("timeout", "nvidia-smi took longer than 5 s")

    monkeypatch.setattr(sampling, "nvidia_smi", smi)
    gpus = sampling.Gpus()
    assert gpus.look(60.0) is gpus.look(60.0) is None
    assert len(asked) == 1
    assert gpus.problem == "nvidia-smi took longer than 5 s"


@pytest.mark.parametrize("row", [["garbage"], ["x"] * 10, ["No devices were found"]])
def test_a_driver_that_names_no_gpu_has_a_problem(
    row: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "nvidia_smi", lambda query, until: [row])
    gpus = sampling.Gpus()
    assert gpus.look(60.0) is None
    assert gpus.problem == "nvidia-smi names no GPU"
    monkeypatch.setattr(procs, "nvidia_smi", lambda query, until=None: [row])
    problems: list[str] = []
    assert survey.gpu_facts(problems) == ([], [])
    assert problems == ["GPUs cannot be seen: nvidia-smi names none"]


@pytest.mark.parametrize(
    ("slow", "looks", "over"), [(0.0, 6, 5.0), (2.0, 2, 5.0), (4.0, 1, 5.0), (20.0, 1, 6.0)]
)
def test_a_slow_driver_does_not_make_the_look_longer(
    slow: float, looks: int, over: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question takes ``slow`` seconds, as without persistence mode; sampling is for 5 s."""
    now = [100.0]

    def smi(query: str, until: float) -> list[list[str | None]]:
        now[0] += min(slow, until - now[0])
        if slow > until - now[0] and now[0] >= until:
            raise base.Fail("timeout", "nvidia-smi did not answer in time")
        return [["0", *["1"] * (query.count(","))]]

    class Calm(base.Call):
        def sleep(self, seconds: float) -> None:
            now[0] += seconds

    monkeypatch.setattr(sampling, "nvidia_smi", smi)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    answer = sampling.sample(lease.Session(), {"seconds": 5.0}, Calm(lambda message: None))
    assert len(answer["samples"]) == looks
    assert now[0] - 100.0 == pytest.approx(over, abs=0.01)
    assert bool(answer["problem"]) == (slow == 20.0)


def test_a_python_that_cannot_be_run_is_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*words: Any, **options: Any) -> Any:
        raise base.Fail("missing-tool", "it cannot be run: Exec format error")

    monkeypatch.setattr(survey, "execute", refuse)
    found = survey.engine_facts(sys.executable)
    assert (found["exists"], found["sglang"], found["packages"]) == (False, None, {})


def test_temporary_files_go_to_memory_where_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full: set[str | None] = {None}
    made: list[str] = []

    def mkdtemp(prefix: str, dir: str | None) -> str:
        if dir in full:
            raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp', '/var/tmp']")
        path = tmp_path / f"{prefix}{len(made)}"
        path.mkdir()
        made.append(str(path))
        return str(path)

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    folder = watching.private_folder({"program.py": "pass"})
    assert (Path(folder) / "program.py").read_text() == "pass"
    full |= {"/dev/shm", "/run"}
    with pytest.raises(base.Fail, match=r"no room for temporary files: .*No usable") as caught:
        watching.private_folder({"program.py": "pass"})
    assert caught.value.code == "no-space"
