from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.errors import ConfigError
from deployer.sglang.flags.arguments import OWNED
from deployer.sglang.flags.extra import missing
from deployer.sglang.flags.versions import flag_table
from tests.unit.sglang.flags.builders import launch_arguments, parser, profile, service
from tests.unit.sglang.flags.test_versions import KNOWN

BASE = len(launch_arguments(profile(), service(), "0.5.23").argv)


def words(version: str = "0.5.23", **extra: Any) -> list[str]:
    given = {key.replace("__", "-"): value for key, value in extra.items()}
    return launch_arguments(profile(extra_args=given), service(), version).argv[BASE:]


def refused(extra: dict[str, Any], version: str = "0.5.23") -> str:
    with pytest.raises(ConfigError) as caught:
        launch_arguments(profile(extra_args=extra), service(), version)
    return caught.value.message


def test_values() -> None:
    assert words(trust_remote_code=True) == ["--trust-remote-code"]
    assert words(trust_remote_code=False) == []
    assert words(log_level="in fo $x") == ["--log-level", "in fo $x"]
    assert words(chat_template="") == ["--chat-template", ""]
    assert words(chat_template="-x") == ["--chat-template=-x"]
    assert words(max_prefill_tokens="16K") == ["--max-prefill-tokens", "16K"]
    assert words(schedule_conservativeness=1) == ["--schedule-conservativeness", "1"]
    assert words(lora_paths=["a=/x", "b"]) == ["--lora-paths", "a=/x", "b"]
    assert words(lora_paths="a") == ["--lora-paths", "a"]
    assert words(cuda_graph_bs_decode=[1, 2]) == ["--cuda-graph-bs-decode", "1", "2"]
    assert words(enable_tf32_matmul=True) == ["--enable-tf32-matmul"]
    assert words(enable_tf32_matmul=False) == ["--no-enable-tf32-matmul"]
    assert words(model_checksum=True) == ["--model-checksum"]
    assert words(model_checksum="abc") == ["--model-checksum", "abc"]
    assert words(json_model_override_args={"a": {"b": [1, "ä"]}}) == [
        "--json-model-override-args",
        '{"a":{"b":[1,"ä"]}}',
    ]
    assert words(limit_mm_data_per_request={"image": 1}) == ["--limit-mm-data-per-request", '{"image":1}']
    assert words(limit_mm_data_per_request='{"image": 1}') == ["--limit-mm-data-per-request", '{"image": 1}']


@pytest.mark.parametrize(
    ("extra", "wanted"),
    [
        ({"trust-remote-cod": True}, ["extra_args.trust-remote-cod: ", "full name is --trust-remote-code"]),
        ({"trust-remote-coed": True}, ["did you mean --trust-remote-code?"]),
        ({"mem-frac": 0.5}, ["the full name is --mem-fraction-static (set by memory.mem_fraction_static)"]),
        ({"tp": 8}, ["the full name is --tp-size (set by parallelism.tp)"]),
        ({"cuda-graph-max": 8}, ["abbreviation of ", "--cuda-graph-max-bs-decode is set by cuda_graph"]),
        ({"stream-output": True}, ["0.5.16 is the last known version"]),
        ({"cuda-graph-bs": [1]}, ["0.5.16 is the last known version"]),
        ({"a b": 1}, ["not a valid name of a flag"]),
        ({"trust-remote-code": "yes"}, ["true or false"]),
        ({"log-level": 3}, ["text"]),
        ({"random-seed": "3"}, ["whole number"]),
        ({"random-seed": True}, ["whole number"]),
        ({"schedule-conservativeness": "1"}, ["a number"]),
        ({"load-format": "dumy"}, ["not a choice", "did you mean dummy?"]),
        ({"cuda-graph-bs-decode": []}, ["at least one value"]),
        ({"lora-paths": ["--x"]}, ["must not begin with -"]),
        ({"max-prefill-tokens": "many"}, ['"128K"']),
        ({"limit-mm-data-per-request": "{"}, ["not valid JSON"]),
        ({"forward-hooks": {"a": 1}}, ["expected a list"]),
        ({"json-model-override-args": {"a": float("nan")}}, ["JSON cannot represent"]),
        ({"tp-size": 2}, ["--tp-size is set by parallelism.tp"]),
        ({"tensor-parallel-size": 2}, ["is set by parallelism.tp"]),
        ({"model": "x"}, ["is set by the service's model"]),
        ({"disable-cuda-graph": True}, ["is set by cuda_graph.enabled"]),
        ({"pp-async-batch-depth": 2}, ["is set by pipeline.async_batch_depth"]),
        ({"nnodes": 2}, ["one host"]),
        ({"config": "/x"}, ["is set by deployer"]),
        ({"log-level": "a", "log_level": "b"}, ["same flag as log-level"]),
    ],
)  # fmt: skip
def test_what_cannot_be(extra: dict[str, Any], wanted: list[str]) -> None:
    said = refused(extra)
    for word in wanted:
        assert word in said


def test_a_later_flag_names_its_version() -> None:
    assert "0.5.9 is the first known version" in refused({"moe-dp-size": 1}, "0.5.2")


@pytest.mark.parametrize(
    "extra",
    [
        {"api-key": "hunter2"},
        {"api_key": "hunter2"},
        {"--admin-api-key": "hunter2"},
        {"ssl-keyfile-password": "hunter2"},
        {"served-token": {"password": "hunter2"}},
        {"log-level": "hf_" + "hunter2" * 4},
        {"json-model-override-args": {"x": ["sk-" + "hunter2" * 4]}},
        {"chat-template": "https://me:hunter2@example.net/x"},
    ],
)
def test_secrets_are_refused_and_not_repeated(extra: dict[str, Any]) -> None:
    said = refused(extra)
    assert "secret" in said
    assert "hunter2" not in said


def test_deprecated_flags_that_do_nothing() -> None:
    assert "no longer has any effect" in refused({"enable-flashmla": True}, "0.4.6.post5")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(st.sampled_from(KNOWN), st.data())
def test_what_is_rendered_is_parsed_back(version: str, data: st.DataObject) -> None:
    """Any value for any flag: either refused, or the version's parser reads it back as it was meant."""
    flag = data.draw(st.sampled_from(flag_table(version).flags))
    value = data.draw(json_values | (st.sampled_from(flag.choices) if flag.choices else st.nothing()))
    with contextlib.suppress(ConfigError):
        arguments = launch_arguments(profile(extra_args={flag.names[0]: value}), service(), version)
        if any("is not among the known choices" in note for note in arguments.notes):
            with pytest.raises(ValueError, match="invalid choice"):
                parser(version).parse_args(arguments.argv[3:])
            return
        parsed = vars(parser(version).parse_args(arguments.argv[3:]))
        if value is False and flag.action != "BooleanOptionalAction":
            assert flag.dest not in parsed
            return
        meant = arguments.requested[flag.info_name]
        found = parsed[flag.dest]
        if flag.nargs == "?" and value is True:
            return
        if flag.type == "human_readable_int":
            assert found == str(meant)
        elif isinstance(meant, str) and isinstance(value, (dict, list)) and not isinstance(found, list):
            assert json.loads(found) == json.loads(meant)
        else:
            assert found == meant


@given(st.dictionaries(st.text(max_size=20), json_values, max_size=4))
def test_any_table(extra: dict[str, Any]) -> None:
    with contextlib.suppress(ConfigError):
        launch_arguments(profile(extra_args=extra), service(), "0.5.23")


@pytest.mark.parametrize(
    ("gone", "successor"),
    [
        ("--cuda-graph-max-bs", "--cuda-graph-max-bs-decode"),
        ("--max-micro-batch-size", "--pp-max-micro-batch-size"),
        ("--stream-output", "--incremental-streaming-output"),
        ("--enable-nan-detection", None),
        ("--enable-flashmla", None),
        ("--piecewise-cuda-graph-tokens", None),
        ("--enable-flashinfer-cutlass-moe", None),
    ],
)
def test_a_flag_that_is_gone_is_sent_to_one_that_means_the_same_or_to_none(gone: str, successor: str | None) -> None:
    said = missing(gone, flag_table("0.5.23"), OWNED)
    assert "is the last known version that has it" in said
    assert ("now perhaps" in said) == (successor is not None)
    assert successor is None or said.endswith(f"(now perhaps {successor})")
