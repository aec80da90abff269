"""The one reader of /v1/loads and /metrics."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer import metrics

TEXT = """\
# TYPE x gauge
sglang:num_running_reqs{engine_type="unified",dp_rank="0",tp_rank="0"} 2.0
sglang:num_running_reqs{engine_type="unified",dp_rank="0",tp_rank="1"} 3.0
sglang:num_running_reqs{engine_type="unified",dp_rank="1"} 4e0
sglang_generation_tokens_total{model="a}b"} 1.5e3
sglang:generation_tokens_total{model="c"} 500
other:generation_tokens_total 7
sglang:absurd 1e300
sglang:negative -1
sglang:not_a_number NaN
sglang:nonsense 1e
"""


def test_loads_are_combined_over_ranks() -> None:
    ranks = [
        {"num_running_reqs": 2, "num_waiting_reqs": 1, "token_usage": 0.5, "queues": {}, "dp_rank": 0},
        {"num_running_reqs": 3, "num_waiting_reqs": 0, "token_usage": 0.25, "queues": {}, "dp_rank": 1},
    ]
    loads = metrics.parse_loads(json.dumps({"loads": ranks}))
    assert loads == {"num_running_reqs": 5, "num_waiting_reqs": 1, "token_usage": 0.5, "dp_rank": 1}
    assert metrics.combined_loads(ranks) == loads
    assert metrics.combined_loads({"num_running_reqs": 1, "x": True, "y": -1, "z": 1e300}) == {"num_running_reqs": 1}


@pytest.mark.parametrize("text", ["", "[]", '{"loads": 1}', '{"loads": [1]}', '{"loads": [{"a": 1}]}', "[" * 10_000])
def test_an_answer_without_requests_reports_nothing(text: str) -> None:
    assert metrics.parse_loads(text) is None


def test_tokens_in_use_show_a_request_in_flight() -> None:
    assert metrics.in_flight({"num_running_reqs": 2, "num_waiting_reqs": 1}) == 3
    assert metrics.in_flight({"num_running_reqs": 0, "num_used_tokens": 9}) == 1
    assert metrics.in_flight({"num_running_reqs": 0, "num_used_tokens": 0}) == 0


def test_metrics_are_summed_over_labels_and_gauges_taken_by_rank() -> None:
    assert metrics.totals(TEXT) == {"num_running_reqs": 9.0, "generation_tokens_total": 2000.0}
    assert metrics.by_rank(TEXT)["num_running_reqs"] == {"0": 3.0, "1": 4.0}
    assert metrics.by_rank(TEXT)["generation_tokens_total"] == {"": 1500.0}


@pytest.mark.parametrize(
    ("document", "requests"),
    [
        ({"loads": [{"num_running_reqs": 2, "num_waiting_reqs": 1}, {"num_running_reqs": 3}]}, 6),
        ({"num_running_reqs": 2}, 2),
        ([{"num_waiting_reqs": 4}], 4),
        ({"loads": [{"num_running_reqs": float("nan"), "num_waiting_reqs": 1}, 5, None]}, 1),
        ({"loads": [{"num_running_reqs": -5, "num_waiting_reqs": 1}]}, 1),
        ({"loads": [{"num_running_reqs": True}]}, None),
        ({"loads": []}, None),
        ({"loads": 3}, None),
        ("x", None),
        (None, None),
    ],
)
def test_loads_in_any_shape(document: Any, requests: int | None) -> None:
    loads = metrics.combined_loads(document)
    assert (None if loads is None else metrics.in_flight(loads)) == requests


NAMES = ("num_running_reqs", "num_waiting_reqs", "num_used_tokens", "token_usage", "other")
scalars: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 0, 3, -(10**400), 1e300, float("nan"), float("inf"), "3", [1], {}]
)
ranks = st.lists(scalars | st.dictionaries(st.sampled_from(NAMES), scalars), max_size=3)


@given(scalars | ranks | st.fixed_dictionaries({"loads": scalars | ranks}))
def test_combined_loads_are_always_numbers(document: Any) -> None:
    loads = metrics.combined_loads(document)
    if loads is not None:
        metrics.in_flight(loads)
        json.dumps(loads, allow_nan=False)


@given(
    st.text(),
    st.recursive(st.none() | st.floats() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)),
)
def test_nothing_a_server_sends_raises(text: str, document: Any) -> None:
    metrics.parse_loads(text)
    metrics.combined_loads(document)
    assert metrics.totals("sglang:a " + text) is not None


def test_a_long_line_is_read_in_linear_time() -> None:
    assert metrics.totals("sglang:a{" + "}" * 200_000) == {}


def test_the_module_stands_alone() -> None:
    """It is packed with the agent and with the load client, for Python 3.8."""
    text = Path(metrics.__file__).read_text(encoding="utf-8")
    ast.parse(text, feature_version=(3, 8))
    assert set(re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE)) <= {
        "__future__",
        "collections",
        "json",
        "re",
        "typing",
    }
