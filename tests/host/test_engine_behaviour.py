"""The stand-in starts and ends as the real SGLang does, by what was kept of the real one."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engines.behaviour import batch_fields, fits, kept, launch_kinds
from tests.host.test_engine import NEW, Engine, Start, start

__all__ = ["start"]

LONG = {"prompt": "the of", "max_tokens": 60, "ignore_eos": True}
NO_GRAPHS = ("--disable-decode-cuda-graph", "--disable-prefill-cuda-graph")  # as on a CPU


@pytest.mark.parametrize("argv", [("--tp-size", "1"), ("--pp-size", "2")], ids=["tp1", "pp2"])
def test_its_launch_lines_are_the_real_ones(
    start: Start, argv: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    real = kept("launch", NEW)
    engine = start(NEW, *argv, *NO_GRAPHS, SGLANG_STANDIN_SPEED="50").ready()
    assert launch_kinds(engine.log.split("\n")) == real[request.node.callspec.id]
    engine.post("/v1/completions", {"prompt": "the of", "max_tokens": 120, "ignore_eos": True})
    assert batch_fields(engine.log.split("\n")) == real["batches"]


def test_its_ends_are_the_real_ones(start: Start) -> None:
    found: dict[str, dict[str, Any]] = {
        "bad flag": {"exit": start(NEW, "--no-such-flag").end()},
        "wrong model": {"exit": start(NEW, "--model-path", "/srv/none").end()},
    }
    loading = start(NEW, "--tp-size", "1", scale=1.0)
    loading.wait_for("server_args=")
    found["SIGTERM while it starts"] = {"exit": loading.stop()}
    idle = start(NEW, "--tp-size", "1")
    idle.ready()
    found["SIGTERM while idle"] = {"exit": idle.stop()}
    seen = start(NEW, "--tp-size", "1", scale=1.0)
    assert fits(health(seen, "200"), kept("launch", NEW)["health"])
    # The real one looks for a SIGTERM every 5 s only; here a request keeps it until it has been asked.
    client = threading.Thread(target=seen.post, args=("/v1/completions", LONG), daemon=True)
    client.start()
    time.sleep(0.2)
    seen.process.send_signal(signal.SIGTERM)
    seen.wait_for("SIGTERM received")
    found["SIGTERM while idle"]["health"] = ["200", *health(seen, "refused")]
    killed = start(NEW, "--tp-size", "1").ready()
    scheduler = next(pid for pid in killed.members() if "schedul" in Path(f"/proc/{pid}/comm").read_text())
    os.kill(scheduler, signal.SIGKILL)
    found["scheduler killed"] = {"exit": killed.end()}
    assert found == kept("ends", NEW)


def health(engine: Engine, last: str) -> list[str]:
    """What /health says, until it says ``last``; equal answers once."""
    states: list[str] = []
    end = time.monotonic() + 20
    while last not in states:
        assert time.monotonic() < end, states
        try:
            state = str(engine.get("/health").status_code)
        except httpx.TransportError:
            state = "refused"
        if states[-1:] != [state]:
            states.append(state)
        time.sleep(0.02)
    return states


def test_a_sigterm_of_its_own_makes_a_scheduler_a_crash(start: Start) -> None:
    """As with KillMode=control-group: the real one takes it for a crash, too, and drains nothing."""
    engine = start(NEW, "--tp-size", "1").ready()
    for pid in engine.members():
        os.kill(pid, signal.SIGTERM)
    assert engine.end() == -signal.SIGKILL
    assert "crashed with exit code -15. Triggering SIGQUIT for cleanup..." in engine.log
