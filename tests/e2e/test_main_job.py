"""The main job by its commands, against a real sshd and a real systemd."""

from __future__ import annotations

import json
import signal

import pytest

from tests.e2e.conftest import Site, finished
from tests.patience import PATIENCE, until


def test_a_profile_becomes_live(site: Site) -> None:
    first = site.json("apply", "tp2")
    assert (first["outcome"], first["release"], first["previous"]) == ("live", "0001-tp2", None)
    assert first["verdict"]["result"] == "pass"
    assert [level["concurrency"] for level in first["bench"]["levels"]] == [2, 4]
    assert all(level["completed"] == level["requests"] for level in first["bench"]["levels"])
    names = [phase["name"] for phase in first["phases"]]
    wanted = ["load", "capture", "warm-up", "ready", "verify", "bench"]
    assert [name for name in names if name in wanted] == wanted
    assert site.live() == "0001-tp2"
    lines = site.json("logs", "-n", "400")["lines"]
    assert any("fired up and ready to roll" in line["text"] for line in lines)


def test_the_same_again_changes_nothing(live_site: Site) -> None:
    before = live_site.invocation()
    again = live_site.json("apply", "tp2")
    assert (again["outcome"], again["release"]) == ("unchanged", "0001-tp2")
    assert live_site.invocation() == before
    assert live_site.json("plan", "tp2", "--detailed-exitcode", expect=0)["action"] == "nothing"


def test_a_host_on_hold_is_not_changed(live_site: Site) -> None:
    live_site.run("hold", "load test until noon", "--for", "2h")
    refused = live_site.json("apply", "pp2", "--yes", expect=4)
    assert "load test until noon" in refused["message"]
    assert live_site.status()["hold"]["reason"] == "load test until noon"
    assert live_site.live() == "0001-tp2"
    live_site.run("hold", "--release")
    assert live_site.status()["hold"] is None


def test_another_profile_replaces_it_and_gives_way_again(live_site: Site) -> None:
    site = live_site
    planned = site.json("plan", "pp2-async", "--detailed-exitcode", expect=10)
    assert {"--pp-size", "--pp-async-batch-depth"} <= {change["name"] for change in planned["changes"]}
    assert planned["expected_downtime_s"] > 0
    second = site.json("apply", "pp2-async", "--yes")
    assert (second["outcome"], second["previous"]) == ("live", "0001-tp2")
    seen = site.status()
    assert seen["live"]["release"] == seen["unit"]["running"] == "0002-pp2-async"
    assert seen["unit"]["restarts"] == 0
    assert seen["drift"] == []
    assert seen["transition"] is seen["candidate"] is seen["lease"] is None
    show = site.host.run(
        ["systemctl", "show", "-p", "FragmentPath,Restart,UnitFileState,NRestarts", "sglang-kimi.service"]
    )
    assert "FragmentPath=/usr/local/lib/systemd/system/sglang-kimi.service" in show
    assert "Restart=on-failure" in show
    assert "UnitFileState=enabled" in show

    compared = site.json("compare", "tp2", "pp2-async")
    assert {"0001-tp2", "0002-pp2-async"} <= set(json.dumps(compared).replace('"', " ").split())

    serving = site.invocation()
    asked = ("--levels", "2", "--repeat", "1", "--output-tokens", "16", "--against", "tp2")
    measured = site.json("bench", *asked)
    assert measured["name"] == "0002-pp2-async@1"
    assert measured["bench"]["levels"][0]["completed"] >= 2
    assert measured["against"]["differences"], "shorter answers than at the smoke benchmark"
    assert site.invocation() == serving
    assert site.json("history")["releases"][0]["benches"][0]["number"] == 1
    assert site.json("compare", "2@1", "tp2", expect=3)["error"]["kind"] == "Refused"

    # Back: started, verified, promoted, not measured again. Then there is nothing further back, but a chosen release.
    back = site.json("rollback", "--yes")
    assert (back["outcome"], back["release"], back["previous"]) == ("live", "0001-tp2", "0002-pp2-async")
    assert site.live() == "0001-tp2"
    assert "none before it" in site.json("rollback", "--yes", expect=3)["message"]
    assert site.json("rollback", "--to", "2", "--yes")["release"] == "0002-pp2-async"
    told = site.json("history")
    assert [(item["number"], item["state"]) for item in told["releases"]] == [(2, "live"), (1, "superseded")]
    of_first = site.json("logs", "--release", "1", "-n", "400")["lines"]
    assert of_first
    assert all("PP1" not in line["text"] for line in of_first)


def test_consent_is_needed_where_something_live_would_restart(live_site: Site) -> None:
    before = live_site.invocation()
    document = live_site.json("apply", "pp2", expect=2)
    assert document["outcome"] == "refused"
    assert document["plan"]["interrupts_live"] is True
    assert document["plan"]["changes"]
    text = finished(live_site.start("apply", "pp2"), expect=2)
    assert "--pp-size 2" in text
    assert live_site.invocation() == before
    assert [item["number"] for item in live_site.json("history")["releases"]] == [1]


def test_equal_but_stopped_is_started_again(live_site: Site) -> None:
    live_site.host.run(["systemctl", "stop", "sglang-kimi.service"])
    seen = live_site.status(expect=6)
    assert any("not running" in text for text in seen["drift"])
    assert live_site.json("apply", "tp2")["outcome"] == "live"
    assert live_site.status()["live"]["release"] == "0001-tp2"


def test_a_unit_edited_by_hand_and_an_engine_patched_in_place_are_noticed(live_site: Site) -> None:
    """Somebody adds an argument and a variable, restarts the service, and replaces SGLang's files."""
    site, path = live_site, "/usr/local/lib/systemd/system/sglang-kimi.service"
    assert site.exit_code("status", "--strict") == 0
    edit = f"sed -i 's/^ExecStart=.*/Environment=EDITED=1\\n&/; s/^TimeoutStopSec=.*/TimeoutStopSec=99/' {path}"
    site.host.run(["sh", "-c", f"{edit}; chmod 600 {path}"])
    site.host.run(["sh", "-c", "systemctl daemon-reload; systemctl restart sglang-kimi.service"])
    until(lambda: site.exit_code("status") == 0)
    assert site.exit_code("status", "--strict") == 10
    planned = site.json("plan", "tp2", "--detailed-exitcode", expect=10)
    assert (planned["action"], planned["restart"], planned["changes"]) == ("converge", True, [])
    assert [item["text"] for item in planned["differences"]] == [
        f"{path} was edited by hand: Environment, TimeoutStopSec 99 instead of 7",
        f"{path} has mode 0600 instead of 0644",
        "running environment: EDITED is set, and 0001-tp2 does not set it",
    ]
    before = site.invocation()
    for command in ("apply", "tp2"), ("converge",):
        assert site.json(*command, expect=2)["outcome"] == "refused"
    assert site.json("converge", "--dry-run")["differences"] == planned["differences"]
    assert site.invocation() == before
    assert site.json("converge", "--yes")["release"] == "0001-tp2"
    assert site.invocation() != before
    assert site.exit_code("status", "--strict") == 0
    assert site.json("apply", "tp2")["outcome"] == "unchanged"

    package = site.host.run(["sh", "-c", "echo /opt/sglang/lib/python*/site-packages/sglang"]).strip()
    site.host.run(["sh", "-c", f"mv {package} {package}.old; cp -rL {package}.old {package}"])
    try:
        (text,) = site.status()["drift"]
        planned = site.json("plan", "tp2", "--detailed-exitcode", expect=10)
    finally:
        site.host.run(["sh", "-c", f"rm -r {package}; mv {package}.old {package}"])
    assert text.startswith("engine files: ")
    assert "changed since 0001-tp2 was proven" in text
    assert planned["action"] == "deploy"


def test_converge_mends_drift(live_site: Site) -> None:
    live_site.host.run(["systemctl", "disable", "--now", "sglang-kimi.service"])
    assert live_site.json("converge")["outcome"] == "live"
    seen = live_site.status()
    assert seen["drift"] == []
    assert "enabled" in live_site.host.run(["systemctl", "is-enabled", "sglang-kimi.service"])


def test_the_gate_decides(live_site: Site) -> None:
    live_site.write_inventory(gate='"aggregate_tok_s@4" = 1000000.0')
    document = live_site.json("apply", "pp2", "--yes", expect=5)
    assert document["outcome"] == "rolled_back"
    assert document["verdict"]["result"] == "fail"
    assert "1000000" in document["failure"]["cause"].replace(" ", "").replace(",", "")
    assert live_site.status()["live"]["release"] == "0001-tp2"


def test_the_same_profile_does_not_get_slower_unnoticed(live_site: Site) -> None:
    live_site.write_inventory(more='environment = { CHANGED = "1" }', relative_gate="")
    live_site.fault("slow", percent=300)
    document = live_site.json("apply", "tp2", "--yes", expect=5)
    assert document["outcome"] == "rolled_back"
    assert document["verdict"]["relative"]["effect"] < -0.3
    assert "against 1 start of tp2" in document["verdict"]["summary"]
    assert document["verdict"]["baseline"]["releases"] == ["0001-tp2"]
    assert live_site.live() == "0001-tp2"
    accepted = live_site.json("apply", "tp2", "--yes", "--baseline", "none")
    assert accepted["outcome"] == "live"
    assert live_site.status()["live"]["verdict"].startswith("pass")


def test_a_gate_that_cannot_be_measured_is_refused_before_anything_stops(live_site: Site) -> None:
    live_site.write_inventory(gate='"ttft_p95_s@4" = 100.0')
    before = live_site.invocation()
    refused = live_site.json("apply", "pp2", "--yes", expect=3)
    assert "4 samples at C=4; a 95th percentile needs 20" in refused["message"]
    assert (live_site.live(), live_site.invocation()) == ("0001-tp2", before)
    assert 'services.kimi.gate."ttft_p95_s@4"' in live_site.run("check", "pp2", expect=2)


def test_a_server_that_hangs_after_a_hundred_requests_is_found_by_a_small_sweep(live_site: Site) -> None:
    text = live_site.inventory.read_text()
    wanted = "requests_at_least = 200\nrequest_timeout = 5\nbudget = 100"
    live_site.inventory.write_text(text.replace("requests_at_least = 0", wanted))
    live_site.fault("hang-at-request", at=120, when_argv_contains="--pp-size")
    document = live_site.json("apply", "pp2", "--yes", expect=5)
    assert document["outcome"] == "rolled_back"
    levels = document["bench"]["levels"]
    assert sum(level["completed"] for level in levels) > 80
    assert "timeout" in levels[-1]["failed"]
    assert "timeout" in document["verdict"]["reasons"][0]
    assert live_site.live() == "0001-tp2"


def test_a_benchmark_without_the_time_to_measure_is_inconclusive(live_site: Site) -> None:
    live_site.write_inventory(gate='"aggregate_tok_s@4" = 1.0')
    text = live_site.inventory.read_text()
    live_site.inventory.write_text(text.replace("requests_at_least = 0", "requests_at_least = 0\nbudget = 1"))
    live_site.fault("slow", percent=3000, when_argv_contains="--pp-size")
    document = live_site.json("apply", "pp2", "--yes", expect=7)
    assert document["outcome"] == "inconclusive"
    assert document["verdict"]["result"] == "inconclusive"
    assert live_site.live() == "0001-tp2"
    assert live_site.status()["health"]["ok"]


def test_logs_follow_and_end_with_ctrl_c(live_site: Site) -> None:
    child = live_site.start("logs", "-f", "-n", "5")
    assert child.stdout is not None
    assert child.stdout.readline().strip()
    child.send_signal(signal.SIGINT)
    finished(child, expect=130)


def test_status_can_be_watched(live_site: Site) -> None:
    child = live_site.start("status", "--watch", "--interval", "0.5")
    assert child.stdout is not None
    seen = 0
    while seen < 2:
        line = child.stdout.readline()
        assert line, "it ended by itself"
        seen += "release 0001-tp2" in line
    child.send_signal(signal.SIGINT)
    finished(child, expect=0)


def test_status_without_anything_live(site: Site) -> None:
    assert site.status(expect=6)["live"] is None
    assert site.json("history")["releases"] == []
    assert "nothing is live" in site.json("rollback", "--yes", expect=3)["message"]


@pytest.mark.parametrize("profile", ["tp3000", "../../etc/passwd", ""])
def test_an_unknown_profile_is_a_usage_error(site: Site, profile: str) -> None:
    child = site.start("apply", profile)
    output, errors = child.communicate(timeout=PATIENCE)
    assert child.returncode == 2
    assert "Traceback" not in output + errors
