"""`make demo-sglang`, with its hosts in a folder of this test's own and the engine that is prepared already.

It takes the small profiles live one after the other and goes back; what is so on the host afterwards is looked at too.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployer_rehearsal import hosts, sets, sglang_env
from tests.e2e.sglang.conftest import SglangSite

ROOT = Path(__file__).parents[3]


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another folder for sets, in which the prepared engine is the usual one."""
    sglang_env.ensure(print)
    engines = sets.engines_folder()
    folder = Path(f"/var/lib/deployer-rehearsal-test-{os.getpid()}")
    folder.mkdir()
    monkeypatch.setenv("DEPLOYER_REHEARSAL_DIR", str(folder))
    sets.engines_folder().symlink_to(engines)
    yield
    hosts.down(sets.SGLANG_SET)
    sets.engines_folder().unlink()
    folder.rmdir()


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.timeout(1500)
def test_make_demo_sglang_tells_the_whole_story(tmp_path: Path) -> None:
    began = time.monotonic()
    finished = subprocess.run(
        ["make", "--no-print-directory", "demo-sglang", f"VENV={sys.prefix}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=1400,
        env={key: value for key, value in os.environ.items() if key != "MAKEFLAGS"},
    )
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-3000:]
    told = finished.stdout
    for words in (
        "tp1 is live on tiny as release 0001-tp1",
        "pp2 is live on tiny as release 0002-pp2",
        "pp2-async is live on tiny as release 0003-pp2-async",
        "rolled back: pp2 is live on tiny again as release 0002-pp2",
        "rehearse down --name sglang",
    ):
        assert words in told
    speeds = re.findall(r"^speed +(\d+) tok/s for one, (\d+) at 2, (\d+) at 8", told, re.MULTILINE)
    assert all(int(figure) > 0 for row in speeds for figure in row)
    assert time.monotonic() - began < 1400

    site = SglangSite(hosts.find(sets.SGLANG_SET)[0], tmp_path)
    site.inventory.write_text(site.host.inventory.read_text())
    assert (site.live(), site.status()["drift"]) == ("0002-pp2", [])
    info = site.ask("/server_info")
    state = info["internal_states"][0]
    assert (info["pp_size"], state["pp_max_micro_batch_size"], info["pp_async_batch_depth"]) == (2, 32, 0)
    kept = site.json("history", "3")
    computed = kept["in_effect"]["computed"]
    assert (computed["slots"], computed["micro_batch_cap"], computed["max_running"]) == (4, 32, 64)
    assert (computed["kv_tokens"], computed["graph_sizes"], computed["context_length"]) == (16384, [], 8192)
    assert kept["in_effect"]["missing"] == kept["in_effect"]["changed"] == []
    arguments = {item["argument"]: item for item in kept["arguments"]}
    assert arguments["pp_async_batch_depth"]["effective"] == 2
    assert "incompatible with overlap schedule" in arguments["disable_overlap_schedule"]["reason"]
    looked = site.json("doctor", "--seconds", "1")
    assert looked["ok"]
    assert {"argument-changed", "drift", "graphs-off"} <= {item["id"] for item in looked["fine"]}
    assert "nothing-in-flight" in {item["id"] for item in looked["findings"]}
    assert len(site.json("compare", "tp1", "pp2", "pp2-async")["releases"]) == 3
