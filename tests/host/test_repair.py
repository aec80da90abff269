"""Converge as repair: hung servers, ports that strangers hold, disks that are full, state files that are damaged."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployer.errors import AgentError, LeaseLost
from deployer.records.answers import DropIn, Started
from deployer.records.events import HealthEvent
from deployer.records.step import Step
from tests.host.host_contract import (
    ENGINE,
    PORT,
    SERVICE,
    UNIT,
    Connection,
    Place,
    acquire,
    begin,
    converge,
    deploying,
    go_live,
    observe,
    stage,
    stop,
    unit_text,
)
from tests.patience import until

STATE = f"/var/lib/deployer/{SERVICE}"

# --- hung servers -----------------------------------------------------------------------------------------------


def test_a_hung_live_server_is_restarted_when_repair_is_asked_for(place: Place) -> None:
    client = place.operator()
    started = go_live(place, client, "0001-a", "--say", "The server is fired up and ready to roll!")
    place.run("tee", "/run/engine-health", stdin="503")
    answer = converge(client, ready_timeout=1)
    assert (answer.started, answer.serving) == (False, False), "not without being asked"
    assert answer.cursor
    assert answer.invocation_id == started.invocation_id
    answer = converge(client, repair=True, await_ready=False)
    assert "restarted: /health answered 503" in answer.actions
    assert answer.started
    assert answer.started_boottime
    assert answer.invocation_id not in (None, started.invocation_id)
    place.run("rm", "/run/engine-health")
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
    place.write("/run/engine-delay", "600")
    place.run("systemctl", "restart", UNIT)
    time.sleep(1.1)
    answer = converge(client, repair=True, ready_timeout=1, await_ready=False)
    assert any("does not listen" in action for action in answer.actions)
    assert answer.started


def test_converge_starts_nothing_while_a_stranger_has_the_port(place: Place) -> None:
    client = place.operator()
    go_live(place, client, "0001-a")
    stop(client)
    words = ["python3", ENGINE, "--address", place.address, "--port", str(PORT)]
    place.run("systemd-run", "--unit=sglang-stranger", *words)
    try:
        until(lambda: any(item.address == place.address for item in client.listeners(PORT)))
        with pytest.raises(AgentError) as caught:
            converge(client)
    finally:
        place.run("systemctl", "stop", "sglang-stranger")
    assert caught.value.code == "port-taken"
    assert caught.value.detail["listeners"][0]["unit"] == "sglang-stranger.service"
    assert observe(client).running is None
    assert converge(client).serving


def test_a_server_that_systemd_restarted_long_ago_can_be_watched(place: Place) -> None:
    client = place.operator()
    go_live(place, client, "0001-a")
    place.run("systemctl", "kill", "--signal=KILL", UNIT)
    until(lambda: observe(client).unit.restarts == 1 and observe(client).running)
    answer = converge(client)
    assert answer.invocation_id
    assert answer.cursor
    running = Started(answer.invocation_id, answer.cursor, attach=True)
    time.sleep(1.0)
    begun = time.monotonic()
    with client.watch(client.endpoint, running) as stream:
        seen = until(lambda: event if isinstance(event := stream.next(0.2), HealthEvent) else None)
    assert seen.state == "200"
    assert seen.t <= time.monotonic() - begun, "its age does not count"


# --- full disks and damaged files: the way back -----------------------------------------------------------------


@pytest.fixture
def small_disk(place: Place) -> Iterator[Place]:
    """The state folder on a disk of four megabytes."""
    place.run("mount", "-t", "tmpfs", "-o", "size=4m", "none", "/var/lib/deployer")
    yield place
    place.run("systemctl", "stop", f"deployer-guard@{SERVICE}")
    place.run("umount", "-l", "/var/lib/deployer")


def fill(place: Place) -> None:
    place.run("sh", "-c", "cat /dev/zero > /var/lib/deployer/full 2>/dev/null || true")


def switched(place: Place) -> Connection:
    """An operator in mid-deployment of 0002-b over a live 0001-a: the old server is stopped, the new one started."""
    client = deploying(place, grace=1.0)
    stop(client)
    client.unit_start(SERVICE, "0002-b", unit_text("0002-b", place))
    return client


def restored(place: Place) -> None:
    """Wait until the guard has brought 0001-a back."""
    client = place.connect()

    def back() -> bool:
        state = observe(client)
        return state.transition is None and state.running is not None and state.running.release == "0001-a"

    until(back)
    assert observe(client).candidate is None


@pytest.mark.parametrize("times", [1, 2], ids=["with the reserve", "to the last byte"])
def test_the_guard_restores_on_a_full_disk(small_disk: Place, times: int) -> None:
    client = switched(small_disk)
    fill(small_disk)
    if times == 2:
        small_disk.run("rm", "/var/lib/deployer/reserve")
        fill(small_disk)
        small_disk.run("sh", "-c", "cat /dev/zero > /var/lib/deployer/more 2>/dev/null || true")
    client.close(bye=False)
    restored(small_disk)


def test_an_operator_goes_back_on_a_full_disk(small_disk: Place) -> None:
    client = switched(small_disk)
    small_disk.run("rm", "/var/lib/deployer/reserve")
    fill(small_disk)
    client.lease_renew()
    client.transition_step(SERVICE, Step.RESTORE)
    answer = converge(client)
    assert (answer.live, answer.serving) == ("0001-a", True)
    assert observe(client).release("0002-b").state == "abandoned", "written into the blocks it had"


@pytest.mark.parametrize("text", ["", "{}", '{"to": '])
def test_the_guard_restores_with_damaged_state_files(place: Place, text: str) -> None:
    client = switched(place)
    for name in (f"{STATE}/transition.json", f"{STATE}/releases/0002-b/manifest.json"):
        place.run("tee", name, stdin=text)
    problems = observe(place.connect()).problems
    assert len(problems) == 2
    client.close(bye=False)
    restored(place)
    state = observe(place.connect())
    assert state.release("0002-b").state == "corrupt"
    assert "transition.json.corrupt-" in place.run("ls", STATE)
    assert state.next_number == 3


def test_a_damaged_lease_blocks_nobody(place: Place) -> None:
    client = place.operator()
    go_live(place, client, "0001-a")
    place.run("tee", "/var/lib/deployer/lease.json", stdin="{}")
    other = place.connect()
    seen = other.observe({SERVICE: PORT})
    assert seen.lease is None
    assert any("lease.json" in text for text in seen.services[SERVICE].problems)
    acquire(other)
    assert converge(other).serving
    with pytest.raises(LeaseLost):
        client.lease_renew()


# --- the guard is really there ----------------------------------------------------------------------------------


def test_a_damaged_agent_file_is_written_anew_before_the_guard_starts(place: Place) -> None:
    client = place.operator()
    stage(client, "0001-a")
    begin(client, None, "0001-a")
    client.transition_end(SERVICE)
    path = place.run("sh", "-c", "ls /var/lib/deployer/agent-*.py")
    place.run("tee", path, stdin="import sys; sys.exit('damaged')\n")
    begin(client, None, "0001-a")
    assert observe(client).guard.active == "active"
    assert "damaged" not in place.run("head", "-1", path)


def test_a_guard_that_gives_no_sign_of_life_is_an_error(place: Place) -> None:
    client = place.operator()
    stage(client, "0001-a")
    place.run("mkdir", "-p", "/run/systemd/system/deployer-guard@.service.d")
    broken = "[Service]\nExecStart=\nExecStart=/bin/sh -c 'sleep 0.2; exit 1'\n"
    place.run("tee", "/run/systemd/system/deployer-guard@.service.d/x.conf", stdin=broken)
    with pytest.raises(AgentError) as caught:
        begin(client, None, "0001-a")
    assert caught.value.code == "guard"
    assert observe(client).transition is None


# --- what systemd merges, and when it does not answer -----------------------------------------------------------


def test_the_drop_ins_are_read_from_disk_and_probe_names_those_that_decide(place: Place) -> None:
    client = place.operator()
    go_live(place, client, "0001-a")
    for name, text in (
        ("a", "[Service]\nExecStart=\nExecStart=/bin/false\nNice=5\n"),
        ("b", "[Service]\nNice=1\n"),
    ):
        folder = f"/etc/systemd/system/{UNIT}.d"
        place.run("mkdir", "-p", folder)
        place.run("tee", f"{folder}/{name}.conf", stdin=text)
    drop_ins = client.probe(SERVICE, unit_text("0001-a", place)).drop_ins
    assert drop_ins == (DropIn(f"/etc/systemd/system/{UNIT}.d/a.conf", ("ExecStart",)),)
    on_disk = {Path(item.path).name: item.keys for item in observe(client).drop_ins}
    assert on_disk == {"a.conf": ("ExecStart", "Nice"), "b.conf": ("Nice",)}


def test_looking_goes_on_while_systemd_re_executes_itself(place: Place) -> None:
    client = place.operator()
    go_live(place, client, "0001-a")
    for _ in range(3):
        place.run("sh", "-c", "systemctl daemon-reexec >/dev/null 2>&1 &")
        for _ in range(5):
            assert observe(client).running.release == "0001-a"


def test_a_practice_host_cannot_set_the_clock_of_the_machine(place: Place) -> None:
    shown = place.run("sh", "-c", "date -s @$(date +%s) 2>&1; grep -h CapBnd /proc/1/status /proc/self/status")
    assert "Operation not permitted" in shown
    bounds = [int(line.split()[1], 16) for line in shown.splitlines() if line.startswith("CapBnd")]
    assert len(bounds) == 2
    assert not any(bound & (1 << 25) for bound in bounds)
