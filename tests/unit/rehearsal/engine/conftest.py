"""A plan for any arguments, without a process."""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deployer_rehearsal.engine.sglang import flags
from deployer_rehearsal.engine.sglang.model import read_model
from deployer_rehearsal.engine.sglang.resolve import Plan, check_arguments, resolve
from deployer_rehearsal.engine.sglang.settings import load_settings

KIMI = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "text_config": {
        "num_hidden_layers": 61,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "max_position_embeddings": 262144,
    },
}

PlanFor = Callable[..., Plan]


@functools.cache
def known(folder: Path, version: str) -> tuple[dict[str, Any], argparse.ArgumentParser]:
    """A version's table and its parser."""
    table = flags.load_table(folder, version)
    return table, flags.build_parser(table)


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(KIMI))
    return folder


@pytest.fixture
def plan_for(model_folder: Path, tmp_path: Path) -> PlanFor:
    """``plan_for("0.5.23", "--tp-size", "8", config={...}, held={gpu: MiB}, overrides={...})``."""

    def make(
        version: str,
        *argv: str,
        config: dict[str, Any] | None = None,
        held: dict[int, int] | None = None,
        overrides: dict[str, Any] | None = None,
        environ: dict[str, str] | None = None,
    ) -> Plan:
        path = tmp_path / "standin.json"
        path.write_text(json.dumps({"seed": 7, "version": version, **(config or {})}))
        settings = load_settings({"SGLANG_STANDIN_CONFIG": str(path), **(environ or {})})
        words = ["--model-path", str(model_folder), *argv]
        table, parser = known(settings.args_folder, version)
        asked = flags.parse(table, words, parser)
        check_arguments(asked)
        return resolve(asked, read_model(str(model_folder)), settings, words, held, overrides)

    return make
