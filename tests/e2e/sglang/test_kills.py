"""SIGKILL of any of its processes, at any moment: nothing is left of the candidate, and the live release serves."""

from __future__ import annotations

import json

import pytest

from tests.e2e.conftest import finished
from tests.e2e.sglang.conftest import PATIENCE, SglangSite
from tests.e2e.sglang.seen import serves_as_before, strays, victim, watching
from tests.patience import until

#: A benchmark that does not end before anybody looks.
LONG = """\
levels = [1]
output_tokens = 6000
prompt_tokens = 16
warmups = 1
singles = 1
repeats = 1
discard = false
requests_at_least = 0
"""


@pytest.mark.parametrize(
    ("name", "moment", "said"),
    [
        ("parent", "wait", "killed"),
        ("scheduler", "wait", "killed"),
        ("detokenizer", "wait", "detokenizer"),
        ("parent", "bench", "killed"),
        ("scheduler", "bench", "killed"),
        ("detokenizer", "bench", "detokenizer"),
    ],
)
def test_a_candidate_that_is_killed(tp1_site: SglangSite, name: str, moment: str, said: str) -> None:
    site = tp1_site
    site.write_inventory(limits="max_total_tokens = 8192", bench=LONG)
    child = site.start("apply", "tp1", "--yes", "--json")
    until(lambda: site.step() == moment, PATIENCE)
    if moment == "wait":  # while its children import
        until(lambda: len(site.server_processes()) >= 3, PATIENCE)
    until(lambda: victim(site, name) is not None, PATIENCE)
    site.host.run(["kill", "-KILL", str(victim(site, name))])
    document = json.loads(finished(child, expect=5, timeout=PATIENCE))
    assert (document["outcome"], document["previous"]) == ("rolled_back", "0001-tp1")
    assert said in document["failure"]["cause"], document["failure"]
    serves_as_before(site)


@pytest.mark.parametrize("name", ["parent", "scheduler", "detokenizer"])
def test_a_live_server_that_is_killed_comes_back_by_itself(tp1_site: SglangSite, name: str) -> None:
    site = tp1_site
    # The tests before this one started the unit often enough for systemd to give it up.
    site.host.run(["systemctl", "reset-failed", site.unit])
    before = site.invocation()
    site.host.run(["kill", "-KILL", str(victim(site, name))])
    with watching(site.host.address) as health:
        until(lambda: site.invocation() != before and health.states[-1] == "200", PATIENCE)
    assert strays(site) == []
    assert site.status()["unit"]["restarts"] >= 1
