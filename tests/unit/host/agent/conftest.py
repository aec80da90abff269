"""A machine in memory for the agent's modules, a service on it, and an operator who changes it."""

from __future__ import annotations

from typing import Any

import pytest

from deployer.host.agent.lease import Session
from deployer.host.agent.main import all_operations, perform
from deployer.records.codec import Json
from tests.fakes.host import FakeService, HastyCall
from tests.fakes.machine import FakeMachine

OWNER = {"user": "ann", "host": "desk", "pid": 1, "command": "apply"}
PORT = 30000
#: Texts of state files that are damaged, in one way or another.
ODD = '{"to": "x", "boot_id": "b", "grace": "long", "release": "0002-b", "argv": 7, "generation": 1, "owner": 0}'
DAMAGE = [
    ODD,
    "",
    "{",
    "{}",
    "[]",
    "null",
    "7",
    '"text"',
    '{"schema": "x"}',
    '{"release": 7, "generation": "1"}',
]


class Operator:
    """One connection: runs operations as the channel does, for service kimi."""

    def __init__(self, machine: FakeMachine) -> None:
        self.session = Session(machine)
        self.events: list[Json] = []

    def __call__(self, op: str, **args: Any) -> Json:
        call = HastyCall(lambda message: self.events.append(message["event"]))
        return perform(all_operations()[op], self.session, call, op, {"service": "kimi", "port": PORT, **args})

    def take_lease(self, ttl: float = 60.0, **more: Any) -> Json:
        return self("lease.acquire", owner=OWNER, ttl=ttl, **more)

    def leave(self) -> None:
        """End without a farewell."""
        self.session.finish("abandoned")

    def stage(self, release: str) -> None:
        manifest = {"number": int(release[:4]), "state": "staged"}
        self("stage", release=release, files={"unit": {"text": "u"}}, manifest=manifest)

    def begin(self, to: str, **transition: Any) -> None:
        """Stage a release, and record the intent to put it in place."""
        self.stage(to)
        record = {"from": None, "to": to, "step": "stop", "grace": 600.0, "port": PORT, "stop_timeout": 10.0}
        self("transition.begin", transition={**record, **transition})

    def attempt(self, to: str, **transition: Any) -> Json:
        """All steps up to the start of the candidate."""
        self.begin(to, **transition)
        self("unit.stop")
        return self("unit.start", release=to, text=f"[X-Deployer]\nRelease={to}\n")

    def promote(self, release: str, before: str | None, start: Json) -> None:
        expect = {"live": before, "invocation_id": start["invocation_id"]}
        self("promote", release=release, text=f"[X-Deployer]\nRelease={release}\n", expect=expect)


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


@pytest.fixture
def service(machine: FakeMachine) -> FakeService:
    return FakeService(machine, "kimi")


@pytest.fixture
def operator(machine: FakeMachine) -> Operator:
    """An operator who holds the lease."""
    operator = Operator(machine)
    operator.take_lease()
    return operator
