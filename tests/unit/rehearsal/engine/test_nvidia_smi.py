"""The stand-in for nvidia-smi."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from deployer_rehearsal.engine import nvidia_smi
from deployer_rehearsal.engine.sglang.gpustate import GpuState, memory_held, read_states, uuid
from deployer_rehearsal.engine.sglang.launch import timeline
from deployer_rehearsal.engine.sglang.settings import visible_gpus
from tests.unit.rehearsal.engine.conftest import PlanFor

GPU_QUERY = "--query-gpu=index,uuid,name,memory.total,memory.used,utilization.gpu,power.draw,power.limit"
APP_QUERY = "--query-compute-apps=gpu_uuid,pid,used_memory"
FORM = "--format=csv,noheader,nounits"


def ask(*arguments: str, states: list[dict[str, Any]] | None = None, **config: Any) -> list[str]:
    return nvidia_smi.answer(arguments, config, states or [])


def test_eight_idle_gpus() -> None:
    rows = [line.split(", ") for line in ask(GPU_QUERY, FORM)]
    assert [row[0] for row in rows] == [str(number) for number in range(8)]
    assert len({row[1] for row in rows}) == 8
    assert all(row[1].startswith("GPU-") for row in rows)
    assert {row[2] for row in rows} == {"NVIDIA RTX PRO 6000 Blackwell Workstation Edition"}
    assert {(row[3], row[5], row[7]) for row in rows} == {("97887", "0", "600.00")}
    assert all(int(row[4]) < 50 and float(row[6]) < 60 for row in rows)
    assert ask(APP_QUERY, FORM) == []


def test_memory_and_power_follow_the_engine_and_end_with_it(tmp_path: Path) -> None:
    state = GpuState(tmp_path)
    state.write({0: os.getpid(), 2: os.getpid()}, [71000.0, 500.0], 88)
    states = read_states(tmp_path)
    rows = [line.split(", ") for line in ask(GPU_QUERY, FORM, states=states)]
    assert [int(row[4]) // 500 for row in rows] == [142, 0, 1, 0, 0, 0, 0, 0]
    assert rows[0][5] == "88"
    assert float(rows[0][6]) > 400
    apps = [line.split(", ") for line in ask(APP_QUERY, FORM, states=states)]
    assert apps == [[rows[0][1], str(os.getpid()), "71000"], [rows[2][1], str(os.getpid()), "500"]]
    assert memory_held(tmp_path) == {0: 71000, 2: 500}
    text = next(tmp_path.glob("gpu-*.json"))
    text.write_text(text.read_text().replace('"started": ', '"started": 1'))
    assert read_states(tmp_path) == []
    state.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, (0, 1, 2, 3, 4, 5, 6, 7)),
        ("2,3,4,5", (2, 3, 4, 5)),
        (" 7, 1 ", (7, 1)),
        ("", ()),
        ("1,8,2", (1,)),
        ("1,-1,2", (1,)),
        ("3,3", ()),
        (f"{uuid(5)},2", (5, 2)),
        (f"{uuid(6)[:10]}", (6,)),
        ("GPU-", ()),
    ],
)
def test_cuda_visible_devices(text: str | None, expected: tuple[int, ...]) -> None:
    assert visible_gpus(text, 8) == expected


def test_an_engine_holds_the_gpus_that_it_is_shown(plan_for: PlanFor, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_for("0.5.23", "--tp-size", "4", environ={"CUDA_VISIBLE_DEVICES": "2,3,4,5"}, held={2: 5000})
    assert [plan.physical(rank) for rank in range(4)] == [2, 3, 4, 5]
    free = plan_for("0.5.23", "--tp-size", "4", environ={"CUDA_VISIBLE_DEVICES": "2,3,4,5"}, held={0: 5000})
    assert free.memory_start - plan.memory_start == pytest.approx(5000 / 1024)
    few = plan_for("0.5.23", "--tp-size", "4", environ={"CUDA_VISIBLE_DEVICES": "2,3,4"})
    assert few.physical(3) is None
    assert "invalid device ordinal" in timeline(few)[-1].text


def test_engines_of_any_user_may_tell_what_they_hold(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    GpuState(folder).write({0: os.getpid()}, [100.0], 0)
    assert folder.stat().st_mode & 0o7777 == 0o1777
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o644
    (folder / "gpu-1.json").write_text(json.dumps({"no": "processes"}))
    (folder / "gpu-2.json").write_text("[]")
    assert len(read_states(folder)) == 1


def test_units_and_headers() -> None:
    assert ask("--query-gpu=memory.total,name", "--format=csv", "-i", "0") == [
        "memory.total [MiB], name",
        f"97887 MiB, {nvidia_smi.NAME}",
    ]


def test_compute_capability() -> None:
    assert ask("--query-gpu=index,compute_cap", FORM, gpus=2) == ["0, 12.0", "1, 12.0"]


def test_list_and_version() -> None:
    lines = ask("-L", gpus=2)
    assert len(lines) == 2
    assert lines[1].startswith(f"GPU 1: {nvidia_smi.NAME} (UUID: GPU-")
    assert ask("--version")[0].startswith("NVIDIA-SMI version")
    assert any("No running processes found" in line for line in ask())


@pytest.mark.parametrize(
    ("arguments", "message", "status"),
    [
        (["--query-gpu=index,nonsense", FORM], 'Field "nonsense" is not a valid field to query.', 2),
        (["--query-compute-apps=pid,colour", FORM], 'Field "colour" is not a valid field to query.', 2),
        (["--query-gpu=index"], "--format=", 2),
        (["--frobnicate"], "Invalid combination of input arguments", 2),
        (["-i", "9", "-L"], "No devices were found", 6),
    ],
)
def test_refusals(arguments: list[str], message: str, status: int) -> None:
    with pytest.raises(nvidia_smi.Refused, match=message) as caught:
        ask(*arguments)
    assert caught.value.status == status
