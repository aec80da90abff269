"""Prometheus' text format: every line is valid, whatever the labels hold."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from deployer.exposition import METRICS, Sample, exposition

LINE = re.compile(r'([a-z_:][a-z0-9_:]*)\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\} (\S+)')


def test_samples_of_one_metric_are_together_below_their_help_and_type() -> None:
    text = exposition(
        [
            Sample("deployer_healthy", {"service": "a"}, 1),
            Sample("deployer_changes_total", {"service": "a", "outcome": "live"}, 2),
            Sample("deployer_healthy", {"service": "b"}, 0),
        ]
    )
    help_line = f"# HELP deployer_healthy {METRICS['deployer_healthy'][1]}"
    assert text.splitlines()[:4] == [
        help_line,
        "# TYPE deployer_healthy gauge",
        'deployer_healthy{service="a"} 1',
        'deployer_healthy{service="b"} 0',
    ]
    assert text.endswith('deployer_changes_total{service="a",outcome="live"} 2\n')
    assert exposition([]) == ""


def test_meanings_are_one_line_and_counters_are_called_so() -> None:
    for name, (kind, meaning) in METRICS.items():
        assert (kind == "counter") == name.endswith("_total")
        assert "\n" not in meaning
        assert "\\" not in meaning


@given(st.text(), st.floats(allow_nan=False, allow_infinity=False))
def test_any_label_is_escaped_and_reads_back(label: str, value: float) -> None:
    text = exposition([Sample("deployer_healthy", {"service": label}, value)]).split("\n", 2)[2]
    assert text.count("\n") == 1
    match = LINE.fullmatch(text.rstrip("\n"))
    assert match
    inner = match[2][len('service="') : -1]
    assert re.sub(r"\\(.)", lambda one: "\n" if one[1] == "n" else one[1], inner) == label
    assert float(match[3]) == value
