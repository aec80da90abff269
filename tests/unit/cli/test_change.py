"""The question before a restart: which service and host, and what counts as an answer."""

from __future__ import annotations

import contextlib
import io
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest
from rich.console import Console

from deployer.cli.change import AskAtTerminal
from deployer.deploy.reporter import Reporter
from deployer.errors import ConsentRequired
from deployer.records.outcome import Plan

PLAN = Plan("kimi", "tp8", "deploy", "0001-tp8", "0002-tp8", host="gpu1", interrupts=True)


def asking(
    *,
    protected: bool,
    yes: bool = False,
    setting: bool = False,
    planned: bool = False,
    terminal: bool = True,
    rivals: bool = False,
) -> AskAtTerminal:
    app = SimpleNamespace(
        interactive=terminal,
        as_json=True,
        settings=SimpleNamespace(yes=setting),
        console=Console(file=io.StringIO()),
        service=lambda: SimpleNamespace(protected=protected),
        inventory=SimpleNamespace(rivals=lambda service: [SimpleNamespace(protected=rivals)]),
    )
    return AskAtTerminal(cast(Any, app), Reporter(), yes, planned=planned)


def answered(monkeypatch: pytest.MonkeyPatch, answer: str) -> list[str]:
    """What is asked while somebody answers so."""
    questions: list[str] = []

    def typed(text: str) -> str:
        questions.append(text)
        return answer

    monkeypatch.setattr(click.termui, "visible_prompt_func", typed)
    return questions


@pytest.mark.parametrize(("answer", "agreed"), [("y", True), ("", False), ("n", False)])
def test_the_question_names_service_and_host(monkeypatch: pytest.MonkeyPatch, answer: str, agreed: bool) -> None:
    questions = answered(monkeypatch, answer)
    assert asking(protected=False).given(PLAN) is agreed
    assert "Restart kimi on gpu1?" in questions[0]


@pytest.mark.parametrize(("answer", "agreed"), [("kimi", True), ("y", False), ("", False), ("kimi2", False)])
def test_the_name_of_a_protected_service_is_typed(monkeypatch: pytest.MonkeyPatch, answer: str, agreed: bool) -> None:
    questions = answered(monkeypatch, answer)
    assert asking(protected=True, setting=True).given(PLAN) is agreed
    assert "kimi on gpu1 is protected. Type kimi to restart it" in questions[0]


@pytest.mark.parametrize("protected", [True, False])
def test_a_plan_answers_for_no_protected_service(protected: bool) -> None:
    consent = asking(protected=protected, terminal=False, planned=True)
    with pytest.raises(ConsentRequired) if protected else contextlib.nullcontext():
        consent.possible(PLAN)
        assert consent.given(PLAN)


def test_a_setting_answers_for_no_protected_service() -> None:
    assert asking(protected=False, setting=True).given(PLAN)
    assert asking(protected=True, yes=True).given(PLAN)
    with pytest.raises(ConsentRequired):  # nor where the other one, which it would stop, is protected
        asking(protected=False, rivals=True, setting=True, terminal=False).possible(PLAN)
    asking(protected=True, yes=True, terminal=False).possible(PLAN)
    with pytest.raises(ConsentRequired, match="kimi on gpu1"):
        asking(protected=True, setting=True, terminal=False).possible(PLAN)
