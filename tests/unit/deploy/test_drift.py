"""How a host differs from its live release: what runs and what is on disk, each difference by its name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from deployer.deploy.drift import differences
from deployer.deploy.plan import make_plan
from deployer.records.drift import Difference
from deployer.records.hardware import EngineFacts, ModelFacts
from deployer.records.host import HostState
from tests.unit.deploy.builders import host_state, release, service_state

UNIT = """\
[Service]
ExecStart=/opt/sglang/bin/python \\
    -m sglang.launch_server \\
    "--max-running-requests" 64
Environment=A=1
TimeoutStopSec=60
LimitNOFILE=1048576
[X-Deployer]
Release=0001-tp8
"""
ARGV = ("/opt/sglang/bin/python", "-m", "sglang.launch_server", "--max-running-requests", "64")
ENGINE = EngineFacts(
    "/opt/sglang/bin/python",
    True,
    "0.5.12.post1",
    "0.28.1",
    packages={"torch": "2.8.0"},
    python_version="3.12.3",
    fingerprint="aaaa",
)
MODEL = ModelFacts("/m", True, fingerprint="abc")
LIVE = release(
    argv=ARGV,
    environment={"DEPLOYER_RELEASE": "0001-tp8", "NCCL_DEBUG": "WARN"},
    unit=UNIT,
    engine={
        "python": "/opt/sglang/bin/python",
        "python_version": "3.12.3",
        "packages": {"sglang": "0.5.12.post1", "torch": "2.8.0"},
        "fingerprint": "aaaa",
        "written": "cccc",
    },
)
RUNNING: dict[str, Any] = {
    "pid": 7,
    "release": "0001-tp8",
    "argv": list(ARGV),
    "started": 100.0,
    "pids": [7],
    "environment": {"DEPLOYER_RELEASE": "0001-tp8", "NCCL_DEBUG": "WARN"},
}
FILE: dict[str, Any] = {
    "release": "0001-tp8",
    "text": UNIT,
    "path": "/u",
    "mode": 0o644,
    "modified": 50.0,
    "kept": UNIT,
}


def host(
    *,
    live: dict[str, Any] | None = None,
    running: dict[str, Any] | None = None,
    engine: EngineFacts = ENGINE,
    model: ModelFacts = MODEL,
    **raw: Any,
) -> HostState:
    """A host whose live release is `LIVE`, changed in these parts."""
    parts = {"live": FILE | (live or {}), "running": RUNNING | (running or {}), **raw}
    state = service_state(live=LIVE, running=LIVE.release, raw=parts)
    return host_state(state, engine=engine, model=model)


def found(**changes: Any) -> list[Difference]:
    return list(differences("kimi", host(**changes)))


def without(words: tuple[str, ...], *left_out: str) -> list[str]:
    return [word for word in words if word not in left_out]


def test_a_host_that_is_equal_to_its_live_release_does_not_differ() -> None:
    assert found() == []


@pytest.mark.parametrize(
    ("changes", "text", "converges", "restart"),
    [
        (
            {"running": {"argv": [*ARGV[:-1], "16"]}},
            "running argv: --max-running-requests 16 instead of 64",
            True,
            True,
        ),
        ({"running": {"argv": [*ARGV, "--x"]}}, "running argv: --x is new", True, True),
        ({"running": {"argv": list(ARGV[:3])}}, "running argv: --max-running-requests 64 is missing", True, True),
        (
            {"running": {"environment": {"NCCL_DEBUG": "INFO"}}},
            "running environment: NCCL_DEBUG INFO instead of WARN",
            True,
            True,
        ),
        ({"running": {"environment": {}}}, "running environment: NCCL_DEBUG WARN is missing", True, True),
        (
            {"running": {"others": ["LD_PRELOAD"], "started": 40.0}},
            "running environment: LD_PRELOAD is set, and 0001-tp8 does not set it",
            True,
            True,
        ),
        (
            {"running": {"others": ["LD_PRELOAD"]}},
            "running environment: LD_PRELOAD is set, and 0001-tp8 does not set it",
            False,
            False,
        ),
        (
            {"running": {"secrets": ["HF_TOKEN"]}},
            "running environment: HF_TOKEN is not the secret that 0001-tp8 was given",
            True,
            True,
        ),
        (
            {"live": {"text": UNIT.replace("64", "16")}},
            "/u was edited by hand: --max-running-requests 16 instead of 64",
            True,
            False,
        ),
        (
            {"live": {"text": UNIT.replace("=60", "=90")}},
            "/u was edited by hand: TimeoutStopSec 90 instead of 60",
            True,
            False,
        ),
        (
            {"live": {"text": UNIT.replace("1048576", "1024")}},
            "/u was edited by hand: LimitNOFILE 1024 instead of 1048576",
            True,
            True,
        ),
        (
            {"live": {"text": UNIT.replace("1048576", "1024"), "modified": 200.0}},
            "/u was edited by hand: LimitNOFILE 1024 instead of 1048576",
            True,
            False,
        ),
        ({"live": {"text": UNIT + "# mine\n"}}, "/u was edited by hand: comments only", True, False),
        ({"live": {"mode": 0o600}}, "/u has mode 0600 instead of 0644", True, False),
        ({"enabled": False}, "sglang-kimi.service is not enabled: it will not start at boot", True, False),
        (
            {"recover_enabled": False},
            "deployer-recover@kimi.service is not enabled: no change that a power cut ends is undone at boot",
            True,
            False,
        ),
        (
            {"assess_enabled": False},
            "deployer-assess@kimi.service is not enabled: nobody looks after a boot whether it comes up",
            True,
            False,
        ),
        (
            {"candidate": {"release": "0002-x", "text": "", "path": "/run/u"}},
            "a candidate unit is left at /run/u although nobody is changing the service",
            True,
            False,
        ),
        ({"running": {"release": "0002-x"}}, "0002-x is running while 0001-tp8 is live", True, True),
        (
            {"unit": {"ActiveState": "active", "NeedDaemonReload": True}},
            "the unit files changed since systemd last read them (daemon-reload)",
            True,
            False,
        ),
        ({"shadows": ["/etc/systemd/system/u"]}, "/etc/systemd/system/u replaces the unit", False, False),
        (
            {"drop_ins": [{"path": "/etc/a.conf", "keys": ["MemoryMax"]}]},
            "/etc/a.conf changes the unit (MemoryMax)",
            False,
            False,
        ),
        (
            {"engine": replace(ENGINE, fingerprint="bbbb", changed_files=2, changed=("srt/a.py", "srt/b.py"))},
            "engine files: 2 changed since 0001-tp8 was proven (srt/a.py, srt/b.py)",
            False,
            False,
        ),
        (
            {"engine": replace(ENGINE, fingerprint="bbbb")},
            "engine files: changed since 0001-tp8 was proven",
            False,
            False,
        ),
        (
            {"engine": replace(ENGINE, written="dddd", changed_files=1, changed=("srt/a.py",))},
            "engine files: 1 changed since 0001-tp8 was proven (srt/a.py)",
            False,
            False,
        ),
        (
            {"engine": replace(ENGINE, fingerprint="bbbb", packages={"torch": "2.9.0"})},
            "engine: torch 2.9.0 instead of 2.8.0 since 0001-tp8 was proven",
            False,
            False,
        ),
        (
            {"model": ModelFacts("/m", True, fingerprint="other")},
            "model files: changed since 0001-tp8 was proven (/m)",
            False,
            False,
        ),
    ],
)
def test_each_difference_has_a_name_and_says_what_it_takes(
    changes: dict[str, Any], text: str, converges: bool, restart: bool
) -> None:
    (difference,) = found(**changes)
    assert (difference.text, difference.converges, difference.restart) == (text, converges, restart)
    assert converges or difference.remedy


@pytest.mark.parametrize(
    "changes",
    [
        {"running": {"argv": ["/usr/bin/bash", "/opt/wrapper", *ARGV[1:]]}},
        {"running": {"argv": ["/usr/bin/python3.12", *ARGV[1:]]}},
        {"running": {"argv": ["sglang::server", "", ""]}},
        {"running": {"environment": None}},
        {"engine": replace(ENGINE, fingerprint=None)},
        {"engine": replace(ENGINE, changed_files=7, changed=("srt/a.py",))},
        {"engine": replace(ENGINE, python="/elsewhere", fingerprint="bbbb")},
        {"model": ModelFacts("/elsewhere", True, fingerprint="other")},
        {"live": {"kept": None, "text": "another"}},
    ],
    ids=["wrapper", "interpreter", "title", "unknown", "no-engine", "touched", "other-engine", "other-model", "kept"],
)
def test_what_cannot_be_compared_or_means_nothing_is_no_difference(changes: dict[str, Any]) -> None:
    assert found(**changes) == []


def test_a_restart_does_not_undo_what_a_drop_in_sets() -> None:
    drop_ins = [{"path": "/etc/a.conf", "keys": ["ExecStart", "Environment"]}]
    running = {"argv": [*ARGV[:-1], "16"], "others": ["X"]}
    of_drop_in, argv, environment = found(drop_ins=drop_ins, running=running)
    assert of_drop_in.text == "/etc/a.conf changes the unit (ExecStart, Environment)"
    for difference in (argv, environment):
        assert not difference.restart
        assert "systemctl revert sglang-kimi.service" in difference.remedy


def test_a_candidate_on_trial_is_no_difference() -> None:
    change = {"from": "0001-tp8", "to": "0002-x", "profile": "x", "step": "wait", "started": 990.0, "grace": 15}
    assert found(transition=change, running={"release": "0002-x", "argv": []}, enabled=False) == []


def test_what_is_missing_says_how_to_get_it_back() -> None:
    texts = [str(item) for item in found(releases=[])]
    assert texts == ["the folder of the live release 0001-tp8 is gone: apply makes a new one"]
    lost = host_state(service_state(releases=[release(was_live=True)], running="0001-tp8"))
    assert [str(item) for item in differences("kimi", lost)] == [
        "the unit file of 0001-tp8 is gone although it was live: `deployer rollback --to 1` restores it"
    ]


@pytest.mark.parametrize(
    ("changes", "action", "restart", "equal"),
    [
        ({}, "nothing", False, True),
        ({"running": {"argv": [*ARGV[:-1], "16"]}}, "converge", True, False),
        ({"live": {"mode": 0o600}}, "converge", False, False),
        ({"drop_ins": [{"path": "/etc/a.conf", "keys": ["MemoryMax"]}]}, "nothing", False, False),
    ],
)
def test_nothing_to_do_is_said_only_if_the_host_is_equal(
    changes: dict[str, Any], action: str, restart: bool, equal: bool
) -> None:
    observed = host(**changes)
    again = replace(LIVE, number=2, release="0002-tp8")
    state = observed.services["kimi"]
    plan = make_plan(state, again, healthy=True, differences=differences("kimi", observed), host="gpu1")
    assert (plan.action, plan.restart, plan.interrupts, plan.equal) == (action, restart, restart, equal)
    assert plan.place == "kimi on gpu1"
    document = plan.as_json()
    assert (document["restart"], document["host"]) == (restart, "gpu1")
    assert [item["text"] for item in document["differences"]] == [item.text for item in plan.differences]


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"fingerprint": "bbbb"}, "~ files aaaa -> bbbb"),
        ({"packages": {"sglang": "0.5.12.post1", "torch": "2.9.0"}}, "~ torch 2.8.0 -> 2.9.0"),
    ],
)
def test_another_engine_than_the_one_it_was_proven_with_is_a_change(changes: dict[str, Any], shown: str) -> None:
    assert LIVE.engine is not None
    again = replace(LIVE, number=2, release="0002-tp8", engine=replace(LIVE.engine, **changes))
    plan = make_plan(host().services["kimi"], again, healthy=True)
    assert (plan.action, [str(change) for change in plan.changes]) == ("deploy", [shown])
    unknown = make_plan(host().services["kimi"], replace(again, engine=None), healthy=True)
    assert unknown.action == "nothing", "a release of an earlier deployer does not say what it was proven with"
