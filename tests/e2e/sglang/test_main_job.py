"""The main job on the real SGLang, looked at closely. `make demo-sglang` does it with several profiles and back."""

from __future__ import annotations

from typing import Any

from tests.e2e.sglang.conftest import SglangSite

#: Phases of a launch on the CPU, in order: there are no graphs to capture.
PHASES = ["launch", "dist-init", "load", "kv-pool", "http-up", "warm-up", "ready"]


def seconds(document: Any) -> dict[str, float]:
    """Seconds by phase."""
    return {phase["name"]: phase["seconds"] for phase in document["phases"]}


def test_tp1_becomes_live_through_its_real_phases(sglang_site: SglangSite) -> None:
    site = sglang_site
    document = site.json("apply", "tp1")
    assert (document["outcome"], document["release"]) == ("live", "0001-tp1")
    names = [phase["name"] for phase in document["phases"]]
    in_order = [name for name in names if name in PHASES]
    assert in_order == sorted(in_order, key=PHASES.index)
    assert set(PHASES) - set(in_order) <= {"http-up"}  # it can be over between two looks
    taken = seconds(document)
    assert taken["launch"] > 3  # importing torch and SGLang, twice
    assert 0 <= taken["load"] < 60  # three megabytes
    assert taken["ready"] >= 1.0  # /health generates a token, and sleeps for a second before it looks
    assert [level["concurrency"] for level in document["bench"]["levels"]] == [1, 2, 4, 8]
    assert all(level["completed"] == level["requests"] for level in document["bench"]["levels"])
    assert site.live() == "0001-tp1"
    status = site.status()
    assert status["health"]["ok"]
    assert status["drift"] == []
    info = site.ask("/server_info")
    assert (info["version"], info["tp_size"], info["pp_size"]) == ("0.5.23", 1, 1)
    lines = [line["text"] for line in site.json("logs", "-n", "1000")["lines"]]
    assert any("fired up and ready to roll" in line for line in lines)


def test_tp2_becomes_live(sglang_site: SglangSite) -> None:
    document = sglang_site.json("apply", "tp2")
    assert document["outcome"] == "live"
    assert sglang_site.ask("/server_info")["tp_size"] == 2
