"""Stopping the real server: it refuses new requests, and those under way have the time that we give them."""

from __future__ import annotations

import threading
from typing import Any

from tests.e2e.sglang.conftest import SglangSite
from tests.e2e.sglang.seen import journal, serves_as_before, strays
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


class Clients:
    """Three requests that take a while, under way."""

    def __init__(self, site: SglangSite, tokens: int) -> None:
        self.answers: list[object] = []
        body = {"prompt": "the of and", "max_tokens": tokens, "ignore_eos": True}

        def request() -> None:
            try:
                self.answers.append(site.ask("/v1/completions", body, timeout=300))
            except OSError as error:
                self.answers.append(str(error))

        self._clients = [threading.Thread(target=request, daemon=True) for _ in range(3)]
        for client in self._clients:
            client.start()
        until(lambda: site.ask("/v1/loads")["loads"][0]["num_used_tokens"] > 0)

    def answered(self) -> int:
        """How many of them have got their whole answers, when all have ended."""
        for client in self._clients:
            client.join(60)
        return sum(isinstance(answer, dict) for answer in self.answers)


def test_a_busy_server_finishes_its_requests_and_takes_no_new_ones(tp1_site: SglangSite) -> None:
    site = tp1_site
    site.write_inventory(limits=OTHER, deadlines="start = 300\ndrain = 120\nstop = 60")
    clients = Clients(site, 2000)  # longer than all before the stop takes
    document = site.json("apply", "tp1", "--yes")
    assert document["outcome"] == "live"
    drained = document["drained"]
    assert (drained["in_flight"], drained["aborted"], drained["refused_new"]) == (3, 0, True)
    assert drained["seconds"] < 100
    assert clients.answered() == 3
    assert strays(site) == []


def test_what_outlasts_the_budget_is_cut_off_and_the_way_back_works(tp1_site: SglangSite) -> None:
    site = tp1_site
    site.write_inventory(limits=OTHER, deadlines="start = 300\ndrain = 2\nstop = 30")
    clients = Clients(site, 7500)
    document = site.json("apply", "tp1", "--yes")
    assert document["outcome"] == "live"
    drained = document["drained"]
    assert (drained["in_flight"], drained["aborted"], drained["refused_new"]) == (3, 3, True)
    assert 2 <= drained["seconds"] < 2 + 30
    assert clients.answered() == 0
    assert any("Remaining number of requests 3" in line for line in old_log(site))
    assert strays(site) == []

    site.write_inventory()
    assert site.json("rollback", "--yes")["release"] == "0001-tp1"
    serves_as_before(site)
    assert any("Gracefully exiting" in line for line in old_log(site)[-4000:])
    assert "ready to roll" in "".join(journal(site))
