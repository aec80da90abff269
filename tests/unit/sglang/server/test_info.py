from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.sglang.server import info as server_info
from deployer.sglang.server.info import compare, effective_arguments, redact


def verdicts(requested: dict[str, Any], info: dict[str, Any]) -> dict[str, str]:
    return {check.argument: check.verdict for check in compare(requested, info)}


OLDER = {
    "tp_size": 1,
    "pp_size": 2,
    "pp_max_micro_batch_size": None,
    "max_running_requests": 64,
    "cuda_graph_max_bs": 64,
    "mem_fraction_static": 0.5,
    "model_path": "/models/dense",
    "internal_states": [{"pp_max_micro_batch_size": 32, "effective_max_running_requests_per_dp": 64}],
}
NEWER = {
    "tp_size": 2,
    "max_running_requests": 64,
    "cuda_graph_max_bs_decode": None,
    "disable_cuda_graph": False,
    "cuda_graph_config": {"decode": {"backend": "disabled", "max_bs": 32}},
    "launch_command": "--tp-size 2",
    "internal_states": [{"tp_size": 2, "effective_max_running_requests_per_dp": 40, "dp_size": 1}],
}


def test_live_values_win_and_none_does_not() -> None:
    effective = effective_arguments({"a": 1, "b": 2, "internal_states": [{"a": 5, "b": None, "c": None}]})
    assert (effective["a"], effective["b"], effective["c"]) == (5, 2, None)


@pytest.mark.parametrize("states", [None, [], {}, [None], "x", {"tp_size": 4}])
def test_every_shape_of_internal_states_is_taken(states: Any) -> None:
    expected = 4 if isinstance(states, dict) and states else 2
    assert effective_arguments({"tp_size": 2, "internal_states": states})["tp_size"] == expected


def test_arguments_in_an_object_of_their_own() -> None:
    assert effective_arguments({"server_args": {"tp_size": 8}, "version": "x"})["tp_size"] == 8


def test_older_server() -> None:
    asked = {
        "pp_size": 2,
        "pp_max_micro_batch_size": 32,
        "mem_fraction_static": "0.50",
        "model_path": "/models/dense/",
        "max_running_requests": 64,
        "cuda_graph_max_bs": 32,
        "nothing_like_it": 1,
    }
    assert verdicts(asked, OLDER) == {
        "pp_size": "equal",
        "pp_max_micro_batch_size": "equal",
        "mem_fraction_static": "equal",
        "model_path": "equal",
        "max_running_requests": "equal",
        "cuda_graph_max_bs": "changed",
        "nothing_like_it": "missing",
    }


def test_newer_server_shows_graph_settings_in_its_config() -> None:
    assert verdicts({"cuda_graph_max_bs_decode": 32, "disable_cuda_graph": True}, NEWER) == {
        "cuda_graph_max_bs_decode": "equal",
        "disable_cuda_graph": "equal",
    }


def test_requests_capped_by_the_token_pool_are_a_change() -> None:
    (check,) = compare({"max_running_requests": 64}, NEWER)
    assert (check.verdict, check.effective) == ("changed", 40)


@pytest.mark.parametrize(
    ("asked", "shown", "equal"),
    [
        (True, True, True),
        (True, False, False),
        (False, None, True),
        (1, True, False),
        ([1, 2], [1, 2], True),
        (["1", 2], (1, 2), True),
        ('{"a": 1}', {"a": 1}, True),
        ("fp8", "fp16", False),
        (0.9, 0.91, False),
    ],
)
def test_equality(asked: Any, shown: Any, equal: bool) -> None:
    assert verdicts({"x": asked}, {"x": shown}) == {"x": "equal" if equal else "changed"}


def test_keys_are_compared_without_showing_them() -> None:
    (check,) = compare({"api_key": "sk-1"}, {"api_key": "sk-1"})
    assert check.as_json() == {
        "argument": "api_key",
        "requested": "***",
        "effective": "***",
        "verdict": "equal",
        "reason": None,
    }


@pytest.mark.parametrize(
    "text",
    [
        "--api-key sk-1abc --tp-size 2",
        "--api-key=sk-1abc",
        "server_args=ServerArgs(api_key='sk-1abc', tp_size=2)",
        "server_args={'api_key': 'sk-1abc', 'tp_size': 2}",
        '{"admin_api_key":"sk-1abc"}',
        "Authorization: Bearer sk-1abc",
        "HF_TOKEN=sk-1abc",
        "ssl_keyfile_password='sk-1abc'",
    ],
)
def test_secrets_leave_text(text: str) -> None:
    assert "sk-1abc" not in redact(text)
    assert "***" in redact(text)


@pytest.mark.parametrize(
    "secret",
    [
        "--api-key sk-1abc",
        "api_key:\nsk-1abc",
        "auth-token\n=\nsk-1abc",
        "access_token='sk-1abc\nsk-1abc'",
        "HF_TOKEN=sk-1abc",
        "hub_token: sk-1abc",
        "password sk-1abc",
        "client-secret=sk-1abc",
        "watermark_key_b=sk-1abc",
        "Bearer sk-1abc",
    ],
)
def test_secrets_leave_a_long_text_wherever_it_is_cut(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_info, "_CHUNK", 24)
    for before in range(60):
        text = "x" * before + "\n" + 5 * "a line\n" + secret + "\n" + 20 * "a line\n"
        found = redact(text)
        assert "sk-1abc" not in found
        assert found.count("a line\n") == 25


@pytest.mark.parametrize(
    "text",
    [
        "api_key=None, max_total_tokens=8",
        "'max_prefill_tokens': 16384",
        "tokenizer_path='/m'",
        "token usage: 0.00",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


def test_secrets_leave_json_at_any_depth() -> None:
    info = {
        "api_key": "k-123456",
        "admin_api_key": None,
        "launch_command": "--api-key k-123456 --tp-size 2",
        "internal_states": [{"api_key": "k-123456", "max_total_tokens": 5}],
    }
    cleaned = redact(info)
    assert "k-123456" not in json.dumps(cleaned)
    assert cleaned["admin_api_key"] is None
    assert cleaned["internal_states"] == [{"api_key": "***", "max_total_tokens": 5}]
    assert info["api_key"] == "k-123456"


@given(st.text(), st.text(alphabet=st.characters(exclude_characters="*"), min_size=4), st.text())
def test_a_known_secret_is_never_left(before: str, secret: str, after: str) -> None:
    assert secret not in redact(before + secret + after, [secret])
