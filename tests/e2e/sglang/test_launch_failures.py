"""Launches that fail for real: told by their cause, ended at once, and the live release serves again."""

from __future__ import annotations

import json
import re

import pytest

from tests.e2e.sglang.conftest import SglangSite
from tests.e2e.sglang.failing import CASES, COPY, WRAPPER, Case
from tests.e2e.sglang.seen import serves_as_before

#: Seconds from the line that tells the failure to the end of the wait, on a machine that others use too.
PROMPT = 20.0


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_it_is_told_and_rolled_back(tp1_site: SglangSite, case: Case) -> None:
    site = tp1_site
    site.host.run(["sh", "-ec", case.prepare()])
    site.write_inventory(**{"model": COPY, "python": WRAPPER, **case.settings})
    site.host.limit_memory(case.memory)
    document = site.json("apply", "tp1", "--yes", expect=5)
    site.host.limit_memory(None)

    assert (document["outcome"], document["previous"]) == ("rolled_back", "0001-tp1")
    failure = document["failure"]
    assert failure["signature"] in case.signature.split(" or "), failure
    assert failure["phase"] == case.phase, failure
    assert case.cause in failure["cause"]
    shown = [*failure["evidence"], *failure["log_tail"]]
    assert any(case.said in line for line in shown), shown
    assert seconds_to_the_end(site, case.said) < PROMPT
    serves_as_before(site)


@pytest.mark.parametrize("case", [case for case in CASES if case.refused is not None], ids=lambda case: case.id)
def test_asked_for_openly_it_is_refused_before_anything_is_stopped(tp1_site: SglangSite, case: Case) -> None:
    site = tp1_site
    before = site.invocation()
    site.host.run(["sh", "-ec", case.prepare()])
    if case.broken_before:
        site.host.run(["sh", "-ec", f"cd {COPY}; {case.fault}"])
    settings = {"model": COPY, **(case.refused or {})}
    profile = "tp1"
    if "profile" in settings:
        profile = "asked"
        (site.folder / "profiles").mkdir()
        (site.folder / "profiles" / "asked.toml").write_text('extends = "tp1"\n' + settings.pop("profile"))
        (site.folder / "deployer.toml").write_text('profiles = "profiles"\n')
    site.write_inventory(**settings)
    document = site.json("apply", profile, "--yes", expect=case.exit)
    assert case.because in json.dumps(document)
    assert site.invocation() == before
    assert site.live() == "0001-tp1"


def seconds_to_the_end(site: SglangSite, said: str) -> float:
    """From the last line that tells the failure until deployer began to go back, by the host's clock."""
    audit = site.host.run(["sh", "-c", "cat /var/lib/deployer/tiny/audit.jsonl"])
    steps = [json.loads(line) for line in audit.splitlines()]
    back = [step["t"] for step in steps if step["args"].get("step") == "restore"][-1]
    started = [step["t"] for step in steps if step["op"] == "unit.start" and step["t"] < back][-1]
    words = [
        "journalctl",
        "-u",
        site.unit,
        "-o",
        "short-unix",
        "--no-pager",
        "--all",
        f"--since=@{started:.0f}",
    ]
    times = [
        float(line.split(" ", 1)[0])
        for line in site.host.run(words).splitlines()
        if said in line and re.match(r"\d", line)
    ]
    told = [t for t in times if started <= t <= back]
    assert told, f"{said!r} is not in the journal"
    return float(back - told[-1])
