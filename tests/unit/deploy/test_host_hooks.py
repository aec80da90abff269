"""What the operator has the host keep: whom it tells what it does by itself, and where it writes metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deployer.config.hooks import Hooks
from deployer.config.profile import load_profile, profile_folders
from deployer.deploy.apply import apply
from deployer.deploy.reporter import Reporter
from deployer.records.outcome import Outcome
from tests.fakes.host import FakeWorld
from tests.fakes.reporter import Warnings
from tests.unit.deploy.test_apply import TP2, Agreed, engine, live_copy, session

WEBHOOK = {"url_secret": {"env": "HOOK_URL"}, "header": "X-Key", "secret": {"env": "HOOK_SECRET"}}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> FakeWorld:
    monkeypatch.setenv("HOOK_URL", "https://x.example/s3cret")
    monkeypatch.setenv("HOOK_SECRET", "k3y")
    return live_copy()


def run(
    made: FakeWorld, profile: str, hooks: dict[str, Any], reporter: Reporter, metrics: str | None = None
) -> Outcome:
    opened = session(made)
    opened.service = opened.service.model_copy(update={"hooks": Hooks.model_validate(hooks)})
    opened.host_config = opened.host_config.model_copy(update={"metrics_dir": metrics})
    with opened:
        return apply(opened, load_profile(profile, profile_folders()), reporter, Agreed())


def kept(made: FakeWorld) -> dict[str, Any] | None:
    path = Path(made.service("kimi").hooks_path)
    return json.loads(path.read_text()) if path.exists() else None


def test_every_change_has_the_host_keep_what_the_inventory_says(made: FakeWorld) -> None:
    reporter = Warnings()
    hooks = {"webhook": WEBHOOK, "host_programs": {"after_restore": ["/opt/page"]}}
    assert run(made, "tp1", hooks, reporter).outcome == "unchanged"
    assert kept(made) == {
        "schema": 1,
        "host": "gpu1",
        "programs": {"after_restore": ["/opt/page"]},
        "timeout": 30.0,
        "webhook": {
            "url": "https://x.example/s3cret",
            "headers": {"X-Key": "k3y"},
            "events": ["after_promote", "after_restore"],
            "format": "facts",
            "timeout": 10.0,
        },
        "metrics_dir": None,
    }
    assert "s3cret" not in Path(made.service("kimi").folder, "audit.jsonl").read_text()
    assert run(made, "tp1", {"webhook": {**WEBHOOK, "sides": ["operator"]}}, reporter).outcome == "unchanged"
    assert kept(made) is None
    assert reporter.texts == []


def test_a_secret_that_cannot_be_read_is_a_warning_and_the_host_keeps_what_it_had(
    made: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(made, "tp1", {"webhook": WEBHOOK}, Reporter())
    monkeypatch.delenv("HOOK_SECRET")
    reporter = Warnings()
    assert run(made, "tp1", {"webhook": WEBHOOK}, reporter).outcome == "unchanged"
    assert "HOOK_SECRET" in reporter.texts[0]
    assert (kept(made) or {})["webhook"]["headers"] == {"X-Key": "k3y"}


def test_metrics_are_those_of_the_last_change(made: FakeWorld, tmp_path: Path) -> None:
    folder, reporter = tmp_path.resolve(), Warnings()
    made.engines["0002-tp2"] = engine(TP2)
    assert run(made, "tp2", {}, reporter, str(folder)).outcome == "live"
    text = (folder / "deployer-kimi.prom").read_text()
    assert 'release="0002-tp2"' in text
    assert 'deployer_changes_total{service="kimi",outcome="live"} 2' in text
    made.engines["0003-tp1"] = engine(TP2)  # not what was requested
    assert run(made, "tp1", {}, reporter, str(folder)).outcome == "rolled_back"
    text = (folder / "deployer-kimi.prom").read_text()
    assert 'deployer_changes_total{service="kimi",outcome="failed"} 1' in text
    assert 'deployer_healthy{service="kimi"} 1' in text
    run(made, "tp2", {}, reporter, str(folder / "none"))
    assert "is not a folder on the host" in reporter.texts[-1]
    assert not (folder / "deployer-kimi.prom").exists()
