"""The main job on the real SGLang: profiles become live in turn, and the way back."""

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


def test_pp2_and_pp2_async_replace_it_and_give_way_again(tp1_site: SglangSite) -> None:
    site = tp1_site
    second = site.json("apply", "pp2", "--yes")
    assert (second["outcome"], second["release"], second["previous"]) == ("live", "0002-pp2", "0001-tp1")
    assert in_force(site) == (2, 32, 0)

    third = site.json("apply", "pp2-async", "--yes")
    assert (third["outcome"], third["previous"]) == ("live", "0002-pp2")
    assert in_force(site) == (2, 32, 2)
    computed = third["in_effect"]["computed"]
    assert (computed["slots"], computed["micro_batch_cap"], computed["max_running"]) == (4, 32, 64)
    assert (computed["kv_tokens"], computed["graph_sizes"], computed["context_length"]) == (16384, [], 8192)
    assert third["in_effect"]["missing"] == third["in_effect"]["changed"] == []
    told = {item["argument"]: item for item in site.json("history", "3")["arguments"]}
    assert "incompatible with overlap schedule" in told["disable_overlap_schedule"]["reason"]
    looked = site.json("doctor", "--seconds", "1")
    assert looked["ok"]
    assert {"argument-changed", "drift", "graphs-off", "nothing-in-flight"} <= {
        item["id"] for item in looked["fine"]
    }
    assert site.status()["drift"] == []
    compared = site.json("compare", "tp1", "pp2", "pp2-async")
    assert len(compared["releases"]) == 3

    back = site.json("rollback", "--yes")
    assert (back["outcome"], back["release"], back["previous"]) == ("live", "0002-pp2", "0003-pp2-async")
    assert in_force(site) == (2, 32, 0)


def in_force(site: SglangSite) -> tuple[int, int, int]:
    """Stages, requests of a micro-batch and batches in flight beyond the stages, as the schedulers have them."""
    info = site.ask("/server_info")
    state = info["internal_states"][0]
    return info["pp_size"], state["pp_max_micro_batch_size"], info["pp_async_batch_depth"]


def test_tp2_becomes_live(sglang_site: SglangSite) -> None:
    document = sglang_site.json("apply", "tp2")
    assert document["outcome"] == "live"
    assert sglang_site.ask("/server_info")["tp_size"] == 2
