"""Requests at a restart: under steady traffic none is broken, and the stop lasts as long as they do."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.e2e.conftest import Site
from tests.patience import PATIENCE, until

#: Seconds that requests have to end, far more than any takes.
DRAIN = 2 * PATIENCE


#: Tokens that the stand-in takes about a second for; on a busy machine a request takes longer, never shorter.
TOKENS = 200


class Traffic:
    """Requests of a second or more, a new one every tenth of one, until one is refused or it is ``over``."""

    def __init__(self, site: Site) -> None:
        self.url = f"http://{site.host.address}:30000/v1/completions"
        self.ends: list[str] = []
        self.longest = 0.0
        self.over = threading.Event()

    def request(self) -> str:
        """Send one, and return what became of it."""
        body = {"model": "kimi", "prompt": "a", "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
        begun, got = time.monotonic(), b""
        try:
            with httpx.stream("POST", self.url, json=body, timeout=PATIENCE) as answer:
                for piece in answer.iter_raw():
                    got += piece
        except httpx.ConnectError:
            self.over.set()
            return "refused"
        except httpx.TransportError:  # of a connection that was not yet read from nothing is answered
            return "cut" if got else "not taken"
        self.longest = max(self.longest, time.monotonic() - begun)
        return "whole" if b"[DONE]" in got else "cut"

    def run(self) -> None:
        """Send them, and wait for their ends."""
        with ThreadPoolExecutor(100) as pool:
            under_way = []
            while not self.over.is_set():
                under_way.append(pool.submit(self.request))
                time.sleep(0.1)
            self.ends = [future.result() for future in under_way]


def test_under_steady_traffic_a_restart_breaks_no_request(live_site: Site) -> None:
    site = live_site
    site.inventory.write_text(site.inventory.read_text().replace("drain = 2", f"drain = {DRAIN}"))
    traffic = Traffic(site)
    clients = threading.Thread(target=traffic.run)
    clients.start()
    try:
        until(lambda: traffic.longest)
        planned = site.json("plan", "pp2")["traffic"][0]
        outcome = site.json("apply", "pp2", "--yes")
    finally:
        traffic.over.set()
        clients.join()
    assert (planned["why_not"], planned["drain_s"], outcome["outcome"]) == ("", DRAIN, "live")
    ends, drained = Counter(traffic.ends), outcome["drained"]
    assert set(ends) <= {"whole", "refused", "not taken"}, ends
    assert ends["refused"]
    assert ends["whole"] > 10
    assert ends["not taken"] < ends["whole"], ends
    assert (drained["aborted"], drained["refused_new"]) == (0, True), drained
    assert planned["in_flight"]
    assert drained["in_flight"]
    assert drained["seconds"] < traffic.longest + DRAIN / 4, "as long as the requests, not as they might have"
