"""Metrics of a service: what they count, and the file that node_exporter reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deployer.host.agent import guard
from tests.fakes.host import FakeService
from tests.fakes.machine import FakeMachine
from tests.unit.host.agent.conftest import Operator

LIVE, TO = "0001-a", "0002-b"


@pytest.fixture
def folder(machine: FakeMachine) -> Path:
    """The folder of the textfile collector."""
    path = Path(machine.folder).resolve() / "textfile"
    path.mkdir()
    return path


@pytest.fixture
def service(machine: FakeMachine, operator: Operator, folder: Path) -> FakeService:
    """A service whose live release is up, on a host that writes metrics."""
    service = FakeService(machine, "kimi")
    service.make_live(LIVE)
    operator("hooks.set", hooks=settings(folder))
    return service


def settings(folder: Path | None) -> dict[str, Any]:
    return {
        "host": "gpu1",
        "programs": {},
        "timeout": 30.0,
        "webhook": None,
        "metrics_dir": None if folder is None else str(folder),
    }


def lines(folder: Path) -> list[str]:
    text = (folder / "deployer-kimi.prom").read_text()
    return [line.removeprefix("deployer_") for line in text.splitlines() if not line.startswith("#")]


def test_a_change_is_counted_and_written_at_once(folder: Path, service: FakeService, operator: Operator) -> None:
    assert 'changes_total{service="kimi",outcome="live"} 0' in lines(folder)
    start = operator.attempt(TO, **{"from": LIVE})
    operator.promote(TO, LIVE, start)
    verdict = {"result": "pass", "reasons": []}
    bench = {"single_stream_tok_s": 30.5, "levels": {"32": 230.0, "64": None}}
    operator("release.update", release=TO, patch={"verdict": verdict, "bench_summary": bench, "profile": 'p"8'})
    operator("converge", start=True)
    operator("transition.end")
    seen = lines(folder)
    assert f'live_release_info{{service="kimi",release="{TO}",profile="p\\"8",sglang=""}} 1' in seen
    assert f'last_verdict_info{{service="kimi",release="{TO}",profile="p\\"8",result="pass"}} 1' in seen
    assert 'proven_tokens_per_second{service="kimi",concurrency="1"} 30.5' in seen
    assert 'proven_tokens_per_second{service="kimi",concurrency="32"} 230' in seen
    assert not any('concurrency="64"' in line for line in seen)
    assert 'changes_total{service="kimi",outcome="live"} 1' in seen
    assert 'healthy{service="kimi"} 1' in seen
    path = folder / "deployer-kimi.prom"
    assert path.stat().st_mode & 0o777 == 0o644
    assert [item.name for item in folder.iterdir()] == ["deployer-kimi.prom"]


def test_the_guards_actions_and_what_became_of_the_change(
    machine: FakeMachine, folder: Path, service: FakeService, operator: Operator
) -> None:
    operator.attempt(TO)
    service.end()
    operator.leave()
    guard.look(guard.OwnOperator(machine), service)
    seen = lines(folder)
    assert 'changes_total{service="kimi",outcome="abandoned"} 1' in seen
    assert 'guard_actions_total{service="kimi",by="guard",what="converge",result="ok"} 1' in seen
    assert f'live_release_info{{service="kimi",release="{LIVE}",profile="",sglang=""}} 1' in seen


@pytest.mark.parametrize(("state", "outcome"), [("failed", "failed"), ("superseded", "undone")])
def test_an_undone_change_counts_as_what_became_of_its_release(
    folder: Path, service: FakeService, operator: Operator, state: str, outcome: str
) -> None:
    operator.attempt(TO)
    operator("release.update", release=TO, patch={"state": state})
    operator("converge", start=True, await_ready=False)
    assert f'changes_total{{service="kimi",outcome="{outcome}"}} 1' in lines(folder)
    assert not any(line.startswith("healthy") for line in lines(folder)), "nobody has seen it yet"
    operator("settle", healthy=False)
    assert 'healthy{service="kimi"} 0' in lines(folder)


def test_the_file_goes_with_the_setting(
    machine: FakeMachine, folder: Path, service: FakeService, operator: Operator, tmp_path: Path
) -> None:
    assert operator("hooks.set", hooks=settings(tmp_path.resolve()))["problem"] is None
    assert not (folder / "deployer-kimi.prom").exists()
    assert (tmp_path / "deployer-kimi.prom").exists()
    operator("hooks.set", hooks=None)
    assert not (tmp_path / "deployer-kimi.prom").exists()
    assert operator("metrics")["metrics"], "they can still be asked for"


def test_a_folder_that_is_missing_or_a_link_is_reported_and_not_followed(
    service: FakeService, operator: Operator, tmp_path: Path
) -> None:
    missing = tmp_path.resolve() / "none"
    assert "is not a folder" in operator("hooks.set", hooks=settings(missing))["problem"]
    target = tmp_path / "target"
    target.mkdir()
    missing.symlink_to(target)
    assert "over a link" in operator("hooks.set", hooks=settings(missing))["problem"]
    assert list(target.iterdir()) == []


def test_damaged_counts_and_manifests_cost_only_themselves(
    folder: Path, service: FakeService, operator: Operator
) -> None:
    Path(service.folder, "counts.json").write_text('{"changes": {"live": "x"}, "guard": 7}')
    service.keep("0000-x", {"verdict": 7, "bench_summary": [], "promoted": "x"}, {})
    operator("converge", start=True)
    assert 'healthy{service="kimi"} 1' in lines(folder)
