"""A link that somebody has prepared where the agent writes: replaced or refused, never followed."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from deployer.host.agent.assess import assess
from deployer.host.agent.base import Fail, own_hash
from deployer.host.agent.transition import install
from deployer.records.codec import Json
from tests.fakes.host import FakeService
from tests.fakes.machine import FakeMachine
from tests.unit.host.agent.conftest import OWNER, PORT, Operator

PLACES = (
    *("state/lock", "state/lease.json", "state/hold.json", "state/reserve", f"state/agent-{own_hash()}.py"),
    *(
        "state/kimi/transition.json",
        "state/kimi/begun.json",
        "state/kimi/audit.jsonl",
        "state/kimi/guard.json",
        "state/kimi/boot.json",
    ),
    *("state/kimi/releases/0001-a", "state/kimi/releases/0001-a/manifest.json", "state/kimi/releases/0001-a/notes"),
    *("volatile/renewal.json", "volatile/renewal.json.new", "volatile/processes-kimi.json"),
    *("live/sglang-kimi.service", "live/deployer-recover@.service", "live/deployer-assess@.service"),
    *("run/sglang-kimi.service", "run/deployer-guard@.service"),
    *("wants/sglang-kimi.service", "wants/.sglang-kimi.service.tmp", "wants/deployer-recover@kimi.service"),
    *("wants/deployer-assess@kimi.service", "state/kimi/hooks.json", "state/kimi/counts.json"),
    "textfile/deployer-kimi.prom",
)


def hooks_with_metrics(machine: FakeMachine) -> Json:
    folder = Path(machine.folder).resolve() / "textfile"
    folder.mkdir(exist_ok=True)
    return {"host": "gpu1", "programs": {}, "timeout": 1.0, "webhook": None, "metrics_dir": str(folder)}


def change_everything(machine: FakeMachine, service: FakeService) -> None:
    """Do all that writes. What refuses does not keep the rest from being tried."""
    operator = Operator(machine)
    start = {"invocation_id": ""}

    def deploy() -> None:
        operator.stage("0001-a")
        operator("release.update", release="0001-a", files={"notes": "n"}, append={"events.jsonl": "e\n"})
        operator("transition.begin", transition={"from": None, "to": "0001-a", "step": "stop", "grace": 60.0})
        operator("transition.step", step="switch")
        start.update(operator("unit.start", release="0001-a", text="[X-Deployer]\nRelease=0001-a\n"))

    for attempt in (
        operator.take_lease,
        lambda: operator("hooks.set", hooks=hooks_with_metrics(machine)),
        lambda: operator("lease.renew"),
        deploy,
        lambda: operator("release.update", release="0001-a", files={"notes": "n"}, append={"notes": "n"}),
        lambda: operator.promote("0001-a", None, start),
        lambda: install(service),
        lambda: operator("converge", start=True),
        lambda: operator("transition.end"),
        lambda: assess(machine, "kimi"),
        lambda: operator("hold.set", owner=OWNER, reason="r"),
        lambda: operator("hold.release"),
        lambda: operator("prune", keep=0),
        lambda: operator("unit.stop", port=PORT),
    ):
        with contextlib.suppress(Fail, OSError):
            attempt()


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("place", PLACES)
def test_no_prepared_link_is_followed(
    machine: FakeMachine, service: FakeService, tmp_path: Path, place: str, exists: bool
) -> None:
    victim, link = tmp_path / "victim", Path(machine.folder, place)
    if exists:
        victim.write_text("theirs")
        victim.chmod(0o640)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(victim)
    change_everything(machine, service)
    assert victim.exists() == exists
    if exists:
        assert (victim.read_text(), victim.stat().st_mode & 0o777) == ("theirs", 0o640)


def test_all_of_it_is_written_where_there_are_no_links(machine: FakeMachine, service: FakeService) -> None:
    change_everything(machine, service)
    assert service.live
    missing = {place for place in PLACES if not Path(machine.folder, place).exists()}
    ended = {
        "state/kimi/transition.json",
        "state/kimi/begun.json",
        "state/kimi/guard.json",
        "volatile/renewal.json.new",
    }
    assert missing == ended | {
        place for place in PLACES if place.endswith(".tmp") or place.startswith("run/sglang") or "hold" in place
    }
