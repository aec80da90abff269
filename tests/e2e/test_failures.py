"""Whatever fails between stop and promotion: evidence is kept and the live release serves again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.conftest import Site

ONLY_CANDIDATE = {"when_argv_contains": "--pp-size"}


@pytest.mark.parametrize(
    ("name", "options", "phase", "words"),
    [
        ("crash-in-load", {}, "load", "exception"),
        ("oom-in-capture", {}, "capture", "out of memory"),
        ("crash-after-capture", {}, None, ""),
        (
            "wrong-argument",
            {"argument": "max_running_requests", "value": 3},
            "verify",
            "max_running_requests",
        ),
        ("garbage-output", {}, "bench", ""),
        ("garbage-output", {"text": ""}, None, ""),
        ("crash-while-serving", {"at": 4}, None, ""),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_failed_candidate_is_rolled_back(
    live_site: Site, name: str, options: dict[str, Any], phase: str | None, words: str
) -> None:
    live_site.fault(name, **options, **ONLY_CANDIDATE)
    document = live_site.json("apply", "pp2", "--yes", expect=5)
    assert document["outcome"] == "rolled_back"
    assert document["previous"] == "0001-tp2"
    assert words.lower() in document["failure"]["cause"].lower()
    if phase:
        assert document["failure"]["phase"] == phase
    assert document["failure"]["remedy"]

    seen = live_site.status()
    assert seen["live"]["release"] == seen["unit"]["running"] == "0001-tp2"
    assert seen["health"]["ok"]
    assert seen["drift"] == []
    assert seen["transition"] is seen["candidate"] is None

    # The evidence is kept, and the failed release is no target of a rollback.
    entry = next(item for item in live_site.json("history")["releases"] if item["number"] == 2)
    assert entry["state"] == "failed"
    assert entry["failure"]["cause"] == document["failure"]["cause"]
    assert "never live" in live_site.json("rollback", "--to", "2", "--yes", expect=3)["message"]


def test_the_log_tail_of_a_crash_is_shown(live_site: Site) -> None:
    live_site.fault("crash-in-load", **ONLY_CANDIDATE)
    output = live_site.run("apply", "pp2", "--yes", expect=5)
    assert "Traceback" in output  # the engine's, in the log tail
    assert "0001-tp2 is serving again" in output


def test_without_a_live_release_nothing_serves(site: Site) -> None:
    site.fault("crash-in-load")
    document = site.json("apply", "tp2", expect=6)
    assert document["outcome"] == "down"
    assert site.status(expect=6)["live"] is None
    assert "inactive" in site.host.run(["sh", "-c", "systemctl is-active sglang-kimi.service || true"])


def test_a_live_release_that_does_not_come_back_either_is_said_so(live_site: Site) -> None:
    live_site.fault("crash-in-load")
    document = live_site.json("apply", "pp2", "--yes", expect=6)
    assert document["outcome"] == "down"
    assert "0001-tp2" in document["message"]
    assert live_site.live() == "0001-tp2"


def test_an_engine_that_ignores_sigterm_is_killed(site: Site) -> None:
    site.fault("ignore-sigterm")
    site.run("apply", "tp2")
    assert site.json("apply", "pp2", "--yes", timeout=90)["outcome"] == "live"


def test_a_port_that_stays_busy_is_waited_for(site: Site) -> None:
    site.fault("port-never-released", when_argv_contains="--tp-size 2")
    site.run("apply", "tp2")
    assert site.json("apply", "pp2", "--yes", timeout=90)["outcome"] == "live"


def test_a_server_that_never_gets_ready_stalls(live_site: Site) -> None:
    live_site.write_inventory(more="[services.kimi.deadlines.stall]\nwarm-up = 3")
    live_site.fault("never-ready", **ONLY_CANDIDATE)
    document = live_site.json("apply", "pp2", "--yes", expect=5, timeout=90)
    assert document["failure"]["phase"] == "warm-up"
    assert live_site.status()["health"]["ok"]
