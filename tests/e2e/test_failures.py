"""Whatever fails between stop and promotion: evidence is kept and the live release serves again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.conftest import Site

ONLY_CANDIDATE = {"when_argv_contains": "--pp-size"}


@pytest.mark.parametrize(
    ("name", "options", "phase", "signature"),
    [
        ("crash-in-load", {}, "load", None),
        ("oom-in-capture", {}, "capture", "capture_oom"),
        ("crash-after-capture", {}, None, None),
        (
            "wrong-argument",
            {"argument": "max_running_requests", "value": 3},
            "verify",
            "not-in-effect",
        ),
        ("garbage-output", {}, "bench", "gate-fail"),
        ("garbage-output", {"text": ""}, None, None),
        ("crash-while-serving", {"at": 5}, "bench", None),
    ],
    ids=[
        "crash-in-load",
        "oom-in-capture",
        "crash-late",
        "wrong-argument",
        "garbage",
        "empty",
        "crash-serving",
    ],
)
def test_a_failed_candidate_is_rolled_back(
    live_site: Site, name: str, options: dict[str, Any], phase: str | None, signature: str | None
) -> None:
    site = live_site
    site.fault(name, **options, **ONLY_CANDIDATE)
    document = site.json("apply", "pp2", "--yes", expect=5)
    assert document["outcome"] == "rolled_back"
    assert document["previous"] == "0001-tp2"
    failure = document["failure"]
    assert failure["cause"]
    if phase:
        assert failure["phase"] == phase
    if signature:
        assert failure["signature"] == signature

    seen = site.status()
    assert seen["live"]["release"] == seen["unit"]["running"] == "0001-tp2"
    assert seen["health"]["ok"]
    assert seen["drift"] == []
    assert seen["transition"] is seen["candidate"] is seen["lease"] is None
    assert seen["guard"] == "inactive"

    # The evidence is kept: the release's own log, read again, tells the same.
    number = int(document["release"][:4])
    again = site.json("diagnose", "--release", str(number))
    assert again["recorded"]["signature"] == failure["signature"]
    if signature == "capture_oom":
        assert (again["signature"], again["phase"]) == (signature, phase)
        assert again["source"] == f"release {document['release']}"
        assert [span["name"] for span in again["timeline"]][-1] == phase
    assert site.json("diagnose")["outcome"] == "no-failure"

    entry = next(item for item in site.json("history")["releases"] if item["release"] == document["release"])
    assert entry["state"] == "failed"
    assert entry["failure"]["cause"] == failure["cause"]


def test_a_change_by_sglang_fails_unless_the_profile_allows_it(live_site: Site) -> None:
    site = live_site
    (site.folder / "profiles").mkdir()
    (site.folder / "deployer.toml").write_text('profiles = "profiles"\n')
    profile = site.folder / "profiles" / "pp2.toml"
    text = 'extends = "pp2"\n[memory]\nchunked_prefill_size = 4096\n'
    profile.write_text(text)
    site.fault("wrong-argument", argument="chunked_prefill_size", value=2048, **ONLY_CANDIDATE)
    failure = site.json("apply", "pp2", "--yes", expect=5)["failure"]
    assert "chunked_prefill_size is 2048 in the running server; the profile requested 4096" in failure["cause"]
    assert 'allow_changed = ["chunked_prefill_size"]' in failure["remedy"]

    profile.write_text(text + '[verify]\nallow_changed = ["chunked_prefill_size"]\n')
    document = site.json("apply", "pp2", "--yes")
    assert document["outcome"] == "live"
    assert [item["argument"] for item in document["in_effect"]["changed"]] == ["chunked_prefill_size"]
    assert document["in_effect"]["computed"]["micro_batch_cap"] == 32
    assert site.status()["live"]["in_effect"] == document["in_effect"]
    number = str(int(document["release"][:4]))
    detail = site.json("history", number)
    found = {item["argument"]: item for item in detail["arguments"]}
    assert found["pp_size"]["verdict"] == "equal"
    assert found["disable_overlap_schedule"]["verdict"] == "defaulted"
    assert "incompatible with overlap schedule" in found["disable_overlap_schedule"]["reason"]
    assert "2 micro-batches in turn of at most 32 requests" in site.run("status", "--verbose")
    assert "disable_overlap_schedule" in site.run("history", number, "--defaults")


def test_a_failed_release_is_no_target_and_its_log_tail_is_shown(live_site: Site) -> None:
    site = live_site
    site.fault("crash-in-load", **ONLY_CANDIDATE)
    output = site.run("apply", "pp2", "--yes", expect=5)
    assert "Traceback" in output  # the engine's, in the log tail
    assert "0001-tp2 is serving again" in output
    failed = max(item["number"] for item in site.json("history")["releases"])
    assert "never live" in site.json("rollback", "--to", str(failed), "--yes", expect=3)["message"]


def test_a_server_that_never_gets_ready_stalls(live_site: Site) -> None:
    site = live_site
    site.write_inventory(more="[services.kimi.deadlines.stall]\nwarm-up = 2")
    site.fault("never-ready", **ONLY_CANDIDATE)
    document = site.json("apply", "pp2", "--yes", expect=5)
    assert document["failure"]["phase"] == "warm-up"
    site.write_inventory()
    assert site.status()["health"]["ok"]


def test_without_a_live_release_nothing_serves(site: Site) -> None:
    site.fault("crash-in-load")
    document = site.json("apply", "tp2", expect=6)
    assert document["outcome"] == "down"
    assert site.status(expect=6)["live"] is None
    state = site.host.run(["systemctl", "show", "-P", "ActiveState", "sglang-kimi.service"])
    assert state.strip() == "inactive"


def test_a_live_release_that_does_not_come_back_either_is_said_so(live_site: Site) -> None:
    live_site.fault("crash-in-load")
    document = live_site.json("apply", "pp2", "--yes", expect=6)
    assert document["outcome"] == "down"
    assert "0001-tp2" in document["message"]
    assert live_site.live() == "0001-tp2"


@pytest.mark.parametrize("fault", ["ignore-sigterm", "port-never-released"])
def test_an_old_server_that_does_not_go_is_killed_and_waited_for(site: Site, fault: str) -> None:
    site.fault(fault)
    site.run("apply", "tp2")
    assert site.json("apply", "pp2", "--yes")["outcome"] == "live"
