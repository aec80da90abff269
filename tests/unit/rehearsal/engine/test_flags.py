"""The command line of two SGLang versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer_rehearsal.engine.sglang import flags
from deployer_rehearsal.engine.sglang.settings import load_settings

FOLDER = load_settings({}).args_folder
OLD = flags.load_table(FOLDER, "0.5.12.post1")
NEW = flags.load_table(FOLDER, "0.5.23")


def refused(table: dict[str, Any], argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The last line of a refusal."""
    with pytest.raises(SystemExit) as stopped:
        flags.parse(table, argv)
    assert stopped.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("table", [OLD, NEW])
def test_full_names_parse_in_both(table: dict[str, Any]) -> None:
    line = (
        "--model-path /m --tp-size 2 --pp-size 4 --pp-async-batch-depth 3 --ep-size 2 --max-total-tokens 8K "
        "--enable-metrics --disable-cuda-graph"
    )
    fields = flags.parse(table, line.split())
    assert (fields["tp_size"], fields["pp_size"], fields["ep_size"]) == (2, 4, 2)
    assert fields["pp_async_batch_depth"] == 3
    assert fields["max_total_tokens"] == 8192
    assert fields["enable_metrics"] is True
    assert fields["disable_cuda_graph"] is True
    assert fields["decode_log_interval"] == 40
    assert list(fields)[:2] == ["model_path", "tokenizer_path"]


def test_the_graph_flag_of_one_version_is_refused_by_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert flags.parse(OLD, ["--model", "/m", "--cuda-graph-max-bs", "8"])["cuda_graph_max_bs"] == 8
    assert flags.parse(NEW, ["--model", "/m", "--cuda-graph-max-bs-decode", "8"])["cuda_graph_max_bs_decode"] == 8
    assert refused(NEW, ["--model", "/m", "--cuda-graph-max-bs", "8"], capsys) == (
        "sglang serve: error: ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode, "
        "--cuda-graph-max-bs-prefill"
    )
    assert refused(OLD, ["--model", "/m", "--cuda-graph-max-bs-decode", "8"], capsys).endswith(
        "error: unrecognized arguments: --cuda-graph-max-bs-decode 8"
    )


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (
            ["--model", "/m", "--no-such-flag", "3"],
            "sglang serve: error: unrecognized arguments: --no-such-flag 3",
        ),
        (
            ["--model", "/m", "--tp-size", "two"],
            "sglang serve: error: argument --tp-size/--tensor-parallel-size: invalid int value: 'two'",
        ),
        ([], "sglang serve: error: the following arguments are required: --model-path/--model"),
    ],
)
def test_refusals_read_as_in_real_logs(argv: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(NEW, argv, capsys) == expected


def test_abbreviations_as_argparse_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert flags.parse(NEW, ["--model", "/m", "--tp", "8"])["tp_size"] == 8
    assert "ambiguous option: --pp could match" in refused(NEW, ["--model", "/m", "--pp", "8"], capsys)


def test_choices_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(OLD, ["--model", "/m", "--moe-runner-backend", "nonsense"], capsys)
    assert "argument --moe-runner-backend: invalid choice: 'nonsense'" in line


def test_config_file_comes_before_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text('# secrets\napi-key: "top: secret"\nport: 1\nenable-metrics: true\ndisable-cuda-graph: false\n')
    fields = flags.parse(OLD, ["--config", str(path), "--model", "/m", "--port", "2"])
    assert fields["api_key"] == "top: secret"
    assert fields["port"] == 2
    assert fields["enable_metrics"] is True
    assert fields["disable_cuda_graph"] is False


def test_json_is_yaml(tmp_path: Path) -> None:
    path = tmp_path / "config.yml"
    path.write_text(json.dumps({"api-key": "k", "cuda-graph-bs": [1, 2]}))
    fields = flags.parse(OLD, ["--model", "/m", "--config", str(path)])
    assert (fields["api_key"], fields["cuda_graph_bs"]) == ("k", [1, 2])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.json", "{}", "must be YAML format"),
        ("c.yaml", "- a\n- b\n", "must contain a dictionary at root level"),
    ],
)
def test_config_files_that_will_not_do(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        flags.parse(OLD, ["--model", "/m", "--config", str(path)])
    with pytest.raises(ValueError, match="not found"):
        flags.merge_config(["--config", str(tmp_path / "none.yaml")], set())


def test_flat_yaml_of_every_kind() -> None:
    text = "---\na: 1\nb: 1.5\nc: it's # comment\nd: 'it''s'\ne: [1, x]\nf:\n  - 3\n  - y\ng: null\n\"h-i\": no\n"
    assert flags.flat_yaml(text) == {
        "a": 1,
        "b": 1.5,
        "c": "it's",
        "d": "it's",
        "e": [1, "x"],
        "f": [3, "y"],
        "g": None,
        "h-i": "no",
    }


@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z-]{0,10}", fullmatch=True),
        st.text(min_size=1) | st.integers() | st.booleans(),
        max_size=5,
    )
)
def test_values_quoted_as_json_come_back(values: dict[str, Any]) -> None:
    text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in values.items())
    assert flags.flat_yaml(text) == values


@pytest.mark.parametrize(("text", "value"), [("8192", 8192), ("8k", 8000), ("8K", 8192), ("1.5m", 1_500_000)])
def test_human_readable_integers(text: str, value: int) -> None:
    assert flags.human_readable_int(text) == value
