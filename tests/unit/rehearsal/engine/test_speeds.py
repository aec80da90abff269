"""The step-time model tells the story: what was measured of Kimi K2.6 on eight PCIe GPUs."""

from __future__ import annotations

import pytest

from deployer_rehearsal.engine.sglang.scheduler import simulate
from deployer_rehearsal.engine.sglang.speeds import Speeds

TP8 = Speeds(tp=8, cap=64, graph_max=64)
PP8_EAGER = Speeds(pp=8, cap=8, graph_max=0)
PP8_ASYNC = Speeds(pp=8, depth=8, cap=8, graph_max=8)
PP8_ASYNC_MB64 = Speeds(pp=8, depth=8, cap=64, graph_max=64)
EP8 = Speeds(tp=8, ep=8, cap=64, graph_max=64)

FIGURES = [
    (TP8, 1, 26.0),
    (TP8, 32, 578.0),
    (PP8_EAGER, 1, 25.0),
    (PP8_EAGER, 8, 96.0),
    (PP8_ASYNC, 1, 34.0),
    (PP8_ASYNC, 32, 248.0),
    (PP8_ASYNC_MB64, 1, 36.0),
    (PP8_ASYNC_MB64, 32, 251.0),
    (PP8_ASYNC_MB64, 48, 316.0),
    (EP8, 1, 24.0),
    (EP8, 32, 540.0),
]


@pytest.mark.parametrize("tokens", [32, 128])
@pytest.mark.parametrize("spread", [0.002, 0.02])
@pytest.mark.parametrize(("speeds", "concurrency", "expected"), FIGURES)
def test_figures(speeds: Speeds, concurrency: int, expected: float, spread: float, tokens: int) -> None:
    measured = simulate(speeds, concurrency, tokens, spread=spread).tokens_per_second
    assert measured == pytest.approx(expected, rel=0.025)


@pytest.mark.parametrize("speeds", [TP8, PP8_EAGER, PP8_ASYNC, PP8_ASYNC_MB64, EP8, Speeds(), Speeds(pp=2, cap=32)])
def test_more_streams_give_more_in_all_and_less_each(speeds: Speeds) -> None:
    totals = [simulate(speeds, level, 64).tokens_per_second for level in (1, 8, 16, 32, 48, 64)]
    each = [total / level for total, level in zip(totals, (1, 8, 16, 32, 48, 64), strict=True)]
    assert totals == sorted(totals)
    assert each == sorted(each, reverse=True)


def test_small_profiles_are_sensible() -> None:
    def rate(speeds: Speeds, level: int) -> float:
        return simulate(speeds, level, 64).tokens_per_second

    one, two = Speeds(), Speeds(tp=2)
    pipeline, kept_full = Speeds(pp=2, cap=32), Speeds(pp=2, depth=2, cap=32)
    assert rate(two, 32) > 1.5 * rate(one, 32)
    assert rate(pipeline, 32) < rate(kept_full, 32) < 1.1 * rate(pipeline, 32)
    assert 30 < rate(pipeline, 1) < rate(two, 1) < 80


def test_captured_graphs_help_only_up_to_their_largest_batch() -> None:
    captured = simulate(Speeds(tp=8, graph_max=32), 32, 32).tokens_per_second
    too_small = simulate(Speeds(tp=8, graph_max=16), 32, 32).tokens_per_second
    none = simulate(Speeds(tp=8, graph_max=0), 32, 32).tokens_per_second
    assert captured > 1.1 * too_small
    assert too_small == pytest.approx(none, rel=0.02)


def test_fault_and_model_size_scale_everything() -> None:
    plain = simulate(TP8, 16, 32).tokens_per_second
    slow = simulate(Speeds(tp=8, slow_percent=50), 16, 32).tokens_per_second
    small = simulate(Speeds(tp=8, size=0.5), 16, 32).tokens_per_second
    assert slow == pytest.approx(plain / 1.5, rel=0.03)
    assert small == pytest.approx(plain * 2, rel=0.05)


def test_noise_is_seeded_and_as_large_as_said() -> None:
    def rate(seed: int, **noise: float) -> float:
        return simulate(Speeds(tp=8, seed=seed, **noise), 8, 16).tokens_per_second  # type: ignore[arg-type]

    assert rate(3, noise=0.05) == rate(3, noise=0.05)
    assert rate(3, noise=0.05) != rate(4, noise=0.05)
    starts = [rate(seed, start_noise=0.1) / rate(seed) for seed in range(30)]
    spread = max(starts) - min(starts)
    assert 0.1 < spread < 0.8
