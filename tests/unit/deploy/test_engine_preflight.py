"""Asking a host in memory: the cache, one process for all, and a host that cannot be asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deployer.deploy.engine_preflight import KEPT, Question, ask_host, kept_values
from deployer.errors import AgentError, ChannelLost, ConfigError, HostError
from deployer.host.client import HostClient
from deployer.inspect.learn import learn, tables
from deployer.records.hardware import EngineFacts
from deployer.records.host import HostState
from deployer.resources import cache_folder
from deployer.sglang.flags.versions import flag_table
from deployer.sglang.server.answers import Asked, find_answer
from deployer.sglang.server.question_program import MARK
from tests.fakes.host import FakeHost, FakeWorld
from tests.unit.deploy.builders import host_state, release, service_state
from tests.unit.sglang.flags.builders import PYTHON, service

ENGINE = EngineFacts(PYTHON, True, "0.5.12.post1", None, fingerprint="print")
ARGV = [PYTHON, "-m", "sglang.launch_server", "--tp-size", "8"]


class Box:
    """A host whose SGLang refuses tp 3, and a cache."""

    def __init__(self, folder: Path) -> None:
        self.world = FakeWorld()
        self.world.run = self.run
        self.client = HostClient(FakeHost(self.world))
        self.cache = folder
        self.asked: list[dict[str, Any]] = []
        self.noise = ["warming up", MARK + "{", MARK + "[]"]

    def run(self, args: dict[str, Any]) -> tuple[list[str], int]:
        question = json.loads(args["stdin"])
        self.asked.append({**question, "env": args["env"], "user": args.get("user")})
        answers: list[dict[str, Any]] = []
        for argv in question["argvs"]:
            wrong = {"kind": "usage", "status": 2, "message": "no"} if "3" in argv else None
            resolved = {} if wrong else {"tp_size": 8, "page_size": 64, "api_key": "hunter22"}
            answers.append({"error": wrong, "warnings": [], "resolved": resolved})
        return [*self.noise, MARK + json.dumps({"answers": answers})], 0

    def ask(self, *questions: Question, observed: HostState | None = None, **changes: Any) -> list[Asked]:
        facts = observed or host_state(service_state(), engine=ENGINE)
        return ask_host(self.client, service(**changes), facts, questions, cache=self.cache)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    box = Box(tmp_path / "cache")
    yield box
    box.client.close()


def question(*more: str, **environment: str) -> Question:
    return Question([*ARGV, *more], environment)


def test_one_process_answers_all(box: Box) -> None:
    found = box.ask(question(), question("--x", "3"), question("--y"))
    assert [item.verdict for item in found] == ["accepted", "refused", "accepted"]
    assert found[1].reason == "no"
    assert [item["argvs"] for item in box.asked] == [
        [["--tp-size", "8"], ["--tp-size", "8", "--x", "3"], ["--tp-size", "8", "--y"]]
    ]
    assert found[0].resolved["api_key"] == "***"


def test_environments_differ(box: Box) -> None:
    box.ask(question(A="1"), question(A="2"), question("--y", A="1"), user="svc", home="/home/svc")
    assert [(item["env"]["A"], len(item["argvs"])) for item in box.asked] == [("1", 2), ("2", 1)]
    assert {(item["user"], item["cwd"]) for item in box.asked} == {("svc", "/home/svc")}


def test_an_answer_is_kept(box: Box) -> None:
    first = box.ask(question("--x", "3"), question())
    again = box.ask(question(), question("--x", "3"))
    assert len(box.asked) == 1
    assert [item.cached for item in again] == [True, True]
    assert [replace(item, cached=False) for item in again] == first[::-1]


def test_secrets_and_releases_are_no_part_of_it(box: Box) -> None:
    folder = "/var/lib/deployer/kimi/releases"
    box.ask(question("--config", f"{folder}/0001-tp8/config.yaml", "--x", f"{folder}/0001-tp8/y", DEPLOYER_RELEASE="1"))
    box.ask(question("--config", f"{folder}/0002-tp8/config.yaml", "--x", f"{folder}/0002-tp8/y", DEPLOYER_RELEASE="2"))
    assert len(box.asked) == 1
    assert box.asked[0]["argvs"] == [["--tp-size", "8", "--x", "RELEASE/y"]]
    assert "DEPLOYER_RELEASE" not in box.asked[0]["env"]
    assert "hunter22" not in "".join(path.read_text() for path in box.cache.iterdir())


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": replace(ENGINE, fingerprint="other")},
        {"engine": replace(ENGINE, sglang="0.5.13")},
        {"model": None},
        {"gpu_count": 4},
    ],
    ids=str,
)
def test_what_makes_it_ask_again(box: Box, changes: dict[str, Any]) -> None:
    box.ask(question())
    box.ask(question(), observed=host_state(service_state(), **({"engine": ENGINE} | changes)))
    assert len(box.asked) == 2


def test_other_arguments_environment_or_account_ask_again(box: Box) -> None:
    box.ask(question())
    box.ask(question("--y"))
    box.ask(question(A="1"))
    box.ask(question(), user="svc")
    assert len(box.asked) == 4


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1, "verdict": "live"}', '{"schema": 1}'])
def test_a_damaged_cache_is_no_cache(box: Box, text: str) -> None:
    box.ask(question())
    [path] = box.cache.iterdir()
    path.write_text(text)
    assert [item.verdict for item in box.ask(question())] == ["accepted"]
    assert len(box.asked) == 2


def test_a_cache_that_cannot_be_written(box: Box) -> None:
    box.cache.write_text("a file")
    assert [item.verdict for item in box.ask(question())] == ["accepted"]


def test_the_cache_has_an_end(box: Box) -> None:
    box.cache.mkdir()
    for number in range(KEPT + 5):
        (box.cache / f"{number}.json").write_text("{}")
    box.ask(question())
    assert len(list(box.cache.iterdir())) == KEPT


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        (None, "not installed"),
        (replace(ENGINE, exists=False), "not installed"),
        (replace(ENGINE, sglang=None), "not installed"),
        (replace(ENGINE, fingerprint=None), "cannot be found"),
    ],
    ids=str,
)
def test_nothing_to_ask(box: Box, engine: EngineFacts | None, why: str) -> None:
    [found] = box.ask(question(), observed=host_state(service_state(), engine=engine))
    assert found.verdict == "unknown"
    assert why in (found.reason or "")
    assert not box.asked


def test_another_program_is_not_judged(box: Box) -> None:
    found = box.ask(Question(["/bin/sleep", "1"], {}), question())
    assert [item.verdict for item in found] == ["unknown", "accepted"]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], "without an answer"),
        (
            [MARK + '{"unavailable": "ImportError: no torch"}'],
            "cannot be imported there: ImportError: no torch",
        ),
        ([MARK + '{"answers": [{"error": {}}]}'], None),
        ([MARK + '{"answers": 3}'], "no sense"),
        ([MARK + "{}"], "no sense"),
        ([MARK + '{"answers": [{"error": {"kind": "x"}}]}'], "no sense"),
    ],
    ids=str,
)
def test_no_answer_is_not_a_refusal_and_not_kept(box: Box, lines: list[str], why: str | None) -> None:
    box.world.run = lambda args: (lines, 0)
    [found] = box.ask(question())
    if why is None:
        assert found.verdict == "accepted"
        return
    assert found.verdict == "unknown"
    assert why in (found.reason or "")
    assert not box.cache.exists()


@pytest.mark.parametrize("code", ["timeout", "command", "no-user"])
def test_the_host_cannot_run_it(box: Box, code: str) -> None:
    box.world.faults["run"] = [AgentError(code, "it did not work")]
    [found] = box.ask(question())
    assert found.verdict == "unknown"
    assert ("longer than" if code == "timeout" else "did not work") in (found.reason or "")


def test_a_broken_connection_is_an_error(box: Box) -> None:
    box.world.faults["run"] = [ChannelLost("gone")]
    with pytest.raises(ChannelLost):
        box.ask(question())


def test_the_cache_is_the_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder("asked") == Path("/somewhere/deployer/asked")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder("asked") == Path.home() / ".cache/deployer/asked"


def test_the_last_answer_counts() -> None:
    assert find_answer([MARK + '{"a": 1}', "x", MARK + '{"a": 2}', MARK + "{"]) == {"a": 2}
    assert find_answer(["x"]) is None


def test_what_a_release_keeps_of_it() -> None:
    resolved = {
        "tp_size": 8,
        "page_size": 64,
        "dtype": "auto",
        "log_level": "info",
        "pp_size": 1,
        "api_key": None,
    }
    found = kept_values(Asked("accepted", None, (), resolved), release(), None)
    assert found == {"tp_size": 8, "page_size": 64}


def flags(*names: str, **more: Any) -> list[str]:
    table = [{"names": [name], "dest": name[2:], "type": "str"} for name in ("--model-path", *names)]
    return [MARK + json.dumps({"version": "0.5.14", "flags": table, **more})]


def test_learn(box: Box, tmp_path: Path) -> None:
    box.world.run = lambda args: (flags("--brand-new"), 0)
    folder = tmp_path / "site" / "flags"
    found = learn(box.client, service(environment={"A": "1"}), folder)
    assert (str(found.table.version), found.compared) == ("0.5.14", "0.5.12.post1")
    assert found.difference.added == ("--brand-new",)
    assert "--port" in found.difference.removed
    assert [path.name for path in folder.iterdir()] == ["args-0.5.14.json"]
    assert flag_table("0.5.14", folder).note is None
    assert [table.version for table in tables(folder) if table.path] == ["0.5.14"]
    [(_, args)] = [call for call in box.world.calls if call[0] == "run"]
    assert args["env"] == {"A": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}


def test_learning_again_replaces_a_damaged_table(box: Box, tmp_path: Path) -> None:
    (tmp_path / "args-0.5.14.json").write_text("{")
    box.world.run = lambda args: (flags(), 0)
    learn(box.client, service(), tmp_path)
    assert flag_table("0.5.14", tmp_path).learned


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [MARK + '{"unavailable": "no torch"}'],
        [MARK + "{}"],
        flags(version="../../x"),
        flags(flags=None),
        flags(flags=[{"names": ["--x"], "dest": "x"}]),
    ],
)
def test_learning_nothing(box: Box, tmp_path: Path, lines: list[str]) -> None:
    box.world.run = lambda args: (lines, 0)
    with pytest.raises(HostError):
        learn(box.client, service(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written(box: Box, tmp_path: Path) -> None:
    (tmp_path / "flags").write_text("")
    box.world.run = lambda args: (flags(), 0)
    with pytest.raises(ConfigError, match="cannot be written"):
        learn(box.client, service(), tmp_path / "flags")


def test_a_full_disk_is_not_sglangs_fault(box: Box, tmp_path: Path) -> None:
    why = AgentError("no-space", "there is no room for temporary files: [Errno 28] No space left on device")
    box.world.faults = {"run": [why]}
    with pytest.raises(HostError, match="no room for temporary files") as caught:
        learn(box.client, service(), tmp_path)
    assert "free some space" in str(caught.value.remedy)
    box.world.faults = {"run": [AgentError("command", "cannot be run")]}
    with pytest.raises(HostError) as caught:
        learn(box.client, service(), tmp_path)
    assert "engine.python" in str(caught.value.remedy)
