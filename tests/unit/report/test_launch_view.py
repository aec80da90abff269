from __future__ import annotations

import io
from itertools import pairwise
from typing import Any

import pytest
from rich.console import Console

from deployer.deploy.launch_progress import Estimate
from deployer.deploy.wait import WaitUpdate
from deployer.report.launch_view import LaunchView
from deployer.sglang.log.launch import LaunchLog
from deployer.text import duration
from tests.unit.sglang.log.logs import launch


def updates(name: str) -> list[WaitUpdate]:
    log = LaunchLog()
    result = []
    for t, piece, text in launch(name):
        log.feed(text, t, piece)
        state = log.state
        lines = (text,) if text.strip() else ()
        result.append(
            WaitUpdate(
                t,
                state.phase,
                state.waiting_for,
                state.spans,
                state,
                bytes_read=1 << 30,
                bytes_total=1 << 32,
                estimate=Estimate({"load": 60.0, "capture": 33.0}, "0006-tp8"),
                remaining=93.0,
                lines=lines,
            )
        )
    return result


def draw(name: str, *, live: bool, until: str = "") -> str:
    out = io.StringIO()
    console = Console(file=out, width=100, height=40, force_terminal=live, color_system=None, legacy_windows=False)
    view = LaunchView(console)
    for update in updates(name):
        view.update(update)
        if until and update.lines and until in update.lines[0]:
            break
    view.close()
    view.close()
    return out.getvalue()


def test_plain_lines_one_a_phase_change_and_no_control_characters() -> None:
    lines = draw("0.5.11-pp2", live=False).splitlines()
    assert "\x1b" not in "".join(lines)
    phases = [line[11:21].strip() for line in lines]
    seen = list(dict.fromkeys(phases))
    assert seen == ["launch", "dist-init", "load", "kv-pool", "capture", "http-up", "ready"]
    assert any("launch took 39.0 s" in line for line in lines)
    assert any("about 1 min 33 s left, from release 0006" in line for line in lines)


def test_plain_progress_comes_every_ten_seconds() -> None:
    lines = draw("0.5.11-cold", live=False).splitlines()
    times = [float(line.split(" s")[0]) for line in lines if " min " not in line[:10]]
    same_phase = [b - a for (a, b) in pairwise(times)]
    assert len(lines) < 15
    assert any(gap >= 10 for gap in same_phase)


def test_live_panel_shows_ticks_bars_estimate_and_last_line() -> None:
    text = draw("0.5.11-pp2", live=True, until="(bs=4 avail_mem=69.18 GB):  58%")
    last = text[text.rindex("✓  launch") :]
    assert "✓  load" in last
    assert "PP0" in last
    assert "PP1" in last
    assert "7/12" in last
    assert "bs 4" in last
    assert "last time 33.0 s" in last
    assert "read 1.0 GiB" not in last  # loading is over
    assert "Capturing batches (bs=4" in last
    assert "http-up" in last


def loading(**figures: Any) -> str:
    log = LaunchLog()
    log.feed("[2026-01-01 00:00:00] Load weight begin. avail mem=1.00 GB", 1.0)
    state = log.state
    out = io.StringIO()
    view = LaunchView(Console(file=out, width=100, force_terminal=True, color_system=None))
    view.update(WaitUpdate(1.0, "load", "weights", state.spans, state, bytes_total=8 << 30, **figures))
    view.close()
    return out.getvalue()


def test_without_a_bar_of_its_own_a_load_is_drawn_by_bytes() -> None:
    text = loading(bytes_read=2 << 30)
    assert "2048/8192" in text
    assert "read 2.0 GiB of 8.0 GiB (25 %)" in text
    assert "the checkpoint has 8.0 GiB" in loading(bytes_read=9 << 30)


def test_cached_weights_are_not_drawn_as_nought_per_cent() -> None:
    text = loading(bytes_read=1 << 20, cached=True)
    assert "weights come from the page cache" in text
    assert "%" not in text


def test_markup_in_log_lines_is_shown_as_it_is() -> None:
    log = LaunchLog()
    log.feed("[bold]not markup[/bold] [/oops]", 1.0)
    state = log.state
    update = WaitUpdate(1.0, "launch", "x", state.spans, state, lines=("[bold]not markup[/bold] [/oops]",))
    out = io.StringIO()
    view = LaunchView(Console(file=out, width=80, force_terminal=True, color_system=None))
    view.update(update)
    view.close()
    assert "[bold]not markup[/bold] [/oops]" in out.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.23, "4.2 s"), (59.99, "1 min 00 s"), (185.0, "3 min 05 s"), (3720.0, "1 h 02 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
