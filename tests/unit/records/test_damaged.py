"""Files on a host in which one value is damaged: the rest is still read, and written back whole."""

from __future__ import annotations

from typing import Any

import pytest

from deployer.records.effect import InEffect
from deployer.records.host import HostState, Lease, Transition
from deployer.records.release import Release

LEASE = {
    "generation": 7,
    "owner": {"user": "ann", "pid": 12},
    "reason": "apply",
    "state": "held",
    "valid": True,
}
TRANSITION = {"to": "0002-pp8", "from": "0001-tp8", "profile": "pp8", "step": "start", "grace": 15.0}


@pytest.mark.parametrize(
    "damage",
    [
        {"reason": 5},
        {"service": 5},
        {"acquired": "then"},
        {"expires_boottime": float("inf")},
        {"owner": {"user": "ann", "pid": "twelve"}},
        {"owner": "ann"},
    ],
)
def test_a_lease_shows_what_is_intact_in_it(damage: dict[str, Any]) -> None:
    state = HostState.from_json({"boot_id": "b", "services": {}, "lease": LEASE | damage})
    assert state.lease is not None
    assert state.held_lease is not None
    assert state.lease.generation == 7
    assert Lease.from_json(LEASE | {"owner": {"user": "ann", "pid": "x"}}).owner.user == "ann"


@pytest.mark.parametrize(
    "damage",
    [
        {"step": 5},
        {"from": 7},
        {"gpus": "all"},
        {"proven": "yes"},
        {"updated": "now"},
        {"timeline": {"launch": 1}},
    ],
)
def test_a_transition_shows_what_is_intact_in_it(damage: dict[str, Any]) -> None:
    transition = Transition.from_json(TRANSITION | damage)
    assert (transition.to, transition.profile) == ("0002-pp8", "pp8")
    assert not transition.proven


def test_a_later_benchmark_that_is_damaged_hides_no_other() -> None:
    benches = [{"number": 1, "seconds": "long"}, {"number": "x"}, {"number": 3, "summary": {"levels": 5}}]
    release = Release.from_json({"release": "0001-tp8", "benches": benches})
    assert [later.number for later in release.benches] == [1, 0, 3]
    assert [later.as_json()["number"] for later in release.benches] == [1, "x", 3]
    assert release.benches[0].as_json()["seconds"] == "long"


def test_an_argument_that_is_damaged_hides_no_other() -> None:
    arguments = [
        {"argument": "tp_size", "effective": 8, "verdict": 3},
        {"argument": 5},
        {"argument": "pp_size"},
    ]
    assert [item.argument for item in InEffect.from_json({"arguments": arguments}).arguments] == [
        "tp_size",
        "",
        "pp_size",
    ]


@pytest.mark.parametrize("resolved", [[], {"gate": {"single_stream_tok_s": "fast"}}, {"bench": 5}])
def test_a_manifest_that_lost_what_has_to_be_shown_does_not_ask_for_nothing(resolved: Any) -> None:
    assert Release.from_json({"release": "0001-tp8"}).provable
    release = Release.from_json({"release": "0001-tp8", "resolved": resolved})
    assert not release.provable
    assert release.as_json()["resolved"] == resolved
