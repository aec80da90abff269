"""The stand-in starts and ends as the real SGLang does, by what was kept of the real one."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engines.behaviour import batch_fields, end_kinds, fits, kept, launch_kinds, same_end
from tests.host.test_engine import HOST, NEW, OLD, Engine, Start, start
from tests.patience import PATIENCE, until

__all__ = ["start"]

LONG = {"prompt": "the of", "max_tokens": 120, "ignore_eos": True}
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


def ended(engine: Engine) -> dict[str, Any]:
    """How it ends, and what it says of that."""
    code = engine.end()
    return {"exit": code, "said": end_kinds(engine.log.split("\n"))}


def child(engine: Engine, title: str) -> int:
    """The pid of its first child of that title."""

    def found() -> list[int]:
        return [pid for pid in engine.members() if title in Path(f"/proc/{pid}/comm").read_text()]

    return min(map(int, until(found)))


def test_its_ends_are_the_real_ones(start: Start) -> None:
    found: dict[str, dict[str, Any]] = {
        "bad flag": ended(start(NEW, "--no-such-flag")),
        "wrong model": ended(start(NEW, "--model-path", "/srv/none")),
    }
    loading = start(NEW, "--tp-size", "1", scale=1.0)
    loading.wait_for("server_args=")
    loading.process.terminate()
    found["SIGTERM while it starts"] = ended(loading)
    for name, number in (("SIGTERM while idle", signal.SIGTERM), ("SIGINT while idle", signal.SIGINT)):
        idle = start(NEW, "--tp-size", "1").ready()
        idle.process.send_signal(number)
        found[name] = ended(idle)
    seen = start(NEW, "--tp-size", "1", scale=1.0)
    assert fits(health(seen, "200"), kept("launch", NEW)["health"])
    # The real one looks for a SIGTERM every 5 s only; here a request keeps it until it has been asked.
    answered: list[int] = []
    client = threading.Thread(
        target=lambda: answered.append(
            seen.post("/v1/completions", LONG).json()["usage"]["completion_tokens"]
        )
    )
    client.start()
    until(lambda: seen.get("/v1/loads").json()["loads"][0]["num_running_reqs"] == 1)
    seen.process.send_signal(signal.SIGTERM)
    seen.wait_for("SIGTERM received")
    found["SIGTERM while idle"]["health"] = ["200", *health(seen, "refused")]
    found["SIGTERM while busy"] = ended(seen)
    client.join()
    found["SIGTERM while busy"]["answered"] = answered == [LONG["max_tokens"]]
    for title in ("scheduler", "detokenizer"):
        killed = start(NEW, "--tp-size", "1").ready()
        os.kill(child(killed, title[:7]), signal.SIGKILL)
        found[f"{title} killed"] = ended(killed)
    stages = start(NEW, "--pp-size", "2").ready()
    os.kill(child(stages, "schedul"), signal.SIGKILL)
    found["one stage of two killed"] = ended(stages)
    early = start(NEW, "--tp-size", "1", scale=1.0)
    os.kill(child(early, "schedul"), signal.SIGKILL)
    found["scheduler killed while it starts"] = ended(early)
    with socket.socket() as thief:
        thief.bind((HOST, 0))
        thief.listen()
        taken = start(NEW, "--tp-size", "1", "--port", str(thief.getsockname()[1]))
        taken.wait_for("error while attempting to bind")
        taken.process.terminate()
        time.sleep(0.5)
        alive = taken.process.poll() is None
        told = end_kinds(taken.log.split("\n"))
        taken.process.kill()
        found["port taken"] = {"alive after SIGTERM": alive, "said": told, "exit": taken.end()}
    expected = kept("ends", NEW)
    assert found.keys() == expected.keys()
    assert [name for name in found if not same_end(found[name], expected[name])] == [], found


def test_a_scheduler_that_dies_early_is_told_in_the_old_words(start: Start) -> None:
    engine = start(OLD, "--pp-size", "2", scale=1.0)
    until(lambda: len(engine.members()) >= 4)
    os.kill(child(engine, "schedul"), signal.SIGKILL)
    assert engine.end() == 1
    assert "Rank 0 scheduler is dead. Please check if there are relevant logs." in engine.log
    assert "Exit code: -9" in engine.log


def health(engine: Engine, last: str) -> list[str]:
    """What /health says, until it says ``last``; equal answers once."""
    states: list[str] = []
    end = time.monotonic() + PATIENCE
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
