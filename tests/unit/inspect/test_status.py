"""The status and history documents, from what a host says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from deployer.deploy.drift import differences
from deployer.deploy.session import Health
from deployer.inspect.history import ReleaseReport, history
from deployer.inspect.status import StatusReport, drift
from deployer.records.effect import ArgumentInEffect
from deployer.records.host import BootReport, GuardDeed, GuardState, HostState, Lease, Owner, ServiceState
from deployer.report.service_view import history_view, release_view, status_view
from tests.unit.deploy.builders import host_state, release, service_state

LIVE = release()
OK = Health(True, "200", 1.02)


def render(view: Any) -> str:
    console = Console(width=140, force_terminal=False)
    with console.capture() as capture:
        console.print(view)
    return capture.get()


def reported(observed: HostState, health: Health = OK) -> StatusReport:
    found = differences("kimi", observed)
    words = drift(observed.services["kimi"], found)
    return StatusReport("kimi", "gpu1", observed, health, tuple(words), 1000.0, found)


def document(observed: HostState, health: Health = OK) -> dict[str, Any]:
    return reported(observed, health).as_json()


def live_state(**changes: Any) -> ServiceState:
    return service_state(live=LIVE, running=LIVE.release, raw=changes)


def test_a_healthy_service() -> None:
    shown = document(host_state(live_state()))
    entry = shown["hosts"][0]
    assert shown["ok"] is True
    assert entry["live"]["release"] == "0001-tp8"
    assert entry["drift"] == []
    assert entry["unit"]["active"] == "active"
    assert len(entry["gpus"]) == 8
    assert "healthy" in render(status_view(reported(host_state(live_state()))))


def test_an_unhealthy_service_is_not_ok() -> None:
    shown = document(host_state(live_state()), Health(False, "timeout", 22.0))
    assert shown["ok"] is False
    assert shown["hosts"][0]["health"] == {"ok": False, "status": "timeout", "seconds": 22.0}


def test_nothing_was_ever_live() -> None:
    report = reported(host_state(service_state()), Health(False, "refused", 0.0))
    assert report.as_json()["ok"] is False
    assert report.as_json()["hosts"][0]["live"] is None
    assert "makes a first release live" in render(status_view(report))


def test_drift_is_in_words_and_as_data() -> None:
    restarted = {"ActiveState": "active", "NRestarts": 3}
    report = reported(host_state(live_state(enabled=False, problems=["transition.json is damaged"], unit=restarted)))
    entry = report.as_json()["hosts"][0]
    not_enabled = "sglang-kimi.service is not enabled: it will not start at boot"
    assert entry["drift"] == [
        "transition.json is damaged",
        not_enabled,
        "the service restarted 3 times since it was started",
    ]
    assert entry["differences"] == [
        {"kind": "enablement", "text": not_enabled, "converges": True, "restart": False, "remedy": ""}
    ]
    assert not_enabled in render(status_view(report))


def test_a_change_that_nobody_finishes_is_seen() -> None:
    transition = {"to": "0002-x", "step": "wait", "started": 900.0}
    for guard, lease, nobody in (
        ("inactive", None, True),
        ("failed", None, True),
        ("active", None, False),
        ("inactive", Lease(3, valid=True), False),
        ("inactive", Lease(3, Owner(command="guard"), valid=True), True),
    ):
        state = live_state(transition=transition, guard={"active": guard, "result": ""})
        report = reported(replace(host_state(state), lease=lease))
        assert report.unattended is nobody
        assert report.as_json()["hosts"][0]["unattended"] is nobody
        assert ("nobody is finishing this change" in render(status_view(report))) is nobody
    assert not reported(host_state(live_state())).unattended


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        (GuardDeed(0.0, "guard", "converge", "grace ended", "ok: started; serving"), "the guard put the live release"),
        (GuardDeed(0.0, "guard", "forget", "it ran on", "ok"), "the guard left the old server as it was, as it ran on"),
        (GuardDeed(0.0, "recover", "converge", "x", "ok: enabled"), "recovery after a boot put the live release back"),
        (GuardDeed(0.0, "guard", "converge", "x", "port-taken: by nginx"), "(FAILED: port-taken: by nginx)"),
    ],
)
def test_what_the_guard_did_last_is_told(deed: GuardDeed, words: str) -> None:
    state = replace(live_state(), guard=GuardState("inactive", "success", deed))
    report = reported(host_state(state))
    assert words in " ".join(render(status_view(report)).split())
    assert report.as_json()["hosts"][0]["last_guard"]["why"] == deed.why


@pytest.mark.parametrize(
    ("boot", "words"),
    [
        (BootReport(0.0, "b", "0001-tp8", "healthy", "0001-tp8 serves"), "assessed: 0001-tp8 serves"),
        (BootReport(0.0, "b", "0001-tp8", "fell-back", "0002-x did not come up"), "FELL BACK: 0002-x did not"),
        (BootReport(0.0, "b", "0001-tp8", "waiting", "waiting for 0001-tp8"), ": waiting for 0001-tp8"),
        (BootReport(0.0, "old", "0001-tp8", "failed", "[it] did not"), "FAILED: [it] did not (an earlier boot)"),
    ],
)
def test_what_came_of_the_last_boot_is_told(boot: BootReport, words: str) -> None:
    report = reported(host_state(replace(live_state(), boot=boot)))
    assert words in " ".join(render(status_view(report)).split())
    shown = report.as_json()["hosts"][0]["last_boot"]
    assert (shown["outcome"], shown["this_boot"]) == (boot.outcome, boot.boot_id == "b")
    assert reported(host_state(live_state())).as_json()["hosts"][0]["last_boot"] is None


def test_a_change_under_way_is_not_drift() -> None:
    change = {
        "from": "0001-tp8",
        "to": "0002-x",
        "profile": "x",
        "step": "wait",
        "started": 990.0,
        "grace": 15,
    }
    state = live_state(
        transition=change,
        candidate={"release": "0002-x", "text": "", "path": "/run/u"},
        running={"pid": 7, "release": "0002-x", "pids": [7]},
    )
    shown = document(host_state(state))
    entry = shown["hosts"][0]
    assert entry["drift"] == []
    assert entry["transition"] == {
        "from": "0001-tp8",
        "to": "0002-x",
        "profile": "x",
        "step": "wait",
        "seconds": 10.0,
        "grace": 15.0,
    }
    assert shown["ok"] is False


@pytest.mark.parametrize("valid", [True, False])
def test_only_a_valid_lease_is_shown(valid: bool) -> None:
    lease = Lease.from_json(
        {
            "generation": 3,
            "owner": {"user": "ada", "host": "box", "pid": 4, "command": "apply tp8"},
            "service": "kimi",
            "reason": "apply tp8",
            "acquired": 1.0,
            "boot_id": "b",
            "expires_boottime": 5.0,
            "expires_in": 7.0,
            "valid": valid,
            "state": "held",
        }
    )
    shown = document(host_state(live_state(), lease=lease))["hosts"][0]["lease"]
    assert (shown is not None) is valid


def test_history_has_the_newest_first_and_one_live() -> None:
    releases = [
        release(1, "tp8", state="live", was_live=True),
        release(2, "pp8", state="failed", failure={"signature": "cuda_oom", "cause": "out of memory"}),
        release(3, "pp8-async", state="live", was_live=True),
    ]
    shown = history("kimi", service_state(releases=releases, live_name="0003-pp8-async"))
    listed = shown.as_json()["releases"]
    assert [item["number"] for item in listed] == [3, 2, 1]
    assert [item["state"] for item in listed] == ["live", "failed", "superseded"]
    assert [item["live"] for item in listed] == [True, False, False]
    text = render(history_view(shown))
    assert "out of memory" in text
    assert "can be rolled back to" in text


def test_an_empty_history_says_so() -> None:
    assert "kimi has no releases yet" in render(history_view(history("kimi", service_state())))


IN_EFFECT = {
    "computed": {
        "slots": 16,
        "micro_batch_cap": 8,
        "max_running": 64,
        "graph_sizes": [1, 2, 4, 8],
        "free_gib": 9.25,
    },
    "changed": [
        {
            "argument": "page_size",
            "requested": 16,
            "effective": 64,
            "verdict": "changed",
            "reason": "page_size to 64",
        }
    ],
    "missing": ["new_thing"],
    "equal": 12,
}


def proven(**changes: Any) -> ServiceState:
    live = release(1, "pp8-async", state="live", was_live=True, **changes)
    return service_state(releases=[live], live_name="0001-pp8-async")


def test_what_is_in_effect_is_shown_on_request() -> None:
    report = reported(host_state(proven(in_effect=IN_EFFECT)))
    shown = report.as_json()["hosts"][0]["live"]["in_effect"]
    assert shown["equal"] == 12
    assert shown["changed"] == IN_EFFECT["changed"]
    assert "arguments" not in shown
    assert "micro-batches" not in render(status_view(report))
    text = render(status_view(report, verbose=True))
    assert "16 micro-batches in turn of at most 8 requests" in text
    assert "graphs of 4 batch sizes up to 8" in text
    assert "free 9.2" in text
    assert "page_size: requested 16, is 64: page_size to 64" in text
    assert "unknown" in render(status_view(reported(host_state(proven())), verbose=True))


ARGUMENTS = (
    ArgumentInEffect("pp_size", 8, 8, "equal"),
    ArgumentInEffect("new_thing", 1, None, "missing"),
    ArgumentInEffect("dtype", "auto", "bfloat16", "defaulted", "why"),
)


def test_one_release_argument_by_argument() -> None:
    releases = history("kimi", proven(in_effect=IN_EFFECT))
    report = ReleaseReport(releases, releases.numbered(1), ARGUMENTS)
    text = render(release_view(report, defaults=False))
    assert "pp_size" in text
    assert "new_thing" in text
    assert "dtype" not in text
    assert "(default auto)" in render(release_view(report, defaults=True))
    shown = report.as_json()
    assert (shown["service"], shown["live"]) == ("kimi", True)
    assert shown["arguments"][2] == {
        "argument": "dtype",
        "requested": "auto",
        "effective": "bfloat16",
        "verdict": "defaulted",
        "reason": "why",
    }
    bare = ReleaseReport(history("kimi", proven()), proven().releases[0], ())
    assert "default auto" not in render(release_view(bare, defaults=True))
