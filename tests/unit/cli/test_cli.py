"""The command line without a host: help, configuration errors, JSON, exit codes."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from rich.console import Console

from deployer import errors
from deployer.cli.main import COMMANDS, cli, run
from deployer.config.files import template_folders
from deployer.config.inventory import HostConfig, ServiceConfig, load_inventory
from deployer.config.profile import load_profile, profile_folders
from deployer.deploy.session import Session
from deployer.inspect.check import CheckedProfile, Checker, HostView, change_under_way
from deployer.records.failure import Failure
from deployer.records.hardware import EngineFacts, ModelFacts
from deployer.records.outcome import Outcome, Plan
from deployer.report.check_view import checked_view
from deployer.resources import shipped
from deployer.sglang.log.diagnosis import diagnose
from deployer.sglang.rules import Need
from deployer.sglang.server.answers import Asked
from tests.fakes.host import FakeHost, FakeWorld
from tests.unit.cli.tree import commands
from tests.unit.deploy.builders import host_state, service_state
from tests.unit.inspect.doctor.builders import lease

EXAMPLE = str(shipped("inventories") / "example.toml")
DOCS = Path(__file__).parents[3] / "docs" / "cli.md"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of this machine, and the program's signal handlers left alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("deployer.cli.main.install_signals", lambda: None)
    for name in ("DEPLOYER_INVENTORY", "DEPLOYER_SERVICE", "DEPLOYER_JSON", "DEPLOYER_YES"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", [name for name, _ in commands(cli)])
def test_every_command_has_help_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*name.split(), "--help"]) == 0
    assert re.search(r"Examples?:\n\s+deployer ", capsys.readouterr().out)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_shows_their_own_short_help(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.get_short_help_str(limit=66) == COMMANDS[name][1]


def test_an_end_of_file_within_a_command_is_a_bug_and_no_interruption(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(settings: object) -> None:
        raise EOFError

    monkeypatch.setattr("deployer.config.settings.load_settings", broken)
    assert run(["profiles"]) == 1
    told = capsys.readouterr().err
    assert "this is a bug in deployer: EOFError" in told
    assert "nothing was changed" not in told


@pytest.mark.parametrize("name", [name.split()[0] for name, _ in commands(cli)])
def test_every_command_is_in_the_reference(name: str) -> None:
    assert f"`{name}" in DOCS.read_text()


def test_every_exit_code_is_in_the_reference() -> None:
    documented = set(re.findall(r"^\| (\d+) \|", DOCS.read_text(), re.M))
    classes = [item for _, item in inspect.getmembers(errors, inspect.isclass)]
    codes = {str(item.exit_code) for item in classes if issubclass(item, errors.DeployerError)}
    assert codes | {"0", "10"} == documented


def test_the_tree_in_the_docstring_of_errors_is_true() -> None:
    drawn = dict(re.findall(r"(\w+) +(\d+)  ", errors.__doc__ or ""))
    classes = [item for _, item in inspect.getmembers(errors, inspect.isclass)]
    real = {item.__name__: str(item.exit_code) for item in classes if issubclass(item, errors.DeployerError)}
    assert drawn == real


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["apply"], "PROFILE"),
        (["frobnicate"], "No such command"),
        (["status", "--frob"], "--frob"),
        (["status"], "no inventory given"),
        (["-i", "missing.toml", "status"], "missing.toml"),
        (["-i", EXAMPLE, "apply", "tp9"], "tp8"),
        (["-i", EXAMPLE, "plan", "tp8", "-s", "kimmi"], "kimi"),
        (["-i", EXAMPLE, "compare", "1"], "at least two"),
        (["-i", EXAMPLE, "compare", "a.json", "/nowhere/b.json"], "cannot be read"),
        (["-i", EXAMPLE, "bench", "--levels", "8;16"], "such as 8,32"),
        (["-i", EXAMPLE, "bench", "--levels", "8,8"], "distinct numbers"),
        (["-i", EXAMPLE, "bench", "--levels", "0"], "distinct numbers"),
        (["-i", EXAMPLE, "bench", "--export", "/nowhere/x.jsonl"], "no folder /nowhere"),
        (["-i", EXAMPLE, "check", "--sglang", "abc"], "not a valid SGLang version"),
        (["-i", EXAMPLE, "rollback", "--to", "x"], "x"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True], ids=["words", "json"])
def test_usage_errors(argv: list[str], words: str, as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*argv, *(["--json"] if as_json else [])]) == 2
    printed = capsys.readouterr()
    if as_json:
        document = json.loads(printed.out)
        assert document["exit_code"] == 2
        assert words in document["error"]["message"] + str(document["error"]["remedy"])
    else:
        assert words in printed.err
        assert "Traceback" not in printed.err
        assert printed.out == ""


def test_a_named_inventory_has_to_exist_even_where_none_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-i", "nope.toml", "profiles"]) == 2
    assert "the inventory nope.toml does not exist" in capsys.readouterr().err


def test_profiles_are_listed_with_their_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profiles", "--sglang", "0.5.12.post1", "--json"]) == 0
    entries = {item["name"]: item for item in json.loads(capsys.readouterr().out)["profiles"]}
    assert set(entries) >= {
        "tp8",
        "pp8",
        "pp8-async",
        "pp8-async-mb64",
        "ep8",
        "ep4-tp2",
        "tp1",
        "tp2",
        "pp2",
    }
    assert "--pp-async-batch-depth" in entries["pp8-async"]["arguments"]
    assert run(["profiles"]) == 0
    listed = capsys.readouterr().out
    assert "pp8-async-mb64" in listed
    assert "one GPU (1 GPU)" in listed
    assert "the SGLang version on the host is unknown; flags are those of " in listed


def test_check_passes_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-i", EXAMPLE, "check", "--json"]) == 0
    document: Any = json.loads(capsys.readouterr().out)
    assert document["ok"] is True
    assert len(document["checked"]) == 10


def test_check_names_what_a_version_lacks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    inventory = tmp_path / "i.toml"
    inventory.write_text(
        '[hosts.a]\n[services.s]\nhost = "a"\nmodel = "/m"\n[services.s.engine]\npython = "/p/bin/python"\n'
    )
    assert run(["-i", str(inventory), "check", "pp8-async", "--sglang", "0.5.5"]) == 2
    assert "0.5.9" in capsys.readouterr().out


def test_check_tells_findings_and_what_it_did_not_ask(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-i", EXAMPLE, "check", "pp8", "--json"]) == 0
    [checked] = json.loads(capsys.readouterr().out)["checked"]
    assert checked["problem"] is None
    found = {item["rule"]: item for item in checked["findings"]}
    assert found["graphs-off"]["severity"] == "warning"
    assert found["graphs-off"]["where"] == "cuda_graph.enabled"
    assert set(found["graphs-off"]) == {
        "rule",
        "severity",
        "title",
        "where",
        "message",
        "remedy",
        "references",
    }
    assert checked["unasked"]["weights-fit"] == ["the GPUs", "the size of the model's weights"]
    assert run(["-i", EXAMPLE, "check", "pp8"]) == 0
    words = capsys.readouterr().out
    assert "graphs-off" in words
    assert "depth-zero" in words
    assert "rules not applied for lack of " in words
    assert "--on-host reads them from the host" in words


def test_check_does_not_send_you_to_a_host_that_does_not_report_a_fact() -> None:
    unasked = {"package-pins": [Need.PACKAGES]}
    checked = CheckedProfile("s", "p", "0.5.23", "0.5.23", findings=(), unasked=unasked)
    out = io.StringIO()
    Console(file=out, width=200).print(checked_view({"s": [checked]}, brief=False, on_host=True))
    assert "being changed" not in out.getvalue()
    changing = replace(checked, changing="box is being changed for mini by ann@desk")
    Console(file=out, width=200).print(checked_view({"s": [changing]}, brief=False, on_host=True))
    assert "box is being changed for mini by ann@desk: check again when that is over" in out.getvalue()
    lack = "1 rule not applied for lack of the packages of the engine's environment"
    assert f"{lack}; the host does not report them" in out.getvalue()


def test_check_without_names_counts_advice_and_says_common_things_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["-i", EXAMPLE, "check"]) == 0
    words = capsys.readouterr().out
    assert words.count("open-without-key") == 1
    assert "depth-zero" not in words


def test_check_strict(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["-i", EXAMPLE, "check", "pp8", "--strict"]) == 2
    assert run(["-i", EXAMPLE, "check", "--strict"]) == 2
    text = Path(EXAMPLE).read_text().replace('bind = "0.0.0.0"', 'bind = "127.0.0.1"')
    inventory = tmp_path / "i.toml"
    inventory.write_text(text)
    capsys.readouterr()
    assert run(["-i", str(inventory), "check", "pp8-async", "--strict", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


def test_check_of_a_profile_that_is_too_large(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    inventory = tmp_path / "i.toml"
    inventory.write_text(
        '[hosts.a]\ngpus = 4\n[services.s]\nhost = "a"\nmodel = "/m"\n[services.s.engine]\n'
        'python = "/p/bin/python"\n[services.s.extra_args]\nfrobnicate = true\n'
    )
    assert run(["-i", str(inventory), "check", "tp8", "--json"]) == 2
    [checked] = json.loads(capsys.readouterr().out)["checked"]
    errors = [item for item in checked["findings"] if item["severity"] == "error"]
    assert [item["rule"] for item in errors] == ["too-few-gpus", "rendering"]
    assert "frobnicate" in errors[1]["message"]
    assert run(["-i", str(inventory), "check"]) == 0


def test_check_explains_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--explain"]) == 0
    assert "graphs-off" in capsys.readouterr().out
    assert run(["check", "--explain", "graphs-off"]) == 0
    assert "25 tok/s" in capsys.readouterr().out
    assert run(["check", "--explain", "graphs-off", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rule"] == "graphs-off"
    assert run(["check", "--explain", "graph-off"]) == 2
    assert "graphs-off" in capsys.readouterr().err


def test_check_of_one_service_and_of_one_host(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    inventory = tmp_path / "i.toml"
    service = '[services.%s]\nhost = "%s"\nport = %d\nmodel = "/m"\nengine = {python = "/p"}\n'
    inventory.write_text("[hosts.a]\n[hosts.b]\n[hosts.c]\n" + service % ("s", "a", 1) + service % ("t", "b", 2))
    assert run(["-i", str(inventory), "check", "tp1", "-s", "t", "--json"]) == 0
    assert [item["service"] for item in json.loads(capsys.readouterr().out)["checked"]] == ["t"]
    asked: list[str] = []

    said = Asked("accepted")

    def observe(self: object, session: Session, *rest: object) -> HostView:
        asked.append(session.service.name)
        return HostView(answers={"tp1": said})

    def connect(host: HostConfig, **_: object) -> FakeHost:
        return FakeHost(FakeWorld(host.name))

    monkeypatch.setattr("deployer.host.connect.connect", connect)
    monkeypatch.setattr("deployer.inspect.check.Checker.observe", observe)
    assert run(["-i", str(inventory), "check", "tp1", "--host", "b", "--json"]) == 0
    assert [item["service"] for item in json.loads(capsys.readouterr().out)["checked"]] == ["t"]
    assert asked == ["t"]
    assert run(["-i", str(inventory), "check", "tp1", "--on-host", "--json"]) == 0
    capsys.readouterr()
    assert sorted(asked) == ["s", "t", "t"]
    said = Asked("refused", "too odd")
    assert run(["-i", str(inventory), "check", "tp1", "--host", "b"]) == 2
    assert "on the host refuses these arguments: too odd" in " ".join(capsys.readouterr().out.split())
    said = Asked("unknown", "no torch")
    assert run(["-i", str(inventory), "check", "tp1", "--host", "b", "--sglang", "0.5.13"]) == 0
    shown = capsys.readouterr().out
    assert "could not judge it: no torch" in shown
    assert "SGLang 0.5.13; judged by the flags of 0.5.12.post1" in shown
    for wrong, near in (("c", "no service"), ("bb", "no host")):
        assert run(["-i", str(inventory), "check", "tp1", "--host", wrong]) == 2
        assert near in capsys.readouterr().err


def test_options_before_and_after_the_command_mean_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--json", "-i", EXAMPLE, "check", "tp8"]) == 0
    before = capsys.readouterr().out
    assert run(["check", "tp8", "--json", "-i", EXAMPLE]) == 0
    assert capsys.readouterr().out == before


def test_a_bug_leaves_a_report_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def broken(*args: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("deployer.inspect.check.Checker.examine", broken)
    assert run(["-i", EXAMPLE, "check", "tp8"]) == 1
    shown = capsys.readouterr().err
    report = next(tmp_path.glob("deployer-bug-*.txt"))
    assert report.name in shown
    assert "Traceback" not in shown
    assert "ZeroDivisionError: oops" in report.read_text()


def test_the_documents_keys_are_in_the_reference() -> None:
    text = DOCS.read_text()
    plan = Plan("s", "p", "deploy", None, "0001-p", downtime_basis="none")
    documents: list[dict[str, Any]] = [
        Outcome("live", "s").as_json(),
        plan.as_json(),
        Failure("s", "c").as_json(),
    ]
    for document in documents:
        missing = [key for key in document if f'"{key}"' not in text]
        assert missing == []


def test_files_are_compared_without_an_inventory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, rate, place in (("one", 100.0, "host"), ("two", 50.0, "host"), ("far", 50.0, "operator")):
        level = {"concurrency": 8, "aggregate_tok_s": rate, "failed": {}}
        document = {"levels": [level], "place": place}
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    assert run(["compare", "one.json", "two.json", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["comparisons"][0]
    assert found["sentences"][0].startswith("two against one: -50.0 % (")
    assert found["sentences"][0].endswith("at 8, slower")
    assert run(["compare", "one.json", "far.json"]) == 3
    assert "the load came from the host" in " ".join(capsys.readouterr().err.split())
    assert run(["compare", "one.json", "far.json", "--anyway"]) == 0
    assert "! not measured alike" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["doctor", "--seconds"], ["status", "--watch", "--interval"], ["bench", "--budget"]])
@pytest.mark.parametrize("value", ["nan", "inf", "-1", "x"])
def test_a_span_of_time_is_a_number_within_bounds(
    words: list[str], value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words, value, "-i", EXAMPLE, "--json"]) == 2
    assert "'--" in json.loads(capsys.readouterr().out)["error"]["message"]


def test_diagnose_of_a_host_is_of_each_of_its_services(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    service = '[services.{0}]\nhost = "{1}"\nmodel = "/m"\nport = {2}\ngpus = [{2}]\nengine.python = "/v/bin/python"\n'
    rows = [service.format("one", "a", 1), service.format("two", "a", 2), service.format("other", "b", 1)]
    inventory = tmp_path / "i.toml"
    inventory.write_text("[hosts.a]\n[hosts.b]\n[hosts.c]\n" + "".join(rows))
    monkeypatch.setattr("deployer.cli.app.App.session", lambda *given: contextlib.nullcontext(given[-1]))
    monkeypatch.setattr("deployer.inspect.diagnose.of_service", lambda one: diagnose([], origin={"source": one.name}))

    def asked(*words: str) -> tuple[int, Any]:
        status = run(["-i", str(inventory), "--json", "diagnose", *words])
        return status, json.loads(capsys.readouterr().out)

    status, document = asked("--host", "a")
    assert (status, [(name, item["source"]) for name, item in document["services"].items()]) == (
        0,
        [("one", "one"), ("two", "two")],
    )
    assert asked("--host", "b")[1]["source"] == "other"
    assert asked("--host", "a", "-s", "two")[1]["source"] == "two"
    for wrong in (
        ["--host", "c"],
        ["--host", "nowhere"],
        ["--host", "a", "--release", "1"],
        ["x.log", "--host", "a"],
    ):
        assert asked(*wrong)[0] == 2


def test_check_says_who_changes_the_host_meanwhile() -> None:
    service = ServiceConfig.model_validate({"name": "kimi", "host": "box", "model": "/m", "engine": {"python": "/p"}})
    observed = replace(host_state(service_state()), lease=lease(service="mini"))
    assert change_under_way(observed, service) == "box is being changed for mini by ann@desk (apply tp8, pid 5)"
    assert change_under_way(replace(observed, lease=lease(valid=False)), service) is None
    assert change_under_way(None, service) is None


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({}, None),
        ({"model": ModelFacts("/m", False, 0, 0, None, None)}, "model-missing"),
        ({"model": ModelFacts("/m", True, 0, 0, "a", None)}, "model-config-missing"),
        ({"engine": EngineFacts("/p", False, None, None)}, "engine-missing"),
        ({"engine": EngineFacts("/p", True, None, None)}, "sglang-missing"),
    ],
)
def test_check_on_the_host_misses_what_the_service_names(changes: dict[str, Any], rule: str | None) -> None:
    """A model that is not there is no profile without errors, as `apply` would refuse it."""
    inventory = load_inventory(Path(EXAMPLE))
    checker = Checker(inventory, None, template_folders(None), None)
    observed = replace(host_state(service_state()), **changes)
    profile = load_profile("tp8", profile_folders())
    found = checker.examine(inventory.service(), profile, HostView(observed))
    assert [item.rule for item in found.errors] == ([rule] if rule else [])
    assert found.as_json()["errors"] == (1 if rule else 0)


def test_a_command_whose_package_is_not_there_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    assert run(["rehearse", "up"]) == 2
    assert "`deployer rehearse` is not installed" in capsys.readouterr().err
