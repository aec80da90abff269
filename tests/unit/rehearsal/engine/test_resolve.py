"""What is in effect: scheduler limits, graph sizes, memory; and the model folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deployer_rehearsal.engine.sglang.model import LaunchError, read_model

from .conftest import PlanFor

OLD, NEW = "0.5.12.post1", "0.5.23"


@pytest.mark.parametrize(
    ("argv", "cap", "slots"),
    [
        (["--tp-size", "8", "--max-running-requests", "64"], 64, 1),
        (["--pp-size", "8", "--max-running-requests", "64"], 8, 8),
        (["--pp-size", "8", "--max-running-requests", "4"], 1, 8),
        (["--pp-size", "8", "--max-running-requests", "64", "--pp-async-batch-depth", "8"], 8, 16),
        (["--pp-size", "8", "--max-running-requests", "64", "--pp-max-micro-batch-size", "64"], 64, 8),
    ],
)
def test_micro_batches(plan_for: PlanFor, argv: list[str], cap: int, slots: int) -> None:
    plan = plan_for(OLD, *argv)
    assert (plan.cap, plan.speeds().slots) == (cap, slots)


def test_graph_sizes_as_sglang_lists_them(plan_for: PlanFor) -> None:
    limited = plan_for(OLD, "--pp-size", "2", "--cuda-graph-max-bs", "64", "--max-running-requests", "64")
    assert limited.graph_sizes == (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64)
    assert plan_for(OLD, "--tp-size", "8", "--max-running-requests", "20").graph_sizes == (
        1,
        2,
        4,
        8,
        12,
        16,
        20,
    )
    assert max(plan_for(OLD, "--tp-size", "2").graph_sizes) == 256
    assert max(plan_for(OLD, "--tp-size", "8").graph_sizes) == 512
    assert plan_for(NEW, "--tp-size", "8", "--cuda-graph-bs-decode", "1", "2").graph_sizes == (1, 2)
    assert plan_for(NEW, "--tp-size", "8", "--disable-decode-cuda-graph").graph_sizes == ()


def test_tokens_follow_memory_and_layers(plan_for: PlanFor) -> None:
    tensor, pipeline = plan_for(OLD, "--tp-size", "8"), plan_for(OLD, "--pp-size", "8")
    assert pipeline.max_total_tokens > 6 * tensor.max_total_tokens
    assert plan_for(OLD, "--tp-size", "8", "--max-total-tokens", "5000").max_total_tokens == 5000
    assert [pipeline.layers_of(stage) for stage in range(8)] == [7, 7, 7, 8, 8, 8, 8, 8]


def test_pipelines_turn_the_overlap_schedule_off(plan_for: PlanFor) -> None:
    assert plan_for(OLD, "--pp-size", "2").fields["disable_overlap_schedule"] is True
    assert plan_for(OLD, "--tp-size", "2").fields["disable_overlap_schedule"] is False


def test_an_argument_can_be_other_than_asked(plan_for: PlanFor) -> None:
    plan = plan_for(OLD, "--pp-size", "8", "--pp-async-batch-depth", "8", overrides={"pp_async_batch_depth": 0})
    assert plan.depth == plan.fields["pp_async_batch_depth"] == 0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--pp-max-micro-batch-size", "0"], "pp_max_micro_batch_size must be a positive integer or None"),
        (["--tp-size", "3", "--nnodes", "2"], "tp_size must be divisible by number of nodes"),
    ],
)
def test_arguments_that_parse_and_are_wrong(plan_for: PlanFor, argv: list[str], message: str) -> None:
    with pytest.raises(LaunchError, match=message) as caught:
        plan_for(NEW, *argv)
    assert caught.value.kind == "AssertionError"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "/nonexistent/model",
            "Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/nonexistent/model'",
        ),
        ("some-org/no-such-model", "We couldn't connect to 'https://huggingface.co' to load the files"),
    ],
)
def test_model_paths_that_are_not_there(path: str, message: str) -> None:
    with pytest.raises(LaunchError) as caught:
        read_model(path)
    assert caught.value.kind == "OSError"
    assert message in caught.value.message


def test_model_folders_that_will_not_do(tmp_path: Path, model_folder: Path) -> None:
    with pytest.raises(LaunchError, match=r"does not appear to have a file named config\.json"):
        read_model(str(tmp_path))
    (model_folder / "config.json").write_text("{")
    with pytest.raises(LaunchError, match="is not a valid JSON file"):
        read_model(str(model_folder))


def test_weights_are_counted_and_missed(model_folder: Path) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (model_folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with (model_folder / "model-1.safetensors").open("wb") as stream:
        stream.truncate(5000)
    model = read_model(str(model_folder))
    assert (model.shards, model.weight_bytes, model.missing) == (2, 5000, ("model-2.safetensors",))
