"""What nvidia-smi prints, and what the agent makes of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from deployer.host.agent import gpus
from deployer.host.agent.base import Call, Fail
from deployer.host.agent.lease import Session
from deployer.host.agent.look import sample
from tests.fakes.machine import FakeMachine

Rows = list[list[str | None]]


class Driver(FakeMachine):
    """A machine whose nvidia-smi answers what ``answer`` makes of the query and its deadline."""

    def __init__(self, answer: Callable[[str, float], Rows | None]) -> None:
        super().__init__()
        self.answer = answer

    def nvidia_smi(self, query: str, until: float | None = None) -> Rows | None:
        return self.answer(query, until or 0.0)


def fixed(*rows: list[str | None]) -> Driver:
    """A driver that answers every query with these rows."""
    return Driver(lambda query, until: list(rows))


def test_gpus_that_do_not_say() -> None:
    driver = fixed(["0", "GPU-1", "H200", "143771", "10", None, "70.1", None])
    problems: list[str] = []
    gpu_rows, processes = gpus.gpu_facts(driver, problems)
    assert gpu_rows == [
        {
            "index": 0,
            "uuid": "GPU-1",
            "name": "H200",
            "memory_total": 143771 << 20,
            "memory_used": 10 << 20,
            "utilization": None,
            "power_w": 70.1,
            "power_limit_w": None,
            "compute_cap": None,
        }
    ]
    assert (processes, problems) == ([], [])


def test_rows_that_are_not_valid_are_left_out() -> None:
    """A driver in trouble prints anything; whoever asks (a stop, too) must go on."""
    junk: Rows = [["\x11\x1b"] * size for size in range(1, 10)]
    junk += [["inf", "1e999", "nan"], ["٣", "²", "0x1"], [None, None], [None, None, None]]
    driver = fixed(*junk)
    assert (gpus.compute_caps(driver), gpus.gpu_processes(driver)) == ({}, [])
    assert gpus.gpu_facts(driver, []) == ([], [])
    (huge,) = gpus.gpu_facts(fixed(["0", "GPU-1", "H200", "1e999", "nan", "inf", "-inf", "x"]), [])[0] or []
    assert {huge[name] for name in ("memory_total", "memory_used")} == {0}
    assert {huge[name] for name in ("utilization", "power_w", "power_limit_w")} == {None}


@pytest.mark.parametrize(
    ("rows", "caps"),
    [
        ([["0", "12.0"], ["1", None]], {0: "12.0", 1: None}),
        (None, {}),
        (Fail("failed", 'Field "compute_cap" is not a valid field to query.'), {}),
    ],
)
def test_compute_capability_if_the_driver_reports_it(rows: Any, caps: dict[int, str | None]) -> None:
    def answer(query: str, until: float) -> Any:
        assert query == "--query-gpu=index,compute_cap"
        if isinstance(rows, Exception):
            raise rows
        return rows

    assert gpus.compute_caps(Driver(answer)) == caps


def test_memory_of_some_processes() -> None:
    driver = fixed(["GPU-1", "7", "100"], ["GPU-1", "8", None], ["GPU-2", "9", "1"])
    assert gpus.gpu_memory(driver, [7, 8]) == 100 << 20
    assert gpus.gpu_memory(FakeMachine(), [7]) is None


def test_the_newest_query_that_the_driver_knows_is_used() -> None:
    queries: list[str] = []

    def answer(query: str, until: float) -> Rows:
        queries.append(query)
        if "throttle" in query or "event" in query:
            raise Fail("command", "not a valid field to query")
        return [["0", "2048", "1024", "50", "300.5", "600", "60", None, "3000"]]

    sampler = gpus.Sampler(Driver(answer))
    (first,) = sampler.look(60.0) or []
    assert (first["utilization"], first["power_w"], first["memory_used"]) == (50, 300.5, 1 << 30)
    assert (first["clock_mhz"], first["clock_max_mhz"], first["throttle"]) == (None, 3000, None)
    sampler.look(60.0)
    assert len(queries) == 4  # two refused, then the one that works, twice
    assert sampler.problem is None


def test_a_driver_that_does_not_answer_is_asked_once() -> None:
    queries: list[str] = []

    def answer(query: str, until: float) -> Rows:
        queries.append(query)
        raise Fail("timeout", "nvidia-smi did not answer within 5 s")

    sampler = gpus.Sampler(Driver(answer))
    assert sampler.look(60.0) is sampler.look(60.0) is None
    assert len(queries) == 1
    assert sampler.problem == "nvidia-smi did not answer within 5 s"


@pytest.mark.parametrize("row", [["garbage"], ["x"] * 10, ["No devices were found"]])
def test_a_driver_that_lists_no_gpu_has_a_problem(row: list[str | None]) -> None:
    sampler = gpus.Sampler(fixed(row))
    assert sampler.look(60.0) is None
    assert sampler.problem == "nvidia-smi lists no GPU"
    problems: list[str] = []
    assert gpus.gpu_facts(fixed(row), problems) == ([], [])
    assert problems == ["GPUs cannot be seen: nvidia-smi lists none"]


@pytest.mark.parametrize(("slow", "looks", "over"), [(0.0, 6, 5.0), (2.0, 2, 5.0), (4.0, 1, 5.0), (20.0, 1, 6.0)])
def test_a_slow_driver_does_not_make_the_look_longer(
    slow: float, looks: int, over: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question takes ``slow`` seconds, as without persistence mode; sampling is for 5 s."""
    now = [100.0]

    def answer(query: str, until: float) -> Rows:
        now[0] += min(slow, until - now[0])
        if slow > until - now[0] and now[0] >= until:
            raise Fail("timeout", "nvidia-smi did not answer in time")
        return [["0", *["1"] * (query.count(","))]]

    class Calm(Call):
        def sleep(self, seconds: float) -> None:
            now[0] += seconds

    session = Session(Driver(answer))
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    answered = sample(session, {"seconds": 5.0}, Calm(lambda message: None))
    assert len(answered["samples"]) == looks
    assert now[0] - 100.0 == pytest.approx(over, abs=0.01)
    assert bool(answered["problem"]) == (slow == 20.0)
