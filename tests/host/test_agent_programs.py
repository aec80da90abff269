"""Programs that hang or fail, as the agent meets them: real ones."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from deployer.host.agent import base, procs, reading


def test_a_program_that_hangs_is_left_behind_with_its_children() -> None:
    begun = time.monotonic()
    with pytest.raises(base.Fail) as caught:
        base.execute(["sh", "-c", "sleep 60 & sleep 60"], timeout=0.2)
    assert caught.value.code == "timeout"
    assert time.monotonic() - begun < 5.0


@pytest.mark.parametrize("script", ["sleep 60", "echo no devices; exit 9"])
def test_an_nvidia_smi_in_trouble_is_a_problem_and_no_error(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setitem(base.CHILD_ENV, "PATH", os.environ["PATH"])
    monkeypatch.setattr(procs, "SMI_TIMEOUT", 0.3)
    problems: list[str] = []
    assert reading.gpu_facts(problems) == (None, [])
    assert "GPUs cannot be seen: nvidia-smi" in problems[0]
    assert procs.gpu_memory([1]) is None
