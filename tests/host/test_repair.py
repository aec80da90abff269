"""Converge as repair: hung servers, ports that strangers hold, disks that are full, state files that are damaged."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from deployer.errors import AgentError
from deployer.rehearsal.host import RehearsalHost
from tests.host.host_contract import (
    ENGINE,
    PORT,
    SERVICE,
    UNIT,
    Place,
    begin,
    converge,
    go_live,
    make_place,
    observe,
    stage,
    stop,
    unit_text,
    until,
)

STATE = f"/var/lib/deployer/{SERVICE}"


@pytest.fixture
def place(fresh_host: RehearsalHost) -> Iterator[Place]:
    made = make_place("local", fresh_host)
    yield made
    run(made, "rm", "-f", "/run/engine-health")
    made.close()


def run(place: Place, *argv: str, stdin: str | None = None) -> str:
    assert place.rehearsal is not None
    return place.rehearsal.run(list(argv), stdin=stdin).strip()


# --- hung servers -----------------------------------------------------------------------------------------------


def test_a_hung_live_server_is_restarted_when_repair_is_asked_for(place: Place) -> None:
    client = place.operator()
    started = go_live(place, client, "0001-a", "--say", "The server is fired up and ready to roll!")
    run(place, "tee", "/run/engine-health", stdin="503")
    answer = converge(client, ready_timeout=1)
    assert (answer.started, answer.serving) == (False, False), "not without being asked"
    assert answer.cursor
    assert answer.invocation_id == started.invocation_id
    answer = converge(client, repair=True, await_ready=False)
    assert "restarted: /health answered 503" in answer.actions
    assert answer.started
    assert answer.started_boottime
    assert answer.invocation_id not in (None, started.invocation_id)
    run(place, "rm", "/run/engine-health")
    again = converge(client, repair=True)
    assert (again.serving, again.started, again.invocation_id) == (True, False, answer.invocation_id)


def test_a_server_that_loads_is_waited_for_and_one_that_never_listens_is_restarted(place: Place) -> None:
    client = place.operator()
    stage(client, "0001-a")
    begin(client, None, "0001-a")
    text = unit_text("0001-a", place, "--delay", "4")
    started = client.unit_start(SERVICE, "0001-a", text)
    client.promote(SERVICE, "0001-a", text, expect_live=None, expect_invocation=started.invocation_id)
    answer = converge(client, repair=True)
    assert (answer.serving, answer.invocation_id) == (True, started.invocation_id)
    run(place, "systemctl", "restart", UNIT)
    time.sleep(1.1)
    answer = converge(client, repair=True, ready_timeout=1, await_ready=False)
    assert any("does not listen" in action for action in answer.actions)
    assert answer.started


def test_converge_starts_nothing_while_a_stranger_has_the_port(place: Place) -> None:
    client = place.operator()
    go_live(place, client, "0001-a")
    stop(client)
    words = ["python3", ENGINE, "--address", place.address, "--port", str(PORT)]
    run(place, "systemd-run", "--unit=sglang-stranger", *words)
    try:
        until(lambda: any(item.address == place.address for item in client.listeners(PORT)))
        with pytest.raises(AgentError) as caught:
            converge(client, address=place.address)
    finally:
        run(place, "systemctl", "stop", "sglang-stranger")
    assert caught.value.code == "port-taken"
    assert caught.value.detail["listeners"][0]["unit"] == "sglang-stranger.service"
    assert observe(client).running is None
    assert converge(client, address=place.address).serving


def test_a_server_that_systemd_restarted_long_ago_can_be_watched(place: Place) -> None:
    client = place.operator()
    go_live(place, client, "0001-a")
    run(place, "systemctl", "kill", "--signal=KILL", UNIT)
    until(lambda: observe(client).unit.restarts == 1 and observe(client).running)
    time.sleep(1.0)
    answer = converge(client)
    watching = {"invocation_id": answer.invocation_id, "cursor": answer.cursor, "address": place.address}
    with client.watch(service=SERVICE, port=PORT, attach=True, **watching) as stream:
        seen = until(lambda: event if (event := stream.next(0.2)) and event["kind"] == "health" else None)
    assert seen["state"] == "200"
    assert seen["t"] < 2.0, "and its age does not count"
