"""What is seen of the server beside the load, over real sockets and with an `nvidia-smi` of the test's own."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from deployer.bench.load import client as load
from deployer.bench.load.spec import Spec
from deployer.bench.load.workers import Child
from deployer.bench.server import sentence
from deployer.records.bench import ServerUse

SMI = """#!/bin/sh
case "$*" in *clocks.sm*) echo "Field is not a valid field to query."; exit 2;; esac
echo "0, 97, 310.25, 600.00, 86016, 97887"
echo "1, 55, 290.75, 600.00, 86016, 97887"
"""


def measure(base: str, **more: Any) -> Any:
    values = {
        "levels": [4],
        "warmups": 0,
        "singles": 0,
        "repeats": 1,
        "requests_at_least": 0,
        "discard": False,
        "fixed_prompt": False,
    }
    values |= {"model": "slow", "output_tokens": 80, "sample_interval": 0.1, **more}
    bench = load.run(Spec.from_json({"base_url": base, **values}), lambda _event: None)
    assert bench["levels"][0]["failed"] == {}
    return bench["levels"][0]["server"]


def test_the_server_and_its_gpus_are_seen(mock_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(SMI)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = measure(mock_server + "/quiet", nvidia_smi=True, gpus=[0])
    assert found["running"]["max"] == 4
    assert found["kv_use"] == {"mean": 0.25, "min": 0.25, "max": 0.25}
    assert [gpu["index"] for gpu in found["gpus"]] == [0]
    assert found["gpus"][0]["sm_clock_mhz"] is None
    text = sentence(ServerUse.from_json(found), 4)
    assert text.startswith("C=4: ")
    assert text.endswith("GPUs 97 % busy at 310 W of 600 W")


def test_a_server_that_says_nothing_is_measured_all_the_same(mock_server: str) -> None:
    assert measure(mock_server) is None


def test_an_nvidia_smi_that_hangs_delays_nobody(
    mock_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexec sleep 600\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = measure(mock_server + "/quiet", nvidia_smi=True)
    assert found is None or found["gpus"] == []


def test_a_child_that_ends_within_a_line_has_ended() -> None:
    half = "print('{\"t\": 1}'); print('{\"t\": ', end='')"
    said: list[Any] = []

    async def follow() -> None:
        child = await Child.start([sys.executable, "-c", half], {}, {}, said.append)
        await child.process.wait()
        await child.end()

    asyncio.run(follow())
    assert said == [{"t": 1}, None]
