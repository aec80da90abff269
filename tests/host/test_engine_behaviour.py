"""The stand-in starts and ends as the real SGLang does, by what was kept of the real one."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
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
    print(engine.log)  # shown if the test fails
    return {"exit": code, "said": end_kinds(engine.log.split("\n"))}


def child(engine: Engine, title: str) -> int:
    """The pid of its first child of that title."""

    def found() -> list[int]:
        return [pid for pid in engine.members() if title in Path(f"/proc/{pid}/comm").read_text()]

    return min(map(int, until(found)))


def signalled(start: Start, number: signal.Signals) -> dict[str, Any]:
    idle = start(NEW, "--tp-size", "1").ready()
    idle.process.send_signal(number)
    return ended(idle)


def sigterm_while_starting(start: Start) -> dict[str, Any]:
    loading = start(NEW, "--tp-size", "1", scale=1.0)
    loading.wait_for("server_args=")
    loading.process.terminate()
    return ended(loading)


def sigterm_while_idle(start: Start) -> dict[str, Any]:
    # The real one looks for a SIGTERM every 5 s only; here a request keeps it until it has been asked.
    busy, _ = stopped_while_busy(start)
    return {**signalled(start, signal.SIGTERM), "health": ["200", *busy]}


def sigterm_while_busy(start: Start) -> dict[str, Any]:
    return stopped_while_busy(start)[1]


def stopped_while_busy(start: Start, *interrupts: str, version: str = NEW) -> tuple[list[str], dict[str, Any]]:
    """What /health says after a SIGTERM that comes while a request is under way, and how it ends.

    ``interrupts``: lines of its log at each of which it gets a SIGINT.
    """
    engine = start(version, "--tp-size", "1").ready()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(engine.post, "/v1/completions", LONG)
        until(lambda: engine.get("/v1/loads").json()["loads"][0]["num_running_reqs"] == 1)
        engine.process.send_signal(signal.SIGTERM)
        engine.wait_for("SIGTERM received")
        for line in interrupts:
            engine.wait_for(line)
            engine.process.send_signal(signal.SIGINT)
            engine.wait_for("Shutting down")
        new = new_request(engine)
        states = health(engine, "refused")
        end = ended(engine)
    whole = answer.result().status_code == 200 and answer.result().json()["usage"]["completion_tokens"]
    return states, {**end, "answered": whole == LONG["max_tokens"], "new request": new}


def new_request(engine: Engine) -> str:
    """What becomes of a request that is sent now."""
    try:
        return {200: "answered"}[engine.post("/v1/completions", {**LONG, "max_tokens": 1}).status_code]
    except (httpx.ConnectError, httpx.RemoteProtocolError, httpx.ReadError):
        return "refused"  # also if it still reached the socket that is just being closed: nothing answers


@pytest.mark.parametrize("version", [OLD, NEW])
def test_every_version_refuses_new_requests_at_sigint_and_finishes_those_under_way(start: Start, version: str) -> None:
    states, end = stopped_while_busy(start, "SIGTERM", version=version)
    assert (states, end["exit"], end["answered"], end["new request"]) == (["refused"], -signal.SIGINT, True, "refused")


def child_killed(start: Start, title: str, *argv: str) -> dict[str, Any]:
    engine = start(NEW, *argv).ready()
    os.kill(child(engine, title), signal.SIGKILL)
    return ended(engine)


def scheduler_killed_while_starting(start: Start) -> dict[str, Any]:
    early = start(NEW, "--tp-size", "1", scale=1.0)
    os.kill(child(early, "schedul"), signal.SIGKILL)
    return ended(early)


def port_taken(start: Start) -> dict[str, Any]:
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
        return {"alive after SIGTERM": alive, "said": told, "exit": taken.end()}


ENDS: dict[str, Callable[[Start], dict[str, Any]]] = {
    "bad flag": lambda start: ended(start(NEW, "--no-such-flag")),
    "wrong model": lambda start: ended(start(NEW, "--model-path", "/srv/none")),
    "SIGTERM while it starts": sigterm_while_starting,
    "SIGTERM while idle": sigterm_while_idle,
    "SIGINT while idle": lambda start: signalled(start, signal.SIGINT),
    "SIGTERM while busy": sigterm_while_busy,
    "SIGTERM and SIGINT while busy": lambda start: stopped_while_busy(start, "SIGTERM")[1],
    "SIGINT again while busy": lambda start: stopped_while_busy(start, "SIGTERM", "Gracefully exiting")[1],
    "scheduler killed": lambda start: child_killed(start, "schedul", "--tp-size", "1"),
    "detokenizer killed": lambda start: child_killed(start, "detoken", "--tp-size", "1"),
    "one stage of two killed": lambda start: child_killed(start, "schedul", "--pp-size", "2"),
    "scheduler killed while it starts": scheduler_killed_while_starting,
    "port taken": port_taken,
}


def test_every_end_of_the_real_one_is_tried() -> None:
    assert ENDS.keys() == kept("ends", NEW).keys()


@pytest.mark.parametrize("name", ENDS)
def test_its_ends_are_the_real_ones(start: Start, name: str) -> None:
    end = ENDS[name](start)
    assert same_end(end, kept("ends", NEW)[name]), str(end)


def test_its_health_while_it_starts_is_the_real_ones(start: Start) -> None:
    assert fits(health(start(NEW, "--tp-size", "1", scale=1.0), "200"), kept("launch", NEW)["health"])


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


def test_connections_that_are_open_at_its_end_leave_no_traceback(start: Start) -> None:
    engine = start(NEW, "--tp-size", "1").ready()
    with contextlib.ExitStack() as connections:
        for _ in range(5):
            connections.enter_context(socket.create_connection((HOST, engine.port)))
        until(lambda: engine.get("/health").status_code == 200)  # they came before it
        assert engine.stop() == 0
    assert "Traceback" not in engine.log
