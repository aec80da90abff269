"""Stopping the real server: it drains without a limit of its own, so ours ends it."""

from __future__ import annotations

import threading
from typing import Any

from tests.e2e.sglang.conftest import SglangSite
from tests.e2e.sglang.seen import journal, serves_as_before, strays, watching
from tests.patience import until

OTHER = "max_total_tokens = 8192"


def stop_seconds(document: Any) -> float:
    return next(float(phase["seconds"]) for phase in document["phases"] if phase["name"] == "stop")


def old_log(site: SglangSite) -> list[str]:
    """The unit's whole log, of earlier starts too."""
    words = ["journalctl", "-o", "cat", "--all", "--no-pager", "-b", "-u", site.unit]
    return site.host.run(words).splitlines()


def test_an_idle_server_ends_by_itself(tp1_site: SglangSite) -> None:
    site = tp1_site
    site.write_inventory(limits=OTHER)
    document = site.json("apply", "tp1", "--yes")
    assert document["outcome"] == "live"
    # It looks for a SIGTERM every 5 s, and then lets its schedulers release what they hold.
    assert 0 < stop_seconds(document) < 40
    log = old_log(site)
    last = max(index for index, line in enumerate(log) if "Gracefully exiting" in line)
    assert any("Finished server process" in line for line in log[last:])
    assert not any("crashed with exit code" in line for line in log[last:])
    assert any("Deactivated successfully" in line for line in log[last:])  # exit status 0
    assert strays(site) == []


def test_a_busy_server_is_ended_by_the_budget_and_the_way_back_works(tp1_site: SglangSite) -> None:
    site = tp1_site
    site.write_inventory(limits=OTHER, deadlines="start = 300\ndrain = 2\nstop = 8")
    answers: list[object] = []

    def long_request() -> None:
        body = {"prompt": "the of and", "max_tokens": 7500, "ignore_eos": True}
        try:
            answers.append(site.ask("/v1/completions", body, timeout=300))
        except OSError as error:
            answers.append(error)

    clients = [threading.Thread(target=long_request, daemon=True) for _ in range(3)]
    for client in clients:
        client.start()
    until(lambda: site.ask("/v1/loads")["loads"][0]["num_used_tokens"] > 0)
    with watching(site.host.address) as health:
        document = site.json("apply", "tp1", "--yes")
    assert document["outcome"] == "live"
    assert 2 + 8 <= stop_seconds(document) < 40
    for client in clients:
        client.join(30)
    assert [type(answer) for answer in answers] != [dict] * 3  # they were cut off, not waited for
    assert health.states[0] == "200"
    assert "503" in health.states  # while it drains nobody new is sent to it
    assert any("Remaining number of requests 3" in line for line in old_log(site))
    assert strays(site) == []

    site.write_inventory()
    assert site.json("rollback", "--yes")["release"] == "0001-tp1"
    serves_as_before(site)
    assert any("Gracefully exiting" in line for line in old_log(site)[-4000:])
    assert "ready to roll" in "".join(journal(site))
