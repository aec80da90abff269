"""The benchmark of load clients in small: the server of known schedule, this client and the least one."""

from __future__ import annotations

import concurrent.futures
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.client import figures, measuring, server
from benchmarks.client.results import NoResult
from benchmarks.client.tools import TOOLS, Command, Load, Tool
from tests.patience import PATIENCE, one_right, one_within

BY_NAME = {tool.name: tool for tool in TOOLS}
TOKENS = 110  # so that there is a 99th percentile of the gaps of one answer


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return server.compiled(tmp_path_factory.mktemp("server"))


@pytest.fixture
def slow(program: Path) -> Iterator[server.Server]:
    with server.running(program) as found:
        found.schedule(0.1, 0.01)
        yield found


def measured(tool: Tool, streams: int, where: server.Server) -> dict[str, Any]:
    cores = sorted(os.sched_getaffinity(0))
    return measuring.level(tool, sys.executable, Load(where.url, streams, 1, TOKENS), where, cores)


@pytest.mark.alone
@pytest.mark.parametrize("streams", [1, 8])
@pytest.mark.parametrize("name", ["Protocol by hand", "deployer"])
def test_a_client_tells_what_the_server_did(name: str, streams: int, slow: server.Server) -> None:
    def attempt() -> None:
        found = measured(BY_NAME[name], streams, slow)
        assert (found["requests"], found["tokens"]) == (streams, streams * TOKENS)
        assert found["startup_s"] > 0
        assert 0 < found["cpu_ms_a_token"] < 20
        errors = found["errors"]
        assert abs(errors["ttft_mean"]) < 15
        assert abs(errors["itl_mean"]) < 1
        assert abs(errors["itl_p99"]) < 15

    one_right(attempt)


def test_streams_in_step_get_their_tokens_at_the_same_moments(slow: server.Server) -> None:
    gap = 0.1
    slow.schedule(0.1, gap, in_step=True)

    def ask() -> bytes:
        body = {"prompt": "a", "max_tokens": 4, "stream": True}
        return httpx.post(f"{slow.url}/v1/completions", json=body, timeout=PATIENCE).content

    def lateness(_: int) -> float:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            answers = [pool.submit(ask)]
            time.sleep(gap / 3)
            answers.append(pool.submit(ask))
        assert [answer.result().count(b"data: {") for answer in answers] == [4, 4]
        served = slow.log()
        assert all(request.moments[0] - request.arrival >= 0.1 for request in served)
        return max(min(moment % gap for moment in request.moments) for request in served)

    one_within(gap / 5, lateness)


def test_streams_in_step_go_on_over_a_full_second(slow: server.Server) -> None:
    """A moment may be the last one before a full second that can be told apart from it."""
    slow.schedule(0.1, 0.1, in_step=True)
    body = {"prompt": "a", "max_tokens": 12, "stream": True}
    answer = httpx.post(f"{slow.url}/v1/completions", json=body, timeout=PATIENCE / 4)
    assert answer.content.count(b"data: {") == 12


def test_the_log_is_told_once(slow: server.Server) -> None:
    measured(BY_NAME["Protocol by hand"], 2, slow)
    assert slow.log() == []


def test_the_highest_rate_of_two_streams(program: Path) -> None:
    with server.running(program, threads=2) as fast:
        fast.schedule(0.01, 0.0)
        cores = sorted(os.sched_getaffinity(0))
        tool = BY_NAME["Protocol by hand"]
        found = measuring.highest(tool, sys.executable, Load(fast.url, 2, 1, 2000), fast, cores, on="all")
    assert found["rate_tok_s"] > 300, "far more than by the schedule of the other tests"
    assert found["tool"] == "Protocol by hand"


def test_a_client_that_fails_is_told_with_its_words(slow: server.Server) -> None:
    def command(python: str, load: Load, folder: Path) -> Command:
        return Command([python, "-c", "import sys; sys.exit('no such flag')"])

    broken = Tool("broken", "deployer", command, lambda text: figures.Summary(0, 0, 0, 0), 1)
    with pytest.raises(NoResult, match="ended with status 1: no such flag"):
        measured(broken, 1, slow)
