"""The plan: what differs, whether that needs a restart, what it costs; and which release a rollback goes to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from deployer.deploy.changes import argument_changes, unit_only_changes
from deployer.deploy.plan import (
    expected_downtime,
    make_plan,
    rollback_target,
    unit_diff,
)
from deployer.records.drift import Change
from deployer.records.endpoint import Endpoint
from deployer.report.change_view import plan_view
from deployer.units.text import argument_endpoint, grouped_arguments, served_model_name
from tests.unit.deploy.builders import release, service_state

ARGV = ("/opt/sglang/bin/python", "-m", "sglang.launch_server", "--tp-size", "8", "--trust-remote-code")


def test_arguments_are_grouped_by_flag() -> None:
    assert grouped_arguments(["py", "-m", "x", "--a", "1", "2", "--b", "--c=d"]) == [
        ("", "py -m x"),
        ("--a", "1 2"),
        ("--b", ""),
        ("--c", "d"),
    ]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (["p", "--a", "1"], ["p", "--a", "1"], []),
        (["p", "--a", "1"], ["p", "--a", "2"], ["~ --a 1 -> 2"]),
        (["p"], ["p", "--a", "1"], ["+ --a 1"]),
        (["p", "--a", "1"], ["p"], ["- --a 1"]),
        (["p", "--flag"], ["p"], ["- --flag"]),
        (["p", "--a", "1", "--b", "2"], ["p", "--b", "2", "--a", "1"], []),
        (["p", "--a", "1", "--a", "2"], ["p", "--a", "1"], ["~ --a 1 | 2 -> 1"]),
        (["p"], ["q"], ["~ command p -> q"]),
    ],
)
def test_argument_changes(before: list[str], after: list[str], expected: list[str]) -> None:
    assert [str(change) for change in argument_changes(before, after)] == expected


@given(st.lists(st.text()))
def test_any_argv_equals_itself(argv: list[str]) -> None:
    assert argument_changes(argv, argv) == []


def test_the_first_deployment_interrupts_nothing() -> None:
    plan = make_plan(service_state(), release(argv=ARGV), healthy=False)
    assert (plan.action, plan.live, plan.interrupts, plan.downtime) == ("deploy", None, False, None)
    assert "+ --tp-size 8" in [str(change) for change in plan.changes]


def test_equal_and_healthy_is_nothing_to_do() -> None:
    live = release(argv=ARGV)
    state = service_state(live=live, running=live.release)
    again = release(number=2, argv=ARGV)
    plan = make_plan(state, again, healthy=True)
    assert plan.action == "nothing"
    assert not plan.restart
    assert plan.release == live.release


@pytest.mark.parametrize(
    ("healthy", "running"),
    [(False, "0001-tp8"), (True, None), (True, "0009-other")],
    ids=["ill", "stopped", "other"],
)
def test_equal_but_not_serving_converges(healthy: bool, running: str | None) -> None:
    live = release(argv=ARGV)
    state = service_state(live=live, running=running)
    plan = make_plan(state, release(number=2, argv=ARGV), healthy=healthy)
    assert plan.action == "converge"
    assert plan.restart


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("argv", (*ARGV, "--pp-size", "8"), "argument"),
        ("environment", {"NCCL_DEBUG": "INFO"}, "environment"),
        ("restart_keys", {"LimitNOFILE": "1"}, "unit"),
        ("sglang", "0.5.23", "engine"),
        ("model", {"path": "/m", "fingerprint": "other"}, "model"),
    ],
)
def test_what_the_running_server_depends_on_needs_a_restart(field: str, value: Any, kind: str) -> None:
    live = release(argv=ARGV)
    state = service_state(live=live, running=live.release)
    plan = make_plan(state, release(number=2, **({"argv": ARGV} | {field: value})), healthy=True)
    assert plan.action == "deploy"
    assert {change.kind for change in plan.changes} == {kind}
    assert plan.interrupts


def test_the_releases_own_name_in_the_environment_is_no_change() -> None:
    live = release(argv=ARGV, environment={"DEPLOYER_RELEASE": "0001-tp8"})
    state = service_state(live=live, running=live.release)
    again = release(number=2, argv=ARGV, environment={"DEPLOYER_RELEASE": "0002-tp8"})
    assert make_plan(state, again, healthy=True).action == "nothing"


def test_a_unit_diff_names_both_sides() -> None:
    text = unit_diff("[Service]\nRestart=no\n", "[Service]\nRestart=on-failure\n", before_name="a", after_name="b")
    assert "--- a\n+++ b\n" in text
    assert "-Restart=no\n+Restart=on-failure\n" in text


def test_what_differs_in_the_unit_besides_is_told_once() -> None:
    before = '[Service]\nUser=a\nTimeoutStopSec=90\nExecStart=:/a \\\n    --x\nEnvironment="A=1"\n'
    before += "[X-Deployer]\nRelease=1\n"
    after = before.replace("90", "60").replace("=1", "=2").replace("--x", "--y").replace("User=a", "User=b")
    told = [Change("unit", "User", "a", "b")]
    found = unit_only_changes(before, after + "[Install]\nWantedBy=x\n", told)
    assert [str(change) for change in found] == ["~ TimeoutStopSec 90 -> 60", "+ WantedBy x"]
    assert not any(change.restart for change in found)
    assert unit_only_changes(None, after, told) == []


def test_a_plan_shows_each_change_once_and_the_diff_only_where_asked() -> None:
    live = replace(release(argv=ARGV), unit="[Service]\nNice=1\nExecStart=:/p --tp-size 8\n")
    state = service_state(live=live, running=live.release)
    wanted = replace(release(number=2, argv=(*ARGV, "--x", "1")), unit="[Service]\nNice=2\nExecStart=:/p --x\n")
    made = make_plan(state, wanted, healthy=True)
    for diff in (False, True):
        console = Console(width=120, color_system=None)
        with console.capture() as shown:
            console.print(plan_view(made, diff=diff))
        assert shown.get().count("+ --x 1") == 1
        assert shown.get().count("~ Nice 1 -> 2") == 1
        assert ("-Nice=1\n" in shown.get()) is diff
    assert "-Nice=1" in made.as_json()["unit_diff"]


def test_downtime_is_taken_from_the_same_profile_first() -> None:
    history = [
        release(1, "tp8", timeline=[{"name": "load", "seconds": 100.0}], was_live=True),
        release(2, "pp8", timeline=[{"name": "load", "seconds": 200.0}], was_live=True),
        release(3, "tp8", timeline=[{"name": "load", "seconds": 5.0}], was_live=False),
    ]
    assert expected_downtime(history, "tp8", stop_seconds=5.0) == (105.0, "the last start of tp8")
    assert expected_downtime(history, "ep8", stop_seconds=5.0)[0] == 205.0
    assert expected_downtime([], "ep8") == (None, "no earlier start of this service is on record")


def chain() -> Any:
    """1 tp8 live once, 2 pp8 failed, 3 pp8-async live over 1, 4 ep8 live over 3."""
    return [
        release(1, "tp8", was_live=True),
        release(2, "pp8", previous="0001-tp8"),
        release(3, "pp8-async", was_live=True, previous="0001-tp8"),
        release(4, "ep8", was_live=True, previous="0003-pp8-async"),
    ]


def test_rollback_follows_what_was_replaced_and_never_goes_to_and_fro() -> None:
    target, _ = rollback_target(service_state(releases=chain(), live_name="0004-ep8"), None)
    assert target is not None
    assert target.release == "0003-pp8-async"
    target, _ = rollback_target(service_state(releases=chain(), live_name="0003-pp8-async"), None)
    assert target is not None
    assert target.release == "0001-tp8"
    target, why = rollback_target(service_state(releases=chain(), live_name="0001-tp8"), None)
    assert target is None
    assert "first release that went live" in why


@pytest.mark.parametrize(
    ("to", "why"),
    [
        (2, "was never live; releases that were live: 1 (tp8), 3 (pp8-async), 4 (ep8)"),
        (9, "there is no release 9"),
        (4, "is live already"),
    ],
)
def test_only_proven_releases_are_offered(to: int, why: str) -> None:
    target, reason = rollback_target(service_state(releases=chain(), live_name="0004-ep8"), to)
    assert target is None
    assert why in reason


def test_rollback_to_a_chosen_release() -> None:
    target, _ = rollback_target(service_state(releases=chain(), live_name="0004-ep8"), 1)
    assert target is not None
    assert target.release == "0001-tp8"


def test_rollback_without_anything_live() -> None:
    target, why = rollback_target(service_state(), None)
    assert target is None
    assert "nothing is live" in why


def test_a_broken_chain_of_predecessors_ends() -> None:
    looped = [release(1, "a", previous="0002-b"), release(2, "b", previous="0001-a", was_live=True)]
    target, _ = rollback_target(service_state(releases=looped, live_name="0002-b"), None)
    assert target is None


def test_between_two_automatic_restarts_something_is_there_to_be_stopped() -> None:
    looping = service_state(
        live=release(argv=ARGV), raw={"unit": {"ActiveState": "activating", "SubState": "auto-restart"}}
    )
    assert not looping.at_rest
    assert make_plan(looping, release(number=2), healthy=False).interrupts
    assert service_state().at_rest


def test_a_unit_file_that_was_deleted_is_noticed() -> None:
    state = service_state(releases=[release(1, "tp8", was_live=True)], running="0001-tp8", raw={"live": None})
    lost = state.lost_live
    assert lost is not None
    assert lost.release == "0001-tp8"
    assert service_state(live=release(), running="0001-tp8").lost_live is None


def test_a_server_listens_where_its_arguments_say() -> None:
    default = Endpoint("kimi", "127.0.0.1", 30000)
    words = ["p", "--host", "127.0.0.5", "--port", "30001"]
    assert argument_endpoint(words, default) == Endpoint("kimi", "127.0.0.5", 30001)
    assert argument_endpoint(["p"], default) == default
    assert argument_endpoint(["p", "--port", "many"], default) == default


def test_a_model_has_the_name_that_its_server_gave_it() -> None:
    assert served_model_name(["p", "--model-path", "/m/k", "--served-model-name", "kimi"]) == "kimi"
    assert served_model_name(["p", "--model-path", "/m/k"]) == "/m/k"
    assert served_model_name([]) is None
