"""The one reader of /v1/loads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.host.agent.loads import in_flight, summed

NAMES = ("num_running_reqs", "num_waiting_reqs", "num_used_tokens", "token_usage", "other")
scalars: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 0, 3, -(10**400), 1e300, float("nan"), float("inf"), "3", [1], {}]
)
ranks = st.lists(scalars | st.dictionaries(st.sampled_from(NAMES), scalars), max_size=3)


@pytest.mark.parametrize(
    ("document", "found"),
    [
        ({"loads": [{"num_running_reqs": 2, "num_waiting_reqs": 1}, {"num_running_reqs": 3}]}, 6),
        ({"num_running_reqs": 2}, 2),
        ([{"num_waiting_reqs": 4}], 4),
        ({"loads": [{"num_running_reqs": 0, "num_used_tokens": 5}]}, 1),
        ({"loads": [{"num_running_reqs": 0, "num_used_tokens": 0}]}, 0),
        ({"loads": [{"num_running_reqs": float("nan"), "num_waiting_reqs": 1}, 5, None]}, 1),
        ({"loads": [{"num_running_reqs": -5, "num_waiting_reqs": 1}]}, 1),
        ({"loads": [{"num_running_reqs": True}]}, None),
        ({"loads": []}, None),
        ({"loads": 3}, None),
        ({}, None),
        ("x", None),
        (None, None),
    ],
)
def test_loads_in_any_shape(document: Any, found: int | None) -> None:
    numbers = summed(document)
    assert (None if numbers is None else in_flight(numbers)) == found


def test_usage_is_the_highest_and_counts_are_added() -> None:
    each = {"num_running_reqs": 1, "token_usage": 0.25, "queues": {}}
    found = summed({"loads": [each, {**each, "token_usage": 0.5}]})
    assert found == {"num_running_reqs": 2, "token_usage": 0.5}


@given(scalars | ranks | st.fixed_dictionaries({"loads": scalars | ranks}))
def test_whatever_a_server_answers(document: Any) -> None:
    numbers = summed(document)
    if numbers is not None:
        in_flight(numbers)
        json.dumps(numbers, allow_nan=False)
