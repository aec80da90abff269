"""`bench` on a host in memory: it takes the lease, changes nothing that serves, and keeps what it measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deployer.deploy.reporter import Reporter
from deployer.errors import AgentError, GateInconclusive, Interrupted, LeaseHeld, NothingServing, Refused
from deployer.inspect.compare import BenchStore
from deployer.inspect.history import history
from deployer.inspect.measure import Measured, measure
from deployer.report.service_view import history_view
from tests.fakes.host import FakeWorld
from tests.unit.deploy.test_apply import LIVE, TP1, bench, engine, run, session, world
from tests.unit.report.test_bench_table import text

CHANGING = {"stage", "promote", "converge", "unit.start", "unit.stop", "transition.begin", "prune", "probe"}


@pytest.fixture
def live_world() -> FakeWorld:
    made = world()
    made.engines[LIVE] = engine(TP1)
    assert run(made, "tp1").outcome == "live"
    made.calls.clear()
    return made


def measured(made: FakeWorld, rate: float = 90.0, **wishes: Any) -> Measured:
    document = bench(rate)
    made.run = lambda args: ([json.dumps({"event": "result", "bench": document})], 0)
    with session(made) as opened:
        return measure(opened, wishes, Reporter(), BenchStore.of(opened))


def test_it_is_kept_beside_its_release_and_nothing_else_is_changed(live_world: FakeWorld) -> None:
    before = dict(live_world.service("kimi").manifest(LIVE))
    assert measured(live_world).name == f"{LIVE}@1"
    assert measured(live_world, 95.0).name == f"{LIVE}@2"
    service = live_world.service("kimi")
    for name, rate in (("bench-2.json", 95.0), ("bench.json", 100.0)):
        assert json.loads(service.file(LIVE, name))["levels"][0]["aggregate_tok_s"] == rate
    manifest = service.manifest(LIVE)
    assert [item["summary"]["levels"] for item in manifest["benches"]] == [{"2": 90.0}, {"2": 95.0}]
    assert {key: manifest[key] for key in before} == before
    assert not CHANGING & {op for op, _ in live_world.calls}
    assert live_world.service("kimi").release == LIVE
    assert live_world.lease is not None
    assert live_world.lease["state"] == "released"


@pytest.mark.parametrize(
    ("held", "numbers"), [("soon", [3]), (7, [3]), ({"number": 1}, [3]), ([None, {"number": 2}], [2, 3])]
)
def test_a_damaged_list_loses_nothing(live_world: FakeWorld, held: Any, numbers: list[int]) -> None:
    measured(live_world)
    measured(live_world)
    service = live_world.service("kimi")
    path = Path(service.manifest_path(LIVE))
    path.write_text(json.dumps({**service.manifest(LIVE), "benches": held}))
    kept = {name: service.file(LIVE, name) for name in ("bench-1.json", "bench-2.json")}
    assert measured(live_world).name == f"{LIVE}@3"
    assert {name: service.file(LIVE, name) for name in kept} == kept
    manifest = service.manifest(LIVE)
    assert ([item["number"] for item in manifest["benches"]], manifest["benches_damaged"]) == (numbers, [held])
    assert measured(live_world).name == f"{LIVE}@4"
    assert service.manifest(LIVE)["benches_damaged"] == [held]


def test_compare_and_history_know_it(live_world: FakeWorld) -> None:
    measured(live_world)
    with session(live_world) as opened:
        subject = BenchStore.of(opened).subject("1@1")
        releases = history("kimi", opened.state())
    assert (subject.name, subject.starts) == (f"{LIVE}@1", (LIVE,))
    assert releases.as_json()["releases"][0]["benches"][0]["number"] == 1
    shown = text(history_view(releases))
    assert any("1@1" in line and "measured" in line and "90 at 2" in line for line in shown.splitlines())


def test_settings_are_the_releases_own_and_those_requested(live_world: FakeWorld) -> None:
    asked: list[Any] = []
    document = bench()

    def ran(args: Any) -> Any:
        asked.append(json.loads(args["stdin"]))
        return [json.dumps({"event": "result", "bench": document})], 0

    live_world.run = ran
    with session(live_world) as opened:
        renamed = opened.service.model_copy(update={"served_model_name": "renamed", "port": 31999})
        opened.service, started_with = renamed, opened.service
        measure(opened, {"output_tokens": 32, "repeats": 3}, Reporter(), BenchStore.of(opened))
    assert asked[0]["base_url"].endswith(f":{started_with.port}")
    assert asked[0]["model"] == (started_with.served_model_name or started_with.model)
    assert (asked[0]["levels"], asked[0]["output_tokens"], asked[0]["repeats"]) == ([2], 32, 3)
    assert asked[0]["requests_at_least"] == 0, "that is for a candidate, not for what has long been serving"


def test_nobody_else_may_be_at_work(live_world: FakeWorld) -> None:
    with session(live_world, "apply pp8") as other:
        other.acquire()
        with pytest.raises(LeaseHeld):
            measured(live_world)
    assert "run" not in {op for op, _ in live_world.calls}


def test_others_see_what_the_lease_is_for(live_world: FakeWorld) -> None:
    seen: list[Any] = []

    def ran(args: Any) -> Any:
        seen.append(dict(live_world.lease or {}))
        return [json.dumps({"event": "result", "bench": bench()})], 0

    live_world.run = ran
    with session(live_world, "bench") as opened:
        measure(opened, {}, Reporter(), BenchStore.of(opened))
    assert (seen[0]["state"], seen[0]["reason"]) == ("held", "bench")


def test_a_change_that_was_left_under_way_comes_first(live_world: FakeWorld) -> None:
    service = live_world.service("kimi")
    transition = {"from": LIVE, "to": "0002-x", "profile": "x", "step": "wait", "grace": 5.0, "started": 0.0}
    service.machine.write_json(service.transition_path, {**transition, "boot_id": service.machine.boot_id})
    with pytest.raises(Refused, match="a change to 0002-x was left unfinished"):
        measured(live_world)


def test_another_profile_is_not_measured_under_a_wrong_name(live_world: FakeWorld) -> None:
    live_world.run = lambda args: pytest.fail("nothing is to be measured")
    with session(live_world) as opened, pytest.raises(Refused, match=r"tp1 runs .*, not pp8") as found:
        measure(opened, {}, Reporter(), BenchStore.of(opened), profile="pp8")
    assert found.value.exit_code == 3
    document = bench()
    live_world.run = lambda args: ([json.dumps({"event": "result", "bench": document})], 0)
    with session(live_world) as opened:
        assert measure(opened, {}, Reporter(), BenchStore.of(opened), profile="tp1").name == f"{LIVE}@1"


def test_figures_that_the_host_does_not_take_are_not_lost(
    live_world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise AgentError("io", "No space left on device")

    monkeypatch.setattr("deployer.host.client.HostClient.release_update", full)
    found = measured(live_world, 95.0)
    assert found.bench.levels[0].aggregate_tok_s == 95.0
    assert found.trouble is not None
    assert (found.trouble.message.rpartition(": ")[2], found.trouble.exit_code) == (
        "No space left on device",
        8,
    )
    assert live_world.lease is not None
    assert live_world.lease["state"] == "released"


def after_it(made: FakeWorld, what: Callable[[], None], **level: Any) -> Measured:
    """Measure a server to which this happens meanwhile; ``level`` is what the level then has to say."""
    document = bench(95.0)
    document["levels"][0].update(level)

    def ran(args: Any) -> Any:
        what()
        return [json.dumps({"event": "result", "bench": document})], 0

    made.run = ran
    with session(made) as opened:
        return measure(opened, {}, Reporter(), BenchStore.of(opened))


def test_a_server_that_hangs_after_its_benchmark_is_reported_with_the_figures(live_world: FakeWorld) -> None:
    healthy = live_world.engines[LIVE].http
    found = after_it(live_world, lambda: healthy.update({"/health": (503, "")}), completed=1, failed={"stalled": 1})
    assert found.name == f"{LIVE}@1", "what it did until then is kept"
    assert isinstance(found.trouble, NothingServing)
    assert "1 requests were not answered, and it no longer serves (/health: 503)" in found.trouble.message


def test_failed_requests_are_no_trouble_if_the_server_goes_on_serving(live_world: FakeWorld) -> None:
    assert after_it(live_world, lambda: None, completed=1, failed={"http-500": 1}).trouble is None


def test_figures_of_two_processes_are_shown_and_not_kept(live_world: FakeWorld) -> None:
    state = live_world.service("kimi")
    found = after_it(live_world, state.restart, completed=1, failed={"reset": 1})
    assert (found.name, found.bench.levels[0].aggregate_tok_s) == (f"{LIVE}@?", 95.0)
    assert isinstance(found.trouble, GateInconclusive)
    assert "restarted while it was measured" in found.trouble.message
    assert "benches" not in state.manifest(LIVE)


def test_a_server_that_died_of_its_benchmark(live_world: FakeWorld) -> None:
    def die() -> None:
        live_world.service("kimi").end("inactive")

    found = after_it(live_world, die, completed=1, failed={"reset": 1})
    assert isinstance(found.trouble, NothingServing)
    assert "it does not run" in found.trouble.message


def test_an_interruption_says_what_becomes_of_the_figures(live_world: FakeWorld) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="what was measured so far is dropped") as found:
        after_it(live_world, interrupt)
    assert found.value.exit_code == 130
    assert live_world.lease is not None
    assert live_world.lease["state"] == "released"


def test_nothing_serves(live_world: FakeWorld) -> None:
    live_world.service("kimi").end("inactive")
    with pytest.raises(NothingServing):
        measured(live_world)


def test_nothing_was_measured(live_world: FakeWorld) -> None:
    empty: dict[str, Any] = {
        "levels": [],
        "single_stream_tok_s": None,
        "stopped": "none of the 2 requests was completed",
    }
    live_world.run = lambda args: ([json.dumps({"event": "result", "bench": empty})], 0)
    with session(live_world) as opened, pytest.raises(GateInconclusive, match="none of the 2 requests"):
        measure(opened, {}, Reporter(), BenchStore.of(opened))
    assert "benches" not in live_world.service("kimi").manifest(LIVE)
