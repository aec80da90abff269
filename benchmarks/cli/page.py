"""The published tables. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.cli.measuring import Row

MARKS = ("<!-- bench-cli: begin -->", "<!-- bench-cli: end -->")


def tables(rows: Sequence[Row], stages: Sequence[Row], head: str) -> str:
    """Return both tables, below a line about machine and versions."""
    return "\n".join(
        [
            head,
            "",
            *_table("command", rows),
            "",
            "The stages of one `status`, one after the other:",
            "",
            *_table("stage", stages),
            "",
        ]
    )


def _table(title: str, rows: Sequence[Row]) -> list[str]:
    lines = [f"| {title} | median, s | min | max |", "| --- | --- | --- | --- |"]
    for row in rows:
        lines.append(f"| {row.name} | {row.median:.2f} | {min(row.seconds):.2f} | {max(row.seconds):.2f} |")
    return lines
