"""Applying one of two services that exclude each other, on a host in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployer.cli.look import status_code
from deployer.config.inventory import inventory_from
from deployer.config.profile import load_profile, profile_folders
from deployer.deploy.apply import apply, preview
from deployer.deploy.reporter import Reporter
from deployer.deploy.rollback import converge, converge_plan, rollback
from deployer.deploy.session import Session
from deployer.errors import AgentError, ConsentRequired, Refused
from deployer.inspect.status import status
from deployer.records.outcome import Outcome
from deployer.report.service_view import status_mark
from tests.fakes.host import Engine, FakeHost, FakeWorld
from tests.unit.deploy.test_apply import TP1, Agreed, Nobody, engine, world

MINI = "0001-m"


@pytest.fixture
def site() -> FakeWorld:
    """A host on which mini is live, and an engine for kimi that works."""
    made = world()
    made.make_live("mini", MINI)
    made.engines.update({MINI: engine(TP1), "0001-tp1": engine(TP1), "0002-tp1": engine(TP1)})
    return made


def session(made: FakeWorld, name: str = "kimi") -> Session:
    common = {
        "host": "gpu1",
        "model": "/m",
        "engine": {"python": "/opt/sglang/bin/python"},
        "bench": {"levels": [2], "place": "host"},
        "deadlines": {"start": 20, "grace": 5, "lease": 5},
    }
    services = {"kimi": {**common, "exclusive_with": ["mini"]}, "mini": common}
    found = inventory_from({"hosts": {"gpu1": {"gpus": 2}}, "services": services}, Path("i.toml"))
    service = found.service(name)
    rivals = found.rivals(service)
    return Session(service, found.host("gpu1"), lambda config: FakeHost(made), command="test", rivals=rivals)


def run(made: FakeWorld, name: str = "kimi", consent: Agreed | None = None) -> Outcome:
    with session(made, name) as opened:
        return apply(opened, load_profile("tp1", profile_folders()), Reporter(), consent or Agreed())


def running(made: FakeWorld) -> dict[str, tuple[str | None, bool]]:
    """What runs of each service, and whether it is enabled."""
    services = {name: made.service(name) for name in ("kimi", "mini")}
    return {name: (service.release, service.is_enabled()) for name, service in services.items()}


MINI_ON = {"kimi": (None, False), "mini": (MINI, True)}


def test_one_takes_the_place_of_the_other_and_back(site: FakeWorld) -> None:
    with session(site) as opened:
        plan = preview(opened, load_profile("tp1", profile_folders())).plan
    assert (plan.action, plan.displaces, plan.interrupts) == ("deploy", ("mini",), True)
    assert run(site).outcome == "live"
    assert running(site) == {"kimi": ("0001-tp1", True), "mini": (None, False)}

    # The same profile again, while the other has its place: a change with a way back.
    assert run(site, "mini").outcome == "live"
    assert running(site) == {"kimi": (None, False), "mini": ("0002-tp1", True)}
    outcome = run(site)
    assert (outcome.outcome, outcome.release) == ("live", "0002-tp1")
    assert running(site) == {"kimi": ("0002-tp1", True), "mini": (None, False)}


def test_whoever_is_stopped_is_named_before_consent(site: FakeWorld) -> None:
    with pytest.raises(ConsentRequired):
        run(site, consent=Nobody())
    assert running(site) == MINI_ON


def test_a_candidate_that_fails_gives_the_place_back(site: FakeWorld) -> None:
    site.engines["0001-tp1"] = Engine(fails_after=0.0)
    outcome = run(site)
    assert outcome.outcome == "rolled_back", outcome.message
    assert outcome.message == "mini is serving again and healthy; kimi is down, as it was before"
    assert running(site) == MINI_ON
    assert site.service("kimi").transition() is None


def test_one_that_does_not_serve_again_is_said(site: FakeWorld) -> None:
    site.engines["0001-tp1"] = Engine(fails_after=0.0)
    site.engines[MINI] = Engine(fails_after=0.05, ready_after=None)
    site.service("mini").restart()
    site.machine.unit("sglang-mini.service").started += 1e6  # it runs until it is started again
    outcome = run(site)
    assert outcome.outcome == "down"
    assert "mini was started again but does not serve" in outcome.message


def test_a_rollback_takes_the_place_too(site: FakeWorld) -> None:
    run(site)
    run(site, "mini")
    assert running(site)["mini"][0] == "0002-tp1"
    kimi = site.service("kimi")
    kimi.keep("0003-x", {"state": "live", "was_live": True, "previous": "0001-tp1"}, {})
    site.machine.write_file(kimi.live_path, "[X-Deployer]\nRelease=0003-x\n")
    with session(site) as opened:
        outcome = rollback(opened, Reporter(), Agreed())
    assert (outcome.outcome, outcome.release) == ("live", "0001-tp1")
    assert running(site) == {"kimi": ("0001-tp1", True), "mini": (None, False)}


def test_converge_starts_nothing_beside_the_other(site: FakeWorld) -> None:
    run(site)
    run(site, "mini")
    before = running(site)
    with session(site) as opened:
        with pytest.raises(Refused, match="mini runs on the GPUs or the port of kimi") as refused:
            converge(opened, Reporter(), Agreed())
        assert "deployer apply tp1 -s kimi" in str(refused.value.remedy)
    with session(site) as opened, pytest.raises(Refused):
        converge_plan(opened)
    assert running(site) == before


def test_the_status_of_one_that_made_room_says_for_whom(site: FakeWorld) -> None:
    run(site)
    with session(site, "mini") as opened:
        report = status(opened)
    assert (report.gave_way, report.differences, status_code(report, strict=False)) == (("kimi",), (), 0)
    assert "kimi runs in its place" in status_mark(report)
    assert not report.ok
    site.service("kimi").end("inactive")
    with session(site, "mini") as opened:
        report = status(opened)
    assert (report.gave_way, status_code(report, strict=False)) == ((), 6)


def test_nothing_is_stopped_that_is_being_changed_itself(site: FakeWorld) -> None:
    mini = site.service("mini")
    site.machine.write_json(mini.transition_path, {"to": "0002-x", "boot_id": site.machine.boot_id})
    with pytest.raises(AgentError, match="mini is being changed itself"):
        run(site)
    assert running(site) == MINI_ON
    assert site.service("kimi").transition() is None
