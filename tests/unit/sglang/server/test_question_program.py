"""The program that asks SGLang, against the stand-in's `sglang.srt.server_args` and against made-up ones."""

from __future__ import annotations

import argparse
import json
import logging
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deployer.sglang.flags.versions import SCHEMA, flag_table
from deployer.sglang.server import question_program as program
from deployer.sglang.server.answers import difference, judge
from deployer_rehearsal.engine.sglang import settings
from deployer_rehearsal.engine.sglang.srt import server_args
from tests.unit.sglang.flags.test_versions import KNOWN


@pytest.fixture
def heard() -> Iterator[program.Warnings]:
    warnings = program.Warnings()
    warnings.listen()
    yield warnings
    warnings.stop()


@pytest.fixture
def speak(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Any]:
    """Let the stand-in speak like a version, on a host without GPUs in use."""

    def as_version(version: str) -> Any:
        monkeypatch.setattr(settings, "_installed_version", lambda: version)
        monkeypatch.setenv("SGLANG_STANDIN_CONFIG", str(tmp_path / "none.json"))
        monkeypatch.setenv("SGLANG_STANDIN_STATE", str(tmp_path))
        return server_args

    return as_version


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"num_hidden_layers": 61}')
    return str(folder)


@pytest.mark.parametrize("version", KNOWN)
def test_flags_are_read_as_they_ship(version: str, speak: Callable[[str], Any], tmp_path: Path) -> None:
    flags = json.loads(json.dumps(program.flags(speak(version))))
    folder = tmp_path / "flags"
    folder.mkdir()
    document = {"schema": SCHEMA, "version": version, "flags": flags}
    (folder / f"args-{version}.json").write_text(json.dumps(document))
    learned, shipped = flag_table(version, folder), flag_table(version)
    assert len(learned.flags) == len(shipped.flags)
    assert not difference(shipped, learned)
    for flag in learned.flags:
        before = shipped.by_name[flag.names[0]]
        assert flag.default in (before.default, None), flag


@pytest.mark.parametrize("version", ["0.5.9", "0.5.12.post1", "0.5.16", "0.5.23"])
def test_arguments(version: str, speak: Callable[[str], Any], model: str, heard: program.Warnings) -> None:
    found = program.ask(speak(version), ["--model-path", model, "--tp-size", "8"], heard)
    assert (found["stage"], found["error"], found["warnings"]) == ("done", None, [])
    assert found["resolved"]["mem_fraction_static"] == 0.88
    assert not set(program.PASSING) & set(found["resolved"])
    json.dumps(found)


@pytest.mark.parametrize("version", ["0.5.12.post1", "0.5.23"])
@pytest.mark.parametrize(
    ("words", "stage", "verdict", "said"),
    [
        (
            ["--tp-size", "3", "--nnodes", "2"],
            "check",
            "refused",
            "tp_size must be divisible by number of nodes",
        ),
        (["--served-model-name", "a:b"], "check", "refused", "cannot contain a colon"),
        (["--no-such-flag"], "parse", "refused", "unrecognized arguments: --no-such-flag"),
        (["--tp-size", "x"], "parse", "refused", "argument --"),
        (["--model-path", "/no/such"], None, "unknown", "OSError: Repo id must be"),
    ],
)
def test_complaints(
    version: str, words: list[str], stage: str | None, verdict: str, said: str,
    speak: Callable[[str], Any], model: str, heard: program.Warnings,
) -> None:  # fmt: skip
    found = program.ask(speak(version), ["--model-path", model, *words], heard)
    assert found["stage"] == (stage or ("resolve" if version == "0.5.23" else "parse"))
    judged = judge(json.loads(json.dumps(found)))
    assert judged.verdict == verdict
    assert said in (judged.reason or "")
    assert judged.resolved == {}


def test_warnings_are_those_of_their_own_question(
    speak: Callable[[str], Any], model: str, heard: program.Warnings
) -> None:
    module = speak("0.5.23")
    for words, said in (
        (["--pp-size", "2"], ["Pipeline parallelism is incompatible with overlap schedule."]),
        ([], []),
    ):
        assert program.ask(module, ["--model-path", model, *words], heard)["warnings"] == said


def test_warnings_are_heard_though_handlers_are_replaced(heard: program.Warnings) -> None:
    def prepare(argv: list[str]) -> object:
        root = logging.getLogger()
        before, root.handlers = root.handlers, []  # as `logging.basicConfig(force=True)` does
        logging.getLogger("sglang.x").warning("first")
        logging.getLogger("sglang.y").warning("first")
        logging.getLogger("sglang.y").error("second %s", 2)
        logging.getLogger("sglang.y").info("third")
        root.handlers = before
        return types.SimpleNamespace(tp_size=1)

    found = program.ask(types.SimpleNamespace(prepare_server_args=prepare), [], heard)
    assert found["warnings"] == ["first", "second 2"]
    assert found["resolved"] == {"tp_size": 1}


def fails(error: Callable[[], None]) -> Any:
    """A module whose parsing raises."""

    def prepare(argv: list[str]) -> None:
        error()

    return types.SimpleNamespace(prepare_server_args=prepare)


def wrapped() -> None:
    try:
        raise KeyError("rope_type")
    except KeyError as error:
        raise ValueError("the model's config cannot be used") from error


def breakdown() -> None:
    raise AttributeError("'ServerArgs' object has no attribute 'x'")


def other_kind() -> None:
    raise RuntimeError("no network")


@pytest.mark.parametrize(
    ("error", "verdict", "said"),
    [
        (wrapped, "refused", "the model's config cannot be used ['rope_type']"),
        (breakdown, "refused", "AttributeError: 'ServerArgs' object has no attribute 'x'"),
        (other_kind, "unknown", "RuntimeError: no network"),
    ],
)  # fmt: skip
def test_exceptions(error: Callable[[], None], verdict: str, said: str, heard: program.Warnings) -> None:
    judged = judge(program.ask(fails(error), [], heard))
    assert judged.verdict == verdict
    assert (judged.reason or "").startswith(said)
    assert "test_question_program.py:" in (judged.reason or "")


def test_an_assertion_that_says_nothing_is_quoted(tmp_path: Path, heard: program.Warnings) -> None:
    folder = tmp_path / "sglang" / "srt"
    folder.mkdir(parents=True)
    path = folder / "hook.py"
    path.write_text("def check():\n    size = 8\n    assert size % max(\n        3, 1\n    ) == 0\n")
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    judged = judge(program.ask(fails(names["check"]), [], heard))
    assert judged.verdict == "refused"
    assert judged.reason == "AssertionError: assert size % max( 3, 1 ) == 0 (srt/hook.py:3)"


def test_secrets_and_what_json_cannot_say_are_left_out() -> None:
    args = types.SimpleNamespace(
        api_key="hunter22", tokenizer_path="/t", random_seed=3, ratio=float("nan"), odd=object(),
        nested={"a": (1, {2})}, tp_size=8, _own=1, ssl_keyfile_password="hunter22",
    )  # fmt: skip
    assert program.resolved(args) == {"tokenizer_path": "/t", "nested": {"a": [1, [2]]}, "tp_size": 8}


def test_defaults_say_nothing_about_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_SOMETHING", "from-here")
    parser = argparse.ArgumentParser()
    for name, default in {
        "--cache": "/home/me/.cache", "--mine": "from-here", "--api-key": "hunter22", "--size": 4, "--kind": "auto",
        "--many": [1, 2], "--strange": object(),
    }.items():  # fmt: skip
        parser.add_argument(name, default=default)
    module = types.SimpleNamespace(
        ServerArgs=types.SimpleNamespace(add_cli_args=lambda made: made._actions.extend(parser._actions))
    )
    found = {flag["names"][0]: flag.get("default") for flag in program.flags(module)}
    assert found.pop("-h") is None
    assert found == {
        "--cache": None, "--mine": None, "--api-key": None, "--size": 4, "--kind": "auto", "--many": [1, 2],
        "--strange": None,
    }  # fmt: skip
