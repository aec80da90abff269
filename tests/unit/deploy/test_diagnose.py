"""Diagnosing what is on a host: the last run, a release that was kept."""

from __future__ import annotations

import time
from typing import Any

import pytest
from rich.console import Console

from deployer.deploy.diagnose import of_release, of_service
from deployer.deploy.session import Session
from deployer.errors import Refused
from deployer.host.fake_world import Engine, FakeWorld
from deployer.report.diagnosis_view import diagnosis_view
from deployer.sglang.diagnosis import Diagnosis
from tests.unit.deploy.test_apply import session
from tests.unit.sglang.builders import QUIT, trace, until

OOM = (
    *until("load", "TP0"),
    *trace("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB."),
    *QUIT,
)


def render(found: Diagnosis) -> str:
    console = Console(width=160, force_terminal=False)
    with console.capture() as capture:
        console.print(diagnosis_view(found))
    return capture.get()


def opened(made: FakeWorld) -> Session:
    return session(made).open()


def world(log: tuple[str, ...], **changes: Any) -> FakeWorld:
    made = FakeWorld(engines={"0001-tp8": Engine(log=log, **changes)})
    made.make_live(session(made).service.name, "0001-tp8")
    return made


def test_a_server_that_runs_is_no_failure() -> None:
    made = world(tuple(until("ready", "TP0")))
    with opened(made) as here:
        found = of_service(here)
    assert found.outcome == "no-failure"
    assert found.running is True
    assert found.verdict == "no failure in this log: it serves"
    assert found.as_dict()["unit"]["active"] == "active"
    assert "it serves" in render(found)


def test_a_server_that_died_is_explained_with_line_numbers() -> None:
    made = world(OOM, fails_after=0.0)
    with opened(made) as here:
        found = of_service(here)
    assert found.outcome == "failed"
    assert found.failure is not None
    assert (found.failure.signature, found.failure.phase, found.failure.rank) == (
        "cuda_oom_load",
        "load",
        "TP0",
    )
    shown = render(found)
    assert "failed in phase load on TP0" in shown
    assert "cuda_oom_load" in shown
    assert f"{found.failure.numbers[0]} [2026-01-01" in shown


def test_the_kernels_word_is_asked_for() -> None:
    made = world((*until("load", "TP0"), *QUIT), fails_after=0.0)
    made.kernel_log = ("Out of memory: Killed process 4711 (sglang::schedul) total-vm:1kB",)
    with opened(made) as here:
        found = of_service(here)
    assert found.as_dict()["signature"] == "host_oom"
    assert found.as_dict()["evidence_lines"] == [0]
    asked = [args for name, args in made.calls if name == "journal" and args.get("kernel")]
    assert 0 < asked[0]["since"] <= time.time()
    assert "kernel Out of memory" in " ".join(render(found).split())


def kept(made: FakeWorld, **changes: Any) -> None:
    name = session(made).service.name
    manifest = {
        "schema": 1,
        "release": "0002-pp8",
        "number": 2,
        "state": "failed",
        "was_live": False,
        **changes,
    }
    made.service(name).releases["0002-pp8"] = {"manifest": manifest, "files": {"log.txt": "\n".join(OOM)}}


def test_a_release_is_diagnosed_from_what_it_kept() -> None:
    made = world(())
    kept(
        made,
        failure={"signature": "cuda_oom", "phase": "load", "cause": "as it was seen then", "remedy": "x"},
    )
    with opened(made) as here:
        found = of_release(here, 2)
    document = found.as_dict()
    assert (document["signature"], document["release"]) == ("cuda_oom_load", "0002-pp8")
    assert document["recorded"]["signature"] == "cuda_oom"
    assert "as it was seen then" in render(found)


def test_a_release_that_was_never_started_is_called_that() -> None:
    made = world(())
    kept(made, state="abandoned")
    made.service(session(made).service.name).releases["0002-pp8"]["files"] = {}
    with opened(made) as here:
        found = of_release(here, 2)
    assert found.verdict == "no failure: this release was never started (it is abandoned)"


def test_a_release_that_is_not_there_is_refused() -> None:
    made = world(())
    with opened(made) as here, pytest.raises(Refused, match="no release 9"):
        of_release(here, 9)
