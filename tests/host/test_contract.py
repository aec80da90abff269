"""One contract, three hosts: SSH and a local child process on a real systemd, and the fake."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from deployer.errors import AgentError, ChannelLost, LeaseHeld, LeaseLost, OnHold, WorldMoved
from deployer.host.client import Limits
from deployer.host.heartbeat import Heartbeat
from deployer.records.events import FailedEvent, HealthEvent, LogEvent, UnitEvent
from deployer.records.failure import PhaseTime
from deployer.records.host import Lease, Owner
from deployer.records.step import Step
from tests.host.host_contract import (
    ENGINE,
    GRACE,
    PORT,
    SERVICE,
    Place,
    acquire,
    begin,
    converge,
    converge_unasked,
    finish,
    go_live,
    make_other_live,
    make_place,
    observe,
    other_service,
    stage,
    stop,
    take_its_place,
    unit_text,
)
from tests.patience import PATIENCE, until


@pytest.fixture(params=["ssh", "local", "fake"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    host = None if request.param == "fake" else request.getfixturevalue("fresh_host")
    made = make_place(request.param, host)
    yield made
    made.close()


def lease_of(place: Place) -> Lease:
    lease: Lease | None = place.connect().observe({SERVICE: PORT}).lease
    assert lease is not None
    return lease


# --- the channel ------------------------------------------------------------------------------------------------


def test_hello_says_who_answers(place: Place) -> None:
    hello = place.connect().hello()
    assert (hello.schema, hello.uid) == (1, 0)
    assert hello.boot_id
    assert hello.systemd is not None
    assert hello.systemd >= 245


def test_an_unknown_operation_is_an_error_and_the_channel_goes_on(place: Place) -> None:
    client = place.connect()
    with pytest.raises(AgentError) as caught:
        client.host.call("no-such-thing")
    assert caught.value.code == "unknown-op"
    assert client.hello().uid == 0


def test_a_closed_connection_says_so(place: Place) -> None:
    client = place.connect()
    client.close()
    with pytest.raises(ChannelLost):
        client.hello()


def test_a_stream_has_no_result_before_its_end_and_can_be_cancelled(place: Place) -> None:
    client = place.connect()
    with client.journal(SERVICE, follow=True, lines=0) as stream:
        assert stream.next(0.1) is None
        with pytest.raises(RuntimeError):
            _ = stream.result
        stream.cancel()
        with pytest.raises(StopIteration):
            stream.next(0.1)
    assert client.hello().uid == 0


def test_facts_of_the_host_are_told_where_asked_for(place: Place) -> None:
    client = place.connect()
    seen = client.observe({SERVICE: PORT})
    assert (seen.memory_total or 0) > 1 << 28
    assert (seen.engine, seen.model) == (None, None)


def test_gpus_connections_and_the_machine_are_sampled_in_one_call(place: Place) -> None:
    client = place.connect()
    least = 1 if place.kind == "fake" else 2

    def enough() -> Any:
        sampled = client.sample(3.0, interval=0.2, endpoint=client.endpoint)
        return sampled if len(sampled.samples) >= least else None

    sampled = until(enough)  # on a busy machine nvidia-smi may take longer
    assert sampled.connections == 0
    assert 0 < sampled.machine.memory_available <= sampled.machine.memory_total
    assert sampled.machine.disks["/"].free > 0
    assert sampled.problem is None
    if place.kind != "fake":
        assert len(sampled.gpus) == 8
        first = sampled.gpus[0][0]
        assert (first.utilization, first.throttled, first.clock_max_mhz) == (0.0, [], 3090.0)
        assert first.memory_total > 90 << 30
        assert sampled.mean(lambda gpu: gpu.power_w)[0] > 1


def test_connections_of_others_are_counted_and_not_the_agents_own(place: Place) -> None:
    client = place.operator()
    go_live(place, client, "0001-p")
    if place.kind == "fake":
        assert client.sample(0.0, endpoint=client.endpoint).connections == 0
        return
    with socket.create_connection((place.address, PORT)), socket.create_connection((place.address, PORT)):
        asking = threading.Thread(target=lambda: [client.http("GET", "/health", client.endpoint) for _ in range(3)])
        asking.start()
        assert client.sample(0.4, interval=0.2, endpoint=client.endpoint).connections == 2
        asking.join()


# --- the lease --------------------------------------------------------------------------------------------------


def test_the_lease_excludes_others_and_names_its_holder(place: Place) -> None:
    place.operator()
    with pytest.raises(LeaseHeld) as caught:
        acquire(place.connect())
    assert "ann@desk" in caught.value.message
    assert "if nothing more is heard of them" in caught.value.message
    assert caught.value.detail["lease"]["owner"]["command"] == "apply"
    assert "token" not in caught.value.detail["lease"]


def test_farewell_gives_the_lease_back(place: Place) -> None:
    place.operator().close()
    lease = lease_of(place)
    assert (lease.state, lease.valid) == ("released", False)
    acquire(place.connect())


def test_an_end_without_farewell_abandons_the_lease_at_once(place: Place) -> None:
    place.operator(ttl=300.0).close(bye=False)
    lease = until(lambda: found if (found := lease_of(place)).state == "abandoned" else None)
    assert not lease.valid
    assert lease.expires_in <= 0
    acquire(place.connect())


def test_each_acquisition_raises_the_generation(place: Place) -> None:
    first = acquire(place.connect(), ttl=0.05)
    time.sleep(0.1)
    second = acquire(place.connect())
    assert second.generation == first.generation + 1


def test_waiting_for_a_lease(place: Place) -> None:
    begun = time.monotonic()
    place.operator(ttl=1.0)
    acquire(place.connect(), wait=PATIENCE)
    assert 1.0 <= time.monotonic() - begun < PATIENCE


def test_a_hold_keeps_operators_from_beginning_and_nobody_from_going_on(place: Place) -> None:
    worker, other = place.operator(), place.connect()
    owner = Owner("ann", "desk", 1, "hold")
    hold = other.hold_set(SERVICE, owner, "load test", None)
    assert (hold.reason, hold.owner, hold.until) == ("load test", owner, None)
    assert other.observe({SERVICE: PORT}).hold == hold
    stage(worker, "0001-a")  # whoever had begun goes on
    worker.close()
    with pytest.raises(OnHold, match="load test"):
        acquire(other)
    with pytest.raises(OnHold):  # nor is it replaced
        other.hold_set(SERVICE, owner, "another", 60.0)
    assert other.hold_release(SERVICE) == hold
    assert other.hold_release(SERVICE) is None
    acquire(other)


def test_a_hold_ends_by_itself(place: Place) -> None:
    client = place.connect()
    client.hold_set(SERVICE, Owner("ann", "desk", 1, "hold"), "short", 0.3)
    until(lambda: client.observe({SERVICE: PORT}).hold is None)
    acquire(client)


def test_a_late_heartbeat_revives_a_lease_that_nobody_took(place: Place) -> None:
    client = place.operator(ttl=0.3)
    time.sleep(0.5)
    with pytest.raises(LeaseLost):
        stage(client, "0001-a")

    def staged() -> bool:
        assert client.lease_renew() == pytest.approx(0.3)
        try:
            return bool(stage(client, "0001-a"))
        except LeaseLost:  # a busy machine took longer than it lasts
            return False

    until(staged)


def test_an_operator_who_wakes_up_late_can_change_nothing(place: Place) -> None:
    sleeper = place.operator(command="sleeper")
    stage(sleeper, "0001-a")
    acquire(sleeper, ttl=0.3, command="sleeper")
    time.sleep(0.5)
    place.operator(command="other")
    for change in (
        sleeper.lease_renew,
        lambda: stage(sleeper, "0002-b"),
        lambda: sleeper.release_update(SERVICE, "0001-a", patch={"state": "live"}),
        lambda: begin(sleeper, None, "0001-a"),
        lambda: sleeper.transition_end(SERVICE),
        lambda: sleeper.unit_start(SERVICE, "0001-a", "[X-Deployer]\nRelease=0001-a\n"),
        lambda: sleeper.promote(
            SERVICE, "0001-a", "[X-Deployer]\nRelease=0001-a\n", expect_live=None, expect_invocation=""
        ),
        lambda: converge(sleeper),
        lambda: stop(sleeper),
        lambda: sleeper.prune(SERVICE, 0),
        lambda: sleeper.probe(SERVICE, "[Service]\nExecStart=/bin/true\n"),
    ):
        with pytest.raises(LeaseLost):
            change()
    state = observe(sleeper)
    assert [item.release for item in state.releases] == ["0001-a"]
    assert state.releases[0].state == "staged"
    assert state.transition is None


def test_a_lost_connection_takes_its_lease_back(place: Place) -> None:
    client = place.connect()
    grant = acquire(client, ttl=300.0)
    again = place.connect()
    renewed = acquire(again, reclaim=grant)  # the host has not noticed yet that the first one is gone
    assert renewed.generation > grant.generation
    with pytest.raises(LeaseLost):
        stage(client, "0001-a")
    stage(again, "0001-a")


def test_a_lease_that_others_took_cannot_be_reclaimed(place: Place) -> None:
    client = place.connect()
    grant = acquire(client)
    client.close()
    acquire(place.connect())
    with pytest.raises(LeaseLost):
        acquire(place.connect(), reclaim=grant)


def test_the_heartbeat_keeps_a_lease_alive_and_notices_its_loss(place: Place) -> None:
    client = place.operator(ttl=0.9)
    with Heartbeat(client, 0.9) as heartbeat:
        time.sleep(1.6)
        until(lambda: lease_of(place).valid)
        heartbeat.check()
        client.lease_release()
        until(lambda: heartbeat.lost)
        with pytest.raises(LeaseLost):
            heartbeat.check()


def test_the_heartbeat_notices_a_broken_connection(place: Place) -> None:
    client = place.operator(ttl=0.9)
    with Heartbeat(client, 0.9) as heartbeat:
        client.host.close(bye=False)
        assert isinstance(until(lambda: heartbeat.lost), ChannelLost)


# --- releases ---------------------------------------------------------------------------------------------------


def test_a_release_is_staged_read_and_changed(place: Place) -> None:
    client = place.operator()
    path = stage(client, "0001-a", **{"config.yaml": "k: ü\r\n"})
    assert path.endswith("0001-a")
    release, files = client.release_read(SERVICE, "0001-a", ["config.yaml", "unit", "bench.json"])
    assert (release.state, release.number) == ("staged", 1)
    assert files == {"config.yaml": "k: ü\r\n", "unit": "the unit", "bench.json": None}
    release = client.release_update(
        SERVICE,
        "0001-a",
        patch={"state": "candidate", "timeline": (PhaseTime("load", 1.5),)},
        files={"bench.json": "{}"},
        append={"events.jsonl": "one\n"},
    )
    client.release_update(SERVICE, "0001-a", append={"events.jsonl": "two\n"})
    assert (release.state, release.timeline, release.number) == ("candidate", (PhaseTime("load", 1.5),), 1)
    read, files = client.release_read(SERVICE, "0001-a", ["bench.json", "events.jsonl"])
    assert read == release
    assert files == {"bench.json": "{}", "events.jsonl": "one\ntwo\n"}


def test_a_release_is_never_staged_twice(place: Place) -> None:
    client = place.operator()
    stage(client, "0001-a")
    with pytest.raises(AgentError) as caught:
        stage(client, "0001-a")
    assert caught.value.code == "exists"


def test_changing_needs_a_lease(place: Place) -> None:
    with pytest.raises(LeaseLost):
        stage(place.connect(), "0001-a")


def test_reading_a_release_that_does_not_exist(place: Place) -> None:
    with pytest.raises(AgentError) as caught:
        place.connect().release_read(SERVICE, "0009-x", [])
    assert caught.value.code == "not-found"


def test_prune_spares_live_last_live_and_the_transition(place: Place) -> None:
    client = place.operator()
    go_live(place, client, "0001-a")
    go_live(place, client, "0002-b", before="0001-a")
    for number in range(3, 8):
        stage(client, f"000{number}-x")
    begin(client, "0002-b", "0004-x")
    assert client.prune(SERVICE, 2) == ["0003-x", "0005-x"]
    left = [item.release for item in observe(client).releases]
    assert left == ["0001-a", "0002-b", "0004-x", "0006-x", "0007-x"]


# --- transition, start, promote, converge -----------------------------------------------------------------------


def test_a_transition_is_seen_by_others_and_ends(place: Place) -> None:
    client = place.operator()
    stage(client, "0001-a")
    begin(client, None, "0001-a", extra={"note": "kept"})
    client.transition_step(SERVICE, Step.SWITCH, {"more": [1]})
    seen = observe(place.connect()).transition
    assert (seen.from_, seen.to, seen.step, seen.grace, seen.port) == (None, "0001-a", "switch", GRACE, PORT)
    assert (seen.extra["note"], seen.extra["more"]) == ("kept", [1])
    with pytest.raises(AgentError) as caught:
        begin(client, None, "0002-b")
    assert caught.value.code == "exists"
    client.transition_end(SERVICE)
    client.transition_end(SERVICE)
    assert observe(client).transition is None
    with pytest.raises(AgentError) as caught:
        client.transition_step(SERVICE, Step.WAIT)
    assert caught.value.code == "no-transition"


def test_a_whole_deployment(place: Place) -> None:
    client = place.operator()
    started = go_live(place, client, "0001-a")
    state = observe(client)
    assert state.live.release == "0001-a"
    assert state.candidate is None
    assert state.transition is None
    assert state.running.release == "0001-a"
    assert state.unit.invocation_id == started.invocation_id, "promotion must not restart"
    assert state.enabled
    assert state.recover_enabled
    assert state.assess_enabled
    release = state.release("0001-a")
    assert (release.state, release.was_live) == ("live", True)
    assert [item.unit for item in state.listeners if item.pid] == ["sglang-kimi.service"]
    assert client.http("GET", "/health", client.endpoint).status == 200

    go_live(place, client, "0002-b", before="0001-a")
    state = observe(client)
    assert state.live.release == state.running.release == "0002-b"
    assert state.release("0001-a").state == "superseded"
    assert state.release("0001-a").was_live


def test_converge_changes_nothing_where_all_is_well(place: Place) -> None:
    client = place.operator()
    started = go_live(place, client, "0001-a")
    answer = converge(client)
    assert (answer.started, answer.serving, answer.live) == (False, True, "0001-a")
    assert answer.invocation_id == started.invocation_id
    assert set(answer.actions) <= {"serving"}


def test_converge_brings_the_live_release_back(place: Place) -> None:
    client = place.operator()
    go_live(place, client, "0001-a")
    stage(client, "0002-b")
    begin(client, "0001-a", "0002-b")
    stop(client)
    client.unit_start(SERVICE, "0002-b", unit_text("0002-b", place))
    assert observe(client).candidate.release == "0002-b"
    answer = converge_unasked(client)  # the transition knows that the old server ran
    assert (answer.started, answer.serving, answer.live) == (True, True, "0001-a")
    state = observe(client)
    assert (state.candidate, state.transition) == (None, None)
    assert state.running.release == "0001-a"
    assert state.release("0002-b").state == "abandoned"


def test_converge_without_any_live_release_stops_the_candidate(place: Place) -> None:
    client = place.operator()
    stage(client, "0001-a")
    begin(client, None, "0001-a")
    client.unit_start(SERVICE, "0001-a", unit_text("0001-a", place))
    answer = converge(client)
    assert (answer.live, answer.started, answer.serving) == (None, False, False)
    state = observe(client)
    assert (state.running, state.candidate, state.transition, state.live) == (None, None, None, None)
    assert not state.enabled


@pytest.mark.parametrize(("length", "drain", "aborted"), [(1.5, PATIENCE, 0), (600.0, 1.0, 1)], ids=["ends", "cut"])
def test_a_stop_refuses_new_requests_and_gives_those_under_way_their_time(
    place: Place, length: float, drain: float, aborted: int
) -> None:
    client = place.operator()
    place.script("0001-a", traffic=(length,), argv=("python", "-m", "sglang.launch_server"))
    go_live(place, client, "0001-a")
    with contextlib.ExitStack() as asked:
        answered = asked.enter_context(slow_request(place, length)) if place.kind != "fake" else lambda: not aborted
        stream = client.unit_stop(client.endpoint, Limits(drain, 2 * PATIENCE, 0.0))
        events, answer = finish(stream)
        assert answered() is not bool(aborted)
    assert (answer.inflight, answer.aborted, answer.refused, answer.killed) == (1, aborted, True, False)
    assert any(event.stage == "aborting" for event in events) is bool(aborted)
    assert drain * aborted <= answer.seconds < PATIENCE, "as long as the request, or as the drain"


@contextlib.contextmanager
def slow_request(place: Place, seconds: float) -> Iterator[Callable[[], bool]]:
    """A request to the small engine that it has accepted; its answer tells whether it was whole."""
    with socket.create_connection((place.address, PORT), timeout=2 * PATIENCE) as connection:
        connection.sendall(f"GET /slow?{seconds} HTTP/1.0\r\n\r\n".encode())
        time.sleep(0.5)

        def answered() -> bool:
            with contextlib.suppress(ConnectionError):
                return connection.recv(4096).startswith(b"HTTP/1.0 404")
            return False

        yield answered


def test_a_service_that_made_room_comes_back_unless_the_release_was_promoted(place: Place) -> None:
    client, other = place.operator(), make_other_live(place)
    take_its_place(place, client, other, "0001-a")
    answer = converge(client)
    assert [(item.service, item.started) for item in answer.returned] == [("mini", True)]
    assert other_service(client) == ("0001-m", True)
    assert (observe(client).running, observe(client).transition) == (None, None)

    started = take_its_place(place, client, other, "0002-b")
    text = unit_text("0002-b", place, candidate=False)
    client.promote(SERVICE, "0002-b", text, expect_live=None, expect_invocation=started.invocation_id)
    assert converge(client).serving
    assert (observe(client).running.release, other_service(client)) == ("0002-b", (None, False))


def test_nothing_is_started_beside_a_service_that_excludes_it(place: Place) -> None:
    client, other = place.operator(), make_other_live(place)
    place.script("0001-a", port=PORT)
    stage(client, "0001-a")
    begin(client, None, "0001-a", exclusive=(other,))
    with pytest.raises(AgentError) as caught:
        client.unit_start(SERVICE, "0001-a", unit_text("0001-a", place))
    assert caught.value.code == "excluded"
    assert (observe(client).running, other_service(client)) == (None, ("0001-m", True))


def test_a_service_that_was_stopped_is_not_started_unasked(place: Place) -> None:
    client = place.operator()
    go_live(place, client, "0001-a")
    stop(client)
    answer = converge_unasked(client)
    assert (answer.started, answer.serving) == (False, False)
    assert observe(client).running is None
    assert converge(client).serving


def second(place: Place) -> str:
    """Another address of the host, its own: the hosts of other workers share the network."""
    return place.address.replace("127.", "127.1", 1)


def leave_behind(place: Place) -> int:
    """Have a process of the live server stand outside its unit, with the port; return its pid."""
    if place.world is not None:
        return place.world.machine.leave_behind("sglang-kimi.service")
    pid = next(str(item.pid) for item in observe(place.connect()).listeners if item.address == second(place))
    manager = ["org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"]
    scope = ["stray.scope", "fail", "1", "PIDs", "au", "1", pid, "0"]
    place.run("busctl", "call", *manager, "StartTransientUnit", "ssa(sv)a(sa(sv))", *scope)
    return int(pid)


def test_a_process_of_ours_outside_the_unit_is_seen_and_ended_by_a_stop(place: Place) -> None:
    client = place.operator()
    beside = f"ExecStartPost=/bin/sh -c 'python3 {ENGINE} --address {second(place)} --port {PORT} &'\n"
    stage(client, "0001-a")
    begin(client, None, "0001-a")
    text = unit_text("0001-a", place, extra=beside)
    started = client.unit_start(SERVICE, "0001-a", text)
    client.promote(SERVICE, "0001-a", text, expect_live=None, expect_invocation=started.invocation_id)
    assert converge(client).serving
    if place.world is None:
        until(lambda: any(item.address == second(place) for item in observe(client).listeners))
        converge(client)  # whoever looks at a healthy server knows its processes
    assert observe(client).strays == ()
    pid = leave_behind(place)
    until(lambda: [item.pid for item in observe(client).strays] == [pid])
    answer = stop(client)
    assert not answer.killed
    seen = observe(client)
    # Hosts of other workers share the network: what listens there has no process here.
    assert (seen.strays, [item for item in seen.listeners if item.pid]) == ((), [])
    assert converge(client).serving


def test_whoever_else_has_the_port_is_named_with_its_unit_and_policy(place: Place) -> None:
    client = place.operator()
    unit = "sglang-byhand.service"
    if place.world is not None:
        place.world.machine.start(unit)
        policy = "no"
    else:
        policy = "always"
        words = ["python3", ENGINE, "--address", second(place), "--port", str(PORT)]
        place.run("systemd-run", f"--unit={unit}", f"--property=Restart={policy}", *words)
    try:
        seen = until(
            lambda: client.observe({SERVICE: PORT}) if any(item.pid for item in observe(client).listeners) else None
        )
        assert seen.services[SERVICE].strays == ()
        assert (seen.units[unit].restart, seen.units[unit].release) == (policy, None)
        stop(client)  # ends nobody else's
        assert [item.unit for item in observe(client).listeners if item.pid] == [unit]
    finally:
        if place.world is None:
            place.run("systemctl", "stop", unit)


def test_converge_says_when_the_live_release_does_not_serve(place: Place) -> None:
    client = place.operator()
    go_live(place, client, "0001-a")
    stop(client)
    place.script("0001-a", fails_after=0.1, ready_after=None)
    time.sleep(0.1)
    if place.rehearsal is not None:
        text = unit_text("0001-a", place, "--crash", "0.1", "--delay", "600", candidate=False)
        place.write("/usr/local/lib/systemd/system/sglang-kimi.service", text)
        place.run("systemctl", "daemon-reload")
    answer = converge(client, ready_timeout=2 * PATIENCE)
    assert (answer.started, answer.serving) == (True, False)


def test_start_needs_its_transition_and_a_stopped_unit(place: Place) -> None:
    client = place.operator()
    stage(client, "0001-a")
    with pytest.raises(AgentError) as caught:
        client.unit_start(SERVICE, "0001-a", unit_text("0001-a", place))
    assert caught.value.code == "no-transition"
    begin(client, None, "0001-a")
    with pytest.raises(WorldMoved):
        client.unit_start(SERVICE, "0002-b", unit_text("0002-b", place))
    with pytest.raises(AgentError) as caught:
        client.unit_start(SERVICE, "0001-a", unit_text("0002-b", place))
    assert caught.value.code == "bad-request"
    assert observe(client).candidate is None
    client.unit_start(SERVICE, "0001-a", unit_text("0001-a", place))
    with pytest.raises(WorldMoved):
        client.unit_start(SERVICE, "0001-a", unit_text("0001-a", place))


def test_promotion_is_a_compare_and_set(place: Place) -> None:
    client = place.operator()
    go_live(place, client, "0001-a")
    stage(client, "0002-b")
    begin(client, "0001-a", "0002-b")
    stop(client)
    started = client.unit_start(SERVICE, "0002-b", unit_text("0002-b", place))
    text = unit_text("0002-b", place, candidate=False)
    good: dict[str, Any] = {"expect_live": "0001-a", "expect_invocation": started.invocation_id}
    for wrong in ({"expect_live": None}, {"expect_live": "0002-b"}, {"expect_invocation": "0" * 32}):
        with pytest.raises(WorldMoved):
            client.promote(SERVICE, "0002-b", text, **{**good, **wrong})
    with pytest.raises(AgentError):
        client.promote(SERVICE, "0002-b", unit_text("0003-c", place), **good)
    assert observe(client).live.release == "0001-a"
    client.promote(SERVICE, "0002-b", text, **good)
    assert observe(client).live.release == "0002-b"


def test_a_server_that_died_is_not_promoted(place: Place) -> None:
    place.script("0001-a", fails_after=0.0)
    client = place.operator()
    stage(client, "0001-a")
    begin(client, None, "0001-a")
    started = client.unit_start(SERVICE, "0001-a", unit_text("0001-a", place, "--crash", "0"))
    until(lambda: not observe(client).unit.ok)
    with pytest.raises(WorldMoved):
        client.promote(
            SERVICE,
            "0001-a",
            unit_text("0001-a", place),
            expect_live=None,
            expect_invocation=started.invocation_id,
        )
    assert observe(client).live is None


# --- watching ---------------------------------------------------------------------------------------------------


def test_watch_sees_log_unit_and_health_and_goes_on_until_cancelled(place: Place) -> None:
    place.script("0001-a", log=("hello from the engine",))
    client = place.operator()
    stage(client, "0001-a")
    begin(client, None, "0001-a")
    started = client.unit_start(SERVICE, "0001-a", unit_text("0001-a", place))
    texts: list[str] = []
    units: list[UnitEvent] = []
    healthy = 0
    with client.watch(client.endpoint, started, probe_interval=0.2) as stream:

        def all_seen() -> bool:
            nonlocal healthy
            event = stream.next(0.2)
            if isinstance(event, LogEvent):
                texts.extend(line.text for line in event.lines)
            elif isinstance(event, UnitEvent):
                units.append(event)
            elif isinstance(event, HealthEvent):
                healthy += event.state == "200" and event.ours
            return healthy >= 3 and bool(units) and "hello from the engine" in texts

        until(all_seen)
    assert units[-1].active == "active"
    assert units[-1].invocation_id == started.invocation_id


def test_watch_ends_with_the_first_proof(place: Place) -> None:
    place.script("0001-a", fails_after=0.2, ready_after=None)
    client = place.operator()
    stage(client, "0001-a")
    begin(client, None, "0001-a")
    started = client.unit_start(SERVICE, "0001-a", unit_text("0001-a", place, "--crash", "0.2", "--delay", "600"))
    events, answer = finish(client.watch(client.endpoint, started))
    assert answer.proof == "unit"
    assert isinstance(events[-1], FailedEvent)
