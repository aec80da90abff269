"""The client's own part in what it measures."""

from __future__ import annotations

import gc

import pytest

from deployer.bench.load.saturation import limited, no_collection


@pytest.mark.parametrize(
    ("cpu", "lag", "found"),
    [
        (0.35, 0.0006, False),
        (0.71, 0.0006, True),
        (0.35, 0.006, True),
        (0.69, 0.0049, False),
        (0.1, None, False),
        (0.9, None, True),
    ],
)
def test_either_sign_is_enough(cpu: float, lag: float | None, found: bool) -> None:
    assert limited(cpu, lag) is found


def test_no_garbage_is_collected_inside_and_the_setting_returns() -> None:
    assert gc.isenabled()
    with no_collection():
        assert not gc.isenabled()
        assert gc.get_freeze_count() > 0
    assert gc.isenabled()
    gc.disable()
    try:
        with no_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
