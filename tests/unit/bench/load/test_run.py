"""A whole run on a clock of its own: what is measured, in which order, and what the budget leaves out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.bench.load.drive import Done, Job
from deployer.bench.load.run import Run
from deployer.bench.load.spec import Spec
from deployer.bench.load.stats import Request
from deployer.bench.load.traffic import Counters
from deployer.config.bench import BenchConfig

#: Tokens a second by concurrency of two servers: one that batches well, and one that queues beyond 32.
TP8 = {1: 26.0, 8: 175.0, 16: 320.0, 32: 577.0, 48: 700.0, 64: 800.0}
PP8 = {1: 34.0, 8: 113.0, 16: 175.0, 32: 248.0, 48: 250.0, 64: 251.0}


class Nobody:
    async def end(self, *, at_once: bool) -> None:
        assert at_once


class Scripted(Run):
    """A run whose server serves ``rate(concurrency)`` tokens a second, shared evenly by the streams."""

    def __init__(self, spec: Spec, rate: Callable[[int], float]) -> None:
        self.now = 1000.0
        super().__init__(spec, lambda _event: None, None, clock=lambda: self.now)
        self.rate = rate
        self.order: list[str] = []

    async def _watcher(self) -> Any:
        return Nobody()

    async def _counters(self, at_least: float | None = None) -> Counters:
        return Counters()

    async def _perform(self, name: str, job: Job) -> Done:
        self.order.append(job.label)
        took = job.max_tokens * job.width / self.rate(job.width)
        requests: list[Request] = []
        done = Done(requests, {"client_limited": False})
        start = latest = self.now
        for wave in range(job.total // job.width):
            begin = start + took * wave
            if job.stop_at is not None and begin > job.stop_at:
                done.stopped = True
                break
            for stream in range(job.width):
                requests.append(self.answer(wave * job.width + stream, job, begin, took))
            latest = begin + took
        assert job.cut_at is not None
        if latest > job.cut_at:
            done.cut = True
            latest = job.cut_at
            for r in requests:
                if (r.end or 0.0) > job.cut_at:
                    r.kind, r.end, r.stamps = "cut", latest, [t for t in r.stamps if t <= latest]
        self.now = latest
        return done

    def answer(self, index: int, job: Job, begin: float, took: float) -> Request:
        stamps = [begin + took * (k + 1) / job.max_tokens for k in range(job.max_tokens)]
        text = f"answer {job.label.partition('/')[0]} and so on" if job.texts is None else "April"
        return Request(
            index,
            job.max_tokens,
            begin,
            begin,
            stamps,
            begin + took,
            job.max_tokens,
            round(job.length),
            text,
            None,
        )


def measure(rates: dict[int, float] | Callable[[int], float], **more: Any) -> tuple[dict[str, Any], list[str]]:
    spec = Spec.from_json({"base_url": "http://h", "model": "m", **more})
    run = Scripted(spec, (lambda n: rates[n]) if isinstance(rates, dict) else rates)
    return asyncio.run(run.everything()), run.order


def test_the_default_smoke_measures_all_of_it_within_its_time() -> None:
    bench, order = measure(TP8)
    assert bench["budget"]["cut"] == []
    assert bench["budget"]["used_s"] < 150
    assert [len(level["passes"]) for level in bench["levels"]] == [2] * 5
    sent = sum(level["requests"] + level["discarded"]["requests"] for level in bench["levels"])
    assert sent >= 200, "servers that had restarted badly have hung after 100 to 200"
    assert order[:6] == [
        "warmup",
        "single",
        "fixed/0",
        "level 8/discarded",
        "level 8/0",
        "level 16/discarded",
    ]
    assert order[-6:] == [*(f"level {n}/1" for n in (8, 16, 32, 48, 64)), "fixed/1"]
    assert bench["sanity"]["ok"] is True
    assert bench["levels"][2]["aggregate_tok_s"] == pytest.approx(577, rel=1e-3)


def stages_of(bench: dict[str, Any]) -> list[dict[str, Any]]:
    """All that counts requests: warm-ups, singles, the fixed prompt, discarded waves and levels."""
    waves = [level["discarded"] for level in bench["levels"]]
    return [part for part in (*(bench[k] for k in ("warmups", "singles", "fixed")), *waves, *bench["levels"]) if part]


def test_the_default_smoke_sends_510_requests_and_not_one_more() -> None:
    bench, _ = measure(TP8)
    assert sum(stage["requests"] for stage in stages_of(bench)) == 510


def test_a_small_sweep_goes_on_at_its_highest_level_until_it_has_200_requests() -> None:
    bench, order = measure(TP8, levels=[8, 16])
    assert sum(stage["requests"] for stage in stages_of(bench)) == 2 + 2 + 2 + 3 * 8 + 3 * 16 + 8 * 16 == 206
    assert order[-9:] == [*(f"level 16/{n}" for n in range(2, 10)), "fixed/1"]
    assert [len(level["passes"]) for level in bench["levels"]] == [2, 10]
    assert bench["budget"]["cut"] == []
    assert bench["levels"][1]["aggregate_tok_s"] == pytest.approx(320, rel=1e-3)
    few, _ = measure(TP8, levels=[8, 16], requests_at_least=0)
    assert [len(level["passes"]) for level in few["levels"]] == [2, 2]


def test_too_little_time_for_200_requests_is_said_and_lower_levels_take_what_is_left() -> None:
    bench, order = measure(TP8, levels=[1, 8], budget=69)
    assert bench["budget"]["used_s"] <= 69
    sent = sum(stage["requests"] for stage in stages_of(bench))
    assert order[-2] == "level 1/2", "4.9 s, where another pass of level 8 takes 5.9 s"
    assert bench["budget"]["cut"] == [
        f"{sent} of at least 200 requests: another pass of level 1 was left out, it takes about 5 s and 1 s were left"
    ]


@given(
    st.lists(st.integers(1, 64), min_size=1, max_size=3, unique=True).map(sorted),
    st.fixed_dictionaries(
        {
            "waves": st.integers(1, 3),
            "requests": st.integers(1, 40),
            "repeats": st.integers(1, 3),
            "discard": st.booleans(),
            "warmups": st.integers(0, 3),
            "singles": st.integers(0, 3),
            "requests_at_least": st.integers(0, 120),
        }
    ),
)
def test_what_is_planned_is_what_is_measured_where_there_is_time(levels: list[int], settings: dict[str, Any]) -> None:
    config = BenchConfig(levels=levels, output_tokens=8, budget=86_400.0, **settings)
    bench, _ = measure(lambda _: 5000.0, **config.model_dump(exclude={"place"}))
    assert bench["budget"]["cut"] == []
    assert {level["concurrency"]: level["requests"] for level in bench["levels"]} == {
        level: config.measured(level) for level in levels
    }


def test_a_failed_request_ends_the_further_passes() -> None:
    class Failing(Scripted):
        def answer(self, index: int, job: Job, begin: float, took: float) -> Request:
            found = super().answer(index, job, begin, took)
            if job.label == "level 8/3" and index == 5:
                found.kind = "reset"
            return found

    run = Failing(Spec.from_json({"base_url": "http://h", "model": "m", "levels": [8]}), lambda n: TP8[n])
    bench = asyncio.run(run.everything())
    assert run.order[-2:] == ["level 8/3", "fixed/1"]
    assert bench["levels"][0]["failed"] == {"reset": 1}


def test_a_server_that_queues_is_measured_at_every_level_and_the_rest_is_left_out() -> None:
    bench, _ = measure(PP8, budget=200)
    assert [level["passes"][0]["requests"] for level in bench["levels"]] == [8, 16, 32, 48, 64]
    assert bench["budget"]["used_s"] <= 200
    said = " / ".join(bench["budget"]["cut"])
    assert "level 64, pass 2: left out, it takes about 33 s" in said
    assert bench["stopped"] is None


def test_first_passes_come_before_discarded_waves() -> None:
    bench, _ = measure(PP8, budget=120)
    assert [level["concurrency"] for level in bench["levels"]] == [8, 16, 32, 48, 64]
    assert all(level["failed"] == {} for level in bench["levels"])
    assert any(level["discarded"] is None for level in bench["levels"])
    assert any("no wave was discarded" in said for said in bench["budget"]["cut"])


def test_a_pass_that_cannot_end_is_cut_and_says_so() -> None:
    bench, _ = measure({1: 100.0, 8: 5.0}, levels=[8], budget=60)
    level = bench["levels"][0] if bench["levels"] else bench
    said = " / ".join(bench["budget"]["cut"])
    assert "level 8" in said
    assert bench["budget"]["used_s"] <= 66.1
    assert "the time was used up" in str(bench["stopped"])
    assert level is bench or level["failed"] == {"cut": 8}


@given(
    st.dictionaries(st.sampled_from([1, 8, 16, 32]), st.floats(min_value=0.5, max_value=5000)),
    st.floats(min_value=1, max_value=400),
    st.integers(1, 3),
    st.integers(1, 3),
    st.booleans(),
    st.integers(0, 400),
)
def test_whatever_the_server_the_budget_is_kept_and_nothing_is_left_out_in_silence(
    rates: dict[int, float], budget: float, repeats: int, waves: int, discard: bool, at_least: int
) -> None:
    levels = [8, 16, 32]
    options: dict[str, Any] = {"levels": levels, "repeats": repeats, "waves": waves, "discard": discard}
    options |= {"output_tokens": 32, "requests_at_least": at_least}
    bench, order = measure(lambda n: rates.get(n, 50.0), budget=budget, **options)
    assert bench["budget"]["used_s"] <= budget * 1.1 + 0.01
    said = bench["budget"]["cut"]
    for part in [*bench["levels"], *(one for level in bench["levels"] for one in level["passes"])]:
        assert part["completed"] + sum(part["failed"].values()) == part["requests"]
    measured = {level["concurrency"]: len(level["passes"]) for level in bench["levels"]}
    for level in levels:
        missing = repeats - measured.get(level, 0)
        excused = bench["stopped"] or sum(f"level {level}," in words for words in said)
        assert missing <= 0 or excused
    sent = sum(stage["requests"] for stage in stages_of(bench))
    assert sent >= at_least or bench["stopped"] or said
    assert len(set(order)) == len(order), "the prompts of a stage follow from its name"
