"""What happens to the operator, the host or the connection in mid-change: the host ends up serving the live release."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

import pytest

from deployer_rehearsal import hosts
from tests.e2e.conftest import Site, finished
from tests.patience import PATIENCE, until

SLOW_CANDIDATE = {"when_argv_contains": "--pp-size"}


def begun(site: Site, *, step: str = "wait") -> subprocess.Popen[str]:
    """An apply of pp2 over the live tp2 that has come to ``step``; its candidate hangs in loading for ever."""
    if step == "wait":
        site.fault("hang-in-load", **SLOW_CANDIDATE)
    child = site.start("apply", "pp2", "--yes", "--json")
    until(lambda: site.step() == step)
    return child


def assert_restored(site: Site) -> Any:
    """The live release serves, and nothing of the change is left."""
    seen = site.status()
    assert seen["live"]["release"] == seen["unit"]["running"] == "0001-tp2"
    assert seen["transition"] is seen["candidate"] is None
    assert seen["drift"] == []
    return seen


def assessed(site: Site) -> Any:
    """What the host found after the boot, once it is known."""

    def known() -> Any:
        output, _ = site.start("status", "--json").communicate(timeout=PATIENCE)
        boot = json.loads(output)["hosts"][0]["last_boot"]
        return boot and boot["this_boot"] and boot["outcome"] not in ("waiting", "trying") and boot

    return until(known)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda item: item.name)
def test_one_ctrl_c_goes_back_before_it_ends(live_site: Site, number: signal.Signals) -> None:
    child = begun(live_site)
    child.send_signal(number)
    document = json.loads(finished(child, expect=130))
    assert document["outcome"] == "interrupted"
    assert document["previous"] == "0001-tp2"
    assert "serving again" in document["message"]
    assert_restored(live_site)
    assert live_site.json("history")["releases"][0]["state"] == "interrupted"


def test_a_second_ctrl_c_leaves_it_to_the_guard(live_site: Site) -> None:
    child = begun(live_site)
    child.send_signal(signal.SIGINT)
    until(lambda: live_site.step() == "restore")
    child.send_signal(signal.SIGINT)
    document = json.loads(finished(child, expect=130))
    assert document["outcome"] == "interrupted"
    assert "guard" in document["message"]
    until(lambda: live_site.step() is None)
    until(lambda: live_site.exit_code("status") == 0)
    assert_restored(live_site)


def test_ctrl_c_before_anything_was_changed(live_site: Site) -> None:
    before = live_site.invocation()
    child = live_site.start("apply", "pp2", "--yes")
    until(lambda: f'"pid": {child.pid},' in live_site.host.run(["cat", "/var/lib/deployer/lease.json"]))
    child.send_signal(signal.SIGINT)
    finished(child, expect=130)
    assert live_site.invocation() == before


def test_an_operator_that_dies_is_replaced_by_the_guard_after_the_grace(live_site: Site) -> None:
    live_site.write_inventory(grace=12)  # so long that a busy machine can look before it ends
    child = begun(live_site)
    child.kill()
    child.communicate()
    assert live_site.status(expect=6)["transition"]["to"] == "0002-pp2"
    until(lambda: live_site.step() is None)
    until(lambda: live_site.exit_code("status") == 0)
    assert_restored(live_site)
    entry = live_site.json("history")["releases"][0]
    assert entry["state"] == "abandoned"


@pytest.mark.parametrize("words", [("resume",), ("apply", "pp2", "--yes")], ids=["resume", "apply"])
def test_an_operator_that_comes_back_within_the_grace_goes_on(live_site: Site, words: tuple[str, ...]) -> None:
    live_site.write_inventory(grace=60)
    child = live_site.start("apply", "pp2", "--yes", "--json")
    until(lambda: live_site.step() == "wait")
    child.kill()
    child.communicate()
    started = live_site.invocation()
    document = live_site.json(*words)
    assert (document["outcome"], document["release"]) == ("live", "0002-pp2")
    assert live_site.invocation() == started
    assert live_site.live() == "0002-pp2"


def test_another_profile_ends_an_abandoned_change_first(live_site: Site) -> None:
    live_site.write_inventory(grace=60)
    child = begun(live_site)
    child.kill()
    child.communicate()
    live_site.fault("clear")
    document = live_site.json("apply", "tp1", "--yes")
    assert (document["outcome"], document["previous"]) == ("live", "0001-tp2")


def test_a_power_cut_in_mid_change_boots_the_live_release(live_site: Site) -> None:
    child = begun(live_site)
    hosts.powercut(live_site.host)
    child.kill()
    child.communicate()
    live_site.fault("clear")
    until(lambda: live_site.exit_code("status") == 0)
    assert_restored(live_site)
    boot = assessed(live_site)
    assert (boot["outcome"], boot["release"], boot["tried"]) == ("healthy", "0001-tp2", None)
    assert "assessed: 0001-tp2 serves" in live_site.run("status")


def test_a_live_release_whose_engine_broke_gives_way_at_the_next_boot(live_site: Site) -> None:
    host, other = live_site.host, "/opt/sglang-other"
    host.run(["cp", "-a", "/opt/sglang", other])
    inventory = live_site.inventory.read_text()
    live_site.inventory.write_text(inventory.replace("/opt/sglang/", f"{other}/"))
    live_site.run("apply", "pp2", "--yes")
    live_site.inventory.write_text(inventory)
    host.run(["rm", "-rf", other])
    hosts.reboot(host)
    boot = assessed(live_site)
    assert (boot["outcome"], boot["release"]) == ("fell-back", "0001-tp2")
    assert (boot["tried"]["from"], boot["tried"]["to"]) == ("0002-pp2", "0001-tp2")
    assert_restored(live_site)
    assert "0002-pp2 did not come up after the boot (" in " ".join(live_site.run("status").split())
    assert '"op": "assess.fell-back"' in host.run(["cat", "/var/lib/deployer/kimi/audit.jsonl"])
    assert [item["state"] for item in live_site.json("history")["releases"]] == ["superseded", "live"]


def test_two_operators_at_once(live_site: Site) -> None:
    child = begun(live_site)
    refused = live_site.json("rollback", "--yes", expect=4)
    assert "apply pp2" in refused["message"]
    live_site.json("converge", expect=4)
    child.send_signal(signal.SIGINT)
    finished(child, expect=130)
    assert_restored(live_site)


def test_a_connection_that_breaks_is_taken_up_again(live_site: Site) -> None:
    live_site.write_inventory(grace=30)
    child = live_site.start("apply", "pp2", "--yes", "--json")
    until(lambda: live_site.step() == "wait")
    # sshd's processes for this connection die; the daemon stays.
    live_site.host.run(["pkill", "-KILL", "-f", "sshd: root@notty"])
    document = json.loads(finished(child, expect=0))
    assert (document["outcome"], document["release"]) == ("live", "0002-pp2")


def test_a_host_that_cannot_be_reached(site: Site) -> None:
    text = site.inventory.read_text().replace("port = 2222", "port = 2223")
    site.inventory.write_text(text)
    document = site.json("status", expect=8)
    assert document["error"]["kind"] == "HostUnreachable"
    assert document["error"]["remedy"]


def test_a_guard_that_is_killed_is_followed_by_another(live_site: Site) -> None:
    child = begun(live_site)
    child.send_signal(signal.SIGINT)
    until(lambda: live_site.step() == "restore")
    child.send_signal(signal.SIGINT)
    finished(child, expect=130)
    until(lambda: '"command": "guard"' in live_site.host.run(["cat", "/var/lib/deployer/lease.json"]))
    live_site.host.run(["systemctl", "kill", "-s", "KILL", "deployer-guard@kimi.service"])
    until(lambda: live_site.step() is None)
    assert assert_restored(live_site)["last_guard"]["why"] == "the way back had begun"


def test_a_guard_that_is_masked_leaves_a_change_that_status_tells_of(live_site: Site) -> None:
    child = begun(live_site)
    live_site.host.run(["systemctl", "mask", "--runtime", "--now", "deployer-guard@kimi.service"])
    child.kill()
    child.communicate()
    until(lambda: live_site.status(expect=6)["unattended"])
    assert "nobody is finishing this change" in live_site.run("status", expect=6)
    live_site.run("converge")
    live_site.host.run(["systemctl", "unmask", "--runtime", "deployer-guard@kimi.service"])
    assert_restored(live_site)
