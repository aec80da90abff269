"""Killed at every effect: whatever the agent, the guard or recovery had done by then, the host comes to rest."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from deployer.host.agent import guard
from deployer.host.agent.files import read_text
from deployer.host.agent.lease import lease_view, read_lease
from deployer.host.agent.service import unit_release
from tests.chaos.invariants import SETTLED
from tests.fakes.host import FakeService
from tests.fakes.machine import Engine, FakeMachine
from tests.fakes.mortal import mortal
from tests.unit.host.agent.conftest import PORT, Operator

LIVE, TO, OTHER = "0001-a", "0002-b", "0001-mini"
MINI_PORT = 30001
TRANSITION: dict[str, Any] = {"lease": 6.0, "grace": 2.0, "ready_timeout": 30.0}


class Site:
    """kimi with a live release and perhaps mini, which has its GPUs; an operator who changes kimi."""

    def __init__(self, kind: str) -> None:
        self.machine, self.kind = FakeMachine(), kind
        self.kimi, self.mini = FakeService(self.machine, "kimi"), FakeService(self.machine, "mini")
        self.machine.engines.update({name: Engine(port=PORT) for name in (LIVE, TO, "0003-c")})
        self.machine.engines[OTHER] = Engine(port=MINI_PORT)
        if kind != "first":
            self.kimi.make_live(LIVE)
        if kind == "exclusive":
            self.kimi.end("inactive")
            Path(self.kimi.enable_link).unlink()
            self.mini.make_live(OTHER)

    def change(self, to: str = TO, fails: bool = False) -> None:
        """A whole change, as `apply` carries it out; ``fails``: back from a candidate that is no good."""
        operator, before = Operator(self.machine), self.kimi.live_release()
        more = {"exclusive": [{"service": "mini", "port": MINI_PORT, "stop_timeout": 10.0}]}
        operator.take_lease(ttl=60.0)
        start = self.attempt(operator, to, more if self.kind == "exclusive" else {})
        operator("release.update", release=to, patch={"timeline": []}, append={"events.jsonl": "{}\n"})
        if fails:
            operator("transition.step", step="restore")
            operator("converge", start=True)
            operator("release.update", release=to, patch={"state": "failed"}, files={"failure.json": "{}"})
        else:
            operator("transition.step", step="promote")
            operator.promote(to, before, start)
            operator("transition.step", step="finish")
            operator("converge", start=True)
            operator("release.update", release=to, patch={"promoted": 1.0})
        operator("transition.end")
        operator("prune", keep=2)
        operator("lease.release")

    def attempt(self, operator: Operator, to: str, more: dict[str, Any]) -> dict[str, Any]:
        operator.begin(to, **TRANSITION, **more)
        operator("unit.stop")
        if more:
            operator("unit.exclude")
        return operator("unit.start", release=to, text=f"[X-Deployer]\nRelease={to}\n")

    # -- who follows --------------------------------------------------------------------------------------------

    def guard(self) -> None:
        """What the guard does, if it was started; then its time and the agent's is over."""
        if self.machine.unit(self.kimi.guard_unit).pid:
            guard.guard(self.machine, "kimi")
        self.machine.sleep(70.0)

    def recover(self) -> None:
        if Path(self.kimi.transition_path).exists():  # the unit's condition
            guard.recover(self.machine, "kimi")

    def boot(self) -> None:
        """What systemd starts by itself; of two that conflict, one."""
        for service, other in ((self.kimi, self.mini), (self.mini, self.kimi)):
            if service.is_enabled() and service.live and not service.release and not other.release:
                service.restart()

    # -- what must hold -----------------------------------------------------------------------------------------

    def wrong(self) -> list[str]:
        """What is not as it must be."""
        live, found = self.kimi.live_release(), []
        for what, value in (
            ("candidate", self.kimi.candidate),
            ("transition", read_text(self.kimi.transition_path)),
            ("lease", (lease_view(self.machine, read_lease(self.machine)) or {}).get("valid")),
        ):
            if value:
                found.append(f"{what} is left")
        before = {"first": None}.get(self.kind, LIVE)
        if live not in (before, TO):
            found.append(f"live is {live}")
        served = live if self.kind != "exclusive" or live == TO else None
        if (self.kimi.release, self.kimi.is_enabled()) != (served, served is not None):
            found.append(f"live is {live}, {self.kimi.release} runs, enabled: {self.kimi.is_enabled()}")
        mini = OTHER if self.kind == "exclusive" and served is None else None
        if (self.mini.release, self.mini.is_enabled()) != (mini, mini is not None):
            found.append(f"of mini {self.mini.release} runs, enabled: {self.mini.is_enabled()}")
        states = {item["release"]: item["state"] for item in self.kimi.manifests()}
        if [name for name, state in states.items() if state == "live"] != ([live] if live else []):
            found.append(f"states: {states}")
        if not set(states.values()) <= SETTLED:
            found.append(f"states: {states}")
        for service in (self.kimi, self.mini):
            for line in (read_text(f"{service.folder}/audit.jsonl") or "").splitlines():
                json.loads(line)
            if service.live and unit_release(service.live) != service.live_release():
                found.append("the live unit is torn")
        return found

    def next_change_works(self) -> None:
        self.change("0003-c")
        assert self.kimi.release == self.kimi.live_release() == "0003-c"
        assert self.kimi.transition() is None


@cache
def effects(kind: str, fails: bool) -> list[str]:
    """What a whole change does, one after the other."""
    site = Site(kind)
    with mortal(site.machine) as life:
        site.change(fails=fails)
    return life.done


def killed_at(kind: str, fails: bool, limit: int) -> Site:
    """A site whose agent was killed before this effect of a change."""
    site = Site(kind)
    with mortal(site.machine, limit) as life:
        site.change(fails=fails)
    assert life.killed
    return site


def power_cut(site: Site) -> None:
    site.machine.reboot()
    site.recover()
    site.boot()


#: A change, and whether its candidate is no good.
CHANGES = [("plain", False), ("plain", True), ("first", False), ("exclusive", False), ("exclusive", True)]
#: Of how many effects one has its turn: all of them in `make fuzz`.
STRIDE = 1 if os.environ.get("HYPOTHESIS_PROFILE", "quick") != "quick" else 20


@pytest.mark.parametrize("end", [Site.guard, power_cut], ids=["guard", "power cut"])
@pytest.mark.parametrize(("kind", "fails"), CHANGES)
def test_the_agent_is_killed_at_every_effect(kind: str, fails: bool, end: Callable[[Site], None]) -> None:
    done, wrong = effects(kind, fails), {}
    recorded = next(at for at, text in enumerate(done) if "start deployer-guard" in text)
    for limit in sorted({*range(0, len(done), STRIDE), recorded, recorded + 1, recorded + 2}):
        site = killed_at(kind, fails, limit)
        end(site)
        if found := site.wrong():
            wrong[f"{limit} {done[limit]}"] = found
    site.next_change_works()
    assert not wrong, json.dumps(wrong, indent=1)


@pytest.mark.parametrize("who", [Site.guard, Site.recover], ids=["guard", "recovery"])
@pytest.mark.parametrize(("kind", "fails"), CHANGES)
def test_who_goes_back_is_killed_at_every_effect(kind: str, fails: bool, who: Callable[[Site], None]) -> None:
    """And followed by another, as systemd does; after a boot, the service may have been started in between."""
    moment = max(at for at, text in enumerate(effects(kind, fails)) if text.endswith("/kimi/transition.json")) - 1
    limit, alive, wrong = 0, False, {}
    while not alive:
        site = killed_at(kind, fails, moment)
        if who is Site.recover:
            site.machine.reboot()
        with mortal(site.machine, limit) as life:
            who(site)
        alive = not life.killed
        if who is Site.recover:
            site.boot()
        who(site)
        if found := site.wrong():
            wrong[str(limit)] = found
        limit += STRIDE
    assert not wrong, json.dumps(wrong, indent=1)
