"""Hooks of a change: when they run, what they get to know, and what their failure does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deployer.cli import main
from deployer.config.hooks import EVENTS, Hooks
from deployer.config.profile import load_profile, profile_folders
from deployer.deploy import hooks as hooks_module
from deployer.deploy.apply import apply
from deployer.deploy.hooks import run_hooks
from deployer.deploy.reporter import Reporter
from deployer.errors import ChannelLost, HookRefused
from deployer.host.client import HostClient
from deployer.records.hook import HookFacts
from deployer.records.host import Transition
from deployer.records.outcome import Outcome
from deployer.records.step import Step
from tests.fakes.host import FakeHost, FakeWorld
from tests.fakes.receiver import Receiver, receiving
from tests.fakes.reporter import Warnings
from tests.unit.deploy.test_apply import LIVE, TP2, Agreed, engine, live_copy, restored, session

FACTS = HookFacts("after_restore", "kimi", "gpu1", "0001-tp1", "tp1", "0002-tp2", 1.0, "a@b", "it died", True)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program that keeps its facts, and fails at the moment that the file `fail` names."""
    path = tmp_path / "hook"
    path.write_text(
        f"#!/bin/sh\ncat >> {tmp_path}/facts; echo >> {tmp_path}/facts\n"
        f'echo "$DEPLOYER_HOOK_EVENT $DEPLOYER_HOOK_RELEASE" >> {tmp_path}/events\n'
        f'[ "$(cat {tmp_path}/fail)" != "$DEPLOYER_HOOK_EVENT" ] || {{ echo no; exit 3; }}\n'
    )
    path.chmod(0o755)
    (tmp_path / "fail").write_text("")
    return path


def apply_with(made: FakeWorld, program: Path, fail: str = "", reporter: Reporter | None = None) -> Outcome:
    (program.parent / "fail").write_text(fail)
    hooks = Hooks.model_validate({"programs": {event: [str(program)] for event in EVENTS}})
    opened = session(made)
    opened.service = opened.service.model_copy(update={"hooks": hooks})
    with opened:
        return apply(opened, load_profile("tp2", profile_folders()), reporter or Reporter(), Agreed())


def events(program: Path) -> list[str]:
    return [line.split()[0] for line in (program.parent / "events").read_text().splitlines()]


@pytest.fixture
def made() -> FakeWorld:
    world = live_copy()
    world.engines["0002-tp2"] = engine(TP2)
    return world


def test_each_moment_of_a_change_has_its_hook(made: FakeWorld, program: Path) -> None:
    assert apply_with(made, program).outcome == "live"
    wanted = ["before_stop", "before_start", "after_stop", "after_start", "before_promote", "after_promote"]
    assert events(program) == wanted
    first = json.loads((program.parent / "facts").read_text().splitlines()[0])
    assert (first["event"], first["release"], first["previous"], first["side"]) == (
        "before_stop",
        "0002-tp2",
        LIVE,
        "operator",
    )


@pytest.mark.parametrize("event", ["before_stop", "before_start"])
def test_a_refusal_before_the_change_leaves_the_host_alone(made: FakeWorld, program: Path, event: str) -> None:
    with pytest.raises(HookRefused, match=f"{event} .*status 3: no; nothing was changed"):
        apply_with(made, program, event)
    assert not {"unit.stop", "transition.begin"} & {op for op, _ in made.calls}
    restored(made)


def test_a_refused_promotion_restores_what_was_live(made: FakeWorld, program: Path) -> None:
    outcome = apply_with(made, program, "before_promote")
    assert (outcome.outcome, outcome.exit_code) == ("rolled_back", 5)
    assert events(program)[-2:] == ["before_restore", "after_restore"]
    assert json.loads((program.parent / "facts").read_text().splitlines()[-1])["serving"] is True
    restored(made)


@pytest.mark.parametrize("event", ["after_stop", "after_start", "after_promote"])
def test_a_failure_afterwards_is_reported_and_breaks_nothing(made: FakeWorld, program: Path, event: str) -> None:
    reporter = Warnings()
    assert apply_with(made, program, event, reporter).outcome == "live"
    assert [event in text for text in reporter.texts] == [True]


def test_a_connection_lost_behind_the_promotion_skips_no_hook(
    made: FakeWorld, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, lost = HostClient.transition_step, [ChannelLost("gone")]

    def lose(client: HostClient, service: str, step: Step, patch: Any = None) -> Transition:
        if step is Step.FINISH and lost:
            raise lost.pop()
        return record(client, service, step, patch)

    monkeypatch.setattr(HostClient, "transition_step", lose)
    assert apply_with(made, program).outcome == "live"
    assert not lost
    assert events(program).count("after_promote") == 1


def test_the_command_says_that_a_hook_refused_and_exits_with_3(
    made: FakeWorld, program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (program.parent / "fail").write_text("before_stop")
    inventory = program.parent / "inventory.toml"
    inventory.write_text(
        '[hosts.gpu1]\ngpus = 2\n[services.kimi]\nhost = "gpu1"\nmodel = "/m"\n'
        'engine.python = "/opt/sglang/bin/python"\nbench = {levels = [2], place = "host"}\n'
        f'[hooks.programs]\nbefore_stop = ["{program}"]\n'
    )
    monkeypatch.chdir(program.parent)
    monkeypatch.setattr("deployer.cli.main.install_signals", lambda: None)
    monkeypatch.setattr("deployer.host.connect.connect", lambda config, **_: FakeHost(made))
    assert main.run(["-i", str(inventory), "apply", "tp2", "--yes", "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    failure = document["failure"]
    assert (document["outcome"], document["exit_code"]) == ("refused", 3)
    assert (failure["signature"], failure["phase"]) == ("HookRefused", "transition")
    assert "before_stop" in failure["cause"]
    assert "[hooks]" in failure["remedy"]
    restored(made)


@pytest.mark.parametrize("event", ["before_restore", "after_restore"])
def test_nothing_stops_the_way_back(made: FakeWorld, program: Path, event: str) -> None:
    made.engines["0002-tp2"] = engine({"tp_size": 1, "pp_size": 1})
    reporter = Warnings()
    assert apply_with(made, program, event, reporter).outcome == "rolled_back"
    assert any(event in text for text in reporter.texts)
    restored(made)


def test_a_program_has_its_time_and_may_ignore_its_input(tmp_path: Path) -> None:
    slow = Hooks.model_validate({"programs": {"after_restore": ["/bin/sleep", "60"]}, "timeout": 0.2})
    assert "did not end within 0.2 s" in (run_hooks(slow, FACTS, Reporter()) or "")
    deaf = Hooks.model_validate({"programs": {"after_restore": ["/bin/true"]}})
    assert run_hooks(deaf, FACTS, Reporter()) is None
    missing = Hooks.model_validate({"programs": {"after_restore": [f"{tmp_path}/none"]}})
    assert "cannot be run" in (run_hooks(missing, FACTS, Reporter()) or "")


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setattr(hooks_module, "PAUSE", 0.01)
    with receiving() as server:
        yield server


def webhook(server: Receiver, **more: Any) -> Hooks:
    return Hooks.model_validate({"webhook": {"url": f"{server.url}/x", **more}})


def test_the_webhook_gets_the_facts_and_the_secret_and_is_tried_again(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_SECRET", "s3cret")
    receiver.statuses = [503, 200]
    reporter = Warnings()
    assert run_hooks(webhook(receiver, header="X-Key", secret={"env": "HOOK_SECRET"}), FACTS, reporter) is None
    assert reporter.texts == []
    assert [headers["X-Key"] for _, headers, _ in receiver.requests] == ["s3cret"] * 2
    assert receiver.requests[-1][2] == FACTS.as_json()


@pytest.mark.parametrize(("codes", "calls"), [([500] * 3, 3), ([404], 1), ([429] * 3, 3)])
def test_a_webhook_that_fails_is_reported_and_never_refuses(receiver: Receiver, codes: list[int], calls: int) -> None:
    receiver.statuses = list(codes)
    reporter = Warnings()
    assert run_hooks(webhook(receiver), FACTS, reporter) is None
    assert len(receiver.requests) == calls
    assert f"it answered {codes[0]}" in reporter.texts[0]


def test_slack_gets_a_sentence(receiver: Receiver) -> None:
    receiver.statuses = [200]
    run_hooks(webhook(receiver, format="slack"), FACTS, Reporter())
    sentence = "kimi on gpu1: after restore of 0001-tp1 (before: 0002-tp2); serving: it died"
    assert receiver.requests[0][2] == {"text": sentence}


def test_other_moments_do_not_call_it(receiver: Receiver) -> None:
    run_hooks(webhook(receiver, events=["after_promote"]), FACTS, Reporter())
    assert receiver.requests == []
