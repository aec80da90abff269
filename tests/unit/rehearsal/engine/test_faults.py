"""Which faults apply to a start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deployer_rehearsal.engine.sglang.faults import Faults

PP = ["--model-path", "/m", "--pp-size", "8"]
TP = ["--model-path", "/m", "--tp-size", "8"]


def put(path: Path, *entries: dict[str, Any]) -> None:
    path.write_text(json.dumps({"faults": list(entries)}))


def test_conditions_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    put(
        path,
        {"name": "slow", "when_argv_contains": "--pp-size", "percent": 30},
        {"name": "never-ready", "unless_argv_contains": ["--pp-size", "--ep-size"]},
    )
    assert Faults(path, PP).names() == ["slow"]
    assert Faults(path, TP).names() == ["never-ready"]
    slow = Faults(path, PP).get("slow")
    assert slow is not None
    assert slow.options["percent"] == 30


def test_once_means_one_start(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    put(path, {"name": "crash-in-load", "once": True})
    first = Faults(path, PP)
    assert first.get("crash-in-load")
    assert Faults(path, PP).get("crash-in-load") is None
    path.touch()
    assert first.get("crash-in-load")
    put(path, {"name": "crash-in-load", "once": True, "rank": 1})
    assert Faults(path, PP).get("crash-in-load")


def test_a_record_that_cannot_be_written_is_no_reason_to_fail(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    put(path, {"name": "crash-in-load", "once": True})
    (tmp_path / "faults.json.taken").mkdir()
    faults = Faults(path, PP)
    assert faults.get("crash-in-load")
    path.touch()
    assert faults.get("crash-in-load"), "a start that took it keeps it"


def test_faults_can_come_and_go_while_it_runs(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    faults = Faults(path, PP)
    assert faults.get("hang-at-request") is None
    put(path, {"name": "hang-at-request"})
    assert faults.get("hang-at-request")
    path.unlink()
    assert faults.get("hang-at-request") is None


def test_what_is_no_fault_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    for text in ("", "[]", "{", '{"faults": [1, {"name": "unheard-of"}, {}]}'):
        path.write_text(text)
        assert Faults(path, PP).names() == []


def test_a_server_that_runs_leaves_a_fault_of_the_start_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    running = Faults(path, PP)
    put(path, {"name": "crash-in-load", "once": True}, {"name": "slow", "once": True})
    assert running.get("crash-in-load") is None
    assert running.get("slow")
    following = Faults(path, PP)
    assert following.get("crash-in-load")
    assert following.get("slow") is None
