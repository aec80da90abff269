"""A plan that is kept in a file is applied only while it holds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from deployer.config.profile import load_profile, profile_folders
from deployer.deploy.apply import apply, preview
from deployer.deploy.reporter import Reporter
from deployer.deploy.saved_plan import read_plan, refuse_moved, write_plan
from deployer.errors import ConfigError, PlanMoved
from deployer.records.outcome import Outcome, SavedPlan
from tests.fakes.host import FakeWorld
from tests.unit.deploy.test_apply import TP2, Agreed, engine, live_copy, restored, run, session


@pytest.fixture
def live_world() -> FakeWorld:
    """A world on which tp1 is live by an apply, with an engine for tp2 that works."""
    made = live_copy()
    made.engines["0002-tp2"] = engine(TP2)
    return made


def planned(made: FakeWorld, folder: Path) -> SavedPlan:
    """The plan of tp2, as a file keeps it."""
    path = folder / "tp2.plan"
    with session(made) as opened:
        write_plan(path, preview(opened, load_profile("tp2", profile_folders())).saved)
    return read_plan(path)


def applied(made: FakeWorld, saved: SavedPlan) -> Outcome:
    wanted = load_profile(saved.plan.profile, profile_folders())
    with session(made) as opened:
        return apply(opened, wanted, Reporter(), Agreed(), saved=saved)


def test_a_plan_that_holds_is_applied(live_world: FakeWorld, tmp_path: Path) -> None:
    outcome = applied(live_world, planned(live_world, tmp_path))
    assert (outcome.outcome, outcome.release) == ("live", "0002-tp2")


def test_a_plan_is_refused_after_another_change(live_world: FakeWorld, tmp_path: Path) -> None:
    saved = planned(live_world, tmp_path)
    live_world.engines["0002-tp2"] = engine(TP2, fails_after=0.0)
    assert run(live_world, "tp2").exit_code == 5
    with pytest.raises(PlanMoved, match=r"changed since: the newest release$") as caught:
        applied(live_world, saved)
    assert caught.value.exit_code == 3
    restored(live_world)


def test_a_plan_is_refused_after_an_edit_of_the_unit(live_world: FakeWorld, tmp_path: Path) -> None:
    saved = planned(live_world, tmp_path)
    path = Path(live_world.service("kimi").live_path)
    path.write_text(path.read_text("utf-8").replace("[Service]", "[Service]\nNice=5"), "utf-8")
    with pytest.raises(PlanMoved, match=r"changed since: the live unit file, how the host differs from it$"):
        applied(live_world, saved)


def test_each_part_of_its_basis_is_named(live_world: FakeWorld, tmp_path: Path) -> None:
    saved = planned(live_world, tmp_path)
    refuse_moved(saved, saved)
    for name in saved.basis:
        with pytest.raises(PlanMoved, match=f"changed since: {name}$"):
            refuse_moved(saved, replace(saved, basis=saved.basis | {name: "other"}))
    with pytest.raises(PlanMoved, match=r"changed since: the host$"):
        refuse_moved(saved, replace(saved, host="gpu2"))
    with pytest.raises(PlanMoved, match=r"changed since: the service$"):
        refuse_moved(saved, replace(saved, plan=replace(saved.plan, service="mini")))


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", "\x00", '{"host": 1}', json.dumps({"plan": {}})])
def test_a_file_that_is_not_a_plan(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.plan"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match="is not a valid plan"):
        read_plan(path)


def test_a_plan_that_is_not_there_or_cannot_be_kept(live_world: FakeWorld, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_plan(tmp_path / "none.plan")
    saved = planned(live_world, tmp_path)
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        write_plan(tmp_path / "none" / "x.plan", saved)
