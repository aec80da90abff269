"""Excerpts of real launch logs: seconds since the start, N or R (how the piece ended), the text."""

from __future__ import annotations

from tests.paths import DATA

_DATA = DATA

HEALTHY = tuple(sorted(path.stem for path in (_DATA / "launch").glob("*.log")))
FAILED = tuple(sorted(path.stem for path in (_DATA / "failures").glob("*.log")))


def launch(name: str) -> list[tuple[float, bool, str]]:
    """A log as (seconds, piece, text)."""
    rows = []
    for row in (_DATA / "launch" / f"{name}.log").read_text("utf-8").split("\n"):
        if row:
            rows.append((float(row[:8]), row[9] == "R", row[11:]))
    return rows


def failure(name: str) -> list[str]:
    """A failed launch's lines."""
    with (_DATA / "failures" / f"{name}.log").open(encoding="utf-8", newline="") as file:
        return file.read().split("\n")
