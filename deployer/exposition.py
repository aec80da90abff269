"""The metrics of deployed services in Prometheus' text format, as node_exporter's textfile collector reads it.

The host writes them at each change, `deployer metrics` prints them. The module travels to the host with the agent, so
it imports nothing of deployer and keeps to Python 3.8 and its standard library.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

#: How a change can end: the release went live, or what became of it. ``undone``: it was proven before, and stays so.
OUTCOMES = ("live", "failed", "inconclusive", "interrupted", "abandoned", "undone")
#: The type and meaning of each metric, in the order in which they are written.
METRICS = {
    "deployer_live_release_info": ("gauge", "The live release of a service, with its profile and SGLang version."),
    "deployer_live_since_timestamp_seconds": ("gauge", "When the live release was promoted, in seconds since 1970."),
    "deployer_healthy": (
        "gauge",
        "Whether the live release answered /health after the last change or action of the guard; "
        "absent if that is not known.",
    ),
    "deployer_proven_tokens_per_second": (
        "gauge",
        "Output tokens a second of the live release when it was proven, by the number of concurrent requests.",
    ),
    "deployer_last_verdict_info": ("gauge", "The last verdict of the gate, and the release that it was about."),
    "deployer_last_change_timestamp_seconds": (
        "gauge",
        "When a change, or an action of the guard, ended last, in seconds since 1970.",
    ),
    "deployer_changes_total": ("counter", "Changes that have ended, by outcome."),
    "deployer_guard_actions_total": (
        "counter",
        "What the guard (or recovery, at boot) did, by result.",
    ),
}


class Sample(NamedTuple):
    """One line: the metric's name, its labels, its value."""

    name: str
    labels: Mapping[str, str]
    value: float


def exposition(samples: Iterable[Sample]) -> str:
    """Return the samples in Prometheus' text format, those of one metric together."""
    lines: dict[str, list[str]] = {name: [] for name in METRICS}
    for name, labels, value in samples:
        pairs = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        digits = repr(float(value))
        lines[name].append(f"{name}{{{pairs}}} {digits[:-2] if digits.endswith('.0') else digits}\n")
    parts = []
    for name, (kind, meaning) in METRICS.items():
        if lines[name]:
            parts += [f"# HELP {name} {meaning}\n", f"# TYPE {name} {kind}\n", *lines[name]]
    return "".join(parts)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
